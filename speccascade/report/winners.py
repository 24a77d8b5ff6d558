"""Which measured point is fastest at the large model's quality, and how surely.

Table 2 interpolates between the alphas that were measured, and nobody can
decode with an interpolated alpha. So the report claims speed of points alone:
settings that were measured, and that can be pasted into a config. A point is
called faster than another only where the whole 95% interval of the ratio of the
two latencies, in pairs, is on one side of 1.
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
    point: what was measured.
    speedup: the large model's latency over the point's.
    gain: the point's quality minus the large model's.
  """

  point: Measured
  speedup: IntervalEstimate
  gain: IntervalEstimate

  @property
  def is_plain(self) -> bool:
    """Whether this is SpecDecode."""
    return self.point.method == PLAIN


def candidates(panel: PointGroup, clock: Clock) -> list[Candidate]:
  """Returns the points that are as good as the large model, fastest first.

  As good are the points of the large model's own law, and those whose measured
  quality is no lower. Of equally fast points the first measured comes first.

  Args:
    panel: one temperature.
    clock: which latency.
  """
  large = panel.large
  if large is None or not clock.timed([large]):
    return []
  members = [
    point
    for point in clock.timed(panel.points)
    if point.method not in (REFERENCE, SMALL) and is_fast(point.method)
    if point.has_large_law or point.quality.value >= large.quality.value
  ]
  alone = clock.points([large])
  found = [
    Candidate(
      point,
      _inverse(clock.of(point)),
      frontier.estimate(_gain, clock.points([point]), alone),
    )
    for point in members
  ]
  return sorted(found, key=lambda candidate: -candidate.speedup.value)


def times_as_fast(
  first: Candidate, second: Candidate, clock: Clock
) -> IntervalEstimate:
  """Returns the second candidate's latency over the first's, in pairs."""
  samples = (clock.points([x.point]) for x in (second, first))
  return frontier.estimate(_latency_ratio, *samples)


def lead(panel: PointGroup, clock: Clock) -> str:
  """Returns what the fastest points are told apart from, as a clause.

  It names the method, alpha and gamma of a measured point, as a config takes
  them. Empty where the panel has no large model with a latency.

  Args:
    panel: one temperature.
    clock: which latency.
  """
  large = panel.large
  if large is None or not clock.timed([large]):
    return ""
  fits = candidates(panel, clock)
  if not fits:
    return (
      f"no measured point of a method has the large model's {panel.metric} of"
      f" {large.quality.value:.1f}"
    )
  fastest = fits[0]
  plain = next((x for x in fits if x.is_plain), None)
  beside = ""
  if plain is not None and plain is not fastest:
    beside = f"; SpecDecode has {_speed(plain)}"
  if clock.cost_ratio is not None:
    return (
      "by its calls, which have no interval, the fastest would be"
      f" {_described(fastest, panel)}{beside}"
    )
  faster = [x for x in fits if is_surely_above_one(x.speedup)]
  if not faster:
    surely = " by its whole interval" if fastest.speedup.value > 1 else ""
    return (
      f"no method is faster than the large model{surely}; the fastest measured"
      f" is {_described(fastest, panel)}{beside}"
    )
  if plain is None:
    return (
      f"faster than the large model is {_described(faster[0], panel)}"
      f"{_rivals(faster[0], fits, clock)}; SpecDecode was not measured"
    )
  for candidate in faster:
    over = times_as_fast(candidate, plain, clock)
    if not candidate.is_plain and is_surely_above_one(over):
      return (
        f"faster than SpecDecode, {_times(over)} times its speed, is"
        f" {_described(candidate, panel)}{_rivals(candidate, fits, clock)}"
      )
  if fastest.is_plain:
    return f"no method is faster than {_described(plain, panel)}"
  return (
    "no method is faster than SpecDecode by its whole interval; the fastest"
    f" measured is {_described(fastest, panel)}{beside}"
  )


def is_surely_above_one(ratio: IntervalEstimate) -> bool:
  """Returns whether a ratio has an interval, and all of it is above 1."""
  return ratio.has_interval and ratio.low > 1


def bindings(settings: Settings) -> str:
  """Returns the point's settings as a config of a decode takes them.

  Settings that have the default of `configs/runs/method.gin` are left out.
  """
  values = {
    "METHOD": settings.method,
    "ALPHA": settings.alpha,
    "GAMMA": settings.gamma,
  }
  if settings.verification == "block":
    values["VERIFICATION"] = settings.verification
  if settings.bonus == "verifier":
    values["BONUS"] = settings.bonus
  if settings.draft_length not in (None, "fixed"):
    policy = settings.draft_length, settings.draft_threshold
    values["DRAFT_LENGTH"] = policy
  return ", ".join(
    f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
    for name, value in values.items()
    if value is not None
  )


def _rivals(winner: Candidate, fits: Sequence[Candidate], clock: Clock) -> str:
  """Says how many other methods the winner is not told apart from.

  Each other method stands for itself by its fastest candidate.
  """
  fastest = {}
  for candidate in fits:
    fastest.setdefault(candidate.point.method, candidate)
  del fastest[winner.point.method]
  alike = [
    candidate
    for candidate in fastest.values()
    if not is_surely_above_one(times_as_fast(winner, candidate, clock))
  ]
  if not fastest:
    return ""
  if not alike:
    return "; by its interval it is faster than every other method as good"
  return (
    f"; by its interval it is not faster than {len(alike)} of the"
    f" {len(fastest)} other methods that are as good"
  )


def _described(candidate: Candidate, panel: PointGroup) -> str:
  """Returns a candidate's name, settings, speed and quality."""
  point = candidate.point
  return (
    f"{point.label} ({bindings(point.settings)}), {_speed(candidate)}, with"
    f" {point.quality.value:.1f} {panel.metric} (the large model"
    f" {panel.large.quality.value:.1f}, difference"
    f" {tables.estimated(candidate.gain, 1, sign='+')})"
  )


def _speed(candidate: Candidate) -> str:
  """Returns the speed against the large model's, and whether it differs."""
  speedup = candidate.speedup
  text = f"{_times(speedup)} times the large model's speed"
  if speedup.has_interval and speedup.low <= 1 <= speedup.high:
    text += ", not told apart from it"
  return text


def _times(ratio: IntervalEstimate) -> str:
  return tables.estimated(ratio, 2)


def _inverse(latency: IntervalEstimate) -> IntervalEstimate:
  value, low, high = latency
  if low is None:
    return IntervalEstimate(1 / value)
  return IntervalEstimate(1 / value, 1 / high, 1 / low)


def _gain(point: Points, large: Points) -> float:
  return float(point.quality[0] - large.quality[0])


def _latency_ratio(first: Points, second: Points) -> float:
  return float(first.latency[0] / second.latency[0])
