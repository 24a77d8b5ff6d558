"""What blocks of speculative decoding yield and cost, on known texts too.

Leviathan et al., arXiv:2211.17192, write alpha for the acceptance rate and beta
for the acceptance at one prefix; here alpha is kept for the lenience of a
target, and theirs is `acceptance_rate`: the chance that a draft is accepted,
given that those before it in the block were, independent of position and
prefix.

`gamma` is the number of drafted tokens per block, an integer. Costs are in
units of one single-token step of the verifier alone; `c` is one drafter step.
Rates (in [0, 1]) and costs may be arrays, which broadcast.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from speccascade.analysis import checks


def geometric(x, n: int):
  """Returns 1 + x + ... + x^n, by Horner's rule.

  The papers print the quotient (1 - x^(n+1)) / (1 - x), which is 0/0 at 1.

  >>> float(geometric(0.5, 2)), float(geometric(1, 4))
  (1.75, 5.0)
  """
  return np.polyval(np.ones(n + 1), np.asarray(x, np.float64))


def expected_tokens(acceptance_rate, gamma: int):
  """Returns the expected tokens per block, in [1, gamma + 1].

  Source: Leviathan et al., Eq. (1): (1 - a^(gamma+1)) / (1 - a), a the
  acceptance rate; the residual or bonus token is counted. Reads of weights and
  key-value cache per token shrink by the same factor.

  >>> round(float(expected_tokens(0.8, 10)), 7)
  4.5705033
  """
  rate = checks.probability("acceptance_rate", acceptance_rate)
  return geometric(rate, checks.count("gamma", gamma, 0))


def walltime_factor(acceptance_rate, gamma: int, c):
  """Returns the speed-up over the verifier alone, if a block costs one step.

  Source: Leviathan et al., Theorem 3.8, and Chen et al. (arXiv 2312.11462),
  Corollary 4.2: the EWIF of one draft. Where acceptance_rate > c some gamma
  gives a speed-up, at least (1 + acceptance_rate) / (1 + c) (Corollary 3.9).
  """
  return predicted_speedup(expected_tokens(acceptance_rate, gamma), gamma, c)


def operations_factor(acceptance_rate, gamma: int, c_hat):
  """Returns arithmetic operations / those of the verifier alone; often > 1.

  Args:
    acceptance_rate: in [0, 1].
    gamma: drafted tokens.
    c_hat: operations of one drafter step / of one verifier step.

  Source: Leviathan et al., Theorem 3.11.
  """
  operations = gamma * checks.nonnegative("c_hat", c_hat) + gamma + 1
  return operations / expected_tokens(acceptance_rate, gamma)


def block_cost(gamma: int, c, *, v=1.0, q2=None, bonus_law: bool = False):
  """Returns the cost of one draft-verify round.

  gamma c + 1 is the papers' cost. On a real device a block of gamma + 1 tokens
  costs v > 1 single-token steps (on a CPU about 1.5, the jump from one token to
  two), and after a fully accepted block the drafter's first call feeds two
  tokens at a price q2 >= c.

  Args:
    gamma: drafted tokens per block.
    c: one single-token drafter step.
    v: the verifier's pass over gamma + 1 tokens.
    q2: the drafter's two-token first call; None means c.
    bonus_law: whether the drafter also computes q at the bonus position, as the
      exact bonus of a target that uses q needs: its catch-up then cannot fold
      into the next call, and a block takes gamma + 1 single-token calls.

  Returns:
    (gamma - 1) c + q2 + v, or (gamma + 1) c + v with `bonus_law`.

  Raises:
    ValueError: `q2` is given with `bonus_law`, which has no two-token call.
  """
  gamma = checks.count("gamma", gamma, 1)
  c, v = checks.nonnegative("c", c), checks.nonnegative("v", v)
  if not bonus_law:
    first = c if q2 is None else checks.nonnegative("q2", q2)
    return (gamma - 1) * c + first + v
  if q2 is not None:
    raise ValueError(
      f"q2 is {q2} with bonus_law; such a block has no two-token drafter call,"
      " leave q2 out"
    )
  return (gamma + 1) * c + v


def predicted_speedup(tokens_per_block, gamma: int, c, **more):
  """Returns tokens per block / cost per block: the speed-up over the verifier.

  Args:
    tokens_per_block: measured `mean_acceptance_length`, or `expected_tokens`.
    gamma: as in `block_cost`, like `c`; 0 is the verifier alone.
    c: likewise.
    **more: see there.

  >>> round(float(predicted_speedup(4.0, 5, 0.05, v=1.5, q2=0.1)), 3)
  2.222
  """
  tokens = checks.nonnegative("tokens_per_block", tokens_per_block)
  if gamma == 0:
    return tokens
  return tokens / block_cost(gamma, c, **more)


def optimal_gamma(
  acceptance_rate: float,
  c: float,
  *,
  v: float | Callable[[int], float] = 1.0,
  max_gamma: int = 1000,
  **more,
) -> tuple[int, float]:
  """Returns the gamma of the largest speed-up, and that speed-up.

  A scan over 1..max_gamma. At c = 0 or acceptance rate 1 every further draft
  helps and the result is max_gamma; where no gamma helps it is (0, 1.0), the
  verifier alone.

  Args:
    acceptance_rate: in [0, 1].
    c: as in `block_cost`.
    v: as there; a function of gamma where the pass over gamma + 1 tokens was
      measured for each.
    max_gamma: largest gamma tried.
    **more: see there.

  Source: Leviathan et al., section 3.5 (their alpha > c case).

  >>> gamma, speedup = optimal_gamma(0.75, 0.02)
  >>> gamma, round(speedup, 3)
  (9, 3.199)
  """
  choices = range(1, checks.count("max_gamma", max_gamma, 1) + 1)
  rate = float(checks.probability("acceptance_rate", acceptance_rate))
  tokens = 1 + np.cumsum(rate ** np.array(choices))
  factors = [(0, 1.0)]
  for gamma, num in zip(choices, tokens):
    step = v(gamma) if callable(v) else v
    cost = block_cost(gamma, c, v=step, **more)
    factors.append((gamma, float(num / cost)))
  return max(factors, key=lambda choice: choice[1])


def gamma_bound(acceptance_rate):
  """Returns 1 / (1 - acceptance_rate): most tokens per block, for any gamma.

  An oracle that knew how many drafts will be accepted could do no better.

  Source: Leviathan et al., section 3.5.
  """
  rate = checks.probability("acceptance_rate", acceptance_rate)
  with np.errstate(divide="ignore"):
    return 1 / (1 - rate)


class ExpectedBlocks(NamedTuple):
  """Expectations for each text. G = gamma.

  Attributes:
    num: [..., N] blocks.
    examined: [..., N, G] blocks that examined draft j, inside the text.
    accepted: [..., N, G] blocks that accepted it.
  """

  num: np.ndarray
  examined: np.ndarray
  accepted: np.ndarray

  def at(self, place: int) -> "ExpectedBlocks":
    """Returns those of one place along the first axis."""
    return ExpectedBlocks(*(part[place] for part in self))


def blocks_of_texts(rates, lengths, gamma: int) -> ExpectedBlocks:
  """Returns what writing texts takes, in expectation, without decoding them.

  Of a token x that was drawn from the target's law pi after its prefix, it is
  known how likely the drafter had proposed it and it was accepted, had it been
  drafted: min(q, pi)(x) / pi(x). Given the text these events are independent of
  each other, so the number of blocks that it took has a law.

  The chance that a block begins at a token is carried along the text: a block
  that begins at t and accepts j of its drafts ends at t + j, whose token is the
  correction or the bonus.

  Args:
    rates: [..., N, T], how likely the draft of each token was accepted.
    lengths: [N] tokens of the texts, EOS included.
    gamma: drafted tokens per block.

  >>> blocks = blocks_of_texts([[1, 1, 0, 1, 1, 1]], [6], 2)
  >>> blocks.num, blocks.accepted
  (array([2.]), array([[2., 2.]]))
  """
  rates = checks.probability("rates", rates)
  gamma = checks.count("gamma", gamma, 1)
  num = rates.shape[-1]
  inside = np.arange(num) < np.asarray(lengths)[:, None]
  begins = np.zeros((*rates.shape[:-1], num + gamma + 1))
  begins[..., 0] = 1
  examined, accepted = np.zeros((2, *rates.shape[:-1], gamma))
  for start in range(num):
    reach = begins[..., start] = begins[..., start] * inside[:, start]
    for j in range(min(gamma, num - start)):
      reach = reach * inside[:, start + j]
      passed = reach * rates[..., start + j]
      examined[..., j] += reach
      accepted[..., j] += passed
      begins[..., start + j + 1] += reach - passed
      reach = passed
    begins[..., start + gamma + 1] += reach
  return ExpectedBlocks(begins[..., :num].sum(-1), examined, accepted)
