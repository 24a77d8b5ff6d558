"""What one block of speculative decoding yields and costs.

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


def predicted_speedup(
  tokens_per_block, gamma: int, c, *, v=1.0, q2=None, bonus_law: bool = False
):
  """Returns tokens per block / cost per block: the speed-up over the verifier.

  Args:
    tokens_per_block: measured `mean_acceptance_length`, or `expected_tokens`.
    gamma: as in `block_cost`, like all that follow; 0 is the verifier alone.
    c: likewise.
    v: likewise.
    q2: likewise.
    bonus_law: likewise.

  >>> round(float(predicted_speedup(4.0, 5, 0.05, v=1.5, q2=0.1)), 3)
  2.222
  """
  tokens = checks.nonnegative("tokens_per_block", tokens_per_block)
  if gamma == 0:
    return tokens
  return tokens / block_cost(gamma, c, v=v, q2=q2, bonus_law=bonus_law)


def optimal_gamma(
  acceptance_rate: float,
  c: float,
  *,
  v: float | Callable[[int], float] = 1.0,
  q2: float | None = None,
  bonus_law: bool = False,
  max_gamma: int = 1000,
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
    q2: as there.
    bonus_law: as there.
    max_gamma: largest gamma tried.

  Source: Leviathan et al., section 3.5 (their alpha > c case).

  >>> gamma, speedup = optimal_gamma(0.75, 0.02)
  >>> gamma, round(speedup, 3)
  (9, 3.199)
  """
  choices = range(1, checks.count("max_gamma", max_gamma, 1) + 1)
  rate = float(checks.probability("acceptance_rate", acceptance_rate))
  tokens = 1 + np.cumsum(rate ** np.array(choices))
  best = (0, 1.0)
  for gamma in choices:
    step = v(gamma) if callable(v) else v
    cost = block_cost(gamma, c, v=step, q2=q2, bonus_law=bonus_law)
    best = max(
      best, (gamma, float(tokens[gamma - 1] / cost)), key=lambda x: x[1]
    )
  return best


def gamma_bound(acceptance_rate):
  """Returns 1 / (1 - acceptance_rate): most tokens per block, for any gamma.

  An oracle that knew how many drafts will be accepted could do no better.

  Source: Leviathan et al., section 3.5.
  """
  rate = checks.probability("acceptance_rate", acceptance_rate)
  with np.errstate(divide="ignore"):
    return 1 / (1 - rate)
