"""The tables of a report: a name, a heading, columns and lines each."""

from collections.abc import Sequence
import dataclasses

from speccascade.report import curves, summary, tables
from speccascade.report.clocks import Clock
from speccascade.report.curves import Measured, Study
from speccascade.report.tables import Column


@dataclasses.dataclass(frozen=True)
class Table:
  """A table.

  Attributes:
    name: of its CSV file, without ending.
    title: heading.
    note: a sentence or two on how to read it.
    columns: as in `tables`.
    lines: what the columns take their values from.
  """

  name: str
  title: str
  note: str
  columns: tuple[Column, ...]
  lines: Sequence

  def markdown(self) -> str:
    return tables.markdown(self.lines, self.columns)

  def csv(self) -> str:
    return tables.to_csv(self.lines, self.columns)

  def html(self) -> str:
    return tables.to_html(self.lines, self.columns)


def _temperature(line) -> str:
  return f"{line.temperature:g}"


def table_2(study: Study, clock: Clock, metric: str) -> Table:
  """Returns the paper's two summary numbers by one clock.

  Each method with its best gamma; where there are several gammas, lines for
  each follow.
  """
  title = curves.metric_title(metric)
  lines = []
  gammas = study.gammas if len(study.gammas) > 1 else []
  for gamma in (None, *gammas):
    for panel in study.panels:
      lines += summary.table_2(panel, clock, metric, gamma=gamma)
  columns = [
    Column("method", lambda line: line.label),
    Column("T", _temperature),
    Column(
      "speed-up at the large model's quality",
      lambda line: line.speedup,
      2,
      {0.0: "never"},
      has_interval=True,
    ),
    Column("how", lambda line: line.how),
    Column(
      f"best {title} within its latency",
      lambda line: line.within,
      1,
      {float("-inf"): "never"},
      has_interval=True,
    ),
    Column(
      "minus the large model's",
      lambda line: line.gain,
      2,
      {float("-inf"): "never"},
      has_interval=True,
    ),
    Column(f"highest {title}", lambda line: line.best, 1),
    Column("at latency", lambda line: line.best_latency, 2),
    Column("points", lambda line: line.num_points, 0),
  ]
  if gammas:
    gamma_column = Column("gamma", lambda line: line.gamma or "best")
    columns.insert(2, gamma_column)
  return Table(
    f"table2_{clock.name}",
    f"Table 2, {clock.title}",
    "Speed-up over the large model where the method's frontier reaches its"
    f" {title}, and the best {title} within its latency; [95% intervals]. How:"
    " interpolated between points; every point, where even the fastest reaches"
    " it; same law, where a point writes what the large model would; never,"
    " where no point reaches it: nothing is extrapolated.",
    tuple(columns),
    lines,
  )


def differences(study: Study, clock: Clock, metric: str) -> Table:
  """Returns speculative cascades against lossy speculative decoding."""
  title = curves.metric_title(metric)
  lines = [
    line
    for panel in study.panels
    for line in summary.differences(panel, clock, metric)
  ]
  columns = (
    Column("method", lambda line: line.label),
    Column("against", lambda line: line.baseline),
    Column("T", _temperature),
    Column("from latency", lambda line: line.low, 2),
    Column("to", lambda line: line.high, 2),
    Column(f"mean {title} gap", lambda line: line.gap, 2, has_interval=True),
    Column("verdict", lambda line: line.verdict),
    Column(
      f"{title} gap at SpecDecode's latency",
      lambda line: line.at_speed,
      2,
      has_interval=True,
    ),
  )
  return Table(
    f"differences_{clock.name}",
    f"Cascades against lossy speculative decoding, {clock.title}",
    "Mean difference of the two frontiers over the latencies that both have,"
    " and the difference within the latency of the fastest SpecDecode point;"
    " [95% paired bootstrap]. Greedy, the lossy variants are SpecDecode"
    " itself.",
    columns,
    lines,
  )


def losses(study: Study, model: Clock | None) -> Table:
  """Returns the speculative methods slower than the large model, and why."""
  lines = [
    loss for panel in study.panels for loss in summary.losses(panel, model)
  ]
  columns = (
    Column("method", lambda loss: loss.label),
    Column("T", _temperature),
    Column("gamma", lambda loss: loss.gamma),
    Column("alphas", lambda loss: " ".join(f"{a:g}" for a in loss.alphas)),
    Column("least latency", lambda loss: loss.latency, 3, has_interval=True),
    Column("acceptance", lambda loss: loss.acceptance_rate, 3),
    Column("tokens/block", lambda loss: loss.tokens_per_block, 2),
    Column("c", lambda loss: loss.c, 3),
    Column("v", lambda loss: loss.v, 2),
    Column("block, by its calls", lambda loss: loss.predicted_block, 2),
    Column("block, measured", lambda loss: loss.measured_block, 2),
    Column("latency if v = 1 (modelled)", lambda loss: loss.modelled, 3),
  )
  return Table(
    "losses",
    "Where speculation loses",
    "Speculative methods with points slower than the large model alone; the"
    " fastest of those points. c, v and blocks are in steps of the large model:"
    " c a drafter step, v the pass over gamma + 1 tokens. What a block takes"
    " beyond its calls is the loop around them.",
    columns,
    lines,
  )


