"""Points of the report: rows averaged over seeds, and timed by a clock."""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from speccascade.decoding.programs.methods import METHODS
from speccascade.decoding.records.decode_settings import BlockShape
from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.points.point_settings import PointSettings
from speccascade.study.papers import swi
from speccascade.study.report import frontier, relative_lengths
from speccascade.study.report.frontier import IntervalEstimate, Points
from speccascade.study.report.tables import lookup, seconds_per_answer
from speccascade.study.rows.results import ResultRow

REFERENCE, SMALL = "verifier", "drafter"
# The first of these metrics that all rows have is the metric of the figures.
METRICS = {
  "bleu": "BLEU",
  "rouge2": "ROUGE-2",
  "exact_match": "exact match",
  "chrf": "chrF",
  "rouge1": "ROUGE-1",
  "rougeLsum": "ROUGE-Lsum",
  "valid": "valid %",
  "rougeL": "ROUGE-L",
  "f1": "F1",
  "exact": "exact match (SQuAD)",
}


# Settings of a block as a label says them. A label names another setting by its
# name and its value.
_IN_WORDS = {
  ("verification", "block"): "block verification",
  ("verification", "traversal"): "traversal",
  ("verification", "k_seq"): "k_seq",
  ("bonus", "verifier"): "verifier's bonus",
}


def metric_title(metric: str) -> str:
  """Returns a metric's name as the report prints it."""
  return METRICS.get(metric, metric)


def temperature_title(temperature: float) -> str:
  """Returns a temperature as the heading of a panel."""
  return "greedy (T = 0)" if temperature == 0 else f"T = {temperature:g}"


@dataclasses.dataclass(frozen=True)
class Clock:
  """A definition of relative latency.

  Modelled latency is 1 / SWI with these costs: a drafter call costs c, a
  verifier pass costs 1 however many tokens it feeds, and everything else costs
  nothing. Modelled latency is a function of the counts, which have no
  replicates. So the interval of a statistic of modelled latency and quality
  shows the spread of quality alone.

  Measured latency is of whole answers, of any length. Modelled latency is of a
  token, so that it is multiplied by the relative length where lengths differ.

  Attributes:
    name: "measured" or "modelled".
    title: a few words for headings and axes.
    cost_ratio: the cost c of a drafter step in verifier steps, for modelled
      latency; None for measured latency.
    lengths_differ: whether some answers are surely longer or shorter than the
      large model's, so that latency an answer is not latency a token.
  """

  name: str
  title: str
  cost_ratio: float | None = None
  lengths_differ: bool = False

  @property
  def axis(self) -> str:
    """The label of an axis of speed."""
    if self.lengths_differ:
      return f"times as fast, by seconds an answer ({self.name})"
    return f"times as fast as the large model ({self.name})"


def measured_clock(lengths_differ: bool = False) -> Clock:
  """Returns the clock of this machine; see `Clock`."""
  title = "measured wall-clock"
  if lengths_differ:
    title += ", seconds an answer"
  return Clock("measured", title, lengths_differ=lengths_differ)


MEASURED = measured_clock()


def modelled_clock(cost_ratio: float, lengths_differ: bool = False) -> Clock:
  """Returns the clock of a machine where a block costs one verifier step."""
  title = f"modelled: a block costs one step, c = {cost_ratio:.3g}"
  if lengths_differ:
    title += ", an answer"
  return Clock("modelled", title, cost_ratio, lengths_differ)


def variant(settings: PointSettings) -> str:
  """Returns how a point differs from its method's usual form, gamma aside."""
  parts = []
  # The way of drawing that a tree has where none is set says nothing.
  usual = BlockShape(gamma=1, drafts=settings.drafts).tree_drawing
  for name, value in settings.block_changes.items():
    if name == "draft_length":
      policy, threshold = value
      parts.append(f"{policy} {threshold:g}")
    elif (name, value) != ("drawing", usual):
      parts.append(_IN_WORDS.get((name, value), f"{name} {value}"))
  if settings.phases is not None:
    parts.append(settings.phases.other_phase_in_words)
  return "".join(f", {part}" for part in parts)


class Milliseconds(NamedTuple):
  """Wall-clock time of decoding, in milliseconds.

  Attributes:
    text: the time of one text.
    token: the time of one token; None where tokens were not counted.
  """

  text: float
  token: float | None


