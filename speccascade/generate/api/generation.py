"""Texts that were decoded in batches: what `api.Pair.generate` returns."""

from collections.abc import Iterator
import dataclasses
import functools
import html
import secrets

import numpy as np

from speccascade.decoding import Decoded, LogProbs, Trace
from speccascade.generate import token_view
from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.batching import Batches
from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_settings import PointSettings
from speccascade.generate.session import Session
from speccascade.models.sharding.partitioning import DATA, Layout

# The batch sizes for few texts; see `rows_for`.
_ROWS = (1, 8)
# The most texts that a terminal shows, and records that a notebook shows.
_SHOWN = 20


@dataclasses.dataclass(frozen=True, eq=False)
class Generation:
  """The outputs of a method for N texts. T is max_decode_len.

  Its items are the texts: `out[0]`, `for text in out`, `len(out)`.

  Attributes:
    inputs: the N source texts.
    texts: the N texts of the outputs.
    tokens: [N, T] int32 NumPy array, the emitted ids. EOS is among them, and 0
      is after an output's last token.
    lengths: [N] int32 NumPy array, the number of tokens of each output, EOS
      counted. Only `lengths` says where an output ends: id 0 can be sampled
      like any other.
    counts: the counts of each text. Their sum gives `stats`.
    trace: who wrote each token, a `Trace` of NumPy arrays [N, T]; None where it
      was not recorded.
    records: one record for each text, as `speccascade.decode` writes them.
    settings: the settings of the method and of the run.
    label: the name of the method in words.
    num_truncated: the number of sources that were truncated.
    log_probs: the log-probabilities of each token, a `LogProbs` of NumPy arrays
      [N, T]; None where they were not recorded.
  """

  inputs: tuple[str, ...]
  texts: tuple[str, ...]
  tokens: np.ndarray
  lengths: np.ndarray
  counts: tuple[Counts, ...]
  trace: Trace | None
  records: tuple[dict, ...]
  settings: PointSettings
  label: str
  num_truncated: int = 0
  log_probs: LogProbs | None = None

  @classmethod
  def of(cls, session: Session, point: Point, decoded: Decoded) -> "Generation":
    """Returns what a point decoded for the examples of a session."""
    text_records = session.records(decoded, session.examples)
    return cls(
      inputs=tuple(example.text for example in session.examples),
      texts=tuple(record["prediction"] for record in text_records),
      tokens=decoded.tokens,
      lengths=decoded.lengths,
      counts=tuple(decode_counts.row_counts(decoded)),
      trace=decoded.trace,
      records=tuple(text_records),
      settings=session.settings(point),
      label=point.spec.label,
      num_truncated=session.sources.num_cut,
      log_probs=decoded.log_probs,
    )

  @functools.cached_property
  def stats(self) -> dict:
    """The rates over all texts, by name; see docs/definitions.md."""
    total = decode_counts.total(list(self.counts))
    is_adaptive = self.settings.gamma == "adaptive"
    return decode_counts.summary(total, adaptive=is_adaptive)

  @property
  def token_ids(self) -> list[list[int]]:
    """The ids of each output alone, EOS among them, as lists."""
    return [
      row[:length].tolist() for row, length in zip(self.tokens, self.lengths)
    ]

  def __len__(self) -> int:
    return len(self.texts)

  def __iter__(self) -> Iterator[str]:
    return iter(self.texts)

  def __getitem__(self, place):
    """Returns the text at a place, or the texts of a slice."""
    return self.texts[place]

  def __repr__(self) -> str:
    lines = [f"{_count(len(self), 'text')} by {self._method()}"]
    for number, text in enumerate(self.texts[:_SHOWN]):
      lines.append(f"  {number}: {text!r}")
    if len(self) > _SHOWN:
      lines.append(f"  and {len(self) - _SHOWN} more")
    lines.append(f"  {self._summary()}")
    return "\n".join(lines)

  def _method(self) -> str:
    """Returns the method in words, with the settings that it uses."""
    return f"{self.label} ({', '.join(self.settings.words)})"

  def _summary(self) -> str:
    """Returns the counts and rates of all texts in one line."""
    total = decode_counts.total(list(self.counts))
    parts = [f"{total.num_tokens} tokens"]
    if total.num_blocks:
      parts.append(
        f"{total.num_blocks} blocks, {self.stats['mean_acceptance_length']:.2f}"
        " tokens a block"
      )
    if total.examined:
      parts.append(f"acceptance rate {self.stats['acceptance_rate']:.2f}")
    if self.num_truncated:
      parts.append(f"{_count(self.num_truncated, 'source')} truncated")
    return ", ".join(parts)

  def _repr_html_(self) -> str:
    """Returns the view of who wrote each token; without a trace the texts."""
    if self.trace is None:
      return f"<pre>{html.escape(repr(self))}</pre>"
    head = f"{self._method()}: {self._summary()}"
    if len(self) > _SHOWN:
      head += f"; the first {_SHOWN} texts"
    return token_view.view_html(self.records[:_SHOWN], head)


def _count(num: int, noun: str) -> str:
  """Returns a number with its noun.

  >>> _count(1, "text"), _count(2, "text")
  ('1 text', '2 texts')
  """
  plural = "" if num == 1 else "s"
  return f"{num} {noun}{plural}"


def drawn(seed: int | None) -> int | None:
  """Returns a seed; of None a new one, which no later call repeats."""
  return secrets.randbelow(1 << 31) if seed is None else seed


def rows_for(num: int, batch_size: int, layout: Layout | None = None) -> int:
  """Returns the batch size for a number of texts: 1, 8 or `batch_size`.

  Each batch size is another program to compile. With three batch sizes, calls
  with other numbers of texts compile nothing.

  Args:
    num: the number of texts.
    batch_size: the most rows to decode at once.
    layout: the devices that hold the models, or None for one device. Batches of
      8 rows are left out if the mesh does not divide 8.

  >>> [rows_for(num, 32) for num in (1, 2, 8, 9, 100)]
  [1, 8, 8, 32, 32]
  >>> [rows_for(num, 4) for num in (1, 2, 100)]
  [1, 4, 4]
  """
  parts = layout.sizes[DATA] if layout else 1
  for rows in _ROWS:
    # A single row is not split: each part of the mesh decodes it whole.
    fits_mesh = rows == 1 or rows % parts == 0
    if fits_mesh and num <= rows < batch_size:
      return rows
  return batch_size


def checked_batches(session: Session, point: Point) -> Batches:
  """Returns what decodes the examples of a session.

  Prints how many programs it has to compile, if the run shows progress.

  Args:
    session: the models, the examples and how they are decoded.
    point: the method and its settings.

  Raises:
    ValueError: the models do not fit the method, or a batch does not fit the
      memory.
  """
  # A notebook runs few methods: a program of one method compiles faster than
  # one that the methods of a family share.
  batches = session.batches(point, shared=False)
  batches.check()
  needed = batches.needed_programs()
  num_missing = len(needed.keys() - session.programs.keys())
  if session.run.progress and num_missing:
    print(f"compiling {_count(num_missing, 'program')} of {point.spec.label}")
  return batches
