"""What is decoded: numbered source texts, their tokens and references."""

from collections.abc import Mapping, Sequence
import dataclasses
import gzip
import hashlib
import json
import os
import pathlib
import zlib

import numpy as np

from speccascade.evaluation import quality

PAD_ID = 0
# Sources are padded to one of these shares of the longest allowed length.
_BUCKETS = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
_MULTIPLE = 8


@dataclasses.dataclass(frozen=True)
class Example:
  """One source.

  Attributes:
    index: its place in the data set, from 0; its keys are made of it.
    text: the source, as it was before tokenizing.
    tokens: [S] int32, EOS included, padding not.
    references: right outputs, none where they are not known.
  """

  index: int
  text: str
  tokens: np.ndarray
  references: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Found:
  """What was read.

  Attributes:
    examples: in order.
    num_cut: sources that were cut to fit.
    metrics: names in `quality.METRICS` that the task is scored by.
    vocabulary: the one the tokens are of.
  """

  examples: list[Example]
  num_cut: int
  metrics: tuple[str, ...] = ("bleu",)
  vocabulary: object = None


class InputError(ValueError):
  """Examples that cannot be decoded."""


def read(
  vocabulary,
  *,
  max_len: int,
  mixture_or_task_name: str | None = None,
  split: str = "validation",
  input_file: str | os.PathLike | None = None,
  num_examples: int | None = None,
  truncate: bool = False,
  use_cached: bool = False,
) -> Found:
  """Returns the examples of a seqio task's split, or of a file.

  Args:
    vocabulary: the path of a SentencePiece model, or an object with
      `encode(text) -> ids`, `decode` and `eos_id`; None takes the task's own.
    max_len: most tokens of a source, EOS counted.
    mixture_or_task_name: a registered task, or None.
    split: of the task.
    input_file: see `read_file`, or None.
    num_examples: take the first of them; None takes all.
    truncate: cut longer texts of a file instead of refusing them.
    use_cached: read the task's cached examples.

  Raises:
    InputError: neither or both are given, or there are no examples.
  """
  if num_examples is not None and num_examples < 1:
    raise InputError(f"NUM_EXAMPLES is {num_examples}; wanted 1 or more")
  if bool(mixture_or_task_name) == bool(input_file):
    raise InputError(
      "give MIXTURE_OR_TASK_NAME or INPUT_FILE, one of them and not both; got"
      f" {mixture_or_task_name!r} and {str(input_file or '')!r}"
    )
  if isinstance(vocabulary, str | os.PathLike):
    from speccascade.data import vocabularies

    vocabulary = vocabularies.load(os.fspath(vocabulary))
  if input_file:
    if vocabulary is None:
      raise InputError("INPUT_FILE needs a VOCABULARY; a file brings none")
    return read_file(
      input_file,
      vocabulary,
      max_len=max_len,
      num_examples=num_examples,
      truncate=truncate,
    )
  return read_task(
    mixture_or_task_name,
    vocabulary,
    split=split,
    max_len=max_len,
    num_examples=num_examples,
    use_cached=use_cached,
  )


def read_file(
  path: str | os.PathLike,
  vocabulary,
  *,
  max_len: int,
  num_examples: int | None = None,
  truncate: bool = False,
) -> Found:
  """Returns the examples of a file.

  Args:
    path: one text a line, or `.jsonl` with "inputs" and, if there are any,
      "targets" (a text or a list of right ones); either may end in `.gz`.
    vocabulary: with `encode(text) -> ids` and `eos_id`.
    max_len: most tokens of a source, EOS counted.
    num_examples: take the first of them; None takes all.
    truncate: cut longer texts instead of refusing them.

  Raises:
    FileNotFoundError: there is no such file.
    InputError: it is empty, is not UTF-8, a line is not what is wanted, or a
      text is longer than `max_len` tokens; the line is named.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise FileNotFoundError(f"INPUT_FILE {path} does not exist")
  pairs = _parse(path, num_examples)
  if not pairs:
    raise InputError(f"INPUT_FILE {path} is empty; give one text a line")
  examples, cut = [], 0
  for index, (number, text, references) in enumerate(pairs):
    tokens = [*vocabulary.encode(text), vocabulary.eos_id]
    if len(tokens) > max_len:
      if not truncate:
        raise InputError(
          f"{path} line {number} has {len(tokens)} tokens, TASK_FEATURE_LENGTHS"
          f" allows {max_len} for inputs: raise it, shorten the text, or set"
          " truncate = True"
        )
      tokens = [*tokens[: max_len - 1], vocabulary.eos_id]
      cut += 1
    tokens = np.asarray(tokens, np.int32)
    examples.append(Example(index, text, tokens, references))
  return Found(examples, cut, vocabulary=vocabulary)


def _parse(path, num_examples):
  """Returns (line number, text, references) of each example."""
  name = path.name.removesuffix(".gz")
  opener = gzip.open if path.name.endswith(".gz") else open
  pairs = []
  try:
    with opener(path, "rb") as file:
      for number, line in enumerate(file, start=1):
        if num_examples is not None and len(pairs) >= num_examples:
          break
        text = _utf8(line, path, number).rstrip("\r\n")
        if name.endswith((".jsonl", ".json")):
          if not text.strip():
            continue
          pairs.append((number, *_from_json(text, path, number)))
        else:
          pairs.append((number, text, ()))
  except (gzip.BadGzipFile, EOFError, zlib.error) as error:
    raise InputError(f"{path} is not a whole gzip file: {error}") from error
  if any(text.strip() for _, text, _ in pairs):
    return pairs
  return []


def _utf8(line: bytes, path, number) -> str:
  try:
    return line.decode("utf-8")
  except UnicodeDecodeError as error:
    raise InputError(
      f"{path} line {number} is not UTF-8 (byte {error.start}); save the file"
      " as UTF-8"
    ) from error


def _from_json(text, path, number):
  try:
    values = json.loads(text)
  except json.JSONDecodeError as error:
    raise InputError(f"{path} line {number} is not JSON: {error}") from error
  if not isinstance(values, dict) or not isinstance(values.get("inputs"), str):
    raise InputError(
      f'{path} line {number} has no text "inputs"; wanted {{"inputs": "...",'
      ' "targets": "..."}'
    )
  targets = values.get("targets", [])
  targets = [targets] if isinstance(targets, str) else targets
  if not isinstance(targets, list) or not all(
    isinstance(target, str) for target in targets
  ):
    raise InputError(
      f'{path} line {number}: "targets" is {targets!r}; wanted a text or a list'
      " of texts"
    )
  return values["inputs"], tuple(targets)


def buckets(max_len: int) -> list[int]:
  """Returns the few lengths that sources are padded to, ascending.

  >>> buckets(64), buckets(100), buckets(4)
  ([8, 16, 24, 32, 48, 64], [16, 32, 40, 56, 80, 100], [4])
  """
  lengths = {
    min(max_len, -(-round(share * max_len) // _MULTIPLE) * _MULTIPLE)
    for share in _BUCKETS
  }
  return sorted(length for length in lengths if length > 0)


def bucket_of(length: int, lengths: Sequence[int]) -> int:
  """Returns the least of the ascending `lengths` that holds `length`."""
  for bucket in lengths:
    if length <= bucket:
      return bucket
  raise ValueError(f"a source of {length} tokens fits none of {list(lengths)}")


def pad_batch(
  batch: Sequence[Example], rows: int, lengths: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns ([rows, S] int32 tokens, [rows] int32 example indices).

  Rows that are missing repeat the last example, which ends no later than it
  does; S is the bucket of the longest.
  """
  batch = [*batch, *[batch[-1]] * (rows - len(batch))]
  width = bucket_of(max(len(example.tokens) for example in batch), lengths)
  tokens = np.full((rows, width), PAD_ID, np.int32)
  for row, example in enumerate(batch):
    tokens[row, : len(example.tokens)] = example.tokens
  return tokens, np.array([example.index for example in batch], np.int32)


