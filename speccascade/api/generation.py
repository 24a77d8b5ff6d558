"""Texts in, texts out: what `api.Pair.generate` does and returns."""

import dataclasses
import functools
import html

import numpy as np

from speccascade.decoding import LogProbs, Trace
from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Counts
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows import records
from speccascade.inference.rows.results import Settings
from speccascade.models.sharding.partitioning import DATA, Layout
from speccascade.report import token_view

_ROWS = (1, 8)  # of few texts
_SHOWN = 20  # texts in a terminal, records in a notebook


@dataclasses.dataclass(frozen=True, eq=False)
class Generation:
  """What was written, and how. N texts, T = max_decode_len.

  Attributes:
    inputs: the sources.
    texts: what was written, one text each.
    tokens: [N, T] int32, EOS kept, 0 after it.
    lengths: [N] int32 tokens, EOS included; what counts, for id 0 can be
      sampled like any other.
    counts: of each text; their sum gives `stats`.
    trace: who wrote each token, a `Trace` of numpy arrays [N, T]; or None.
    records: as `speccascade.decode` writes them.
    settings: what was run.
    label: of the method.
    num_truncated: sources that were cut to fit.
    log_probs: how likely the laws found each token, a `LogProbs` of numpy
      arrays [N, T]; or None.
  """

  inputs: tuple[str, ...]
  texts: tuple[str, ...]
  tokens: np.ndarray
  lengths: np.ndarray
  counts: tuple[Counts, ...]
  trace: Trace | None
  records: tuple[dict, ...]
  settings: Settings
  label: str
  num_truncated: int = 0
  log_probs: LogProbs | None = None

  @functools.cached_property
  def stats(self) -> dict:
    """Rates over all texts; see docs/definitions.md."""
    return efficiency.summary(efficiency.total(list(self.counts)))

  def __len__(self) -> int:
    return len(self.texts)

  def __repr__(self) -> str:
    lines = [f"{_number(len(self), 'text')} by {self._method()}"]
    shown = enumerate(self.texts[:_SHOWN])
    lines += [f"  {number}: {text!r}" for number, text in shown]
    if len(self) > _SHOWN:
      lines.append(f"  and {len(self) - _SHOWN} more")
    lines.append(f"  {self._summary()}")
    return "\n".join(lines)

  def _method(self) -> str:
    """The method in words, with the settings that matter."""
    return f"{self.label} ({', '.join(self.settings.words)})"

  def _summary(self) -> str:
    total = efficiency.total(list(self.counts))
    parts = [f"{total.num_tokens} tokens"]
    if total.num_blocks:
      parts.append(
        f"{total.num_blocks} blocks, {self.stats['mean_acceptance_length']:.2f}"
        " tokens a block"
      )
    if total.examined:
      parts.append(f"acceptance rate {self.stats['acceptance_rate']:.2f}")
    if self.num_truncated:
      parts.append(f"{_number(self.num_truncated, 'source')} cut to fit")
    return ", ".join(parts)

  def _repr_html_(self) -> str:
    """Who wrote each token, where that was traced; else the texts."""
    if self.trace is None:
      return f"<pre>{html.escape(repr(self))}</pre>"
    head = f"{self._method()}: {self._summary()}"
    if len(self) > _SHOWN:
      head += f"; the first {_SHOWN} texts"
    return token_view.view_html(self.records[:_SHOWN], head)


def _number(count: int, what: str) -> str:
  return f"{count} {what}{'' if count == 1 else 's'}"


def rows_for(num: int, batch_size: int, layout: Layout | None = None) -> int:
  """Returns how many rows are decoded at once: 1, 8 or batch_size.

  All numbers of texts share the three programs of these. A mesh that does not
  divide 8 rows has two.

  >>> [rows_for(num, 32) for num in (1, 2, 8, 9, 100)]
  [1, 8, 8, 32, 32]
  >>> [rows_for(num, 4) for num in (1, 2, 100)]
  [1, 4, 4]
  """
  parts = layout.sizes[DATA] if layout else 1
  sizes = [n for n in _ROWS if n == 1 or n % parts == 0]
  return next((n for n in sizes if num <= n < batch_size), batch_size)


def generate(study: Study, point: Point) -> Generation:
  """Decodes the examples of a study, like lengths together.

  Raises:
    NoDistributionError: a model gave none; example and step are named.
  """
  batches = study.batches(point, shared=False)
  batches.check()
  if study.run.progress and (
    num := len(batches.missing_programs(study.examples))
  ):
    print(f"compiling {_number(num, 'program')} of {point.spec.label}")
  decoded = batches.decode_all(study.examples)
  written = records.records(decoded, study.examples, study.vocabulary, trial=0)
  return Generation(
    inputs=tuple(example.text for example in study.examples),
    texts=tuple(record["prediction"] for record in written),
    tokens=decoded.tokens,
    lengths=decoded.lengths,
    counts=tuple(efficiency.row_counts(decoded)),
    trace=decoded.trace,
    records=tuple(written),
    settings=study.settings(point),
    label=point.spec.label,
    num_truncated=study.sources.num_cut,
    log_probs=decoded.log_probs,
  )
