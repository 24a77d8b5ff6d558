"""What drafters propose, nested or alone: worked q, counts and stops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  AutoregressiveDrafter,
  HorizontalDrafter,
  MaxGramDrafter,
  Sampling,
  cascade_drafter,
)
from speccascade.decoding.drafting.autoregressive import StopPolicy
from speccascade.decoding.verification import steps
from speccascade.models.markov_lm import MarkovLM
from tests import toy
from tests.decoding.drafting import models

PLAIN = Sampling.create(1.0)
Q, P = toy.WORKED[1]
ONE = jnp.zeros((1, 1), jnp.int32)


def always(law) -> MarkovLM:
  """Returns a model of one distribution, whatever came before."""
  return toy.markov([law] * len(law))


def reviewed(lenience=1.0):
  """Returns P's model over one draft of Q's."""
  pair = always(P), always(Q)
  return cascade_drafter(pair, None, [[1, 0], [0, 1]], lenience=lenience)


@pytest.mark.parametrize(
  ("lenience", "law"),
  [(1.0, P), (1 / 0.6, [0.333333, 0.355556, 0.233333, 0.0777778])],
)
def test_a_token_is_drawn_from_the_inner_target(lenience, law):
  # At lenience 1 / .6 that is min(q, p / .6), and .1666667 of the residual.
  proposal = models.propose(reviewed(lenience), ONE, PLAIN)
  np.testing.assert_allclose(proposal.q[0, 0], law, atol=1e-6)


@pytest.mark.parametrize(
  ("lenience", "token"),
  # The drafter's token 0 has q = .5, p = .2; the reviewer's own is 1.
  [(1.0, 1), (2.4, 1), (2.6, 0)],
)
def test_greedily_lenience_keeps_a_draft_where_q_is_at_most_l_p(
  lenience, token
):
  proposal = models.propose(reviewed(lenience), ONE, toy.GREEDY)
  assert proposal.tokens.tolist() == [[token]]
  np.testing.assert_array_equal(proposal.q[0, 0], np.eye(4)[token])
  if lenience == 1:  # the confidence is at temperature 1 all the same
    np.testing.assert_allclose(proposal.q1[0, 0], P, atol=1e-6)


@pytest.mark.parametrize(
  ("verify", "share"),
  [(steps.token_verify, 4 / 9), (steps.block_verify, 5 / 9)],
)
def test_inner_blocks_are_verified_as_asked(verify, share):
  """The toy of Sun et al.: how often both of two drafts are accepted.

  Then one review gives all of the three tokens. Token by token that is
  (2/3)^2; as a whole AA (4/9) passes with chance 1/4, BA (2/9) with 1/2, AB
  (2/9) and BB (1/9) always.
  """
  pair = always([1 / 3, 2 / 3]), always([2 / 3, 1 / 3])
  drafter = cascade_drafter(pair, None, [[3, 0], [0, 2]], verify=verify)
  num = 20_000
  proposal = models.propose(drafter, jnp.zeros((num, 1), jnp.int32), PLAIN)
  accepted = np.mean(np.asarray(proposal.calls)[:, 0] == 1)
  # Five standard deviations.
  assert abs(accepted - share) < 5 * np.sqrt(share * (1 - share) / num)


def test_the_next_drafter_continues_where_one_stopped():
  # Both are one model, so that greedily they write its chain; the first one
  # stops early where it is unsure.
  num, size = 32, 6
  model = MarkovLM(models.tables(3, num, size, eos=False))
  q = np.asarray(jax.nn.softmax(model.table, axis=-1))
  stop = StopPolicy(jnp.float32(0.6), before_draw=True)
  first = AutoregressiveDrafter(model, 3, stop=stop)
  drafter = HorizontalDrafter((first, AutoregressiveDrafter(model, 2)))
  proposal = models.propose(
    drafter, jnp.arange(num, dtype=jnp.int32)[:, None], toy.GREEDY
  )
  stops = set()
  for row in range(num):
    chain, sure = [0, 0], []
    for _ in range(5):
      law = q[row, chain[-2], chain[-1]]
      sure.append(law.max() >= 0.6)
      chain.append(int(law.argmax()))
    stopped = 3 if all(sure[:3]) else sure.index(False)
    stops.add(stopped)
    count, written = int(proposal.count[row]), chain[2 : 4 + stopped]
    assert count == stopped + 2
    assert proposal.tokens[row, :count].tolist() == written
    np.testing.assert_array_equal(
      proposal.q[row, :count], np.eye(size)[written]
    )
  assert stops == {0, 1, 2, 3}


def test_the_law_after_a_row_is_its_last_drafters():
  drafter = HorizontalDrafter(
    (AutoregressiveDrafter(always(P), 1), AutoregressiveDrafter(always(Q), 2))
  )
  proposal = models.propose(drafter, ONE, PLAIN, needs_bonus_law=True)
  np.testing.assert_allclose(proposal.q[0], [P, Q, Q, Q], atol=1e-6)


def test_which_model_wrote_each_draft():
  # All models agree. Places: the large one, the small one under it, the small
  # one beside it.
  lm = toy.moving({0: 2, 2: 3, 3: 4, 4: 5}, 6)
  copier = MaxGramDrafter.create([0, 0, 3], width=1, vocab_size=6)
  matrix = [[3, 1, 0], [0, 1, 1], [0, 0, 0]]
  drafter = cascade_drafter((lm, lm), copier, matrix)
  proposal = models.propose(drafter, ONE, toy.GREEDY)
  assert proposal.tokens.tolist() == [[2, 3, 4, 5]]
  # The small model's and a copy, both reviewed; what the reviewer adds; and
  # what the small model adds to that.
  assert proposal.writer[:, :-1].tolist() == [[1, -1, 0, 2]]


@pytest.mark.parametrize("before", [True, False])
def test_the_drafter_stops_where_the_policy_says(before):
  # Its proposals against the policy, distribution by distribution.
  model, sampling = toy.sources()[0], Sampling.create(0.7)
  q1, q = (np.asarray(x) for x in sampling.laws(model.table))
  stop = StopPolicy(jnp.float32(0.45), before_draw=before)
  drafter = AutoregressiveDrafter(model, 4, stop=stop)
  inputs, _ = toy.rows(64)
  proposal = models.propose(drafter, inputs, sampling, needs_bonus_law=True)
  counts = np.asarray(proposal.count)
  for row in range(64):
    last, count = 0, 0
    while count < 4 and not (before and q1[row, last].max() < 0.45):
      np.testing.assert_allclose(
        proposal.q[row, count], q[row, last], atol=1e-6
      )
      token = int(proposal.tokens[row, count])
      prob, last, count = q[row, last, token], token, count + 1
      if not before and prob < 0.45:
        break
    assert counts[row] == count
    # At `count` is the distribution of the bonus position.
    for stated, law in ((proposal.q, q), (proposal.q1, q1)):
      np.testing.assert_allclose(stated[row, count], law[row, last], atol=1e-6)
    assert proposal.calls[row].sum() == count + 1
  assert set(counts) == set(range(0 if before else 1, 5))
