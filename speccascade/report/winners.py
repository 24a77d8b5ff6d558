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
class Contender:
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


def candidates(panel: PointGroup, clock: Clock) -> list[Contender]:
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
    fits.append(Contender(point, speedup, gain))
  return sorted(fits, key=lambda candidate: -candidate.speedup.value)


def times_as_fast(
  first: Contender, second: Contender, clock: Clock
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


@dataclasses.dataclass(frozen=True, eq=False)
class Lead:
  """What is known about the fastest points at the large model's quality.

  Attributes:
    claim: what the intervals tell apart, in a line.
    candidate: the point that the claim names; None where no point is as good as
      the large model.
    details: the point's quality, and how many methods may be as fast; empty
      without a point.
  """

  claim: str
  candidate: Contender | None = None
  details: str = ""

  @property
  def settings(self) -> str:
    """The settings of the point, as a config takes them."""
    return bindings(self.candidate.point.settings) if self.candidate else ""

  def __str__(self) -> str:
    parts = (self.claim, self.details, self.settings)
    return "; ".join(filter(None, parts))


def lead(panel: PointGroup, clock: Clock) -> Lead | None:
  """Returns what is known about the fastest points as good as the large model.

  The point that is named is the fastest one that is surely faster than
  SpecDecode and than the large model. Without such a point it is the fastest.

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
      "no method is as good as the large model, which has"
      f" {large.quality.value:.1f} {panel.metric}"
    )
  named = fits[0]
  if clock.cost_ratio is not None:
    claim = (
      f"by its calls {name(named)} would be {_times(named)} as fast as the"
      " large model"
    )
    return Lead(claim, named, _quality(named, panel))
  faster = [each for each in fits if is_surely_above_one(each.speedup)]
  # Candidates are sorted, so this is the fastest point of SpecDecode.
  plain = next((candidate for candidate in fits if candidate.is_plain), None)
  # A faster point than the one whose lead is sure may scatter.
  for candidate in faster if plain else ():
    ratio = times_as_fast(candidate, plain, clock)
    if not candidate.is_plain and is_surely_above_one(ratio):
      return Lead(
        f"{name(candidate)} is {_times(candidate)} as fast as the large model,"
        f" and {_format_ratio(ratio)} times as fast as {PLAIN}",
        candidate,
        _quality(candidate, panel) + _rivals_clause(candidate, fits, clock),
      )
  if not faster:
    shown = "" if named.speedup.bounds[1] < 1 else "shown to be "
    claim = (
      f"no method as good as the large model is {shown}faster; {name(named)} is"
      f" {_times(named)} as fast"
    )
    return Lead(claim, named, _quality(named, panel))
  named = faster[0]
  claim = f"{name(named)} is {_times(named)} as fast as the large model"
  if plain is None:
    claim += f"; {PLAIN} was not measured"
  elif named.is_plain:
    claim += "; no other method is shown to be faster"
  else:
    claim += f", and not told apart from {PLAIN} ({_times(plain)})"
  return Lead(claim, named, _quality(named, panel))


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


def name(candidate: Contender) -> str:
  """Returns the method of a candidate as one types it, with its alpha."""
  return PointGroup([candidate.point]).typed


def _rivals_clause(
  winner: Contender, fits: Sequence[Contender], clock: Clock
) -> str:
  """Returns how many other methods the winner is not surely faster than."""
  fastest = {}
  # Candidates are sorted: the first of a method is its fastest.
  for candidate in fits:
    fastest.setdefault(candidate.point.method, candidate)
  del fastest[winner.point.method]
  ratios = (times_as_fast(winner, each, clock) for each in fastest.values())
  num_alike = sum(not is_surely_above_one(ratio) for ratio in ratios)
  if not num_alike:
    return "; faster than every other method that is as good"
  return (
    f"; not told apart from {num_alike} of the {len(fastest)} other methods"
    " that are as good"
  )


def _quality(candidate: Contender, panel: PointGroup) -> str:
  """Returns a candidate's quality, compared with the large model's quality."""
  gain = tables.format_estimate(candidate.gain, 1, sign="+")
  return (
    f"{candidate.point.quality.value:.1f} {panel.metric} against"
    f" {panel.large.quality.value:.1f}, a difference of {gain}"
  )


def _times(candidate: Contender) -> str:
  """Returns a candidate's speed over the large model's speed."""
  return f"{_format_ratio(candidate.speedup)} times"


def _format_ratio(ratio: IntervalEstimate) -> str:
  return tables.format_estimate(ratio, 2)


def _gain(point: Points, large: Points) -> float:
  return float(point.quality[0] - large.quality[0])


def _latency_ratio(first: Points, second: Points) -> float:
  return float(first.latency[0] / second.latency[0])
