"""Alpha by phase in the compiled loops: programs, streams, rows, refusals."""

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  PhasedAlpha,
  Sampling,
  Stream,
  decoder,
  row_keys,
)
from speccascade.decoding.laws.phases import EXACT
from speccascade.decoding.programs import decoders
from tests import toy
from tests.decoding.test_constraints import automaton
from tests.phase_laws import MARKER

SAMPLING, LENGTH = Sampling.create(1.0), 12
# Token 3 of 8 is the marker.
THREE = automaton([[0, 0, 0, 1, 0, 0, 0, 0], [1] * 8], ends=[1])
MODELS = toy.whole()


def arguments(alpha, num=7):
  texts = toy.padded([toy.PROMPTS[i % 5] for i in range(num)])
  keys = row_keys(0, 0, jnp.arange(num))
  return *MODELS, jnp.asarray(texts), keys, alpha, SAMPLING


def make(name="spec_cascade_opt", **how):
  how = {"gamma": 2, "max_decode_len": LENGTH, "eos_id": 99} | how
  return decoder(name, **how)


def assert_same(got, want, rows=slice(None)):
  inside = np.arange(LENGTH) < np.asarray(want.lengths)[rows, None]
  for mine, other in (
    (got.tokens, want.tokens),
    (got.trace.extra["phase"], want.trace.extra["phase"]),
  ):
    mine, other = np.asarray(mine), np.asarray(other)[rows]
    np.testing.assert_array_equal(mine[inside], other[inside])
  for name, counted in got.stats.extra.items():
    np.testing.assert_array_equal(counted, want.stats.extra[name][rows])


def test_streams_and_refilled_rows_have_the_phases_of_whole_batches():
  alpha, how = PhasedAlpha.of(0.4, EXACT, THREE), make(trace=True)
  call = arguments(alpha)
  whole = how(*call)
  by_phase = np.asarray(whole.stats.extra["tokens_by_phase"])
  assert np.all(by_phase.sum(0) > 5)
  assert_same(toy.finish(Stream(how, *call)), whole)
  for places, part in toy.refilled(how, *call, rows=3):
    assert_same(part, whole, places)


def test_each_turn_begins_before_the_marker():
  alpha, how = PhasedAlpha.of(0.4, EXACT, THREE), make(trace=True)
  stream = Stream(how, *arguments(alpha), room=4 * LENGTH)
  first = toy.finish(stream)
  done = np.asarray(first.stats.extra["tokens_by_phase"])[:, 1] > 0
  assert done.any()
  # A marker among the external tokens is not one of the text.
  stream.turn(np.full((7, 2), 3), row_keys(1, 0, jnp.arange(7)))
  second = toy.finish(stream)
  phase = np.asarray(second.trace.extra["phase"])
  assert not phase[:, 0].any()
  written = np.asarray(second.tokens) == 3
  before = np.cumsum(written, axis=1) - written > 0
  np.testing.assert_array_equal(phase, before)


def test_other_alphas_compile_nothing():
  how = make(max_decode_len=5)
  run = lambda *phases: how(*arguments(PhasedAlpha.of(*phases, THREE)))
  run(0.3, EXACT)
  size = decoders._run._cache_size()
  outputs = [run(*x) for x in ((EXACT, 0.3), (0.1, 0.7), (-0.5, EXACT))]
  assert decoders._run._cache_size() == size
  assert len({np.asarray(x.tokens).tobytes() for x in outputs}) > 1
  # Another marker with as many states is data, too.
  other = automaton([[1, 0, 0, 0, 0, 0, 0, 0], [1] * 8], ends=[1])
  how(*arguments(PhasedAlpha.of(0.3, EXACT, other)))
  assert decoders._run._cache_size() == size
  # A single alpha has a program without phases.
  plain = how(*arguments(0.3))
  assert decoders._run._cache_size() == size + 1
  assert "tokens_by_phase" not in plain.stats.extra


