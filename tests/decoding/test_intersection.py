"""A drafter of another vocabulary: what it proposes, and outputs with it."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  AutoregressiveDrafter,
  Sampling,
  row_keys,
)
from speccascade.decoding.programs import decoders
from speccascade.judge import goodness
from speccascade.models.intersection import IntersectionLM, with_inputs
from speccascade.models.markov_lm import MarkovLM
from tests import method_laws, toy, toy_chains
from tests.decoding import driving, enumeration
from tests.decoding.drafting import models

# The verifier's ids 0 (where rows start), 1 (EOS) and 2 are the drafter's 0, 3
# and 5. It lacks 3, which it reads as its 2, and 4, read as 1, which only
# prompts have. Its own 1, 2 and 4 are not tokens of the verifier.
V = 5
TO_DRAFTER = np.array([0, 3, 5, 2, 1], np.int32)
SHARED = np.array([True, True, True, False, False])
RNG = np.random.default_rng(17)
DRAFTER = RNG.normal(0, 1.1, (6, 6, 6))
VERIFIER = RNG.normal(0, 1.2, (V, V, V))
VERIFIER[..., 4] = VERIFIER[2, 0, 0] = -np.inf
DRAFTER[..., 3] = np.clip(DRAFTER[..., 3], -1, 0.5)
VERIFIER[..., toy_chains.EOS] = np.clip(VERIFIER[..., toy_chains.EOS], -1, 0.5)
# How a prompt ends for the verifier, and as the drafter reads it.
PROMPT, PROMPT_END = (4, 4), (5, 4)


def restricted(row):
  """Returns [V] logits of the drafter's [6], over the verifier's ids."""
  return np.where(SHARED, row[TO_DRAFTER], -np.inf)


def q_logits(prompt_end=()):
  """Returns the drafter's table over contexts of the verifier."""
  table = np.empty((V, V, V))
  for a, b in np.ndindex(V, V):
    read = [TO_DRAFTER[a], TO_DRAFTER[b]]
    # 4 stands in prompts alone: what was before it is known too.
    if prompt_end and a == 4:
      read = prompt_end if b == 4 else [prompt_end[1], TO_DRAFTER[b]]
    table[a, b] = restricted(DRAFTER[*read])
  return table


@dataclasses.dataclass(frozen=True, eq=False)
class OtherPair(toy.Pair):
  """A pair whose drafter has a vocabulary of its own."""

  def models(self, dtype=jnp.float32):
    table = jnp.asarray(DRAFTER, dtype)[None]
    lm = MarkovLM(table, prompted=bool(self.prompt))
    maps = jnp.asarray(TO_DRAFTER), jnp.asarray(SHARED)
    return IntersectionLM(lm, *maps), super().models(dtype)[1]


PLAIN = OtherPair(q_logits(), VERIFIER)
PROMPTED = OtherPair(q_logits(PROMPT_END), VERIFIER, PROMPT)


def read_by_drafter(num):
  """Returns [num, 6], the drafter's own ids of prompts, ragged as they like."""
  rows = toy.padded([(3, 1, 0, 2)[:n] + PROMPT_END for n in range(5)], width=7)
  return jnp.asarray(rows[np.arange(num) % 5])


def decode(name, alpha, sampling, num, rows=slice(None), **options):
  """Decodes some of so many prompts, which the drafter reads in its own ids."""
  drafter, verifier = PROMPTED.models()
  return toy.decode(
    name,
    (with_inputs(drafter, read_by_drafter(num)[rows]), verifier),
    alpha,
    sampling,
    inputs=PROMPTED.inputs(num)[rows],
    keys=row_keys(0, 0, jnp.arange(num)[rows]),
    **{"gamma": 2, "max_decode_len": 3} | options,
  )


def test_q_is_the_law_over_shared_tokens_filtered():
  drafter = AutoregressiveDrafter(PLAIN.models()[0], 3)
  sampling = Sampling.create(0.8, top_k=2, top_p=0.9)
  inputs = jnp.ones((64, 1), jnp.int32)
  actual = models.propose(drafter, inputs, sampling, needs_bonus_law=True)
  assert SHARED[actual.tokens].all()
  assert not actual.bad.any()
  num_kept = []
  for row, drafted in enumerate(np.asarray(actual.tokens)):
    read = [0, 0, *TO_DRAFTER[drafted]]
    for i in range(4):
      logits = restricted(DRAFTER[read[i], read[i + 1]])
      # The likeliest two of those that are shared, and of these two what the
      # filter keeps.
      law = np.exp(logits / 0.8)
      law[np.argsort(law)[:-2]] = 0
      if law.max() >= 0.9 * law.sum():
        law[law < law.max()] = 0
      num_kept.append((law > 0).sum())
      for table, expected in ((actual.q, law), (actual.q1, np.exp(logits))):
        expected = expected / expected.sum()
        np.testing.assert_allclose(table[row, i], expected, atol=1e-6)
  assert set(num_kept) == {1, 2}


