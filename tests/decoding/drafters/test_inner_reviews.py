"""What a nested drafter proposes: worked laws, counts and faults."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  AutoregressiveDrafter,
  HorizontalDrafter,
  Sampling,
  VerticalDrafter,
  cascade_drafter,
  decoder,
  row_keys,
  verification,
)
from speccascade.decoding.drafters.autoregressive import StopPolicy
from speccascade.models.markov_lm import MarkovLM
from tests.decoding.drafters import models

GREEDY, PLAIN = Sampling.create(0.0), Sampling.create(1.0)
Q, P = [0.5, 0.3, 0.15, 0.05], [0.2, 0.4, 0.3, 0.1]


def always(law):
  """Returns a model of one law, whatever came before."""
  table = jnp.log(jnp.asarray(law, jnp.float32))
  return MarkovLM(jnp.broadcast_to(table, (1, len(law), len(law))))


@functools.partial(jax.jit, static_argnames="bonus_law")
def propose(drafter, inputs, sampling, bonus_law=False):
  """Returns the proposals behind the start token, one for each row."""
  rows = inputs.shape[0]
  length = jnp.ones((rows,), jnp.int32)
  return drafter.propose(
    drafter.prefill(inputs, capacity=10),
    jnp.zeros((rows, 10), jnp.int32),
    length,
    row_keys(0, 0, jnp.arange(rows)),
    sampling,
    bonus_law=bonus_law,
    active=length > 0,
  )[1]


def reviewed(lenience=1.0):
  """Returns P's model over one draft of Q's."""
  pair = always(P), always(Q)
  return cascade_drafter(pair, None, [[1, 0], [0, 1]], lenience=lenience)


ONE = jnp.zeros((1, 1), jnp.int32)


@pytest.mark.parametrize(
  ("lenience", "law"),
  [(1.0, P), (1 / 0.6, [0.333333, 0.355556, 0.233333, 0.0777778])],
)
def test_a_token_is_drawn_from_the_inner_target(lenience, law):
  # At lenience 1 / .6 that is min(q, p / .6), and .1666667 of the residual.
  proposal = propose(reviewed(lenience), ONE, PLAIN)
  np.testing.assert_allclose(proposal.q[0, 0], law, atol=1e-6)


@pytest.mark.parametrize(
  ("lenience", "token"),
  # The drafter's token 0 has q = .5, p = .2; the reviewer's own is 1.
  [(1.0, 1), (2.4, 1), (2.6, 0)],
)
def test_greedily_lenience_keeps_a_draft_where_q_is_at_most_l_p(
  lenience, token
):
  proposal = propose(reviewed(lenience), ONE, GREEDY)
  assert proposal.tokens.tolist() == [[token]]
  np.testing.assert_array_equal(proposal.q[0, 0], np.eye(4)[token])


def test_confidence_is_at_temperature_1_in_greedy_decoding_too():
  proposal = propose(reviewed(), ONE, GREEDY)
  np.testing.assert_allclose(proposal.q1[0, 0], P, atol=1e-6)


@pytest.mark.parametrize(
  ("verify", "share"),
  [(verification.token_verify, 4 / 9), (verification.block_verify, 5 / 9)],
)
def test_inner_blocks_are_verified_as_asked(verify, share):
  """The toy of Sun et al.: how often both of two drafts are accepted.

  Then one review gives all of the three tokens. Token by token that is
  (2/3)^2; as a whole AA (4/9) passes with chance 1/4, BA (2/9) with 1/2, AB
  (2/9) and BB (1/9) always.
  """
  drafter = cascade_drafter(
    (always([1 / 3, 2 / 3]), always([2 / 3, 1 / 3])),
    None,
    [[3, 0], [0, 2]],
    verify=verify,
  )
  num = 20_000
  proposal = propose(drafter, jnp.zeros((num, 1), jnp.int32), PLAIN)
  found = np.mean(np.asarray(proposal.calls)[:, 0] == 1)
  # Five standard deviations.
  assert abs(found - share) < 5 * np.sqrt(share * (1 - share) / num)


def test_the_next_drafter_goes_on_where_one_stopped():
  # Both are one model, so that greedily they write its chain; the first one
  # stops early where it is unsure.
  num, size = 32, 6
  model = MarkovLM(models.tables(3, num, size, eos=False))
  q = np.asarray(jax.nn.softmax(model.table, axis=-1))
  stop = StopPolicy(jnp.float32(0.6), before_draw=True)
  drafter = HorizontalDrafter(
    (
      AutoregressiveDrafter(model, 3, stop=stop),
      AutoregressiveDrafter(model, 2),
    )
  )
  proposal = propose(drafter, jnp.arange(num, dtype=jnp.int32)[:, None], GREEDY)
  stops = set()
  for row in range(num):
    chain, sure = [0, 0], []
    for _ in range(5):
      law = q[row, chain[-2], chain[-1]]
      sure.append(law.max() >= 0.6)
      chain.append(int(law.argmax()))
    first = 3 if all(sure[:3]) else sure.index(False)
    stops.add(first)
    count = int(proposal.count[row])
    assert count == first + 2
    assert proposal.tokens[row, :count].tolist() == chain[2 : 2 + count]
    np.testing.assert_array_equal(
      proposal.q[row, :count], np.eye(size)[chain[2 : 2 + count]]
    )
  assert stops == {0, 1, 2, 3}


def test_the_law_behind_a_row_is_its_last_drafters():
  drafter = HorizontalDrafter(
    (AutoregressiveDrafter(always(P), 1), AutoregressiveDrafter(always(Q), 2))
  )
  proposal = propose(drafter, ONE, PLAIN, bonus_law=True)
  np.testing.assert_allclose(proposal.q[0], [P, Q, Q, Q], atol=1e-6)


NESTS = {
  "reviewer": lambda good, bad: VerticalDrafter(
    AutoregressiveDrafter(good, 2), bad, jnp.float32(0), 3
  ),
  "reviewed": lambda good, bad: VerticalDrafter(
    AutoregressiveDrafter(bad, 2), good, jnp.float32(0), 3
  ),
  "first in a row": lambda good, bad: HorizontalDrafter(
    (AutoregressiveDrafter(bad, 2), AutoregressiveDrafter(good, 1))
  ),
}


@pytest.mark.parametrize("nest", NESTS)
def test_a_fault_of_a_nested_drafter_ends_its_row(nest):
  # The models agree but for one, which in odd sources has no law behind a 3.
  num, size = 24, 6
  table = models.tables(0, num, size, eos=False)
  good = MarkovLM(table)
  bad = MarkovLM(table.at[1::2, :, 3].set(jnp.nan))
  out = decoder("spec_decode", gamma=1, max_decode_len=9, eos_id=1)(
    NESTS[nest](good, bad),
    good,
    models.sources(num),
    row_keys(0, 0, jnp.arange(num)),
    0.0,
    GREEDY,
  )
  tokens, length = models.greedy_tokens(table, 9)
  met = np.asarray(out.bad_step) >= 0
  np.testing.assert_array_equal(out.tokens[~met], tokens[~met])
  np.testing.assert_array_equal(out.lengths[~met], length[~met])
  assert met.any()
  np.testing.assert_array_equal(out.lengths[met], out.bad_step[met])
  for row in np.flatnonzero(met):
    here = out.lengths[row]
    assert row % 2 == 1
    np.testing.assert_array_equal(out.tokens[row, :here], tokens[row, :here])
    assert 3 in tokens[row, :]
