"""Whether counts fit a distribution: chi-square, and total variation."""

import math

import numpy as np

POOLED = 10  # cells that expect fewer counts are one cell
NO_MASS = 1e-12  # a distribution gives such an outcome no mass


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
  """Returns Pearson's p-value of counts, in cells that expect 10 and more.

  The statistic is only near chi-square where each cell expects enough counts.
  Outcomes that expect less than 10 are one cell. Where that cell expects less
  than 10 still, the rarest other outcome joins it. Too many rare outcomes could
  hide in such a mixed cell, so that they are tested by themselves as well, by
  exact binomial tails; twice the smaller p-value is returned (Bonferroni).

  A count where the distribution has no mass gives 0.

  Args:
    counts: [K] how often each outcome was seen.
    law: [K] the probability of each.

  >>> p_value(np.array([480, 520]), np.array([0.5, 0.5])) > 0.2
  True
  """
  if np.any(counts[law < NO_MASS] > 0):
    return 0.0
  counts, law = counts[law >= NO_MASS], law[law >= NO_MASS]
  num, law = int(counts.sum()), law / law.sum()
  order = np.argsort(law, kind="stable")
  counts, expected = counts[order], law[order] * num
  num_rare = int(np.sum(expected < POOLED))
  rare_seen, rare_expected = counts[:num_rare].sum(), expected[:num_rare].sum()
  mixed = num_rare > 0 and rare_expected < POOLED
  pooled = num_rare + mixed
  if pooled:
    counts = np.append(counts[:pooled].sum(), counts[pooled:])
    expected = np.append(expected[:pooled].sum(), expected[pooled:])
  value = np.sum((counts - expected) ** 2 / expected)
  fit = chi_square_tail(float(value), len(expected) - 1)
  if not mixed:
    return fit
  of_rare = _rare_p_value(int(rare_seen), num, float(rare_expected) / num)
  return min(1.0, 2 * min(fit, of_rare))


def _rare_p_value(count: int, num: int, share: float) -> float:
  """Returns the exact two-sided p-value of `count` events in `num` trials."""
  if share >= 1:
    return 1.0
  odds = share / (1 - share)
  chance = math.exp(num * math.log1p(-share))
  below = 0.0
  for k in range(count):
    below += chance
    chance *= (num - k) / (k + 1) * odds
  above, k, more = 0.0, count, chance
  # 1 - below would round small tails to 0.
  while more > above * 1e-17:
    above += more
    more *= (num - k) / (k + 1) * odds
    k += 1
  return min(1.0, 2 * min(below + chance, above))


def chi_square_tail(value: float, degrees: int) -> float:
  """Returns the chance that a chi-square variable is above `value`.

  The regularised incomplete gamma function, by its series below a + 1, and by
  Lentz's continued fraction above: scipy is not needed.

  Args:
    value: at least 0.
    degrees: of freedom; with 0 of them the variable is 0.

  >>> round(chi_square_tail(3.841459, 1), 6)
  0.05
  """
  a, x = degrees / 2, value / 2
  if degrees <= 0 or x <= 0:
    return 1.0
  log_scale = a * math.log(x) - x - math.lgamma(a)
  if x < a + 1:
    term = total = 1 / a
    n = a
    while term > total * 1e-17:
      n += 1
      term *= x / n
      total += term
    return max(0.0, 1 - math.exp(log_scale) * total)
  b = x + 1 - a
  c, d = 1e300, 1 / b
  fraction = d
  for i in range(1, 10_000):
    factor = -i * (i - a)
    b += 2
    d = 1 / (factor * d + b)
    c = b + factor / c
    fraction *= c * d
    if abs(c * d - 1) < 1e-15:
      break
  return math.exp(log_scale) * fraction


def tv(law: np.ndarray, other: np.ndarray) -> float:
  """Returns the total variation between two distributions."""
  return 0.5 * float(np.abs(law - other).sum())


def noise_floor(law: np.ndarray, num: int, level: float) -> float:
  """Returns what the total variation of samples exceeds with a chance <= level.

  The mean distance of an outcome's share from its probability p is at most
  sqrt(p (1 - p) / num). The distance of all differs from its mean by t or more
  with a chance of at most exp(-2 num t^2) (McDiarmid's inequality).

  Args:
    law: [K] probabilities.
    num: of samples.
    level: in (0, 1).

  >>> round(noise_floor(np.array([0.5, 0.5]), 10_000, 0.01), 4)
  0.0202
  """
  mean = 0.5 * float(np.sqrt(law * (1 - law) / num).sum())
  return mean + math.sqrt(math.log(1 / level) / (2 * num))


def num_samples(law: np.ndarray, resolution: float, level: float) -> int:
  """Returns the sample size at which a wrong distribution shows.

  A distribution at a total variation of `resolution` is noticed then with a
  chance of at least 1 - level: twice the noise floor is below the resolution.
  """
  return math.ceil((2 * noise_floor(law, 1, level) / resolution) ** 2)