# With alphas at which pi is neither model's distribution.
RULES = {"spec_decode": 0.0, "spec_cascade_opt": 0.3, "ensemble": 0.5}


def laws(name, pair=PROMPTED, **settings):
  """Returns the `method_laws.MethodLaws` of a method."""
  target, sampling = METHODS[name].target, Sampling.create(**settings)
  return method_laws.laws(pair, target, RULES[name], sampling)


@pytest.mark.parametrize("name", RULES)
def test_exact_law(name):
  """Each target's distribution, q over shared tokens; lossless: p's."""
  law = laws(name, temperature=0.7)
  expected = toy_chains.chain_law(PROMPTED, law.pi, 3)
  # What only the verifier has is written, and under the rules pi differs from
  # p.
  assert law.p[:, 3].max() > 0.2
  far = goodness.tv(expected, toy_chains.chain_law(PROMPTED, law.p, 3))
  assert far < 1e-12 if name == "spec_decode" else far > 0.02
  for way in ("token", "block"):
    enumeration.assert_law(PROMPTED, law, 2, 3, verification=way)


def test_every_path_of_the_compiled_loop(monkeypatch):
  name, sampling, length = "spec_decode", Sampling.create(1.0), 3
  law = laws(name, PLAIN, temperature=1.0)
  block = enumeration.block(PLAIN, law, 1)
  ways = driving.cells(PLAIN, law, block, "token")
  paths = driving.paths(PLAIN, lambda _: ways, length)
  assert abs(sum(path.weight for path in paths) - 1) < 1e-3
  assert any(3 in path.tokens[:-1] for path in paths)
  options = {"eos_id": toy_chains.EOS, "gamma": 1, "max_decode_len": length}
  decoder, tables = decoders.decoder(name, **options), driving.tables(paths, 1)
  for actual in driving.run(decoder, PLAIN, tables, 0.0, sampling, monkeypatch):
    written = zip(actual.tokens.tolist(), actual.lengths)
    assert [tuple(x[:n]) for x, n in written] == [path.tokens for path in paths]


@pytest.mark.parametrize(
  "name",
  toy.nightly(("drafter", "spec_cascade_opt", "spec_decode"), ["drafter"]),
)
def test_samples_have_the_exact_law(name):
  """On prompts that the drafter reads in its own ids."""
  num, settings, alpha = 20_000, {"temperature": 0.9}, RULES.get(name, 0.0)
  sampling, is_drafter = Sampling.create(**settings), name == "drafter"
  of = "spec_decode" if is_drafter else name
  law, mapped = (laws(of, pair, **settings) for pair in (PROMPTED, PLAIN))
  pick = lambda law: law.q if is_drafter else law.pi
  right = toy_chains.chain_law(PROMPTED, pick(law), 3)
  wrong = [toy_chains.chain_law(PROMPTED, law.p if is_drafter else law.q, 3)]
  if name != "spec_decode":  # the prompt read token by token
    wrong.append(toy_chains.chain_law(PROMPTED, pick(mapped), 3))
  actual = decode(name, alpha, sampling, num)
  seen = toy.counts(actual, V, 3)
  assert goodness.p_value(seen, right) > toy.LEVEL
  assert all(goodness.p_value(seen, law) < toy.LEVEL for law in wrong)
  if name != "spec_decode":  # and rows are what they are among others
    order = np.arange(num)[::-1] - num // 2
    others = decode(name, alpha, sampling, num, rows=order)
    np.testing.assert_array_equal(others.tokens, actual.tokens[order])


@pytest.mark.slow
@pytest.mark.parametrize(
  ("drawing", "verification"),
  [("greedy_and_random", "token"), ("without_replacement", "traversal")],
)
def test_sampled_trees_have_the_exact_law(drawing, verification):
  """The fourth child is a token that the drafter does not have."""
  name, num, settings = "ensemble", 20_000, {"temperature": 0.9}
  law = laws(name, **settings)
  actual = decode(
    name,
    RULES[name],
    Sampling.create(**settings),
    num,
    tree=(4, 1),
    drawing=drawing,
    verification=verification,
  )
  seen = toy.counts(actual, V, 3)
  right = toy_chains.chain_law(PROMPTED, law.pi, 3)
  assert goodness.p_value(seen, right) > toy.LEVEL
  assert actual.stats.extra["accepted_by_rank"][:, 0, 3].sum() > 0


