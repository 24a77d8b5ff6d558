"""Sentences on what the rows show, and on where speculation loses, and why."""

from collections.abc import Iterator, Sequence
import functools
import itertools
import math
from typing import NamedTuple

from speccascade.report import frontier, tables, winners
from speccascade.report.groups import PointGroup, group_by
from speccascade.report.measured import SMALL, Clock, temperature_title
from speccascade.report.slowdowns import Slowdown
from speccascade.report.summaries import (
  GapLine,
  gaps,
  overall_frontier,
  speedups,
)

# The first question of a report: do these beat lossy speculative decoding?
_CHALLENGERS = ("SpecCascade [OPT]", "SpecCascade [Token")
_BETTER = (
  "The small model is better than the large one, so deferring to the large"
  " model costs quality as well as time. Train the large model longer, or take"
  " another large model. Check that the checkpoints are not exchanged, and that"
  " both models read the inputs of the task."
)
_ALIKE = (
  "The examples do not tell the two models apart, nor cascades of the two."
  " Score more examples, or train the large model longer."
)
_format = functools.partial(tables.format_estimate, special=tables.NEVER)


class ClockFinding(NamedTuple):
  """What one temperature shows by one clock.

  Attributes:
    title: the title of the clock.
    sentences: what the points show.
  """

  title: str
  sentences: list[str]


class Finding(NamedTuple):
  """What one temperature shows.

  Attributes:
    title: the title of the temperature.
    models: sentences on the two models.
    by_clock: sentences on the methods, for each clock.
  """

  title: str
  models: list[str]
  by_clock: list[ClockFinding]


def findings(study: PointGroup, clocks: Sequence[Clock]) -> list[Finding]:
  """Returns what each temperature of a study shows.

  Args:
    study: all points of a pair.
    clocks: the definitions of latency.
  """
  return [
    Finding(
      panel.title,
      [*_model_sentences(panel)],
      [ClockFinding(x.title, _method_sentences(panel, x)) for x in clocks],
    )
    for panel in study.panels
  ]


def _method_sentences(panel: PointGroup, clock: Clock) -> list[str]:
  return [
    *_gap_sentences(panel, clock),
    *_quality_sentences(panel, clock),
    *_frontier_sentences(panel, clock),
  ]


def headline(study: PointGroup, clocks: Sequence[Clock]) -> str:
  """Returns what the study shows at the large model's quality, in brief.

  The headline has a claim for each temperature, by the first clock that has
  any claim. The findings below it give the details of each claim.

  Args:
    study: all points of a pair.
    clocks: the definitions of latency, the preferred one first.

  Returns:
    The headline; empty where the large model has no latency.
  """
  for clock in clocks:
    clauses = []
    for panel in study.panels:
      if lead := winners.lead(panel, clock):
        clauses.append(f"{panel.title}: {lead.claim}.")
    if clauses:
      return f"At the large model's {study.metric}, {' '.join(clauses)}"
  return ""


def doubts(study: PointGroup) -> list[str]:
  """Returns why a pair has little to gain, and what to do about it.

  Returns:
    A sentence on the temperatures at which the small model is the better one,
    and a sentence on the temperatures at which the examples do not tell the two
    models apart. The list is empty for a good pair.
  """
  facts_by_advice = {}
  for panel in study.panels:
    small, large = panel.first(SMALL), panel.large
    if not small or not large:
      continue
    # Twice the mean of s and -l is the difference s - l, in pairs.
    samples = [small.quality_sample, -large.quality_sample]
    gap = frontier.sample_estimate(2 * frontier.mean(samples))
    least, greatest = gap.bounds
    if greatest < 0:
      continue
    advice = _BETTER if least > 0 else _ALIKE
    facts_by_advice.setdefault(advice, []).append(
      f"{panel.title}: the small model has {small.quality.value:.1f}"
      f" {panel.metric} and the large model has {large.quality.value:.1f},"
      f" a difference of {_format(gap, 1, sign='+')}"
    )
  return [
    f"{'; '.join(facts)}. {advice}" for advice, facts in facts_by_advice.items()
  ]


def _model_sentences(panel: PointGroup) -> Iterator[str]:
  """Yields the quality of the two models, and how alike SpecDecode writes."""
  clauses = [
    f"the {name} model has {_format(point.quality, 1)} {panel.metric}"
    for name, point in (("small", panel.first(SMALL)), ("large", panel.large))
    if point
  ]
  if clauses:
    yield "; ".join(clauses) + "."
  doubts_of_c = [row.costs and row.costs.doubt for row in panel.rows]
  if doubt := next(filter(None, doubts_of_c), None):
    yield f"{doubt[0].upper()}{doubt[1:]}."
  plain = panel.first("spec_decode")
  agreement = plain.rows[0].agreement if plain else None
  if agreement and panel.settings.temperature == 0:
    yield (
      f"SpecDecode wrote the large model's tokens in {agreement['identical']}"
      f" of {agreement['num_examples']} examples; {agreement['near_ties']} more"
      " part from them at a near tie, where two choices are within 1e-4."
    )


