"""Builds n-gram models, and the bigram tables of Max-Gram, from text."""

from collections.abc import Iterator, Sequence
import os
import pathlib

import numpy as np

from speccascade.models.ngram_lm import NgramLM
from speccascade.training import ngram_counts

FEATURES = ("inputs", "targets")


def build(
  *,
  output_file: str | os.PathLike,
  vocabulary: str | None = None,
  mixture_or_task_name: str | None = None,
  split: str = "train",
  input_file: str | os.PathLike | None = None,
  num_examples: int | None = None,
  features: Sequence[str] = ("targets",),
  order: int = 2,
  successors: int = 32,
  min_count: int = 2,
  vocab_size: int | None = None,
  use_cached: bool = False,
  progress: bool = True,
) -> NgramLM:
  """Counts a task's split or a text file, writes the model, and returns it.

  Args:
    output_file: the `.npz` to write; an existing one is replaced.
    vocabulary: path of a SentencePiece model; None takes the task's own.
    mixture_or_task_name: a registered seqio task; or else `input_file`.
    split: of the task.
    input_file: one text a line, or `.jsonl` with "inputs" and "targets"; either
      may end in `.gz`.
    num_examples: the first of them; None takes all.
    features: "inputs", "targets" or both, each counted as a text of its own; a
      file of lines has one text a line, whatever stands here.
    order: n; 2 is a bigram model.
    successors: most next tokens kept of a context.
    min_count: longer contexts that were seen less often are left out.
    vocab_size: rows of the models it will draft for, if more than the ids.
    use_cached: read the task's cached examples.
    progress: show a bar.

  Raises:
    ValueError: a setting or the text is wrong; nothing is written then.
  """
  if bool(mixture_or_task_name) == bool(input_file):
    raise ValueError(
      "give MIXTURE_OR_TASK_NAME or INPUT_FILE, one of them and not both; got"
      f" {mixture_or_task_name!r} and {str(input_file or '')!r}"
    )
  unknown = [name for name in features if name not in FEATURES]
  if unknown or not features:
    raise ValueError(
      f"FEATURES is {list(features)}; wanted 'inputs', 'targets' or both"
    )
  if pathlib.Path(output_file).suffix != ".npz":
    raise ValueError(
      f"OUTPUT_FILE is {os.fspath(output_file)!r}; wanted a name that ends in"
      " .npz"
    )
  from speccascade.data import vocabularies

  found = vocabularies.load(vocabulary) if vocabulary else None
  if input_file:
    if found is None:
      raise ValueError("INPUT_FILE needs a VOCABULARY; a file brings none")
    texts = _of_file(input_file, found, num_examples, features)
  else:
    texts, found = _of_task(
      mixture_or_task_name,
      found,
      split,
      num_examples,
      features,
      use_cached,
      progress,
    )
  size = found.vocab_size if vocab_size is None else vocab_size
  vocabularies.check_fits(found, size)
  counts = ngram_counts.count(
    _watched(texts, progress), vocab_size=size, order=order
  )
  identity = getattr(found, "identity", None) or {}
  model = ngram_counts.smooth(
    counts,
    vocab_size=size,
    successors=successors,
    min_count=min_count,
    vocabulary=identity.get("sha256", ""),
  )
  model.save(output_file)
  return model


def describe(model: NgramLM) -> str:
  """Returns in a line what a model holds."""
  contexts = [int((np.asarray(x.backoff) < 1).sum()) for x in model.levels]
  parts = [f"{n} contexts of {i}" for i, n in enumerate(contexts, start=1)]
  return (
    f"{model.order + 1}-gram model over {model.vocab_size} tokens:"
    f" {', '.join(parts)} token(s)"
  )


def _of_task(name, vocabulary, split, num, features, use_cached, progress):
  from speccascade.data import reading, tasks

  task = tasks.get(name, vocabulary)
  arrays = reading.from_task(
    task, split, num=num, use_cached=use_cached, progress=progress
  )
  texts = [
    arrays.get(feature, index) for feature in features for index in arrays.rows
  ]
  return texts, task.output_features["targets"].vocabulary


def _of_file(path, vocabulary, num, features) -> list[list[int]]:
  from speccascade.data import text_files

  if os.fspath(path).endswith(text_files.JSONL):
    examples = text_files.read_jsonl(path)[:num]
    lines = [example[name] for name in features for example in examples]
  else:
    lines = text_files.read_lines(path)[:num]
  return [vocabulary.encode(line) for line in lines]


def _watched(texts, progress: bool) -> Iterator:
  from tqdm import tqdm

  yield from tqdm(
    texts, desc="counting", unit=" texts", delay=3, disable=not progress
  )