@pytest.mark.slow
def test_greedy_is_the_verifiers():
  options = {"gamma": 1, "max_decode_len": 8}
  actual = decode("spec_decode", 0.0, toy.GREEDY, 5, **options)
  before, last, tokens = *PROMPT, []
  while len(tokens) < 8 and tokens[-1:] != [toy_chains.EOS]:
    before, last = last, int(VERIFIER[before, last].argmax())
    tokens.append(last)
  assert len(set(tokens)) > 2
  for row, length in zip(actual.tokens, actual.lengths):
    assert row[:length].tolist() == tokens


def test_a_tree_is_read_in_the_drafters_ids_and_one_path_kept():
  # The root is fed as the end of the drafter's own prompt; 3 and 2 follow it.
  parents = jnp.asarray([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool)
  of_rows = lambda x: jnp.broadcast_to(jnp.asarray(x), (2, *np.shape(x)))
  two = of_rows(2)

  @jax.jit
  def read(lm, inputs):
    state = lm.prefill(inputs, capacity=8)
    tree = {"depth": of_rows([0, 1, 1]), "ancestors": of_rows(parents)}
    tokens = of_rows(jnp.array([4, 3, 2], jnp.int32))
    fed, out = lm.extend(state, tokens, two + 1, **tree)
    shorter = lm.keep(fed, state.length, of_rows([0, 1]), two)
    after = [
      lm.extend(state, of_rows([0]), two - 1)[1]
      for state in (shorter, lm.rewind(shorter, two - 1))
    ]
    return jnp.concatenate([x.logits for x in (out, *after)], axis=1)

  lm = PROMPTED.models()[0].replace(inputs=read_by_drafter(2))
  actual = read(lm, PROMPTED.inputs(2))
  contexts = (
    PROMPT_END,
    (PROMPT_END[1], 2),
    (PROMPT_END[1], 5),
    (2, 0),
    (PROMPT_END[1], 0),
  )
  for at, context in enumerate(contexts):
    expected = np.broadcast_to(restricted(DRAFTER[*context]), (2, V))
    np.testing.assert_allclose(actual[:, at], expected, rtol=1e-6)


class ReadLM(MarkovLM):
  """A chain whose state is what it was given to read."""

  def prefill(self, inputs, *, capacity):
    return inputs


@pytest.mark.parametrize(
  ("prompted", "inputs", "want"),
  [
    # Padding stays what it is: a prompt's -1 is not an index from the end, and
    # 0 is a token in a prompt and padding in a source, whatever the drafter's
    # is.
    (True, [[-1, 0, 4, -1], [2, 3, 0, 4]], [[-1, 6, 1, -1], [5, 2, 6, 1]]),
    (False, [[4, 3, 1, 0], [2, 1, 0, 0]], [[1, 2, 3, 0], [5, 3, 0, 0]]),
  ],
)
def test_inputs_are_read_token_by_token_but_for_padding(prompted, inputs, want):
  lm = ReadLM(jnp.zeros((1, 7, 7)), prompted=prompted)
  to_drafter = jnp.array([6, 3, 5, 2, 1], jnp.int32)
  joined = IntersectionLM(lm, to_drafter, jnp.asarray(SHARED))
  state = joined.prefill(jnp.array(inputs, jnp.int32), capacity=4)
  assert state.drafter.tolist() == want
  assert state.first.tolist() == ([1, 1] if prompted else [0, 0])


def test_a_slot_takes_what_its_model_has_for_it():
  lm = types.SimpleNamespace(slot_bytes=96, module="a network")
  maps = jnp.asarray(TO_DRAFTER), jnp.asarray(SHARED)
  joined = IntersectionLM(lm, *maps)
  assert (joined.slot_bytes, joined.module) == (96, "a network")
  table = PLAIN.models()[0]
  assert (table.slot_bytes, table.module) == (0, None)


def test_own_inputs_are_of_as_many_rows():
  message = r"inputs of the drafter has shape \[3, 7\]; wanted \[4, 7\]"
  with pytest.raises(ValueError, match=message):
    PROMPTED.models()[0].replace(inputs=read_by_drafter(3)).prefill(
      PROMPTED.inputs(4), capacity=4
    )
