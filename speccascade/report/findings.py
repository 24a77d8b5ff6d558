"""Sentences on what the rows show, and on where speculation loses."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import itertools

from speccascade.report import frontier, tables, winners
from speccascade.report.groups import PointGroup, group_by
from speccascade.report.measured import (
  MEASURED,
  SMALL,
  Clock,
  temperature_title,
)
from speccascade.report.slowdowns import Slowdown
from speccascade.report.summaries import overall_frontier, speedups
from speccascade.report.winners import Lead

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


@dataclasses.dataclass(frozen=True, eq=False)
class Finding:
  """What one temperature shows.

  Attributes:
    title: the title of the temperature.
    sentences: what the models and the methods do there.
  """

  title: str
  sentences: Sequence[str]


@dataclasses.dataclass(frozen=True, eq=False)
class TitledLead:
  """What the intervals tell apart at one temperature.

  Attributes:
    title: the title of the temperature.
    lead: the line, the point that it names, and the point's settings.
  """

  title: str
  lead: Lead

  def __str__(self) -> str:
    return f"{self.title}: {self.lead.claim}."


def leads(study: PointGroup, clocks: Sequence[Clock]) -> list[TitledLead]:
  """Returns what a report says first: a line for each temperature.

  The lines are by the first clock that the large model has a latency by, and
  the temperature of samples comes first.

  Args:
    study: all points of a pair.
    clocks: the definitions of latency, the preferred one first.
  """
  for clock in clocks:
    several = [
      TitledLead(panel.title, lead)
      for panel in reversed(study.panels)
      if (lead := winners.lead(panel, clock))
    ]
    if several:
      return several
  return []


def untimed(study: PointGroup, clocks: Sequence[Clock]) -> str:
  """Returns a line for rows that were not timed; empty where one was."""
  if MEASURED.select_timed(study.points):
    return ""
  how = "--cost_ratio=0.1, the drafter's step over the large model's, draws"
  if len(clocks) > 1:
    how = f"c = {clocks[-1].cost_ratio:.3g} (--cost_ratio) draws"
  return (
    f"Nothing was timed. {how} the modelled figure; a sweep with NUM_TIMED = 20"
    " measures."
  )


def findings(study: PointGroup, clocks: Sequence[Clock]) -> list[Finding]:
  """Returns what each temperature of a study shows.

  Args:
    study: all points of a pair.
    clocks: the definitions of latency.
  """
  return [
    Finding(
      panel.title,
      [
        *_model_sentences(panel),
        *(x for clock in clocks for x in _method_sentences(panel, clock)),
      ],
    )
    for panel in study.panels
  ]


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


def _method_sentences(panel: PointGroup, clock: Clock) -> Iterator[str]:
  """Yields the lead, how many methods lack the quality, and the frontier."""
  if lead := winners.lead(panel, clock):
    details = f"; {lead.details}" if lead.details else ""
    yield f"{clock.name}: {lead.claim}{details}."
  lines = speedups(panel, clock)
  num_never = sum(line.speedup.value == 0 for line in lines)
  # Where no method reaches it, the lead says so.
  if 0 < num_never < len(lines):
    yield (
      f"{clock.name}: {num_never} of {len(lines)} methods never reach the large"
      f" model's {panel.metric}."
    )
  points = []
  best = overall_frontier(panel, clock)
  for method, group in itertools.groupby(best, lambda each: each.point.method):
    # Neighbouring points of a method are named by the first and the last.
    ends = [f"{x.quality.value:.1f} at {1 / each:.2f}" for x, each in group]
    points.append(
      f"{method} ({' to '.join(dict.fromkeys([ends[0], ends[-1]]))})"
    )
  if points:
    yield (
      f"{clock.name}, no point beats these in both {panel.metric} and times as"
      f" fast: {', '.join(points)}."
    )


def notices(lines: Sequence[Slowdown]) -> list[str]:
  """Returns a sentence for each temperature and gamma that loses.

  Args:
    lines: the slow methods of a study, see `slowdowns.slowdowns`.
  """
  return [_notice(group) for group in group_by(lines, ["temperature", "gamma"])]


def _notice(lines: Sequence[Slowdown]) -> str:
  """Returns which methods of one temperature and gamma are slow, and why."""
  # SpecDecode is explained where it is slow, as it is the best known.
  plain = [line for line in lines if line.settings.method == winners.PLAIN]
  line = (plain or lines)[0]
  settings = line.settings
  text = (
    f"{temperature_title(settings.temperature)}, gamma {settings.gamma}:"
    f" {settings.method} takes {_format(line.latency, 2)} times the large"
    " model's time"
  )
  if line.predicted_block is not None:
    text += f"; a block costs {line.predicted_block:.2f} steps by its calls"
    if line.measured_block is not None:
      text += f", and took {line.measured_block:.2f}"
    text += f", for {line.tokens_per_block:.2f} tokens"
  if others := len(lines) - 1:
    text += f"; {others} more methods are slower at some alpha"
  return f"{text}."
