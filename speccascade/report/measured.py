"""A point of the report: rows that differ in their seed alone, averaged."""

from collections.abc import Callable
import dataclasses
import functools

import numpy as np

from speccascade.decoding.methods import METHODS
from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Counts
from speccascade.inference.results import ResultRow, Settings
from speccascade.report import frontier
from speccascade.report.frontier import IntervalEstimate

REFERENCE, SMALL = "verifier", "drafter"
# Metrics in the order in which one is taken for the figures.
METRICS = {
  "bleu": "BLEU",
  "rouge2": "ROUGE-2",
  "exact_match": "exact match",
  "chrf": "chrF",
  "rouge1": "ROUGE-1",
  "rougeLsum": "ROUGE-Lsum",
  "valid": "valid %",
}
_SHORTER = (
  *(("Cascade", ""), ("CS Drafting", "CS"), (" verification", "")),
  *(("three models", "three"), ("verifier's bonus", "p bonus")),
)


def metric_title(metric: str) -> str:
  """Returns a metric's name as it is printed."""
  return METRICS.get(metric, metric)


def temperature_title(temperature: float) -> str:
  """Returns a temperature as it heads a panel."""
  return "greedy (T = 0)" if temperature == 0 else f"T = {temperature:g}"


def short_label(label: str) -> str:
  """Returns a label that fits beside a line, its colour telling the family.

  >>> [short_label(f"SpecCascade [{x}]") for x in ("OPT", "Diff, log")]
  ['OPT', 'Diff, log']
  >>> short_label("SpecDecode [Lossy]"), short_label("TokenCascade [Chow]")
  ('Lossy', 'TokenCascade Chow')
  >>> short_label("SeqCascade [Chow, per token]")
  'Seq Chow, per token'
  """
  head, bracket, rest = label.partition(" [")
  if head in ("SpecCascade", "SpecDecode") and bracket:
    label = rest
  label = label.replace("[", "").replace("]", "")
  for long, short in _SHORTER:
    if len(label) > 20:
      label = label.replace(long, short)
  return label


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
  """A point: the rows that are equal up to their seed.

  Attributes:
    rows: one or more.
  """

  rows: tuple[ResultRow, ...]

  @property
  def settings(self) -> Settings:
    return self.rows[0].settings

  @property
  def method(self) -> str:
    return self.settings.method

  @property
  def label(self) -> str:
    return self.rows[0].label

  @functools.cached_property
  def counts(self) -> Counts:
    return efficiency.total([row.counts for row in self.rows])

  @functools.cached_property
  def efficiency(self) -> dict:
    return efficiency.summary(self.counts)

  def quality_sample(self, metric: str) -> np.ndarray | None:
    """Returns the mean over seeds as a sample, None where a row lacks it."""
    scores = [row.quality.get(metric) for row in self.rows]
    if None in scores:
      return None
    return frontier.mean(
      [
        frontier.sample(each["value"], each.get("replicates"))
        for each in scores
      ]
    )

  def quality(self, metric: str) -> IntervalEstimate | None:
    """Returns the mean over seeds; the interval of one row as it holds it."""
    score = self.rows[0].quality.get(metric, {})
    sample = self.quality_sample(metric)
    return self._estimate(sample, score.get("low"), score.get("high"))

  @functools.cached_property
  def latency_sample(self) -> np.ndarray | None:
    """Measured latency relative to the verifier's, the mean over seeds."""
    timed = [row.latency for row in self.rows]
    if None in timed:
      return None
    return frontier.mean(
      [
        frontier.sample(each.relative_latency, each.replicates)
        for each in timed
      ]
    )

  @property
  def latency(self) -> IntervalEstimate | None:
    """The same with its interval, of one row as it holds it."""
    timed = self.rows[0].latency
    ends = (timed.relative_low, timed.relative_high) if timed else (None, None)
    return self._estimate(self.latency_sample, *ends)

  def _estimate(self, sample, low, high) -> IntervalEstimate | None:
    if sample is None:
      return None
    if len(self.rows) == 1 and low is not None:
      return IntervalEstimate(float(sample[0]), low, high)
    return frontier.of_sample(sample)

  def mean(self, value: Callable[[ResultRow], float | None]) -> float | None:
    """Returns the mean over seeds of a row's number; None if one has none."""
    values = [value(row) for row in self.rows]
    return None if None in values else float(np.mean(values))

  @property
  def has_large_law(self) -> bool:
    """Whether it writes what the large model would.

    By its law, if its target is lossless; or because every example had the
    greedy verifier's tokens, but for near ties.
    """
    method = METHODS.get(self.method)
    if method is not None and method.is_lossless:
      return self.method != SMALL
    return all(
      row.agreement is not None
      and row.agreement["identical"] + row.agreement["near_ties"]
      == row.agreement["num_examples"]
      for row in self.rows
    )
