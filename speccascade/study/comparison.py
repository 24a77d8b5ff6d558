"""Compares methods on a few texts: what `api.Pair.compare` does and returns."""

from collections.abc import Sequence
import dataclasses
import html

from speccascade.generate.points.point import Point
from speccascade.generate.records import Outputs
from speccascade.generate.session import Session, Tick
from speccascade.runtime import shown_text
from speccascade.study.measuring import point_timing, scoring
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.report import tables
from speccascade.study.report.tables import Column
from speccascade.study.rows.results import ResultRow

# The columns of a comparison's table.
COLUMNS = (
  Column("method", "settings.method"),
  Column("alpha", "settings.alpha"),
  Column("tokens", "counts.num_tokens", 0),
  Column("drafter calls", "counts.drafter_calls", 0),
  Column("verifier calls", "counts.verifier_extends", 0),
  Column("tokens/block", "efficiency.mean_acceptance_length", 2),
  Column("acceptance", "efficiency.acceptance_rate", 3),
  tables.BY_POSITION,
  Column("relative latency", "latency.relative_latency", 3),
  tables.PER_TOKEN,
  tables.SECONDS,
  tables.LENGTH,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
  """The results of several methods on the same texts.

  A notebook shows it as tables.

  Attributes:
    inputs: the source texts.
    rows: one `ResultRow` for each method, the verifier's first. The rows have
      no quality.
    texts: the outputs. `texts[i][j]` is the output of `rows[i]` for
      `inputs[j]`.
  """

  inputs: tuple[str, ...]
  rows: tuple[ResultRow, ...]
  texts: tuple[tuple[str, ...], ...]

  @classmethod
  def of(
    cls, session: Session, points: Sequence[Point], *, repeats: int
  ) -> "Comparison":
    """Returns points of one sampling next to each other; see `compare`.

    Args:
      session: its examples are all timed.
      points: the points.
      repeats: how often each example is timed.
    """
    measuring = Measuring(num_timed=len(session.examples), repeats=repeats)
    return compare(Study(session, measuring), points)

  def __repr__(self) -> str:
    lines = [tables.markdown(self.rows, COLUMNS)]
    for number, source in enumerate(self.inputs):
      lines.append(repr(source))
      for row, texts in zip(self.rows, self.texts):
        lines.append(f"  {_method_name(row)}: {texts[number]!r}")
    return "\n".join(lines)

  def _repr_html_(self) -> str:
    parts = [tables.to_html(self.rows, COLUMNS)]
    for number, source in enumerate(self.inputs):
      table = ""
      for row, texts in zip(self.rows, self.texts):
        name = html.escape(_method_name(row))
        text = _escaped(texts[number])
        table += f"<tr><th>{name}</th><td>{text}</td></tr>"
      source = _escaped(source)
      parts.append(f"<p><b>{source}</b></p><table>{table}</table>")
    return "".join(parts)


def _escaped(text: str) -> str:
  """Returns a string as HTML, its control characters shown."""
  return html.escape(shown_text.visible(text))


def _method_name(row: ResultRow) -> str:
  """Returns the name of a row's method, with its alphas if it uses any."""
  alphas = [
    text for text in row.settings.words if text.startswith(("alpha", "exact"))
  ]
  return ", ".join([row.settings.method, *alphas])


def compare(
  study: Study,
  points: Sequence[Point],
  *,
  tick: Tick = lambda num: None,
) -> Comparison:
  """Times points on all examples of a study.

  The points and the verifier alone decode every example in turns, at batch
  size 1. Everything is compiled before the clock starts; see
  `point_timing.time_points`.

  Args:
    study: a study whose examples are all timed.
    points: points of one sampling. The verifier alone is added if it is
      missing.
    tick: called with the number of decodes since its last call.

  Returns:
    The latency, the counts and the texts of each point, the verifier's first.

  Raises:
    NoDistributionError: a model gave no distribution. The message names the
      example and the step.
  """
  # Two points that differ only in settings that their method does not use are
  # one row: the key is the row's settings.
  points = {
    study.settings(point): point
    for point in [point_timing.reference(points[0]), *points]
  }
  outputs = {point: Outputs() for point in points.values()}
  latencies = point_timing.time_points(
    study, list(outputs), outputs=outputs, tick=tick
  )
  alone = point_timing.reference(next(iter(outputs)))
  exact = scoring.exact_lengths(study, alone, outputs[alone])
  rows, texts = [], []
  for point, written in outputs.items():
    latency = latencies[point]
    rows.append(
      scoring.result_row(study, point, written, latency=latency, exact=exact)
    )
    texts.append(
      tuple(
        study.session.text_of(written.tokens[0, example.index], example)
        for example in study.examples
      )
    )
  inputs = tuple(example.text for example in study.examples)
  return Comparison(inputs, tuple(rows), tuple(texts))