def _gap_sentences(panel: PointGroup, clock: Clock) -> Iterator[str]:
  """Yields how cascades compare with each lossy baseline."""
  lines = [
    line
    for line in gaps(panel, clock)
    if line.label.startswith(_CHALLENGERS) and not math.isnan(line.gap.value)
  ]
  by_baseline = {}
  for line in lines:
    by_baseline.setdefault(line.baseline, []).append(line)
  for baseline, members in by_baseline.items():
    yield (
      f"Compared with {baseline}, by mean {panel.metric} over the latencies"
      f" that both have: {'; '.join(map(_gap_clause, members))}."
    )


def _gap_clause(line: GapLine) -> str:
  """Returns how a cascade compares with a baseline that is named before."""
  verdicts = {
    "better": "is better, with",
    "worse": "is worse, with",
    "not told apart": "is not told apart from it, with",
    "no interval": "has",
  }
  latencies = f"at latency {line.low:.2f}"
  if line.high > line.low:
    latencies = f"over latencies {line.low:.2f} to {line.high:.2f}"
  gap = _format(line.gap, 2, sign="+")
  return f"{line.label} {verdicts[line.verdict]} {gap} {latencies}"


def _quality_sentences(panel: PointGroup, clock: Clock) -> Iterator[str]:
  """Yields who is fast at the large model's quality, and who lacks it."""
  if clause := winners.lead(panel, clock):
    yield f"At the large model's {panel.metric}, {clause}."
  lines = speedups(panel, clock)
  num_never = sum(line.speedup.value == 0 for line in lines)
  # Where no method reaches it, the sentence before says so.
  if 0 < num_never < len(lines):
    yield (
      f"{num_never} of {len(lines)} methods never reach the large model's"
      f" {panel.metric}."
    )


def _frontier_sentences(panel: PointGroup, clock: Clock) -> Iterator[str]:
  """Yields the methods on the frontier of all methods.

  Neighbouring points of one method are named by the first and the last of them.
  """
  clauses = []
  best = overall_frontier(panel, clock)
  for label, group in itertools.groupby(best, lambda each: each.point.label):
    points = [
      f"{point.quality.value:.1f} at {latency:.2f}" for point, latency in group
    ]
    span = points[0] if len(points) == 1 else f"{points[0]} to {points[-1]}"
    clauses.append(f"{label} ({span})")
  if clauses:
    yield (
      "On the frontier of all methods are, from fast to slow"
      f" ({panel.metric} at latency): {', '.join(clauses)}."
    )


def notices(lines: Sequence[Slowdown]) -> list[str]:
  """Returns some sentences for each temperature and gamma that loses.

  They name the methods that are slower than the large model, and say of one
  method which alphas are slow, and why, in numbers.

  Args:
    lines: the slow methods of a study, see `slowdowns.slowdowns`.
  """
  groups = group_by(lines, ["temperature", "gamma"])
  return [" ".join(_notice_sentences(group)) for group in groups]


def _notice_sentences(lines: Sequence[Slowdown]) -> Iterator[str]:
  """Yields the sentences on the methods of one temperature and gamma."""
  # SpecDecode is explained where it is slow, as it is the best known.
  plain = [line for line in lines if line.settings.method == "spec_decode"]
  line = plain[0] if plain else lines[0]
  settings, label = line.settings, line.label
  yield (
    f"{temperature_title(settings.temperature)}, gamma {settings.gamma}:"
    f" {label} takes {_format(line.latency, 2)} times the large model's time"
    f"{_alpha_clause(line.alphas)}."
  )
  if others := [other.label for other in lines if other is not line]:
    yield (
      "At some alphas these methods are slower than the large model too:"
      f" {', '.join(others)}."
    )
  if line.c is not None and line.v is not None:
    yield (
      f"A drafter step costs {line.c:.2f} steps of the large model, and the"
      f" pass over {settings.block_width} tokens costs {line.v:.2f} steps."
    )
  if line.acceptance_rate is not None:
    clauses = [
      f"{label} has {line.acceptance_rate:.2f} of its examined drafts"
      f" accepted, which gives {line.tokens_per_block:.2f} tokens a block",
      *_block_clauses(line),
    ]
    yield f"{'; '.join(clauses)}."


def _alpha_clause(alphas: Sequence[float]) -> str:
  """Returns which alphas of a method are slow; nothing where it has none."""
  if not alphas:
    return ""
  if len(alphas) == 1:
    return f" at alpha {alphas[0]:g}"
  return (
    f" at the best of {len(alphas)} slow alphas, {min(alphas):g} to"
    f" {max(alphas):g}"
  )


def _block_clauses(line: Slowdown) -> Iterator[str]:
  """Yields the cost of a block, and whether a pass of one step would win."""
  if line.predicted_block is not None:
    clause = f"by its calls a block costs {line.predicted_block:.2f} steps"
    if line.measured_block is not None:
      clause += f", and it took {line.measured_block:.2f} steps"
    yield clause
  if line.modelled is not None:
    outcome = "would still lose" if line.modelled > 1 else "would win"
    yield (
      f"if the pass cost one step, {line.label} {outcome}, with"
      f" {line.modelled:.2f} times the large model's time"
    )
