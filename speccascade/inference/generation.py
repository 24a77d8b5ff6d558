"""Texts in, texts out: what `api.Pair.generate` does and returns."""

from collections.abc import Sequence
import dataclasses
import functools
import html

import jax
import numpy as np

from speccascade.decoding import Trace
from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Counts
from speccascade.inference import records as records_lib
from speccascade.inference.batching import Batches
from speccascade.inference.inputs import Example, InputError
from speccascade.inference.results import Settings
from speccascade.report import token_view

_SHOWN = 20  # texts in a terminal, records in a notebook


@dataclasses.dataclass(frozen=True, eq=False)
class Generation:
  """What was written, and how. N texts, T = max_decode_len.

  Attributes:
    inputs: the sources.
    texts: what was written, one text each.
    tokens: [N, T] int32, EOS kept, 0 behind it.
    lengths: [N] int32 tokens, EOS included; what counts, for id 0 can be
      sampled like any other.
    counts: of each text; their sum gives `stats`.
    trace: who wrote each token, a `Trace` of numpy arrays [N, T]; or None.
    records: as `speccascade.decode` writes them.
    settings: what was run.
    label: of the method.
    num_truncated: sources that were cut to fit.
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

  @functools.cached_property
  def stats(self) -> dict:
    """Rates over all texts; see docs/definitions.md."""
    return efficiency.summary(efficiency.total(list(self.counts)))

  def __len__(self) -> int:
    return len(self.texts)

  def __repr__(self) -> str:
    lines = [f"{_number(len(self), 'text')} by {describe(self)}"]
    for number, text in enumerate(self.texts[:_SHOWN]):
      lines.append(f"  {number}: {text!r}")
    if len(self) > _SHOWN:
      lines.append(f"  and {len(self) - _SHOWN} more")
    lines.append(f"  {self._summary()}")
    return "\n".join(lines)

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
    head = f"{describe(self)}: {self._summary()}"
    if len(self) > _SHOWN:
      head += f"; the first {_SHOWN} texts"
    return token_view.view_html(self.records[:_SHOWN], head)


def describe(out) -> str:
  """Returns the method of a result in words, with the settings that matter."""
  settings = out.settings
  parts = [
    f"{name} {getattr(settings, name):g}"
    for name in ("alpha", "gamma", "temperature")
    if getattr(settings, name) is not None
  ]
  return f"{out.label} ({', '.join(parts)})"


def _number(count: int, what: str) -> str:
  return f"{count} {what}{'' if count == 1 else 's'}"


def encode(
  texts: str | Sequence[str], vocabulary, *, max_len: int, truncate: bool
) -> tuple[list[Example], int]:
  """Returns the examples of some texts, and how many were cut.

  Args:
    texts: one or several.
    vocabulary: with `encode(text) -> ids` and `eos_id`.
    max_len: most tokens of a source, EOS counted.
    truncate: cut longer texts instead of refusing them.

  Raises:
    InputError: there are none, one is no text, or is too long.
  """
  texts = [texts] if isinstance(texts, str) else texts
  if isinstance(texts, bytes) or not hasattr(texts, "__iter__"):
    raise InputError(
      f"texts is of type {type(texts).__name__}; wanted a text, or several"
    )
  examples, num_cut = [], 0
  for index, text in enumerate(texts):
    if not isinstance(text, str):
      raise InputError(
        f"text {index} is of type {type(text).__name__}; wanted str"
      )
    try:
      text.encode("utf-8")
    except UnicodeEncodeError as error:
      raise InputError(
        f"text {index} has half a surrogate pair at {error.start}, which UTF-8"
        " cannot hold; decode its source as UTF-16 or remove it"
      ) from error
    tokens = [*vocabulary.encode(text), vocabulary.eos_id]
    if len(tokens) > max_len:
      if not truncate:
        raise InputError(
          f"text {index} has {len(tokens)} tokens, max_input_len allows"
          f" {max_len}: raise it, shorten the text, or set truncate=True"
        )
      tokens = [*tokens[: max_len - 1], vocabulary.eos_id]
      num_cut += 1
    examples.append(Example(index, text, np.asarray(tokens, np.int32)))
  if not examples:
    raise InputError("there are no texts; give one or more")
  return examples, num_cut


def rows_for(num: int, batch_size: int) -> int:
  """Returns how many rows are decoded at once: a power of two, or batch_size.

  Other numbers of texts then share the few programs that there are.

  >>> [rows_for(num, 12) for num in (1, 3, 8, 9, 100)]
  [1, 4, 8, 12, 12]
  """
  return min(batch_size, 1 << (num - 1).bit_length())


def generate(
  batches: Batches,
  examples: Sequence[Example],
  settings: Settings,
  num_cut: int = 0,
) -> Generation:
  """Decodes examples numbered from 0; like lengths go together.

  Raises:
    NotFiniteError: a model gave no distribution; example and step are named.
  """
  order = sorted(examples, key=lambda example: len(example.tokens))
  decoded, records = [], []
  for start in range(0, len(order), batches.batch_size):
    batch = order[start : start + batches.batch_size]
    out = jax.device_get(batches.run(batch))
    records += records_lib.records(out, batch, batches.vocabulary, trial=0)
    num = len(batch)
    decoded.append(jax.tree.map(lambda x, num=num: x[:num], out))
  back = np.argsort([example.index for example in order])
  whole = jax.tree.map(lambda *parts: np.concatenate(parts)[back], *decoded)
  records = tuple(records[row] for row in back)
  return Generation(
    inputs=tuple(example.text for example in examples),
    texts=tuple(record["prediction"] for record in records),
    tokens=whole.tokens,
    lengths=whole.lengths,
    counts=tuple(efficiency.row_counts(whole)),
    trace=whole.trace,
    records=records,
    settings=settings,
    label=batches.point.spec.label,
    num_truncated=num_cut,
  )
