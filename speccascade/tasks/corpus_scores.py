"""The score of a corpus as a function of sums over examples.

A bootstrap resample therefore costs one matrix product, not a second pass over
the texts.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math

import numpy as np

SAMPLES = 1000  # bootstrap resamples of an interval
REPLICATES = 200  # how many resampled scores result rows hold
_DIGITS = 4  # decimals of a resampled score


@dataclasses.dataclass(frozen=True)
class Statistics:
  """The numbers of each example from which a corpus score is computed.

  Attributes:
    name: the metric's name in result files.
    sums: [N, K] float64, K numbers of each example, which are summed over
      examples before `score`. For BLEU they are counts of n-grams.
    score: a function from the K totals to a number, 0 to 100.
    signature: says how the score is computed; scores with equal signatures can
      be compared.
    unread: the percentage of predictions in which no answer was found; None for
      metrics that look for none.
    num_scored: the number of examples that the score is of; None for all.
  """

  name: str
  sums: np.ndarray
  score: Callable[[np.ndarray], float]
  signature: str
  unread: float | None = None
  num_scored: int | None = None

  @property
  def value(self) -> float:
    """The corpus score."""
    return float(self.score(self.sums.sum(axis=0)))

  def grouped(self, groups: Sequence[int]) -> "Statistics":
    """Returns statistics in which the examples of a group are one example.

    The bootstrap then draws a group, such as all trials of an example, as a
    whole. The corpus score is the same.

    Args:
      groups: N numbers; examples with equal numbers are a group. The result has
        the groups in ascending order of their numbers.

    Raises:
      ValueError: there are not N numbers.
    """
    if len(groups) != len(self.sums):
      raise ValueError(f"{len(groups)} groups for {len(self.sums)} examples")
    numbers, place = np.unique(groups, return_inverse=True)
    sums = np.zeros((len(numbers), self.sums.shape[1]))
    np.add.at(sums, place, self.sums)
    return dataclasses.replace(self, sums=sums)

  def bootstrap(self, samples: int = SAMPLES, seed: int = 0) -> np.ndarray:
    """Returns [samples] float64, the scores of resampled corpora.

    A seed draws the same examples for every metric and system of N examples.
    The difference of two systems' arrays is a paired comparison.
    """
    rng = np.random.default_rng(seed)
    num = len(self.sums)
    scores = np.empty(samples)
    for i in range(samples):
      # `counts` says how often each example is in the resampled corpus.
      counts = np.bincount(rng.integers(num, size=num), minlength=num)
      scores[i] = self.score(counts @ self.sums)
    # A corpus without any example that counts has no score: it has that of all.
    return np.where(np.isnan(scores), self.value, scores)

  def entry(
    self, groups: Sequence[int] | None = None, replicates: int = 0
  ) -> dict:
    """Returns the score and its interval as a JSON value of a result row.

    Args:
      groups: see `quality.evaluate`.
      replicates: see `quality.evaluate`.
    """
    resampled = self if groups is None else self.grouped(groups)
    scores = resampled.bootstrap()
    low, high = np.percentile(scores, [2.5, 97.5]).tolist()
    entry = {"value": self.value, "low": low, "high": high}
    if self.unread is not None:
      entry["unread"] = self.unread
    if replicates:
      entry["replicates"] = np.round(scores[:replicates], _DIGITS).tolist()
    num = len(self.sums) if self.num_scored is None else self.num_scored
    return entry | {"num_examples": num, "signature": self.signature}


def _percentage(totals) -> float:
  total, num = totals
  return 100 * total / num if num else math.nan


def mean(name, values, signature, where=True) -> Statistics:
  """Returns the statistics of a mean over some examples, in percent.

  Args:
    name: the metric's name in result files.
    values: [N], the number of each example, 0 to 1.
    signature: says how the score is computed.
    where: [N] bool, the examples that count; True counts all.
  """
  values = np.asarray(values, np.float64)
  is_in = np.broadcast_to(where, values.shape).astype(np.float64)
  pairs = np.stack([values * is_in, is_in], axis=1)
  num = None if is_in.all() else int(is_in.sum())
  return Statistics(name, pairs, _percentage, signature, num_scored=num)
