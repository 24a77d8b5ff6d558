"""What the rows show, in sentences; and where speculation loses, and why."""

from collections.abc import Sequence
import itertools
import math
from typing import NamedTuple

from speccascade.report.clocks import Clock
from speccascade.report.frontier import IntervalEstimate
from speccascade.report.gaps import Gap, gaps
from speccascade.report.measured import metric_title, temperature_title
from speccascade.report.panels import PairStudy, Panel
from speccascade.report.slowdowns import Slowdown
from speccascade.report.speedups import Speedup, overall_frontier, speedups

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
  study: PairStudy, clocks: Sequence[Clock], metric: str
) -> list[Finding]:
  """Returns what each temperature shows."""
  return [
    Finding(
      panel.title,
      [*_models(panel, metric), *_agreement(panel)],
      [
        (
          clock.title,
          [
            *_gaps(panel, clock, metric),
            *_fastest(panel, clock, metric),
            *_frontier(panel, clock, metric),
          ],
        )
        for clock in clocks
      ],
    )
    for panel in study.panels
  ]


def _interval(estimate: IntervalEstimate, digits: int, sign: str = "") -> str:
  text = f"{estimate.value:{sign}.{digits}f}"
  if not estimate.has_interval:
    return text
  ends = (
    f"{end:{sign}.{digits}f}" if math.isfinite(end) else "never"
    for end in (estimate.low, estimate.high)
  )
  return f"{text} [{', '.join(ends)}]"


def _models(panel: Panel, metric: str):
  """Yields how good the two models are."""
  said = [
    f"the {name} model has {_interval(quality, 1)} {metric_title(metric)}"
    for name, point in (("small", panel.small), ("large", panel.large))
    if (quality := point and point.quality(metric))
  ]
  if said:
    yield "; ".join(said) + "."


def _agreement(panel: Panel):
  """Yields how often SpecDecode, greedy, wrote the large model's tokens."""
  curve = panel.find("spec_decode")
  same = curve and curve.points[0].rows[0].agreement
  if same and panel.temperature == 0:
    yield (
      f"SpecDecode wrote the large model's tokens in {same['identical']}"
      f" of {same['num_examples']} examples; {same['near_ties']} more part at"
      " two choices within 1e-4."
    )


def _gaps(panel: Panel, clock: Clock, metric: str):
  """Yields how cascades compare with each baseline."""
  by_baseline = {}
  for gap in gaps(panel, clock, metric):
    if gap.label.startswith(_ASKED) and not math.isnan(gap.gap.value):
      by_baseline.setdefault(gap.baseline, []).append(_gap(gap))
  for baseline, said in by_baseline.items():
    yield (
      f"Against {baseline}, in {metric_title(metric)} on average over their"
      f" common latencies: {'; '.join(said)}."
    )


def _gap(gap: Gap) -> str:
  verdict = "" if gap.verdict == "no interval" else f" is {gap.verdict},"
  where = f"at {gap.low:.2f}"
  if gap.high > gap.low:
    where = f"{gap.low:.2f} to {gap.high:.2f}"
  return f"{gap.label}{verdict} {_interval(gap.gap, 2, '+')} ({where})"


def _fastest(panel: Panel, clock: Clock, metric: str):
  """Yields which method is fastest at the large model's quality."""
  lines = speedups(panel, clock, metric)
  reached = [line for line in lines if line.speedup.value > 0]
  title = metric_title(metric)
  if not reached:
    if lines:
      yield f"No method reaches the large model's {title}."
    return
  best = max(reached, key=lambda line: line.speedup.value)
  if best.speedup.value > 1:
    lead = f"the fastest is {best.label}"
  else:
    lead = f"no method is faster than it; {best.label} comes closest"
  verb = "is" if clock.cost_ratio is None else "would be"
  text = (
    f"At the large model's {title} {lead}: it {verb} {_speedup(best)} times as"
    " fast as the large model"
  )
  plain = next((x for x in reached if x.method == "spec_decode"), best)
  if plain is not best:
    text += f"; SpecDecode {_speedup(plain)} times"
  if never := len(lines) - len(reached):
    text += f"; {never} of {len(lines)} methods never reach it"
  yield text + "."


def _speedup(line: Speedup) -> str:
  return _interval(line.speedup, 2).replace("[0.00,", "[never,")


def _frontier(panel: Panel, clock: Clock, metric: str):
  """Yields the methods that no other beats, consecutive points together."""
  said = []
  for label, same in itertools.groupby(
    overall_frontier(panel, clock, metric), key=lambda pair: pair[0].label
  ):
    span = [
      f"{point.quality(metric).value:.1f} at {latency:.2f}"
      for point, latency in same
    ]
    ends = span if len(span) == 1 else (span[0], span[-1])
    said.append(f"{label} ({' to '.join(ends)})")
  if said:
    yield (
      f"On the frontier of all methods, from fast to slow: {', '.join(said)}."
    )


def notices(lines: Sequence[Slowdown]) -> list[str]:
  """Returns a sentence or more for each temperature and gamma that loses."""
  groups = {}
  for line in lines:
    groups.setdefault((line.temperature, line.gamma), []).append(line)
  return [_notice(same) for same in groups.values()]


def _notice(same: Sequence[Slowdown]) -> str:
  first = next((line for line in same if line.method == "spec_decode"), same[0])
  text = (
    f"{temperature_title(first.temperature)}, gamma {first.gamma}:"
    f" {first.label} takes {_interval(first.latency, 2)} of the large model's"
    f" time{_alphas(first)}."
  )
  others = [line.label for line in same if line is not first]
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


def _alphas(line: Slowdown) -> str:
  """Which alphas lose; the latency given is that of the best of them."""
  if len(line.alphas) < 2:
    return f" at alpha {line.alphas[0]:g}" if line.alphas else ""
  low, high = min(line.alphas), max(line.alphas)
  return f" at the best of {len(line.alphas)} slow alphas, {low:g} to {high:g}"


def _reasons(line: Slowdown) -> str:
  """Why one method loses, in numbers."""
  if line.acceptance_rate is None:
    return ""
  text = (
    f"{line.label} has {line.acceptance_rate:.2f} of its examined drafts"
    f" accepted, which makes {line.tokens_per_block:.2f} tokens a block"
  )
  if line.predicted_block is not None:
    text += f"; by its calls a block costs {line.predicted_block:.2f} steps"
    if line.measured_block is not None:
      text += f", and took {line.measured_block:.2f}"
  if line.modelled is not None:
    verdict = "lose still" if line.modelled > 1 else "win"
    text += (
      f"; where the pass costs one step it would {verdict}, with"
      f" {line.modelled:.2f} of the large model's time"
    )
  return text + "."
