"""Prompts with what follows them, tokenized: what is learned from files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from speccascade.data import text_files
from speccascade.data.arrays import FEATURES, TokenArrays
from speccascade.data.prompting import Prompting


class Completion(NamedTuple):
  """An example.

  Attributes:
    name: what a message calls it.
    prompt: a text, or the messages of a conversation.
    output: a text, or token ids as a model wrote them.
  """

  name: str
  prompt: str | Sequence[Mapping]
  output: str | Sequence[int]


def of_files(files: Mapping, split: str) -> Iterator[Completion]:
  """Yields the examples of a split's files.

  Those of a JSONL file have `inputs` or `messages`, and `targets`; or are
  records of `decode`, of which the tokens are learned as they were written.

  Args:
    files: split -> what `text_files.read` takes, or None.
    split: its name.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the split has none, or see `text_files.read`.
  """
  if not (paths := files.get(split)):
    raise ValueError(f"there are no files of split {split!r}; set them")
  for line, prompt, references in text_files.read(
    paths, chats=True, records=True
  ):
    yield Completion(f"{paths} line {line}", prompt, references[0])


def of_task(task, split: str) -> Iterator[Completion]:
  """Yields the texts of a seqio task's split."""
  from speccascade.data import reading

  dataset = reading.open_split(task, split, None).as_numpy_iterator()
  for index, example in enumerate(reading.guarded(dataset, task)):
    texts = (example[f"{name}_pretokenized"].decode() for name in FEATURES)
    yield Completion(f"{task.name} {index}", *texts)


def tokenized(
  examples: Iterable[Completion],
  prompting: Prompting,
  lengths: Mapping[str, int],
) -> TokenArrays:
  """Returns the tokens of examples, EOS after the outputs that are texts.

  Args:
    examples: one or more.
    prompting: makes the prompts, as it does where they are decoded.
    lengths: feature -> most tokens. A longer text is cut as `Prompting` cuts
      it; a longer output at its end, which EOS does not follow.

  Raises:
    ValueError: a chat is too long, which is not cut, or there are no examples.
  """
  vocabulary = prompting.vocabulary
  columns = {name: [] for name in FEATURES}
  num_cut = dict.fromkeys(FEATURES, 0)
  for name, prompt, output in examples:
    try:
      ids, is_cut = prompting.tokens(
        prompt, lengths["inputs"], "TASK_FEATURE_LENGTHS", True
      )
    except ValueError as error:
      raise ValueError(f"{name} {error}") from error
    if isinstance(output, str):
      output = [*vocabulary.encode(output), vocabulary.eos_id]
    num_cut["inputs"] += is_cut
    num_cut["targets"] += len(output) > lengths["targets"]
    columns["inputs"].append(ids)
    columns["targets"].append(output[: lengths["targets"]])
  if not columns["inputs"]:
    raise ValueError("there are no examples to learn from")
  return TokenArrays.joined(
    {k: np.concatenate(rows).astype(np.int32) for k, rows in columns.items()},
    {k: list(map(len, rows)) for k, rows in columns.items()},
    num_cut,
  )
