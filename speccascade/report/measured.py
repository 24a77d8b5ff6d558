"""Points of the report, their rows averaged over seeds, and what times them."""

from collections.abc import Sequence
import dataclasses
import functools

import numpy as np

from speccascade.analysis import swi
from speccascade.decoding.programs.methods import METHODS
from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Counts
from speccascade.inference.rows.results import ResultRow, Settings
from speccascade.report import frontier
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.tables import lookup

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
    metric: of `quality`.
  """

  rows: tuple[ResultRow, ...]
  metric: str = "bleu"

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

  @functools.cached_property
  def quality_sample(self) -> np.ndarray | None:
    """The mean over seeds as a sample, None where a row lacks the metric."""
    return _sample([_score(row, self.metric) for row in self.rows])

  @functools.cached_property
  def quality(self) -> IntervalEstimate | None:
    """The mean over seeds; the interval of one row as it holds it."""
    return self.score(self.metric)

  def score(self, metric: str) -> IntervalEstimate | None:
    """Returns the `quality` of another metric."""
    return _estimate([_score(row, metric) for row in self.rows])

  @functools.cached_property
  def latency_sample(self) -> np.ndarray | None:
    """Measured latency relative to the verifier's, the mean over seeds."""
    return _sample([_latency(row) for row in self.rows])

  @functools.cached_property
  def latency(self) -> IntervalEstimate | None:
    """The same with its interval, of one row as it holds it."""
    return _estimate([_latency(row) for row in self.rows])

  @property
  def per_token(self) -> IntervalEstimate | None:
    """Measured latency a token, relative to the verifier's; mean over seeds."""
    ends = [row.latency and row.latency.per_token for row in self.rows]
    if None in ends:
      return None
    value, *ends = np.mean(ends, axis=0)[: 3 if len(ends) == 1 else 1]
    return IntervalEstimate(float(value), *ends)

  @property
  def milliseconds(self) -> tuple[float, float | None] | None:
    """The time of a text and of a token, where timed; means over seeds."""
    if (seconds := self.mean("latency", "walltime_s")) is None:
      return None
    texts = sum(row.latency.num_examples for row in self.rows)
    counted = [row.latency.num_tokens for row in self.rows]
    rate = None if None in counted else 1000 * seconds * texts / sum(counted)
    return 1000 * seconds, rate

  def mean(self, *names) -> float | None:
    """Returns the mean over seeds of what `lookup` finds in a row, or None."""
    values = [lookup(row, *names) for row in self.rows]
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
      same and same["identical"] + same["near_ties"] == same["num_examples"]
      for same in (row.agreement for row in self.rows)
    )


def _score(row: ResultRow, metric: str) -> tuple | None:
  """Returns a score as (low, high, sample)."""
  if (score := row.quality.get(metric)) is None:
    return None
  sample = np.r_[score["value"], score.get("replicates") or ()]
  return score.get("low"), score.get("high"), sample


def _latency(row: ResultRow) -> tuple | None:
  """Returns a relative latency as (low, high, sample)."""
  if (timed := row.latency) is None:
    return None
  sample = np.r_[timed.relative_latency, timed.replicates]
  return timed.relative_low, timed.relative_high, sample


def _sample(numbers: Sequence[tuple | None]) -> np.ndarray | None:
  """Returns the mean over rows as a sample, None if one has no number."""
  if None in numbers:
    return None
  return frontier.mean([sample for *_, sample in numbers])


def _estimate(numbers: Sequence[tuple | None]) -> IntervalEstimate | None:
  if (sample := _sample(numbers)) is None:
    return None
  (low, high, _), *others = numbers
  if low is None or others:
    return frontier.of_sample(sample)
  return IntervalEstimate(float(sample[0]), low, high)


@dataclasses.dataclass(frozen=True)
class Clock:
  """A meaning of relative latency.

  Attributes:
    name: "measured" or "modelled".
    title: a few words for headings and axes.
    cost_ratio: c of the modelled one; None where it is measured.
  """

  name: str
  title: str
  cost_ratio: float | None = None

  def of(self, point: Measured) -> IntervalEstimate | None:
    """Returns a point's latency, None where it has none.

    The modelled one is 1 / SWI with these costs: a drafter call costs c, a
    verifier pass 1 however many tokens it feeds, all else nothing. It is a
    function of the counts, which have no replicates; so its interval shows the
    quality's spread alone.
    """
    if self.cost_ratio is None:
      return point.latency
    counts = point.counts
    if point.method == REFERENCE:
      return IntervalEstimate(1.0)
    if not counts.num_tokens or len(counts.calls_by_model) > 1:
      return None
    calls = {"small": counts.drafter_calls, "large": counts.verifier_extends}
    costs = {"small": self.cost_ratio, "large": 1.0}
    return IntervalEstimate(1 / swi.swi(counts.num_tokens, calls, costs))

  def timed(self, members: Sequence[Measured]) -> list[Measured]:
    """Returns those that have both a latency and a quality."""
    return [p for p in members if self.of(p) and p.quality]

  def points(self, members: Sequence[Measured]) -> list[Points]:
    """Returns those that have both, `resampled`; nothing if none has."""
    members = self.timed(members)
    quality = [point.quality_sample for point in members]
    latency = [point.latency_sample for point in members]
    if self.cost_ratio is not None:
      values = [self.of(point).value for point in members]
      latency = list(map(np.full_like, quality, values))
    return frontier.resampled(latency, quality) if members else []


MEASURED = Clock("measured", "measured wall-clock")


def modelled(cost_ratio: float) -> Clock:
  """Returns the clock of a machine where a block costs one verifier step."""
  title = f"modelled: a block costs one step, c = {cost_ratio:.3g}"
  return Clock("modelled", title, cost_ratio)
