"""Which measured point is fastest at the large model's quality, and how surely.

Table 2 interpolates between the alphas that were measured, and nobody can
decode with an interpolated alpha. So the report claims the speed of measured
points alone: their settings can be pasted into a config. A point is called
faster than another point only where the whole 95% interval of the ratio of the
two latencies, taken in pairs, is on one side of 1.
"""

from collections.abc import Sequence
import dataclasses

from speccascade.inference.rows.results import Settings
from speccascade.report import frontier, tables
from speccascade.report.frontier import IntervalEstimate, Points
from speccascade.report.groups import PointGroup
from speccascade.report.measured import REFERENCE, SMALL, Clock, Measured
from speccascade.report.summaries import is_fast

PLAIN = "spec_decode"


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
  """A measured point that is as good as the large model.

  Attributes:
    point: the measured point.
    speedup: the large model's latency over the point's latency.
    gain: the point's quality minus the large model's quality.
  """

  point: Measured
  speedup: IntervalEstimate
  gain: IntervalEstimate

  @property
  def is_plain(self) -> bool:
    """Whether this is a point of SpecDecode."""
    return self.point.method == PLAIN


def candidates(panel: PointGroup, clock: Clock) -> list[Candidate]:
  """Returns the points that are as good as the large model, fastest first.

  A point is as good if it follows the large model's distribution, or if its
  measured quality is no lower than the large model's. Equally fast points stay
  in the order in which they were measured.

  Args:
    panel: the points of one temperature.
    clock: the definition of latency.

  Returns:
    The candidates; none where the large model has no latency.
  """
  large = panel.large
  if large is None or not clock.select_timed([large]):
    return []
  # A candidate's gain is taken in pairs: both have the same resamples.
  large_points = clock.points([large])
  fits = []
  for point in clock.select_timed(panel.points):
    if point.method in (REFERENCE, SMALL) or not is_fast(point.method):
      continue
    is_as_good = point.quality.value >= large.quality.value
    if not point.has_large_distribution and not is_as_good:
      continue
    speedup = frontier.inverse(clock.latency_of(point))
    gain = frontier.estimate(_gain, clock.points([point]), large_points)
    fits.append(Candidate(point, speedup, gain))
  return sorted(fits, key=lambda candidate: -candidate.speedup.value)


def times_as_fast(
  first: Candidate, second: Candidate, clock: Clock
) -> IntervalEstimate:
  """Returns the second candidate's latency over the first's, in pairs.

  Args:
    first: the candidate whose speed is asked for.
    second: the candidate to compare with.
    clock: the definition of latency.
  """
  return frontier.estimate(
    _latency_ratio, clock.points([second.point]), clock.points([first.point])
  )


@dataclasses.dataclass(frozen=True)
class Lead:
  """What is known about the fastest points at the large model's quality.

  Attributes:
    claim: a clause that names the method, alpha and gamma of a measured point
      in the words of a config, with its speed.
    details: what follows the claim in a full account: the quality of the point,
      and which other methods the point is surely faster than. It begins with
      its own punctuation and may be empty.
    candidate: the point that the claim names; None where no point is as good as
      the large model.
  """

  claim: str
  details: str = ""
  candidate: Candidate | None = None

  def __str__(self) -> str:
    return self.claim + self.details


def lead(panel: PointGroup, clock: Clock) -> Lead | None:
  """Returns what is known about the fastest points as good as the large model.

  Args:
    panel: the points of one temperature.
    clock: the definition of latency.

  Returns:
    The lead; None where the large model has no latency.
  """
  large = panel.large
  if large is None or not clock.select_timed([large]):
    return None
  fits = candidates(panel, clock)
  if not fits:
    return Lead(
      f"no measured point of a method reaches the large model's {panel.metric}"
      f" of {large.quality.value:.1f}"
    )
  # Candidates are sorted, so this is the fastest point of SpecDecode.
  plain = next((candidate for candidate in fits if candidate.is_plain), None)
  if clock.cost_ratio is not None:
    return Lead(
      "by the calls, which have no intervals, the fastest point would be"
      f" {_name(fits[0])}, which would have {_describe_speed(fits[0])}",
      f"{_quality(fits[0], panel)}{_plain_clause(plain, fits[0])}",
      fits[0],
    )
  faster = [each for each in fits if is_surely_above_one(each.speedup)]
  if not faster:
    surely = " over its whole interval" if fits[0].speedup.value > 1 else ""
    return Lead(
      f"no method is faster than the large model{surely}; the fastest measured"
      f" point is {_name(fits[0])}, which has {_describe_speed(fits[0])}",
      f"{_doubt(fits[0])}{_quality(fits[0], panel)}"
      f"{_plain_clause(plain, fits[0])}",
      fits[0],
    )
  if plain is None:
    return Lead(
      f"{_name(faster[0])} is faster than the large model: it has"
      f" {_describe_speed(faster[0])}",
      f"{_quality(faster[0], panel)}{_rivals_clause(faster[0], fits, clock)};"
      " SpecDecode was not measured",
      faster[0],
    )
  return _lead_over_plain(plain, faster, fits, panel, clock)