def read_task(
  name: str,
  vocabulary=None,
  *,
  split: str,
  max_len: int,
  num_examples: int | None = None,
  use_cached: bool = False,
) -> Found:
  """Returns the examples of a seqio task; long sources are cut as T5X cuts.

  Args and Raises as in `read`. References are the task's postprocessed targets.
  """
  from speccascade.data import reading, tasks

  task = tasks.get(name, vocabulary)
  feature = task.output_features["inputs"]
  vocabulary = feature.vocabulary
  dataset = reading.open_split(task, split, None, use_cached=use_cached)
  if num_examples is not None:
    dataset = dataset.take(num_examples)
  examples, cut = [], 0
  for index, example in enumerate(
    reading.guarded(dataset.as_numpy_iterator(), task)
  ):
    tokens = np.asarray(example["inputs"], np.int32)
    if len(tokens) > max_len:
      tokens, cut = np.append(tokens[: max_len - 1], tokens[-1]), cut + 1
    examples.append(
      Example(
        index, _source(example, vocabulary), tokens, _targets(task, example)
      )
    )
  if not examples:
    raise InputError(f"{name} has no examples in split {split!r}")
  names = (metric.__name__ for metric in getattr(task, "metric_fns", ()))
  metrics = tuple(name for name in names if name in quality.METRICS)
  return Found(examples, cut, metrics or ("bleu",), vocabulary)


def _text(value) -> str:
  return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _source(example, vocabulary) -> str:
  if "inputs_pretokenized" in example:
    return _text(example["inputs_pretokenized"])
  return vocabulary.decode([int(token) for token in example["inputs"]])


def _targets(task, example) -> tuple[str, ...]:
  if "targets_pretokenized" not in example:
    return ()
  target = _text(example["targets_pretokenized"])
  if hasattr(task, "postprocess_fn"):
    target = task.postprocess_fn(target, example=example, is_target=True)
  if isinstance(target, list | tuple):
    return tuple(_text(one) for one in target)
  return (_text(target),)


def identity(vocabulary) -> dict[str, str] | None:
  """Returns {"path", "sha256"} of a vocabulary's file, None if it has none."""
  known = getattr(vocabulary, "identity", None)
  if not known:
    return None
  return {"path": vocabulary.path, "sha256": known["sha256"]}


def input_length(lengths: Mapping[str, int]) -> int:
  """Returns the most tokens of a source that TASK_FEATURE_LENGTHS allows.

  Raises:
    InputError: it says none, or less than one.
  """
  if not isinstance(lengths, Mapping) or "inputs" not in lengths:
    raise InputError(
      f"TASK_FEATURE_LENGTHS is {lengths!r}; wanted a length for inputs, such"
      ' as {"inputs": 128, "targets": 128}'
    )
  if lengths["inputs"] < 1:
    raise InputError(
      f"TASK_FEATURE_LENGTHS is {lengths['inputs']}; wanted 1 or more"
    )
  return lengths["inputs"]


def fingerprint(examples: Sequence[Example]) -> str:
  """Returns the sha256 of the tokens and references of examples."""
  digest = hashlib.sha256()
  for example in examples:
    digest.update(example.tokens.tobytes() + b"\0")
    digest.update(json.dumps(example.references).encode())
  return digest.hexdigest()
