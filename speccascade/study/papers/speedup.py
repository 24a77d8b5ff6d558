"""The tokens that blocks of speculative decoding yield, and the blocks' costs.

Leviathan et al., arXiv:2211.17192, write alpha for the acceptance rate. Here
alpha is the lenience of a target, and Leviathan et al.'s alpha is
`acceptance_rate`: the chance that a draft is accepted, given that the drafts
before it in the block were accepted, whatever the position and the prefix.

`gamma` is the number of drafted tokens per block, an integer. Costs are in
units of one single-token step of the verifier alone; `c` is the cost of one
drafter step. Rates, in [0, 1], and costs may be arrays, which broadcast.
"""

from collections.abc import Callable

import numpy as np

from speccascade.study.papers import checks


def geometric(x, n: int):
  """Returns 1 + x + ... + x^n, by Horner's rule.

  The papers print the quotient (1 - x^(n+1)) / (1 - x), which is 0/0 at x = 1.

  >>> float(geometric(0.5, 2)), float(geometric(1, 4))
  (1.75, 5.0)
  """
  return np.polyval(np.ones(n + 1), np.asarray(x, np.float64))


def expected_tokens(acceptance_rate, gamma: int):
  """Returns the expected tokens per block, in [1, gamma + 1].

  The residual or bonus token counts. The memory traffic per token for weights
  and key-value caches shrinks by this factor too.

  Args:
    acceptance_rate: in [0, 1].
    gamma: drafted tokens per block, 0 or more.

  Source: Leviathan et al., Eq. (1): (1 - a^(gamma+1)) / (1 - a), a being the
  acceptance rate.

  >>> round(float(expected_tokens(0.8, 10)), 7)
  4.5705033
  """
  rate = checks.probability("acceptance_rate", acceptance_rate)
  return geometric(rate, checks.count("gamma", gamma, 0))


def walltime_factor(acceptance_rate, gamma: int, c):
  """Returns the speed-up over the verifier alone, if a block costs one step.

  Where acceptance_rate > c some gamma gives a speed-up, of at least
  (1 + acceptance_rate) / (1 + c) (Leviathan et al., Corollary 3.9).

  Args:
    acceptance_rate: in [0, 1].
    gamma: drafted tokens per block, 0 or more.
    c: the cost of one drafter step.

  Source: Leviathan et al., Theorem 3.8; Chen et al. (arXiv:2312.11462),
  Corollary 4.2, where it is the EWIF of one draft.
  """
  return predicted_speedup(expected_tokens(acceptance_rate, gamma), gamma, c)


def operations_factor(acceptance_rate, gamma: int, c_hat):
  """Returns the arithmetic operations, relative to the verifier alone.

  It is often more than 1: operations on drafts that are rejected are lost.

  Args:
    acceptance_rate: in [0, 1].
    gamma: drafted tokens per block.
    c_hat: operations of one drafter step / operations of one verifier step.

  Source: Leviathan et al., Theorem 3.11.
  """
  operations = gamma * checks.nonnegative("c_hat", c_hat) + gamma + 1
  return operations / expected_tokens(acceptance_rate, gamma)


def block_cost(gamma: int, c, *, v=1.0, q2=None, bonus_law: bool = False):
  """Returns the cost of one round of drafting and verifying a block.

  The papers' cost is gamma c + 1. On a real device a pass over gamma + 1 tokens
  costs v > 1 single-token steps; on a CPU about 1.5, the jump from one token to
  two. After a fully accepted block the drafter's first call feeds two tokens,
  at the cost q2 >= c.

  Args:
    gamma: drafted tokens per block, 1 or more.
    c: the cost of one single-token drafter step.
    v: the cost of the verifier's pass over gamma + 1 tokens.
    q2: the cost of the drafter's first call of a block, which feeds two tokens;
      None takes c.
    bonus_law: whether the drafter also computes q at the bonus position, which
      the exact bonus of a target that uses q needs. The drafter's catch-up then
      cannot fold into its next call, and a block takes gamma + 1 single-token
      calls.

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
  """Returns the speed-up over the verifier: tokens per block / cost per block.

  Args:
    tokens_per_block: the measured `mean_acceptance_length`, or the result of
      `expected_tokens`.
    gamma: see `block_cost`; 0 is the verifier alone.
    c: see `block_cost`.
    **more: further arguments of `block_cost`.

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
  """Returns the gamma with the largest speed-up, and the speed-up.

  All gammas from 1 to max_gamma are tried. At c = 0 or acceptance rate 1 every
  further draft helps, and the result is max_gamma. Where no gamma helps the
  result is (0, 1.0), the verifier alone.

  Args:
    acceptance_rate: in [0, 1].
    c: see `block_cost`.
    v: see `block_cost`; or a function from gamma to v, where the pass over
      gamma + 1 tokens was measured for each gamma.
    max_gamma: the largest gamma that is tried.
    **more: further arguments of `block_cost`.

  Source: Leviathan et al., section 3.5 (their alpha > c case).

  >>> gamma, speedup = optimal_gamma(0.75, 0.02)
  >>> gamma, round(speedup, 3)
  (9, 3.199)
  """
  choices = range(1, checks.count("max_gamma", max_gamma, 1) + 1)
  rate = float(checks.probability("acceptance_rate", acceptance_rate))
  # Tokens per block for each gamma: 1 + rate + ... + rate^gamma.
  tokens = 1 + np.cumsum(rate ** np.array(choices))
  best_gamma, best_speedup = 0, 1.0
  for gamma, tokens_per_block in zip(choices, tokens):
    pass_cost = v(gamma) if callable(v) else v
    cost = block_cost(gamma, c, v=pass_cost, **more)
    speedup = float(tokens_per_block / cost)
    if speedup > best_speedup:  # of equal ones the smaller gamma stays
      best_gamma, best_speedup = gamma, speedup
  return best_gamma, best_speedup


def gamma_bound(acceptance_rate):
  """Returns 1 / (1 - acceptance_rate), the most tokens per block of any gamma.

  An oracle that knew how many drafts will be accepted could do no better. At
  acceptance rate 1 the bound is inf.

  Args:
    acceptance_rate: in [0, 1].

  Source: Leviathan et al., section 3.5.
  """
  rate = checks.probability("acceptance_rate", acceptance_rate)
  with np.errstate(divide="ignore"):
    return 1 / (1 - rate)
