"""What curves say in numbers: Table 2, differences, the frontier of all."""

from collections.abc import Sequence
import dataclasses
import math

from speccascade.report import curves, frontier
from speccascade.report.clocks import Clock
from speccascade.report.curves import Curve, Measured, Panel
from speccascade.report.frontier import Estimate, Points

# An oracle asks the large model at every token before it decides: its latency
# says nothing of what it would be.
NOT_FAST = ("oracle_cascade",)
BASELINES = ("spec_decode_lossy", "spec_decode_lossy_star")
# With one-hot laws these write what spec_decode writes, whatever alpha.
_LOSSLESS_IF_GREEDY = (*BASELINES, "mentored")
CHALLENGER = "spec_cascade"


def is_fast(method: str) -> bool:
  """Whether the method's latency counts; see `NOT_FAST`."""
  return not method.startswith(NOT_FAST)


@dataclasses.dataclass(frozen=True)
class Line:
  """A method's line of Table 2, by one clock.

  Attributes:
    clock: name of the `Clock`.
    temperature: 0 is greedy.
    method: in code.
    label: for people.
    gamma: None where all of its gammas are taken together.
    num_points: measured points.
    speedup: 1 / latency at the large model's quality; value 0 where no point
      reaches it.
    how: "interpolated"; "every point" where the fastest reaches it already;
      "same law" where a point of the large model's distribution is faster;
      "never".
    within: best quality within the large model's latency; -inf where no point
      is so fast.
    gain: `within` minus the large model's quality.
    best: highest quality measured.
    best_latency: the latency of that.
  """

  clock: str
  temperature: float
  method: str
  label: str
  gamma: int | None
  num_points: int
  speedup: Estimate
  how: str
  within: Estimate
  gain: Estimate
  best: float
  best_latency: float


def table_2(
  panel: Panel, clock: Clock, metric: str, *, gamma: int | None = None
) -> list[Line]:
  """Returns a line for each method that has a frontier; needs the large model.

  Args:
    panel: one temperature.
    clock: which latency.
    metric: which quality.
    gamma: of the curves; None lets each method take its best.
  """
  if gamma is not None:
    panel = panel.at_gamma(gamma)
  large = _large_points(panel, clock, metric)
  if large is None:
    return []
  lines = []
  for curve in curves.by_method(panel):
    if curve.method in (curves.REFERENCE, curves.SMALL):
      continue
    if not is_fast(curve.method):
      continue
    points = clock.points(curve.points, metric)
    if points is not None:
      lines.append(_line(panel, curve, points, large, clock, metric, gamma))
  return lines


def _large_points(panel, clock, metric) -> Points | None:
  return panel.large and clock.points([panel.large], metric)


def _line(panel, curve, points, large, clock, metric, gamma) -> Line:
  timed = clock.timed(curve.points, metric)
  same_law = [i for i, point in enumerate(timed) if point.has_large_law]

  def speedup(own: Points, other: Points) -> float:
    latency = frontier.latency_at(own, other.quality[0])
    return 1 / min([latency, *own.latency[same_law]])

  def within(own: Points, other: Points) -> float:
    return frontier.quality_within(own, other.latency[0])

  def gain(own: Points, other: Points) -> float:
    return within(own, other) - other.quality[0]

  best = frontier.frontier(points)
  return Line(
    clock=clock.name,
    temperature=panel.temperature,
    method=curve.name,
    label=curve.label,
    gamma=gamma,
    num_points=len(timed),
    speedup=frontier.estimate(speedup, points, large),
    how=_how(points, large, same_law),
    within=frontier.estimate(within, points, large),
    gain=frontier.estimate(gain, points, large),
    best=float(best.quality[-1]),
    best_latency=float(best.latency[-1]),
  )


def _how(points: Points, large: Points, same_law) -> str:
  wanted = large.quality[0]
  best = frontier.frontier(points)
  latency = frontier.latency_at(points, wanted)
  if len(same_law) and points.latency[same_law].min() <= latency:
    return "same law"
  if math.isinf(latency):
    return "never"
  return "every point" if wanted <= best.quality[0] else "interpolated"


@dataclasses.dataclass(frozen=True)
class Difference:
  """One method's frontier against another's, by one clock.

  Attributes:
    clock: name of the `Clock`.
    temperature: 0 is greedy.
    label: of the first method.
    baseline: label of the second.
    low: where the common latencies begin; None where there are none.
    high: where they end.
    gap: mean quality of the first minus the second's over them.
    at_speed: the same at the latency of the fastest `spec_decode`: the first's
      best quality within it minus the baseline's; NaN where either is slower.
  """

  clock: str
  temperature: float
  label: str
  baseline: str
  low: float | None
  high: float | None
  gap: Estimate
  at_speed: Estimate

  @property
  def verdict(self) -> str:
    """Whether the interval of `gap` leaves zero out."""
    if math.isnan(self.gap.value):
      return "no common latencies"
    if self.gap.low is None:
      return "no interval"
    if self.gap.low > 0:
      return "better"
    return "worse" if self.gap.high < 0 else "not told apart"


