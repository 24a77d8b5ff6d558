"""Examples to decode: of a task's split, of a text file, of given texts."""

from collections.abc import Iterable, Iterator
import dataclasses

import numpy as np

from speccascade.data import reading, tasks, text_files
from speccascade.data._tf import seqio, tf
from speccascade.data.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class Example:
  """One text to decode.

  Attributes:
    index: its place in the data set; its randomness depends on it.
    inputs: the text, prefix included.
    input_ids: int32 [S], end-of-sequence included, cut to the feature length.
    targets: the right answer, or None where there is none.
    references: all right answers, `targets` first; empty where there is none.
    cut: whether the text was longer than the feature length.
  """

  index: int
  inputs: str
  input_ids: np.ndarray
  targets: str | None = None
  references: tuple[str, ...] = ()
  cut: bool = False


def from_task(
  name,
  split: str,
  *,
  num: int | None = None,
  max_input_len: int | None = None,
  vocabulary: Vocabulary | None = None,
) -> Iterator[Example]:
  """Yields the examples of a split in order; too long ones are cut as in T5X.

  Args:
    name: of a registered task.
    split: of it.
    num: the first examples only.
    max_input_len: most input tokens, end-of-sequence included.
    vocabulary: replaces the task's.

  Raises:
    ValueError: unknown task or split, no examples, data that is not there.
  """
  task = tasks.get(name, vocabulary) if isinstance(name, str) else name
  if isinstance(task, seqio.Mixture):
    raise ValueError(
      f"{task.name} is a mixture: decode one of its tasks, "
      f"{', '.join(part.name for part in task.tasks)}"
    )
  dataset = reading.open_split(task, split, None)
  if num is not None:
    dataset = dataset.take(num)
  index = -1
  iterator = dataset.as_numpy_iterator()
  for index, example in enumerate(reading.guarded(iterator, task)):
    targets = _text(example["targets_pretokenized"])
    several = [_text(text) for text in example.get("references", [])]
    ids = np.asarray(example["inputs"], np.int32)
    yield Example(
      index,
      _text(example["inputs_pretokenized"]),
      _cut(ids, max_input_len),
      targets,
      tuple(several or [targets]),
      max_input_len is not None and len(ids) > max_input_len,
    )
  if index < 0:
    raise ValueError(f"task {task.name} has no examples in {split!r}")


def from_texts(
  texts: Iterable[str],
  vocabulary: Vocabulary,
  *,
  prefix: str = "",
  max_input_len: int | None = None,
  truncate: bool = False,
  name: str = "text",
) -> list[Example]:
  """Returns examples without answers.

  Args:
    texts: one source each.
    vocabulary: of the model.
    prefix: put before each.
    max_input_len: most input tokens, end-of-sequence included.
    truncate: cut longer texts, rather than raise.
    name: what an error calls a text: "text 3".

  Raises:
    ValueError: a text is empty, or too long.
  """
  examples = []
  for index, text in enumerate(texts):
    if not text.strip():
      raise ValueError(f"{name} {index + 1} is empty: want a source text")
    text = prefix + text
    ids = np.array([*vocabulary.encode(text), vocabulary.eos_id], np.int32)
    too_long = max_input_len is not None and len(ids) > max_input_len
    if too_long and not truncate:
      raise ValueError(
        f"{name} {index + 1} has {len(ids)} tokens, the inputs of "
        f"TASK_FEATURE_LENGTHS take {max_input_len}: raise them, shorten the "
        "text, or cut it with truncate=True"
      )
    ids = _cut(ids, max_input_len)
    examples.append(Example(index, text, ids, cut=too_long))
  if not examples:
    raise ValueError("no texts to decode")
  return examples


def from_file(path, vocabulary: Vocabulary, **options) -> list[Example]:
  """Returns the lines of a text file, plain or `.gz`, as `from_texts` does.

  Raises:
    FileNotFoundError: no such file.
    ValueError: an empty file, invalid UTF-8 (with the line), a text that is
      empty or too long (with the line).
  """
  lines = text_files.read_lines(path)
  return from_texts(lines, vocabulary, name=f"{path}, line", **options)


def _cut(ids: np.ndarray, limit: int | None) -> np.ndarray:
  if limit is None or len(ids) <= limit:
    return ids
  return np.append(ids[: limit - 1], ids[-1])


def _text(value) -> str:
  return tf.compat.as_text(value)