def _lead_over_plain(
  plain: Candidate,
  faster: Sequence[Candidate],
  fits: Sequence[Candidate],
  panel: PointGroup,
  clock: Clock,
) -> Lead:
  """Returns what is known about the points that are faster than SpecDecode.

  Args:
    plain: the fastest point of SpecDecode.
    faster: the candidates that are surely faster than the large model.
    fits: all candidates, fastest first.
    panel: the points of one temperature.
    clock: the definition of latency.
  """
  # The first candidate whose lead is sure is named: a faster one may scatter.
  for candidate in faster:
    ratio = times_as_fast(candidate, plain, clock)
    if not candidate.is_plain and is_surely_above_one(ratio):
      return Lead(
        f"{_name(candidate)} is faster than SpecDecode: it has"
        f" {_format_ratio(ratio)} times the speed of SpecDecode and"
        f" {_describe_speed(candidate)}",
        f"{_quality(candidate, panel)}{_rivals_clause(candidate, fits, clock)}",
        candidate,
      )
  if fits[0].is_plain:
    return Lead(
      f"no method is faster than {_name(plain)}, which has"
      f" {_describe_speed(plain)}",
      _quality(plain, panel),
      plain,
    )
  return Lead(
    "no method is faster than SpecDecode over its whole interval; the fastest"
    f" measured point is {_name(fits[0])}, which has"
    f" {_describe_speed(fits[0])}",
    f"{_doubt(fits[0])}{_quality(fits[0], panel)}"
    f"{_plain_clause(plain, fits[0])}",
    fits[0],
  )


def is_surely_above_one(ratio: IntervalEstimate) -> bool:
  """Returns whether a ratio has an interval, all of which is above 1."""
  return ratio.has_interval and ratio.low > 1


def bindings(settings: Settings) -> str:
  """Returns the settings of a point as the config of a decode takes them.

  Settings that have the default of `configs/runs/method.gin` are left out.
  """
  values = {
    "METHOD": settings.method,
    "ALPHA": settings.alpha,
    "GAMMA": settings.gamma,
  }
  for name, value in settings.block_changes.items():
    values[name.upper()] = value
  return ", ".join(
    f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
    for name, value in values.items()
    if value is not None
  )


def _plain_clause(plain: Candidate | None, fastest: Candidate) -> str:
  """Returns SpecDecode's speed; nothing where SpecDecode is the fastest."""
  if plain is None or plain is fastest:
    return ""
  return f"; SpecDecode has {_describe_speed(plain)}{_doubt(plain)}"


def _rivals_clause(
  winner: Candidate, fits: Sequence[Candidate], clock: Clock
) -> str:
  """Returns how many other methods the winner is not surely faster than.

  The fastest candidate of each other method stands for the method.

  Args:
    winner: the candidate that is claimed to be fast.
    fits: all candidates, fastest first.
    clock: the definition of latency.
  """
  fastest = {}
  # Candidates are sorted: the first of a method is its fastest.
  for candidate in fits:
    fastest.setdefault(candidate.point.method, candidate)
  del fastest[winner.point.method]
  if not fastest:
    return ""
  ratios = (times_as_fast(winner, each, clock) for each in fastest.values())
  num_alike = sum(not is_surely_above_one(ratio) for ratio in ratios)
  if num_alike == 0:
    return (
      "; the intervals show that it is faster than every other method that is"
      " as good"
    )
  return (
    f"; the intervals do not show that it is faster than {num_alike} of the"
    f" {len(fastest)} other methods that are as good"
  )


def _name(candidate: Candidate) -> str:
  """Returns a candidate's name and settings."""
  point = candidate.point
  return f"{point.label} ({bindings(point.settings)})"


def _quality(candidate: Candidate, panel: PointGroup) -> str:
  """Returns a candidate's quality, compared with the large model's quality."""
  gain = tables.format_estimate(candidate.gain, 1, sign="+")
  return (
    f", with {candidate.point.quality.value:.1f} {panel.metric} (the large"
    f" model has {panel.large.quality.value:.1f}, a difference of {gain})"
  )


def _describe_speed(candidate: Candidate) -> str:
  """Returns a candidate's speed over the large model's speed."""
  return f"{_format_ratio(candidate.speedup)} times the large model's speed"


def _doubt(candidate: Candidate) -> str:
  """Returns a warning where the interval of a candidate's speed includes 1."""
  speedup = candidate.speedup
  if speedup.has_interval and speedup.low <= 1 <= speedup.high:
    return ", which is not told apart from 1"
  return ""


def _format_ratio(ratio: IntervalEstimate) -> str:
  return tables.format_estimate(ratio, 2)


def _gain(point: Points, large: Points) -> float:
  return float(point.quality[0] - large.quality[0])


def _latency_ratio(first: Points, second: Points) -> float:
  return float(first.latency[0] / second.latency[0])
