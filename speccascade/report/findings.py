"""What the rows show, in sentences; and where speculation loses, and why."""

from collections.abc import Sequence
import functools
import itertools
import math
from typing import NamedTuple

from speccascade.report import frontier, tables, winners
from speccascade.report.groups import PointGroup, grouped
from speccascade.report.measured import SMALL, Clock, temperature_title
from speccascade.report.summaries import gaps, overall_frontier, speedups

# What the report asks first: do these beat lossy speculative decoding?
_ASKED = ("SpecCascade [OPT]", "SpecCascade [Token")
_BETTER = (
  "The small model is the better one: deferring to the large one costs quality"
  " as well as time. Train the large model longer, or take another; see that"
  " the checkpoints are not exchanged, and that both read the task's inputs."
)
_ALIKE = (
  "The two are not told apart, nor are cascades between them: score more"
  " examples, or train the large model longer."
)
_interval = functools.partial(tables.estimated, special=tables.NEVER)


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


def findings(study: PointGroup, clocks: Sequence[Clock]) -> list[Finding]:
  """Returns what each temperature shows."""
  by_clock = lambda *of: [*_gaps(*of), *_at_quality(*of), *_frontier(*of)]
  said = lambda panel: [(x.title, by_clock(panel, x)) for x in clocks]
  return [Finding(x.title, [*_models(x)], said(x)) for x in study.panels]


def headline(study: PointGroup, clocks: Sequence[Clock]) -> str:
  """Returns what the study shows at the large model's quality.

  A sentence for each temperature, by the first clock that has any; empty
  without the large model's latency.
  """
  for clock in clocks:
    leads = [(x.title, winners.lead(x, clock)) for x in study.panels]
    sentences = [f"{title}: {lead}." for title, lead in leads if lead]
    if sentences:
      return f"At the large model's {study.metric}, {' '.join(sentences)}"
  return ""


def doubts(study: PointGroup) -> list[str]:
  """Returns why the pair has little to gain, and what to do; often nothing.

  A line for the temperatures at which the small model is the better one, and
  one for those at which the examples do not tell the two apart.
  """
  said = {}
  for panel in study.panels:
    small, large = panel.first(SMALL), panel.large
    if not (small and large):
      continue
    samples = [small.quality_sample, -large.quality_sample]
    gap = frontier.of_sample(2 * frontier.mean(samples))
    least, most = gap.surely
    if most >= 0:
      said.setdefault(_BETTER if least > 0 else _ALIKE, []).append(
        f"{panel.title}: the small model has {small.quality.value:.1f}"
        f" {panel.metric}, the large one {large.quality.value:.1f}, a"
        f" difference of {_interval(gap, 1, sign='+')}"
      )
  return [f"{'; '.join(facts)}. {advice}" for advice, facts in said.items()]


def _models(panel: PointGroup):
  """Yields how good the two models are, and how alike SpecDecode writes."""
  said = [
    f"the {name} model has {_interval(point.quality, 1)} {panel.metric}"
    for name, point in (("small", panel.first(SMALL)), ("large", panel.large))
    if point
  ]
  if said:
    yield "; ".join(said) + "."
  # How often SpecDecode, greedy, wrote the large model's tokens.
  point = panel.first("spec_decode")
  same = point and point.rows[0].agreement
  if same and panel.settings.temperature == 0:
    yield (
      f"SpecDecode wrote the large model's tokens in {same['identical']}"
      f" of {same['num_examples']} examples; {same['near_ties']} more part at"
      " two choices within 1e-4."
    )


def _gaps(panel: PointGroup, clock: Clock):
  """Yields how cascades compare with each baseline."""
  lines = [
    line
    for line in gaps(panel, clock)
    if line["label"].startswith(_ASKED) and not math.isnan(line["gap"].value)
  ]
  for baseline, same in grouped(lines, lambda line: line["baseline"]).items():
    yield (
      f"Against {baseline}, in {panel.metric} on average over their"
      f" common latencies: {'; '.join(map(_gap, same))}."
    )


