"""Methods side by side on a few texts: time, calls, and what each wrote."""

from collections.abc import Sequence
import dataclasses
import html

import jax

from speccascade.evaluation import efficiency, timing
from speccascade.inference import inputs as sources
from speccascade.inference import records, results
from speccascade.inference.batching import Batches, time_batches
from speccascade.inference.inputs import Example
from speccascade.inference.pair import Pair
from speccascade.inference.point import Point
from speccascade.inference.results import ResultRow
from speccascade.report import tables
from speccascade.report.tables import Column

REFERENCE = "verifier"
COLUMNS = (
  Column("method", lambda row: row.settings.method),
  Column("alpha", lambda row: row.settings.alpha),
  Column("tokens", lambda row: row.counts.num_tokens, 0),
  Column("drafter calls", lambda row: row.counts.drafter_calls, 0),
  Column("verifier calls", lambda row: row.counts.verifier_extends, 0),
  Column("tokens/block", tables.number("mean_acceptance_length"), 2),
  Column("acceptance", tables.number("acceptance_rate"), 3),
  Column("ms a text", lambda row: 1000 * row.latency.walltime_s, 1),
  Column("relative latency", lambda row: row.latency.relative_latency, 3),
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
      lines.append(repr(source))
      lines += [
        f"  {_name(row)}: {texts[number]!r}"
        for row, texts in zip(self.rows, self.texts)
      ]
    return "\n".join(lines)

  def _repr_html_(self) -> str:
    head = _cells("th", [column.title for column in COLUMNS])
    body = "".join(
      f"<tr>{_cells('td', [column.text(row) for column in COLUMNS])}</tr>"
      for row in self.rows
    )
    parts = [f"<table><tr>{head}</tr>{body}</table>"]
    for number, source in enumerate(self.inputs):
      written = "".join(
        f"<tr>{_cells('td', [_name(row), texts[number]])}</tr>"
        for row, texts in zip(self.rows, self.texts)
      )
      parts.append(
        f"<p><b>{html.escape(source)}</b></p><table>{written}</table>"
      )
    return "".join(parts)


def _cells(tag: str, texts: Sequence[str]) -> str:
  left = '<{0} style="text-align:left">{1}</{0}>'
  return "".join(left.format(tag, html.escape(text)) for text in texts)


def _name(row: ResultRow) -> str:
  alpha = row.settings.alpha
  return row.settings.method + ("" if alpha is None else f", alpha {alpha:g}")


def compare(
  pair: Pair,
  vocabulary,
  examples: Sequence[Example],
  points: Sequence[Point],
  *,
  lengths: Sequence[int],
  max_decode_len: int,
  seed: int = 0,
  repeats: int = 3,
) -> Comparison:
  """Returns each point's time at batch 1, its counts and its texts.

  The points and the verifier alone take turns on every example, compiled
  before; see `timing.interleaved`.

  Args:
    pair: both models.
    vocabulary: for texts and EOS.
    examples: the sources, of any lengths.
    points: of one sampling; the verifier alone is added where it lacks.
    lengths: bucket lengths of sources, ascending.
    max_decode_len: most tokens, EOS counted.
    seed: of the keys.
    repeats: how often each is timed.

  Raises:
    NotFiniteError: a model gave no distribution.
  """
  alone = dataclasses.replace(points[0], method=REFERENCE, alpha=None)
  # Equal settings are one point, whatever the method does not use.
  points = {
    point.settings(**_run(pair, examples, max_decode_len, seed)): point
    for point in [alone, *points]
  }
  longest = max(len(example.tokens) for example in examples)
  runs = {
    settings: Batches(
      pair,
      point,
      vocabulary,
      lengths=[sources.bucket_of(longest, lengths)],
      batch_size=1,
      max_decode_len=max_decode_len,
      seed=seed,
    )
    for settings, point in points.items()
  }
  decoded = {settings: [] for settings in runs}
  seconds = time_batches(
    runs,
    examples,
    repeats=repeats,
    on_result=lambda settings, _, out: decoded[settings].append(
      jax.device_get(out)
    ),
  )
  reference, *_ = seconds.values()
  rows, texts = [], []
  for settings, outs in decoded.items():
    counts = efficiency.total([efficiency.row_counts(out)[0] for out in outs])
    latency = timing.latency(seconds[settings], reference)
    rows.append(
      ResultRow(
        settings=settings,
        label=points[settings].spec.label,
        counts=counts,
        efficiency=efficiency.summary(counts),
        quality={},
        latency=latency,
        measured_speedup=1 / latency.relative_latency,
        environment=results.environment(timing.device_name()),
      )
    )
    texts.append(
      tuple(
        records.text_of(vocabulary, out.tokens[0, : out.lengths[0]])
        for out in outs
      )
    )
  return Comparison(
    tuple(example.text for example in examples), tuple(rows), tuple(texts)
  )


def _run(pair: Pair, examples, max_decode_len: int, seed: int) -> dict:
  """The settings that are not the point's own."""
  return {
    "max_decode_len": max_decode_len,
    "task": "",
    "split": "",
    "num_examples": len(examples),
    "drafter": pair.drafter_name,
    "verifier": pair.verifier_name,
    "seed": seed,
  }
