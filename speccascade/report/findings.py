"""What the rows show, in sentences; and where speculation loses, and why."""

from collections.abc import Sequence
import math
from typing import NamedTuple

from speccascade.report import curves, summary
from speccascade.report.clocks import Clock
from speccascade.report.curves import Panel, Study
from speccascade.report.frontier import Estimate
from speccascade.report.summary import Difference, Line, Loss

# What the report asks first: do these beat lossy speculative decoding?
_ASKED = ("SpecCascade [OPT]", "SpecCascade [Token")


class Finding(NamedTuple):
  """What one temperature shows.

  Attributes:
    title: of the temperature.
    models: sentences on the two models.
    by_clock: (the clock's title, sentences).
  """

  title: str
  models: list[str]
  by_clock: list[tuple[str, list[str]]]


def findings(
  study: Study, clocks: Sequence[Clock], metric: str
) -> list[Finding]:
  """Returns what each temperature shows."""
  return [
    Finding(
      panel.title,
      [one for one in (_models(panel, metric), _agreement(panel)) if one],
      [(clock.title, _by_clock(panel, clock, metric)) for clock in clocks],
    )
    for panel in study.panels
  ]


def _by_clock(panel: Panel, clock: Clock, metric: str) -> list[str]:
  lines = [
    *_differences(panel, clock, metric),
    _fastest(panel, clock, metric),
    _frontier(panel, clock, metric),
  ]
  return [line for line in lines if line]


def _interval(estimate: Estimate, digits: int, sign: str = "") -> str:
  text = f"{estimate.value:{sign}.{digits}f}"
  if not estimate.has_interval:
    return text
  ends = (
    f"{end:{sign}.{digits}f}" if math.isfinite(end) else "never"
    for end in (estimate.low, estimate.high)
  )
  return f"{text} [{', '.join(ends)}]"


def _models(panel: Panel, metric: str) -> str | None:
  said = []
  for name, point in (("small", panel.small), ("large", panel.large)):
    quality = point and point.quality_estimate(metric)
    if quality:
      title = curves.metric_title(metric)
      said.append(f"the {name} model has {_interval(quality, 1)} {title}")
  return "; ".join(said) + "." if said else None


def _frontier(panel: Panel, clock: Clock, metric: str) -> str | None:
  best = summary.overall_frontier(panel, clock, metric)
  if not best:
    return None
  runs = []  # consecutive points of one method
  for point, latency in best:
    quality = point.quality(metric).value
    if runs and runs[-1][0] == point.label:
      runs[-1][1].append((latency, quality))
    else:
      runs.append((point.label, [(latency, quality)]))
  said = []
  for label, points in runs:
    (first, low), (last, high) = points[0], points[-1]
    span = f"{low:.1f} at {first:.2f}"
    if len(points) > 1:
      span += f" to {high:.1f} at {last:.2f}"
    said.append(f"{label} ({span})")
  return (
    f"On the frontier of all methods, from fast to slow: {', '.join(said)}."
  )


def _fastest(panel: Panel, clock: Clock, metric: str) -> str | None:
  """Says which method is fastest at the large model's quality."""
  lines = summary.table_2(panel, clock, metric)
  reached = [line for line in lines if line.speedup.value > 0]
  if not lines:
    return None
  title = curves.metric_title(metric)
  if not reached:
    return f"No method reaches the large model's {title}."
  best = max(reached, key=lambda line: line.speedup.value)
  verb = "would be" if clock.cost_ratio is not None else "is"
  lead = f"At the large model's {title} the fastest is {best.label}: it"
  if best.speedup.value <= 1:
    lead = (
      f"At the large model's {title} no method is faster than it;"
      f" {best.label} comes closest: it"
    )
  text = f"{lead} {verb} {_speedup(best)} times as fast as the large model"
  plain = next((x for x in reached if x.method == "spec_decode"), None)
  if plain is not None and plain is not best:
    text += f"; SpecDecode {_speedup(plain)} times"
  never = len(lines) - len(reached)
  if never:
    text += f"; {never} of {len(lines)} methods never reach it"
  return text + "."