def _gap(line: dict) -> str:
  verdict, low, high = line["verdict"], line["low"], line["high"]
  said = "" if verdict == "no interval" else f" is {verdict},"
  where = f"{low:.2f} to {high:.2f}" if high > low else f"at {low:.2f}"
  return (
    f"{line['label']}{said} {_interval(line['gap'], 2, sign='+')} ({where})"
  )


def _at_quality(panel: PointGroup, clock: Clock):
  """Yields what the fastest points are told apart from, and who falls short."""
  if clause := winners.lead(panel, clock):
    yield f"At the large model's {panel.metric}, {clause}."
  lines = speedups(panel, clock)
  reached = [line for line in lines if line["speedup"].value > 0]
  if reached and (num_never := len(lines) - len(reached)):
    yield (
      f"{num_never} of {len(lines)} methods never reach the large model's"
      f" {panel.metric}."
    )


def _frontier(panel: PointGroup, clock: Clock):
  """Yields the methods that no other beats, consecutive points together."""
  said = []
  best = overall_frontier(panel, clock)
  for label, same in itertools.groupby(best, key=lambda pair: pair[0].label):
    span = [f"{p.quality.value:.1f} at {latency:.2f}" for p, latency in same]
    said.append(f"{label} ({' to '.join([span[0], *span[1:][-1:]])})")
  if said:
    said = ", ".join(said)
    yield f"On the frontier of all methods, from fast to slow: {said}."


def notices(lines: Sequence[dict]) -> list[str]:
  """Returns some sentences for each temperature and gamma that loses.

  They say which alphas lose, with the latency of the best of these; and why
  one method loses, in numbers.

  Args:
    lines: of `slowdowns.slowdowns`.
  """
  key = lambda line: (line["settings"].temperature, line["settings"].gamma)
  return [" ".join(_notice(same)) for same in grouped(lines, key).values()]


def _notice(lines: Sequence[dict]):
  """Yields the sentences on the methods of one temperature and gamma."""
  is_plain = lambda line: line["settings"].method == "spec_decode"
  line = next(filter(is_plain, lines), lines[0])
  settings, label = line["settings"], line["label"]
  yield (
    f"{temperature_title(settings.temperature)}, gamma {settings.gamma}:"
    f" {label} takes {_interval(line['latency'], 2)} of the large model's time"
    f"{_at_alphas(line['alphas'])}."
  )
  if others := [x["label"] for x in lines if x is not line]:
    yield (
      f"Slower than the large model too, at some alphas: {', '.join(others)}."
    )
  if line["c"] is not None and line["v"] is not None:
    yield (
      f"A drafter step costs {line['c']:.2f} of its steps and the pass over"
      f" {settings.gamma + 1} tokens {line['v']:.2f}."
    )
  if line["acceptance_rate"] is not None:
    clauses = [
      f"{label} has {line['acceptance_rate']:.2f} of its examined drafts"
      f" accepted, which makes {line['tokens_per_block']:.2f} tokens a block",
      *_block_costs(line),
    ]
    yield f"{'; '.join(clauses)}."


def _at_alphas(alphas: Sequence[float]) -> str:
  """Says which of a method's alphas are slow; nothing where it has none."""
  if not alphas:
    return ""
  if len(alphas) == 1:
    return f" at alpha {alphas[0]:g}"
  return (
    f" at the best of {len(alphas)} slow alphas, {min(alphas):g} to"
    f" {max(alphas):g}"
  )


def _block_costs(line: dict):
  """Yields what a block costs, and whether a pass of one step would win."""
  predicted, measured = line["predicted_block"], line["measured_block"]
  if predicted is not None:
    took = "" if measured is None else f", and took {measured:.2f}"
    yield f"by its calls a block costs {predicted:.2f} steps{took}"
  modelled = line["modelled"]
  if modelled is not None:
    outcome = "lose still" if modelled > 1 else "win"
    yield (
      f"where the pass costs one step it would {outcome}, with {modelled:.2f}"
      " of the large model's time"
    )
