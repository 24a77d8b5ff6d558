"""Methods side by side on a few texts: time, calls, and what each wrote."""

from collections.abc import Sequence
import dataclasses
import html

import jax

from speccascade.evaluation import efficiency
from speccascade.inference.measuring import measure, scoring
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows import records
from speccascade.inference.rows.results import ResultRow
from speccascade.report import tables
from speccascade.report.tables import Column

COLUMNS = (
  Column("method", "settings.method"),
  Column("alpha", "settings.alpha"),
  Column("tokens", "counts.num_tokens", 0),
  Column("drafter calls", "counts.drafter_calls", 0),
  Column("verifier calls", "counts.verifier_extends", 0),
  Column("tokens/block", "efficiency.mean_acceptance_length", 2),
  Column("acceptance", "efficiency.acceptance_rate", 3),
  Column("ms a text", lambda row: 1000 * row.latency.walltime_s, 1),
  Column("relative latency", "latency.relative_latency", 3),
  tables.PER_TOKEN,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
  """Methods on the same texts.

  Attributes:
    inputs: the sources.
    rows: a `ResultRow` without quality for each method, the verifier first.
    texts: what each wrote: `texts[i][j]` is row i on source j.
  """

  inputs: tuple[str, ...]
  rows: tuple[ResultRow, ...]
  texts: tuple[tuple[str, ...], ...]

  def __repr__(self) -> str:
    lines = [tables.markdown(self.rows, COLUMNS)]
    for number, source in enumerate(self.inputs):
      texts = zip(self.rows, self.texts)
      written = [f"  {_name(row)}: {text[number]!r}" for row, text in texts]
      lines += [repr(source), *written]
    return "\n".join(lines)

  def _repr_html_(self) -> str:
    parts = [tables.to_html(self.rows, COLUMNS)]
    for number, source in enumerate(self.inputs):
      written = "".join(
        f"<tr><th>{html.escape(_name(row))}</th>"
        f"<td>{html.escape(texts[number])}</td></tr>"
        for row, texts in zip(self.rows, self.texts)
      )
      source = html.escape(source)
      parts.append(f"<p><b>{source}</b></p><table>{written}</table>")
    return "".join(parts)


def _name(row: ResultRow) -> str:
  said = [text for text in row.settings.words if text.startswith("alpha")]
  return ", ".join([row.settings.method, *said])


def compare(
  study: Study,
  points: Sequence[Point],
  *,
  tick: measure.Tick = lambda num: None,
) -> Comparison:
  """Returns each point's time at batch 1, its counts and its texts.

  The points and the verifier alone take turns on every example, compiled
  before; see `timing.interleave`.

  Args:
    study: whose examples are all timed.
    points: of one sampling; the verifier alone is added where it lacks.
    tick: called with the decodes timed since.

  Raises:
    NoDistributionError: a model gave none.
  """
  # Equal settings are one point, whatever the method does not use.
  points = {
    study.settings(point): point
    for point in [measure.reference(points[0]), *points]
  }
  decoded = {point: [] for point in points.values()}
  latencies = measure.time_points(
    study,
    list(decoded),
    on_result=lambda point, _, out: decoded[point].append(jax.device_get(out)),
    tick=tick,
  )
  rows, texts = [], []
  for point, outs in decoded.items():
    counts = efficiency.total([efficiency.row_counts(out)[0] for out in outs])
    latency = latencies[point]
    rows.append(scoring.result_row(study, point, counts, latency=latency))
    tokens = [out.tokens[0, : out.lengths[0]] for out in outs]
    texts.append(tuple(records.text_of(study.vocabulary, x) for x in tokens))
  inputs = tuple(example.text for example in study.examples)
  return Comparison(inputs, tuple(rows), tuple(texts))
