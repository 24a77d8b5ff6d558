"""Nested drafters in the loop: greedy, to the limit, rows apart, caches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  AutoregressiveDrafter,
  HorizontalDrafter,
  MaxGramDrafter,
  Sampling,
  VerticalDrafter,
  cascade_drafter,
  decoder,
  row_keys,
)
from tests.decoding.drafters import models

V = 6
SOURCES = 48
GREEDY = Sampling.create(0.0)
THREE = [[2, 2, 2], [0, 1, 2], [0, 0, 2]]


def copier(vocab_size):
  table = (np.arange(vocab_size) * 5 + 2) % vocab_size
  return MaxGramDrafter.create(table, width=1, vocab_size=vocab_size)


def audited(seed, sources=SOURCES, vocab_size=V, **how):
  return models.AuditedLM(models.tables(seed, sources, vocab_size, **how))


def keys(num):
  return row_keys(0, 0, jnp.arange(num))


@pytest.mark.parametrize(
  ("matrix", "neural", "lenience", "max_decode_len"),
  [(THREE, 2, 5.0, 11), ([[3, 4], [0, 3]], 1, 1.0, 3), ([[1]], 1, 1.0, 1)],
)
def test_greedy_is_the_verifiers_up_to_the_last_slot(
  matrix, neural, lenience, max_decode_len
):
  decode = decoder(
    "cascade_drafting", gamma=1, max_decode_len=max_decode_len, eos_id=1
  )
  bottom = copier(V) if len(matrix) > neural else None
  for eos in (False, True):
    how = {"eos": eos, "likeness": 0.8}
    drafters = [audited(seed, **how) for seed in range(1, neural + 1)]
    drafter = cascade_drafter(drafters, bottom, matrix, lenience=lenience)
    verifier = audited(0, **how)
    out = decode(
      drafter, verifier, models.sources(SOURCES), keys(SOURCES), 0.0, GREEDY
    )
    tokens, length = models.greedy_tokens(verifier.table, max_decode_len)
    assert np.all(np.asarray(out.bad_step) == -1)
    np.testing.assert_array_equal(out.tokens, tokens)
    np.testing.assert_array_equal(out.lengths, length)
    if not eos:
      assert np.all(length == max_decode_len)
    if max_decode_len > 10:
      # Blocks end everywhere: at each number of accepted drafts.
      assert np.all(np.asarray(out.stats.accepted_at).sum(0) > 0)


def test_what_the_verifier_itself_reviewed_is_always_accepted():
  """So it is only if every cache holds the prefix, and every law its place.

  The block is: two tokens reviewed by the verifier's twin, one of another
  drafter, two more of the twin, drafted anew.
  """
  sampling = Sampling.create(1.0)
  how = {"eos": False, "likeness": 0.7}
  verifier, small = audited(0, **how), audited(1, **how)

  def twin(width):
    inner = AutoregressiveDrafter(small, 3)
    return VerticalDrafter(inner, verifier, jnp.float32(0), width)

  drafter = HorizontalDrafter(
    (twin(2), AutoregressiveDrafter(small, 1), twin(1), copier(V))
  )
  decode = decoder("spec_decode", gamma=1, max_decode_len=20, eos_id=1)
  out = decode(
    drafter, verifier, models.sources(SOURCES), keys(SOURCES), 0.0, sampling
  )
  assert np.all(np.asarray(out.bad_step) == -1)
  examined = np.asarray(out.stats.examined_by_position).sum(0)
  accepted = np.asarray(out.stats.accepted_by_position).sum(0)
  assert np.all(accepted[[0, 1, 3]] == examined[[0, 1, 3]])
  assert np.all(accepted[[2, 4]] < examined[[2, 4]])
  assert accepted[4] > 0


def test_drafts_of_the_reviewers_twin_are_never_cut():
  """The inner drafter's cache, too: a round writes its block and one more.

  Between proposals another verifier takes and rewrites what it likes.
  """
  how = {"eos": False, "likeness": 0.7}
  medium = audited(1, **how)
  inner = AutoregressiveDrafter(medium, 2)
  drafter = VerticalDrafter(inner, medium, jnp.float32(0), 5)
  decode = decoder("spec_decode", gamma=1, max_decode_len=20, eos_id=1)
  out = decode(
    drafter,
    audited(0, **how),
    models.sources(SOURCES),
    keys(SOURCES),
    0.0,
    Sampling.create(1.0),
  )
  stats = out.stats
  blocks = np.asarray(stats.num_blocks)
  # 5 tokens are two rounds of 2 + 1; each is a review and two drafted tokens,
  # of which the first pass also reads what is new.
  np.testing.assert_array_equal(stats.calls_by_model[:, 0], 2 * blocks)
  np.testing.assert_array_equal(stats.calls_by_model[:, 1], 4 * blocks)
  assert 0 < int(stats.accepted.sum()) < int(stats.examined.sum())


def test_a_row_alone_equals_the_row_in_the_batch():
  num = 5
  how = {"sources": num, "likeness": 0.7}
  drafter = cascade_drafter(
    (audited(1, **how),), copier(V), [[2, 3], [0, 3]], lenience=3.0
  )
  verifier = audited(0, **how)
  decode = decoder("cascade_drafting", gamma=1, max_decode_len=12, eos_id=1)
  sampling = Sampling.create(0.8)
  inputs = models.sources(num)
  together = decode(drafter, verifier, inputs, keys(num), 0.0, sampling)
  assert len(set(np.asarray(together.stats.num_blocks).tolist())) > 1
  for row in range(num):
    one = slice(row, row + 1)
    alone = decode(
      drafter, verifier, inputs[one], keys(num)[one], 0.0, sampling
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b[one], rtol=1e-6),  # noqa: B023
      alone,
      together,
    )


def test_lenience_and_temperature_are_traced_and_finished_rows_are_idle():
  traces = []

  @jax.jit
  def proposal(drafter, verifier_keys, sampling):
    traces.append(1)
    inputs = models.sources(3)
    state = drafter.prefill(inputs, capacity=8)
    active = jnp.asarray([True, False, True])
    return drafter.propose(
      state,
      jnp.zeros((3, 8), jnp.int32),
      jnp.ones((3,), jnp.int32),
      verifier_keys,
      sampling,
      bonus_law=False,
      active=active,
    )[1]

  for lenience, temperature in ((3.0, 1.0), (5.0, 0.7)):
    drafter = cascade_drafter(
      (audited(1, sources=3),), copier(V), [[2, 2], [0, 2]], lenience=lenience
    )
    out = proposal(drafter, keys(3), Sampling.create(temperature))
    calls = np.asarray(out.calls)[:, 0]
    assert calls[1] == 0
    assert np.all(calls[[0, 2]] >= 1)
  assert len(traces) == 1