@pytest.mark.parametrize(
  "name",
  toy.nightly(
    ["spec_cascade_token_v3", "spec_decode_lossy"], ["spec_cascade_token_v3"]
  ),
)
def test_one_alpha_in_both_phases_is_that_alpha(name):
  how = make(name, trace=True, tree=(2, 2))
  plain = how(*arguments(0.4))
  same = how(*arguments(PhasedAlpha.of(0.4, 0.4, THREE)))
  np.testing.assert_array_equal(same.tokens, plain.tokens)
  np.testing.assert_array_equal(same.trace.deferred, plain.trace.deferred)
  np.testing.assert_array_equal(same.trace.left, plain.trace.left)


@pytest.mark.slow
def test_methods_of_a_family_share_a_program_of_phases():
  alpha = PhasedAlpha.of(0.3, EXACT, THREE)
  names = ("spec_cascade_token_v3", "spec_decode_lossy")
  for name in names:
    alone = make(name, max_decode_len=5)(*arguments(alpha))
    size = decoders._run._cache_size()
    shared = make(name, max_decode_len=5, shared=True)(*arguments(alpha))
    np.testing.assert_array_equal(shared.tokens, alone.tokens)
    assert decoders._run._cache_size() <= size + (name == names[0])


@pytest.mark.parametrize(
  ("name", "alpha", "message"),
  [
    ("bild", (1.0, 2.0), "BiLD decides on whole blocks, not on tokens"),
    ("seq_cascade_chow", (0.1, 0.2), "Chow] decides on whole texts"),
    ("spec_decode", (0.1, 0.2), "SpecDecode takes no alpha"),
    ("verifier", (0.1, EXACT), "Large model takes no alpha"),
    (
      "spec_decode_lossy",
      (0.1, 1.0),
      r"alpha after the marker is 1; SpecDecode \[Lossy\] takes",
    ),
    ("spec_decode_lossy", (-0.1, EXACT), "alpha before the marker is -0.1"),
  ],
)
def test_what_has_no_phases_is_refused_in_one_line(name, alpha, message):
  with pytest.raises(ValueError, match=message) as error:
    make(name)(*arguments(PhasedAlpha.of(*alpha, THREE)))
  assert "\n" not in str(error.value)


def test_a_marker_of_other_tokens_is_refused():
  alpha = PhasedAlpha.of(0.1, EXACT, MARKER)
  with pytest.raises(ValueError, match="marker has 3 tokens, and the models"):
    make()(*arguments(alpha))
  with pytest.raises(ValueError, match="both phases are 'exact'"):
    PhasedAlpha.of(EXACT, EXACT, MARKER)


@pytest.mark.slow
def test_a_greedy_row_is_what_each_phase_alone_writes():
  # Up to the marker the tokens are those of one alpha, and after it those that
  # the verifier writes for the same prefix.
  how = {"gamma": 2, "max_decode_len": LENGTH, "eos_id": 99}
  name, (drafter, verifier) = "spec_cascade_opt", MODELS
  texts = toy.padded(toy.PROMPTS)
  greedy = lambda method, alpha, inputs: toy.decode(
    method,
    (None if method == "verifier" else drafter, verifier),
    alpha,
    inputs=jnp.asarray(inputs),
    **(how if method == name else how | {"gamma": 1}),
  )
  lossy = greedy(name, 0.9, texts)
  marked = int(np.bincount(lossy.tokens[:, :4].ravel()).argmax())
  moves = np.zeros((2, 8), int)
  moves[0, marked], moves[1] = 1, 1
  alpha = PhasedAlpha.of(0.9, EXACT, automaton(moves, ends=[1]))
  got = greedy(name, alpha, texts)
  seen = 0
  for row, text in enumerate(toy.PROMPTS):
    found = np.flatnonzero(lossy.tokens[row] == marked)
    end = found[0] + 1 if len(found) else LENGTH
    np.testing.assert_array_equal(
      got.tokens[row, :end], lossy.tokens[row, :end]
    )
    if end < LENGTH:
      whole = toy.padded([(*text, *lossy.tokens[row, :end].tolist())], width=20)
      rest = greedy("verifier", 0.0, whole).tokens[0, : LENGTH - end]
      np.testing.assert_array_equal(got.tokens[row, end:], rest)
      seen += 1
  assert seen