def gamma_ablation(study: Study, metric: str, model: Clock | None) -> Table:
  """Returns each method at one alpha over the gammas."""
  lines = [
    point
    for panel in study.panels
    for points in ablated(panel)
    for point in points
  ]
  columns = [
    *_POINT,
    Column("acceptance", _number("acceptance_rate"), 3),
    Column("tokens/block", _number("mean_acceptance_length"), 2),
    Column(
      "relative latency",
      lambda point: point.latency_estimate,
      3,
      has_interval=True,
    ),
  ]
  if model is not None:
    columns.append(_modelled(model))
  columns.append(_quality(metric))
  return Table(
    "gamma",
    "Block size",
    "Each method at the one alpha that most gammas were measured at.",
    tuple(columns),
    lines,
  )


def ablated(panel: curves.Panel) -> list[list[Measured]]:
  """Returns for each method its points of one alpha, by gamma.

  The alpha measured at most gammas; of equals the middle one. Methods of one
  gamma alone are left out.
  """
  made = []
  for curve in curves.by_method(panel):
    by_alpha = {}
    for point in curve.points:
      if point.settings.gamma is not None:
        by_alpha.setdefault(point.settings.alpha, []).append(point)
    if not by_alpha:
      continue
    most = max(map(len, by_alpha.values()))
    alphas = [alpha for alpha, same in by_alpha.items() if len(same) == most]
    alphas.sort(key=lambda alpha: alpha or 0.0)
    if most > 1:
      same = by_alpha[alphas[len(alphas) // 2]]
      made.append(sorted(same, key=lambda point: point.settings.gamma))
  return made


def points(study: Study, model: Clock | None) -> Table:
  """Returns every point with all of its numbers."""
  columns = [
    *_POINT,
    *(_quality(metric) for metric in study.metrics),
    Column("acceptance", _number("acceptance_rate"), 3),
    Column("expected acceptance", _number("expected_acceptance"), 3),
    Column("tokens/block", _number("mean_acceptance_length"), 2),
    Column("deferral rate", _number("deferral_rate"), 3),
    Column("rule defers", _number("rule_deferral_rate"), 3),
    Column(
      "relative latency (measured)",
      lambda point: point.latency_estimate,
      3,
      has_interval=True,
    ),
    Column(
      "speed-up (measured)",
      lambda point: point.latency and 1 / point.latency.value,
      2,
    ),
    Column(
      "speed-up (predicted)",
      lambda point: point.mean(lambda row: row.predicted_speedup),
      2,
    ),
  ]
  if model is not None:
    columns.append(_modelled(model))
  columns.append(Column("seeds", lambda point: len(point.rows), 0))
  return Table(
    "points",
    "All points",
    "Measured: wall-clock of the whole decode over the large model's, the two"
    " interleaved. Predicted: from the calls and their measured costs c, q2 and"
    " v. Modelled: the same calls where a block costs one verifier step.",
    tuple(columns),
    study.points,
  )


def acceptance(study: Study) -> Table:
  """Returns acceptance by position and the histogram, a line an entry."""
  lines = []
  for point in study.points:
    counts = point.counts
    if not counts.num_blocks:
      continue
    rates = point.efficiency["acceptance_by_position"]
    for j, blocks in enumerate(counts.accepted_at):
      rate = rates[j - 1] if j else None
      lines.append((point, j, rate, blocks / counts.num_blocks))
  columns = (
    *(
      dataclasses.replace(column, value=_of_first(column.value))
      for column in _POINT
    ),
    Column("position", lambda line: line[1], 0),
    Column("accepted / examined", lambda line: line[2], 3),
    Column("blocks with so many accepted", lambda line: line[3], 3),
  )
  return Table(
    "acceptance",
    "Acceptance by position",
    "Accepted over examined drafts at each position of a block, and the share"
    " of blocks in which so many drafts were accepted.",
    columns,
    lines,
  )


def _of_first(value):
  return lambda line: value(line[0])


def _number(name: str):
  return lambda point: point.efficiency[name]


def _quality(metric: str) -> Column:
  return Column(
    curves.metric_title(metric),
    lambda point: point.quality_estimate(metric),
    1,
    has_interval=True,
  )


def _modelled(model: Clock) -> Column:
  def value(point):
    sample = model.of(point)
    return None if sample is None else sample.value

  return Column("relative latency (modelled)", value, 3)


_POINT = (
  Column("method", lambda point: point.label),
  Column("name", lambda point: point.method),
  Column("T", lambda point: f"{point.settings.temperature:g}"),
  Column("alpha", lambda point: point.settings.alpha),
  Column("gamma", lambda point: point.settings.gamma),
)
