"""Rows that choose their own gammas: outputs, and that they choose alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  AdaptiveDrafter,
  Decoder,
  Sampling,
  Stream,
  decoder,
  row_keys,
)
from speccascade.decoding.drafting import draft_pace
from speccascade.decoding.drafting.draft_pace import Pace, PaceCosts
from tests import method_laws, toy, toy_chains
from tests.decoding import driving, enumeration
from tests.decoding.test_exact_laws import telling_alpha

# Rounds of 0, 1, 2, 3, 5 and 8 drafts.
COSTS = (1.0, 1.3, 1.5, 1.8, 2.3, 3.0)
PAIR = toy.pair(3, 2)


def costs(rounds=COSTS, catch_up=0.3):
  return PaceCosts(jnp.asarray(rounds, jnp.float32), jnp.float32(catch_up))


def adaptive(model, rounds=COSTS, sizes=draft_pace.SIZES, **options):
  return AdaptiveDrafter.of(model, costs(rounds, **options), sizes)


def from_one(model):
  """Returns a drafter for a target that reads q."""
  return adaptive(model, COSTS[1:], draft_pace.SIZES[1:])


# Distributions. Each execution with blocks is the speculative one.


class Chains:
  """The pair of the enumeration, with a drafter that chooses its gammas."""

  def __init__(self, drafter):
    self.inputs, self.drafter = PAIR.inputs, drafter

  def models(self):
    return self.drafter, PAIR.models()[1]


def gammas_of(drafter):
  """Returns a function from what past blocks wrote to the next gamma."""
  bonus = int(0 not in drafter.sizes)

  @functools.cache
  def gamma(emitted: tuple[int, ...]) -> int:
    pace, length = Pace.zeros(1), 1
    for num in (*emitted, 0):
      now = jnp.full((1,), length, jnp.int32)
      pace = pace.next(drafter.costs, drafter.sizes, now)
      pace = pace.draft(now, pace.gamma + bonus - 1)
      length += num
    return int(pace.gamma[0])

  return gamma


def without_drafts(law):
  """Returns the cells of a round that draws one token of the target."""
  low, high = driving.cell_of(law.pi)
  cells = {context: [] for context in range(PAIR.num_contexts)}
  for context, token in np.argwhere(law.pi > driving.NARROW):
    edges = np.full((2, 3, 1), 0.5)
    edges[:, driving.DRAW, 0] = low[context, token], high[context, token]
    cells[context].append(
      driving.Cell(
        law.pi[context, token], context, 0, 0, 0, (int(token),), *edges
      )
    )
  return cells


def cells_of(law, gamma, verification):
  if not gamma:
    return without_drafts(law)
  block = enumeration.block(PAIR, law, gamma, verification=verification)
  return driving.cells(PAIR, law, block, verification)


# Costs at which a toy's few blocks change the gamma, of three sizes.
LAWS = {
  "token": ("spec_decode", (0, 1, 2), (1.0, 1.55, 2.05)),
  "block": ("spec_decode", (0, 1, 2), (1.0, 1.55, 2.05)),
  "traversal": ("spec_cascade_opt", (1, 2, 3), (1.5, 1.98, 2.35)),
}


@pytest.mark.parametrize("verification", LAWS)
def test_every_path_has_its_probability_and_its_gammas(
  verification, monkeypatch
):
  name, sizes, rounds = LAWS[verification]
  length = 4 if sizes[0] else 5
  alpha, sampling = telling_alpha(name, 3, 2), Sampling.create(1.0)
  law = method_laws.laws(PAIR, METHODS[name].target, alpha, sampling)
  drafter = adaptive(PAIR.models()[0], rounds, sizes)
  step = "token" if verification == "token" else "block"
  cells = {gamma: cells_of(law, gamma, step) for gamma in sizes}
  gamma_of = gammas_of(drafter)
  rows = driving.paths(PAIR, lambda past: cells[gamma_of(past)], length)
  emitted = [[len(new) for _, new in path.rounds] for path in rows]
  gammas = [
    [gamma_of(tuple(past[:num])) for num in range(len(past))]
    for past in emitted
  ]
  assert {gamma for of_row in gammas for gamma in of_row} == set(sizes)
  # The paths add up to the distribution of the target's chain.
  weights = dict.fromkeys(toy_chains.sequences(3, length), 0.0)
  for path in rows:
    weights[path.tokens] += path.weight
  expected = toy_chains.chain_law(PAIR, law.pi, length)
  np.testing.assert_allclose([*weights.values()], expected, atol=1e-3)
  # The program follows each path, with the gammas that its own past gives.
  program = decoder(
    name,
    gamma=sizes[-1],
    max_decode_len=length,
    eos_id=toy_chains.EOS,
    verification=verification,
    trace=True,
  )
  edges = driving.tables(rows, sizes[-1])
  for decoded in driving.run(
    program, Chains(drafter), edges, alpha, sampling, monkeypatch
  ):
    for row, (path, of_row) in enumerate(zip(rows, gammas)):
      written = decoded.lengths[row]
      assert tuple(decoded.tokens[row, :written]) == path.tokens
      recorded = decoded.trace.extra["gamma"][row, :written]
      assert recorded.tolist() == np.repeat(of_row, emitted[row]).tolist()
      assert decoded.stats.num_blocks[row] == len(of_row)
      assert decoded.stats.drafted[row] == sum(of_row)


# Rows are independent.


def alike(got, want):
  """Asserts that two decodes agree in all that a row has up to its end."""
  inside = np.arange(want.tokens.shape[1])[None] < want.lengths[:, None]
  for mine, other in ((got, want), (got.stats, want.stats)):
    for field, value in vars(other).items():
      if isinstance(value, np.ndarray):
        np.testing.assert_array_equal(getattr(mine, field), value, field)
  mine_by_name = got.trace.by_name()
  for field, value in want.trace.by_name().items():
    mine = mine_by_name[field]
    np.testing.assert_array_equal(mine[inside], value[inside], field)


CASES = [
  ("spec_decode", "token", 1.0),
  ("spec_cascade_opt", "block", 1.0),
  ("spec_decode", "block", 1.0),
  ("spec_decode", "token", 0.0),
]


@pytest.mark.parametrize(
  ("name", "verification", "temperature"), toy.nightly(CASES, CASES[:2])
)
def test_a_row_alone_is_that_row_in_a_batch_refilled_and_in_pieces(
  name, verification, temperature
):
  num, sizes, rounds = 12, (0, 1, 4), (1.0, 1.55, 2.4)
  drafter, verifier = toy.sources(num, eos=-3)
  if name != "spec_decode":
    sizes, rounds = (1, 2, 4), (1.55, 2.0, 2.9)
  drafter = adaptive(drafter, rounds, sizes)
  program = decoder(
    name,
    gamma=4,
    max_decode_len=24,
    eos_id=toy_chains.EOS,
    verification=verification,
    trace=True,
  )
  inputs = np.arange(1, num + 1, dtype=np.int32)[:, None]
  keys = row_keys(0, 0, np.arange(num))
  point = 0.3, Sampling.create(temperature)
  alone = [
    program(drafter, verifier, inputs[[row]], keys[np.array([row])], *point)
    for row in range(num)
  ]
  alone = jax.tree.map(lambda *x: np.concatenate(x), *alone)
  inside = np.arange(24)[None] < alone.lengths[:, None]
  assert set(alone.trace.extra["gamma"][inside].tolist()) == set(sizes)
  # In a batch a row takes the slot of another one, and nothing of its past.
  call = (drafter, verifier, inputs, keys, *point)
  for places, part in toy.refilled(program, *call, rows=5, refill=2):
    alike(part, jax.tree.map(lambda x, at=places: x[at], alone))
  stream = Stream(program, *call)
  alike(jax.device_get(toy.finish(stream, rounds=2)), alone)
  if not temperature:
    greedy = toy.decode("verifier", (None, verifier), inputs=inputs, keys=keys)
    np.testing.assert_array_equal(alone.tokens[:, :10], greedy.tokens)


def test_a_row_alone_is_that_row_beside_others_turn_after_turn():
  num, limit, sizes = 16, 24, (0, 1, 2, 4)
  drafter, verifier = toy.whole()
  choosing = adaptive(drafter, (1.0, 1.45, 1.8, 2.6), sizes, catch_up=0.3)
  program = Decoder(
    METHODS["spec_decode"],
    gamma=4,
    max_decode_len=limit,
    eos_id=1,
    trace=True,
  )
  rng = np.random.default_rng(0)
  inputs = rng.integers(2, 8, (num, 3)).astype(np.int32)
  more = [rng.integers(2, 8, (num, 2)).astype(np.int32) for _ in range(2)]

  def talk(rows):
    keys = [row_keys(0, turn, rows) for turn in range(3)]
    stream = Stream(
      *(program, choosing, verifier, inputs[rows], keys[0]),
      *(0.0, Sampling.create(1.0)),
      room=120,
    )
    decoded = []
    for turn in range(3):
      if turn:
        stream.turn(more[turn - 1][rows], keys[turn])
      decoded.append(jax.device_get(toy.finish(stream, rounds=3)))
    return decoded

  together = talk(np.arange(num))
  for row in range(3):
    for alone, batch in zip(talk(np.array([row])), together, strict=True):
      alike(alone, jax.tree.map(lambda x, at=row: x[[at]], batch))


# What was missed.


def test_a_row_that_drafts_again_has_read_what_it_missed(monkeypatch):
  # Rows draft after so many rounds without that a pass does not read them all.
  monkeypatch.setattr(draft_pace, "TRIAL_SHARE", 0.2)
  num, length, size = 4, 100, 6
  # Every distribution depends on all tokens that were read.
  rng = np.random.default_rng(0)
  drafter, verifier = (
    toy.WholeLM(jnp.asarray(rng.normal(0, 1.5, (101, size)), jnp.float32))
    for _ in range(2)
  )
  choosing = adaptive(drafter, (1.0, 1.6, 2.0), (0, 1, 2), catch_up=0.1)
  program = Decoder(
    METHODS["spec_decode"],
    gamma=2,
    max_decode_len=length,
    eos_id=size,  # no token
    trace=True,
    log_probs=True,
  )
  inputs, keys = np.arange(num)[:, None], row_keys(0, 0, np.arange(num))
  inputs = inputs.astype(np.int32)
  jax.clear_caches()
  out = jax.device_get(
    program(choosing, verifier, inputs, keys, 0.0, Sampling.create(1.0))
  )
  jax.clear_caches()
  assert np.all(out.bad_step < 0)
  # Gammas of 0 for longer than a chain's own first pass reads, then drafts.
  idle = "".join(
    "01"[int(gamma > 0)] for gamma in out.trace.extra["gamma"].ravel()
  )
  assert "000000001" in idle
  # The distribution of every draft is the drafter's, given all the tokens
  # before it.
  fed = np.concatenate([inputs, out.tokens], axis=1)[:, :-1]
  state = drafter.prefill(inputs, capacity=length)
  _, alone = drafter.extend(state, fed, np.full(num, length, np.int32))
  laws = jax.nn.log_softmax(alone.logits, axis=-1)
  wanted = np.take_along_axis(laws, out.tokens[..., None], -1)[..., 0]
  known = ~np.isnan(out.log_probs.q1)
  assert known.sum() > 20
  np.testing.assert_allclose(out.log_probs.q1[known], wanted[known], atol=1e-5)
  # A pass reads `CATCH_UP_WIDTH` tokens, and each gamma takes as many passes.
  assert np.all(out.stats.drafter_calls > out.stats.drafted)


# What is refused.


def test_what_would_have_no_law_is_refused():
  drafter, verifier = PAIR.models()
  inputs, keys = PAIR.inputs(1), row_keys(0, 0, np.arange(1))

  def call(name, drafter, **settings):
    how = {"gamma": 8, "max_decode_len": 4, "eos_id": 1} | settings
    program = decoder(name, **how)
    program.check(drafter, verifier, 0.3, Sampling.create(1.0))
    return inputs, keys

  with pytest.raises(ValueError, match="sizes from 1 on"):
    call("spec_cascade_opt", adaptive(drafter))
  with pytest.raises(ValueError, match="set bonus to 'target'"):
    call("spec_cascade_opt", from_one(drafter), bonus="verifier")
  call("spec_decode", adaptive(drafter), bonus="verifier")
  call("spec_cascade_opt", from_one(drafter))