def _speedup(line: Line) -> str:
  text = _interval(line.speedup, 2).replace("[0.00,", "[never,")
  return text


def _differences(panel: Panel, clock: Clock, metric: str) -> list[str]:
  by_baseline = {}
  for one in summary.differences(panel, clock, metric):
    if one.label.startswith(_ASKED) and not math.isnan(one.gap.value):
      by_baseline.setdefault(one.baseline, []).append(_difference(one))
  title = curves.metric_title(metric)
  return [
    f"Against {baseline}, in {title} on average over their common latencies:"
    f" {'; '.join(said)}."
    for baseline, said in by_baseline.items()
  ]


def _difference(one: Difference) -> str:
  verdict = "" if one.verdict == "no interval" else f" is {one.verdict},"
  where = f"at {one.low:.2f}"
  if one.high > one.low:
    where = f"{one.low:.2f} to {one.high:.2f}"
  return f"{one.label}{verdict} {_interval(one.gap, 2, '+')} ({where})"


def _agreement(panel: Panel) -> str | None:
  """Says how often SpecDecode, greedy, wrote the large model's tokens."""
  curve = panel.find("spec_decode")
  if curve is None or panel.temperature > 0:
    return None
  same = curve.points[0].rows[0].agreement
  if same is None:
    return None
  return (
    f"SpecDecode wrote the large model's tokens in {same['identical']}"
    f" of {same['num_examples']} examples; {same['near_ties']} more part at two"
    " choices within 1e-4."
  )


def notices(losses: Sequence[Loss]) -> list[str]:
  """Returns a sentence or more for each temperature and gamma that loses."""
  groups = {}
  for loss in losses:
    groups.setdefault((loss.temperature, loss.gamma), []).append(loss)
  return [_notice(same) for same in groups.values()]


def _notice(same: Sequence[Loss]) -> str:
  first = next((loss for loss in same if loss.method == "spec_decode"), same[0])
  text = (
    f"{curves.temperature_title(first.temperature)}, gamma {first.gamma}:"
    f" {first.label} takes {_interval(first.latency, 2)} of the large model's"
    f" time{_alphas(first)}."
  )
  others = [loss.label for loss in same if loss is not first]
  if others:
    text += (
      f" Slower than the large model too, at some alphas: {', '.join(others)}."
    )
  if first.c is not None and first.v is not None:
    text += (
      f" A drafter step costs {first.c:.2f} of its steps and the pass over"
      f" {first.gamma + 1} tokens {first.v:.2f}."
    )
  return f"{text} {_reasons(first)}".strip()


def _alphas(loss: Loss) -> str:
  """Which alphas lose; the latency given is that of the best of them."""
  if len(loss.alphas) < 2:
    return f" at alpha {loss.alphas[0]:g}" if loss.alphas else ""
  low, high = min(loss.alphas), max(loss.alphas)
  return f" at the best of {len(loss.alphas)} slow alphas, {low:g} to {high:g}"


def _reasons(loss: Loss) -> str:
  """Why one method loses, in numbers."""
  if loss.acceptance_rate is None:
    return ""
  text = (
    f"{loss.label} has {loss.acceptance_rate:.2f} of its examined drafts"
    f" accepted, which makes {loss.tokens_per_block:.2f} tokens a block"
  )
  if loss.predicted_block is not None:
    text += f"; by its calls a block costs {loss.predicted_block:.2f} steps"
    if loss.measured_block is not None:
      text += f", and took {loss.measured_block:.2f}"
  if loss.modelled is not None:
    verdict = "lose still" if loss.modelled > 1 else "win"
    text += (
      f"; where the pass costs one step it would {verdict}, with"
      f" {loss.modelled:.2f} of the large model's time"
    )
  return text + "."