def differences(panel: Panel, clock: Clock, metric: str) -> list[Difference]:
  """Returns every speculative cascade against every lossy baseline.

  All gammas together. Where decoding is greedy the baselines are SpecDecode
  itself, so it alone is compared with.
  """
  merged = curves.by_method(panel)
  lossless = _points_of(merged, "spec_decode", clock, metric)
  names = BASELINES if panel.temperature > 0 else ("spec_decode",)
  made = []
  for name in names:
    base = _points_of(merged, name, clock, metric)
    if base is None:
      continue
    label = next(c.label for c in merged if c.method == name)
    for curve in merged:
      own = None
      if curve.method.startswith(CHALLENGER):
        own = clock.points(curve.points, metric)
      if own is not None:
        made.append(
          _difference(panel, clock, curve.label, label, own, base, lossless)
        )
  return made


def _points_of(merged, method, clock, metric) -> Points | None:
  members = [p for c in merged if c.method == method for p in c.points]
  return clock.points(members, metric) if members else None


def _difference(panel, clock, label, baseline, own, base, lossless):
  common = frontier.common_range(own, base) or (None, None)

  def at_speed(one: Points, other: Points, reference: Points) -> float:
    budget = reference.latency.min()
    gap = frontier.quality_within(one, budget)
    gap -= frontier.quality_within(other, budget)
    return gap if math.isfinite(gap) else math.nan

  nothing = Estimate(math.nan)
  return Difference(
    clock=clock.name,
    temperature=panel.temperature,
    label=label,
    baseline=baseline,
    low=common[0],
    high=common[1],
    gap=frontier.estimate(frontier.mean_gap, own, base),
    at_speed=nothing
    if lossless is None
    else frontier.estimate(at_speed, own, base, lossless),
  )


def overall_frontier(
  panel: Panel, clock: Clock, metric: str
) -> list[tuple[Measured, float]]:
  """Returns the points that no method beats, fastest first, and latencies."""
  members = [point for point in panel.points if is_fast(point.method)]
  timed = clock.timed(members, metric)
  points = clock.points(timed, metric) if timed else None
  if points is None:
    return []
  best = frontier.frontier(points)
  return [(timed[i], float(points.latency[i])) for i in best.index]


@dataclasses.dataclass(frozen=True)
class Loss:
  """A speculative method slower than the large model, and the reasons.

  Attributes:
    method: in code.
    label: for people.
    temperature: 0 is greedy.
    gamma: block size.
    alphas: of the points that lose.
    num_points: points of the method at this gamma.
    latency: the least relative latency of those that lose.
    acceptance_rate: of that point, like what follows.
    tokens_per_block: its mean acceptance length.
    c: cost of a drafter step.
    v: cost of a verifier pass over gamma + 1 tokens.
    predicted_block: cost of a block by its calls, in verifier steps.
    measured_block: what a block took, in verifier steps of the large model
      alone; encoders taken off both.
    modelled: relative latency if v were 1.
  """

  method: str
  label: str
  temperature: float
  gamma: int
  alphas: tuple[float, ...]
  num_points: int
  latency: Estimate
  acceptance_rate: float | None
  tokens_per_block: float | None
  c: float | None
  v: float | None
  predicted_block: float | None
  measured_block: float | None
  modelled: float | None


def losses(panel: Panel, model: Clock | None) -> list[Loss]:
  """Returns the speculative methods with points surely slower than one."""
  found = []
  for curve in panel.curves:
    if curve.gamma is None:
      continue
    slow = [point for point in curve.points if _is_slow(point)]
    if slow:
      found.append(_loss(panel, curve, slow, model))
  return found


def _is_slow(point: Measured) -> bool:
  """Whether the interval lies above 1; without one, whether the value does."""
  latency = point.latency_estimate
  if latency is None:
    return False
  return (latency.low if latency.has_interval else latency.value) > 1


def _loss(panel: Panel, curve: Curve, slow: Sequence[Measured], model) -> Loss:
  least = min(slow, key=lambda point: point.latency.value)
  gamma = curve.gamma
  tokens = least.efficiency["mean_acceptance_length"]
  predicted = least.mean(lambda row: row.predicted_speedup)
  sample = model.of(least) if model is not None else None
  return Loss(
    method=curve.method,
    label=curve.label,
    temperature=panel.temperature,
    gamma=gamma,
    alphas=tuple(
      point.settings.alpha for point in slow if point.settings.alpha is not None
    ),
    num_points=len(curve.points),
    latency=least.latency_estimate,
    acceptance_rate=least.efficiency["acceptance_rate"],
    tokens_per_block=tokens,
    c=least.mean(lambda row: row.costs and row.costs.c),
    v=least.mean(lambda row: row.costs and row.costs.v.get(gamma + 1)),
    predicted_block=tokens / predicted if predicted and tokens else None,
    measured_block=measured_block(least, panel.large),
    modelled=None if sample is None else sample.value,
  )


def measured_block(point: Measured, large: Measured | None) -> float | None:
  """Returns what a block took, in verifier steps as the large model ran them.

  Seconds an example, less the encoders', over blocks an example; that over the
  same for the large model's steps. Timed examples may be fewer than those that
  the counts are of: then it holds for blocks of average length.
  """
  if large is None or large.latency is None or not point.counts.num_blocks:
    return None
  seconds = point.mean(lambda row: row.latency and row.latency.walltime_s)
  costs = point.rows[0].costs
  if seconds is None or costs is None:
    return None
  alone = seconds / point.latency.value
  unit = costs.verifier_step_s
  verifier = costs.verifier_prefill * unit
  both = verifier + costs.drafter_prefill * unit
  step = (alone - verifier) / large.efficiency["tokens_per_example"]
  blocks = point.counts.num_blocks / point.counts.num_examples
  if step <= 0:
    return None
  return (seconds - both) / blocks / step