# A number of a row with the interval that the row holds, and its sample.
_RowNumber = tuple[IntervalEstimate, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
  """A point: the rows that have equal settings up to their seed.

  Attributes:
    rows: one row or more.
    metric: the name of the metric that `quality` reports.
    clock: the definition of `latency`.
    exact: the rows of the verifier alone at the same sampling, which lengths
      are relative to; often empty.
  """

  rows: tuple[ResultRow, ...]
  metric: str = "bleu"
  clock: Clock = MEASURED
  exact: tuple[ResultRow, ...] = ()

  def by(self, clock: Clock) -> "Measured":
    """Returns the point with its latency by another clock."""
    return dataclasses.replace(self, clock=clock)

  @property
  def settings(self) -> PointSettings:
    """The settings of the first row."""
    return self.rows[0].settings

  @property
  def method(self) -> str:
    """The name of the method."""
    return self.settings.method

  @property
  def label(self) -> str:
    """The name of the method in the paper."""
    return self.rows[0].label

  @property
  def name(self) -> str:
    """The name of the method, and the variant of the method."""
    return self.method + variant(self.settings)

  @property
  def typed(self) -> str:
    """The method as one types it: `name`, and its alpha."""
    alpha = self.settings.alpha
    return self.name if alpha is None else f"{self.name} {alpha:g}"

  @functools.cached_property
  def counts(self) -> Counts:
    """The counts, summed over seeds."""
    return decode_counts.total([row.counts for row in self.rows])

  @functools.cached_property
  def efficiency(self) -> dict:
    """The summary of `counts`, see `decode_counts.summary`."""
    return decode_counts.summary(self.counts)

  @functools.cached_property
  def quality_sample(self) -> np.ndarray | None:
    """The mean quality over seeds, as a sample: [1 + R] or [1] float64.

    None where a row lacks the metric.
    """
    return _mean_sample([_row_score(row, self.metric) for row in self.rows])

  @functools.cached_property
  def quality(self) -> IntervalEstimate | None:
    """The mean quality over seeds, see `score`."""
    return self.score(self.metric)

  def score(self, metric: str) -> IntervalEstimate | None:
    """Returns the mean of a metric over seeds, None where a row lacks it.

    A single row keeps the interval that the row holds. The interval of several
    rows comes from their replicates.
    """
    return _mean_estimate([_row_score(row, metric) for row in self.rows])

  @functools.cached_property
  def latency(self) -> IntervalEstimate | None:
    """The latency, relative to the latency of the verifier.

    Measured latency is a mean over seeds, whose interval is made as in `score`.
    None where a row was not timed, or where the clock does not know a cost.
    """
    cost_ratio, counts = self.clock.cost_ratio, self.counts
    if cost_ratio is None:
      return _mean_estimate([_row_latency(row) for row in self.rows])
    if self.method == REFERENCE:
      return IntervalEstimate(1.0)
    # Several drafting models have several cost ratios, and only one is known.
    if not counts.num_tokens or len(counts.calls_by_model) > 1:
      return None
    calls = {"small": counts.drafter_calls, "large": counts.verifier_extends}
    costs = {"small": cost_ratio, "large": 1.0}
    a_token = 1 / swi.swi(counts.num_tokens, calls, costs)
    if not self.clock.lengths_differ or self._length_sample is None:
      return IntervalEstimate(a_token)
    return frontier.sample_estimate(a_token * self._length_sample)

  @property
  def speed(self) -> IntervalEstimate | None:
    """How many times as fast as the verifier alone it is, 1 / `latency`."""
    return frontier.inverse(self.latency) if self.latency else None

  @property
  def is_timed(self) -> bool:
    """Whether the point has both a latency and a quality."""
    return self.latency is not None and self.quality is not None

  @functools.cached_property
  def latency_sample(self) -> np.ndarray:
    """The latency of a point that is timed, as a sample: [1 + R] or [1]."""
    if self.clock.cost_ratio is None:
      return _mean_sample([_row_latency(row) for row in self.rows])
    # Counts have no replicates: each replicate repeats the same latency, if
    # lengths do not differ. Lengths are resampled as the quality is.
    same = np.full_like(self.quality_sample, self.latency.value)
    lengths_too = self.clock.lengths_differ and self._length_sample is not None
    if not lengths_too or len(self._length_sample) != len(same):
      return same
    return same * self._length_sample / self._length_sample[0]

  def quality_gap(self, other: "Measured") -> IntervalEstimate:
    """Returns the quality minus another point's quality, in pairs."""
    own, others = frontier.matched([self.quality_sample, other.quality_sample])
    return frontier.sample_estimate(own - others)

  def times_as_fast(self, other: "Measured") -> IntervalEstimate:
    """Returns another point's latency over this point's latency, in pairs."""
    own, others = frontier.matched([self.latency_sample, other.latency_sample])
    return frontier.sample_estimate(others / own)

  @property
  def per_token(self) -> IntervalEstimate | None:
    """The mean measured latency per token, relative to the verifier's.

    None where a row does not hold it.
    """
    by_row = [row.latency and row.latency.per_token for row in self.rows]
    if None in by_row:
      return None
    value, low, high = map(float, np.mean(by_row, axis=0))
    if len(by_row) > 1:
      # Rows hold no replicates of this number, so their mean has no interval.
      return IntervalEstimate(value)
    return IntervalEstimate(value, low, high)

  @functools.cached_property
  def relative_length(self) -> IntervalEstimate | None:
    """How long its answers are relative to the large model's, in pairs.

    None where the large model did not answer at the same sampling. Without an
    interval where rows do not have the lengths of single answers.
    """
    if self._length_sample is None:
      return None
    return frontier.sample_estimate(self._length_sample)

  @functools.cached_property
  def _length_sample(self) -> np.ndarray | None:
    """The relative length as a sample, [1 + R] or [1] float64."""
    return relative_lengths.sample(self.rows, self.exact)

  @property
  def has_other_lengths(self) -> bool:
    """Whether its answers are surely longer or shorter than the large model's.

    Those of the large model's own distribution are not, whatever a sample says.
    """
    length = self.relative_length
    if length is None or self.has_large_distribution:
      return False
    return not length.bounds[0] <= 1 <= length.bounds[1] and length.has_interval

  @property
  def seconds_per_answer(self) -> float | None:
    """The mean over seeds; None where a row was not timed."""
    values = [seconds_per_answer(row) for row in self.rows]
    return None if None in values else float(np.mean(values))

  @property
  def milliseconds(self) -> Milliseconds | None:
    """The mean time over seeds; None where a row was not timed."""
    if (seconds := self.mean("latency", "walltime_s")) is None:
      return None
    num_texts = sum(row.latency.num_examples for row in self.rows)
    num_tokens = [row.latency.num_tokens for row in self.rows]
    if None in num_tokens:
      return Milliseconds(1000 * seconds, None)
    # Seeds write texts of other lengths, so the tokens of all are pooled.
    token = 1000 * seconds * num_texts / sum(num_tokens)
    return Milliseconds(1000 * seconds, token)

  def mean(self, *names: str) -> float | None:
    """Returns the mean over seeds of a number of the rows.

    Args:
      *names: where the number stands in a row, see `tables.lookup`.

    Returns:
      The mean, or None where a row lacks the number.
    """
    # A mean of some seeds would be another number than the mean of all.
    values = [lookup(row, *names) for row in self.rows]
    return None if None in values else float(np.mean(values))

  @property
  def has_large_distribution(self) -> bool:
    """Whether the texts follow the large model's distribution.

    They do where the method is lossless, and where every example has the tokens
    of the greedy verifier up to near ties.
    """
    method = METHODS.get(self.method)
    if method is not None and method.is_lossless:
      # The drafter alone is lossless for itself, not for the large model.
      return self.method != SMALL
    for agreement in (row.agreement for row in self.rows):
      if not agreement:
        return False
      num_equal = agreement["identical"] + agreement["near_ties"]
      if num_equal != agreement["num_examples"]:
        return False
    return True


def _row_score(row: ResultRow, metric: str) -> _RowNumber | None:
  """Returns a row's score, or None where the row lacks the metric."""
  if (score := row.quality.get(metric)) is None:
    return None
  value = float(score["value"])
  estimate = IntervalEstimate(value, score.get("low"), score.get("high"))
  return estimate, np.r_[value, score.get("replicates") or ()]


def _row_latency(row: ResultRow) -> _RowNumber | None:
  """Returns a row's relative latency, or None where the row was not timed."""
  latency = row.latency
  if latency is None:
    return None
  value = float(latency.relative_latency)
  estimate = IntervalEstimate(
    value, latency.relative_low, latency.relative_high
  )
  return estimate, np.r_[value, latency.replicates]


def _mean_sample(numbers: Sequence[_RowNumber | None]) -> np.ndarray | None:
  """Returns the mean over rows as a sample, None if a row has no number."""
  if None in numbers:
    return None
  return frontier.matched([sample for _, sample in numbers]).mean(axis=0)


def _mean_estimate(
  numbers: Sequence[_RowNumber | None],
) -> IntervalEstimate | None:
  """Returns the mean over rows with its interval, None if a row has none."""
  if (sample := _mean_sample(numbers)) is None:
    return None
  (estimate, _), *others = numbers
  if others or estimate.low is None:
    return frontier.sample_estimate(sample)
  return estimate


def by_replicate(points: Iterable[Measured]) -> list[Points]:
  """Returns latency and quality of the points that are timed, by replicate.

  Args:
    points: points with or without a latency and a quality.

  Returns:
    See `frontier.points_by_replicate`; an empty list where no point is timed.
  """
  timed = [point for point in points if point.is_timed]
  if not timed:
    return []
  return frontier.points_by_replicate(
    [point.latency_sample for point in timed],
    [point.quality_sample for point in timed],
  )
