"""What the rows show, in sentences; and where speculation loses, and why."""

from collections.abc import Sequence
import math

from speccascade.experiments.frontier import Estimate
from speccascade.experiments.report import curves, summary
from speccascade.experiments.report.curves import Clock, Panel, Study
from speccascade.experiments.report.summary import Difference, Line, Loss

# What the report asks first: do these beat lossy speculative decoding?
_ASKED = ("SpecCascade [OPT]", "SpecCascade [Token")


def findings(
  study: Study, clocks: Sequence[Clock], metric: str
) -> list[tuple[str, list[str]]]:
  """Returns sentences for each temperature, under its title."""
  said = []
  for panel in study.panels:
    lines = [_models(panel, metric)]
    for clock in clocks:
      lines += [_frontier(panel, clock, metric)]
      lines += [_fastest(panel, clock, metric)]
      lines += _differences(panel, clock, metric)
    lines += [_agreement(panel)]
    said.append((panel.title, [line for line in lines if line]))
  return said


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
    f"By {clock.name} latency no method beats, from fast to slow:"
    f" {', '.join(said)}."
  )


def _fastest(panel: Panel, clock: Clock, metric: str) -> str | None:
  """Says which method is fastest at the large model's quality."""
  lines = summary.table_2(panel, clock, metric)
  reached = [line for line in lines if line.speedup.value > 0]
  if not lines:
    return None
  title = curves.metric_title(metric)
  if not reached:
    return f"By {clock.name} latency no method reaches its {title}."
  best = max(reached, key=lambda line: line.speedup.value)
  verb = "would be" if clock.cost_ratio is not None else "is"
  text = (
    f"By {clock.name} latency, at the large model's {title} the fastest is"
    f" {best.label}: it {verb} {_speedup(best)} times as fast as the large"
    " model"
  )
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
  said = []
  for one in summary.differences(panel, clock, metric):
    if one.label.startswith(_ASKED) and not math.isnan(one.gap.value):
      said.append(_difference(one, clock, curves.metric_title(metric)))
  return said


def _difference(one: Difference, clock: Clock, title: str) -> str:
  verb = {
    "better": "beats",
    "worse": "loses to",
    "not told apart": "cannot be told from",
  }.get(one.verdict, "is beside")
  where = f"latency {one.low:.2f}"
  if one.high > one.low:
    where = f"latencies from {one.low:.2f} to {one.high:.2f}"
  return (
    f"By {clock.name} latency {one.label} {verb} {one.baseline}:"
    f" {_interval(one.gap, 2, '+')} {title} on average at {where}."
  )


def _agreement(panel: Panel) -> str | None:
  """Says how often greedy SpecDecode wrote the large model's tokens."""
  curve = panel.find("spec_decode")
  if curve is None or panel.temperature > 0:
    return None
  same = curve.points[0].rows[0].agreement
  if same is None:
    return None
  return (
    f"Greedy, SpecDecode wrote the large model's tokens in {same['identical']}"
    f" of {same['num_examples']} examples; {same['near_ties']} more part at two"
    " choices within 1e-4."
  )


def notices(study: Study, model: Clock | None) -> list[str]:
  """Returns a sentence for each speculative method that is too slow."""
  return [
    _loses(loss)
    for panel in study.panels
    for loss in summary.losses(panel, model)
  ]


def _loses(loss: Loss) -> str:
  where = curves.temperature_title(loss.temperature)
  which = ""
  if len(loss.alphas) > 1:
    which = (
      f" at {len(loss.alphas)} of {loss.num_points} alphas"
      f" ({min(loss.alphas):g} to {max(loss.alphas):g})"
    )
  elif loss.num_points > 1:
    which = f" at alpha {loss.alphas[0]:g}"
  text = (
    f"{loss.label}, {where}, gamma {loss.gamma}{which}, is slower than the"
    f" large model alone: {_interval(loss.latency, 2)} of its time"
  )
  if len(loss.alphas) > 1:
    text += " at best among these"
  reasons = _reasons(loss)
  return f"{text}. {'. '.join(reasons)}." if reasons else text + "."


def _reasons(loss: Loss) -> list[str]:
  said = []
  if loss.acceptance_rate is not None:
    said.append(
      f"{loss.acceptance_rate:.2f} of the drafts examined were accepted, which"
      f" makes {loss.tokens_per_block:.2f} tokens a block"
    )
  if loss.c is not None and loss.v is not None:
    said.append(
      f"In steps of the large model a drafter step costs {loss.c:.2f} and the"
      f" pass over {loss.gamma + 1} tokens {loss.v:.2f}"
    )
  if loss.predicted_block is not None:
    text = f"By its calls a block costs {loss.predicted_block:.2f}"
    if loss.measured_block is not None:
      over = loss.measured_block - loss.predicted_block
      text += (
        f", measured {loss.measured_block:.2f}: {abs(over):.2f}"
        f" {'more' if over > 0 else 'less'}"
      )
    said.append(text)
  if loss.modelled is not None:
    verdict = "still lose" if loss.modelled > 1 else "win"
    said.append(
      f"Where the pass costs one step it would {verdict}:"
      f" {loss.modelled:.2f} of the large model's time"
    )
  return said
