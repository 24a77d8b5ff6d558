"""Examples of a file: one text a line, or JSON lines; plain or gzip."""

import gzip
import json
import pathlib
import zlib

from speccascade.inference.inputs import (
  InputError,
  Inputs,
  Source,
  Sources,
  encode,
)


def read_file(inputs: Inputs, vocabulary) -> Sources:
  """Returns the examples of a file.

  One text a line, or `.jsonl` with "inputs" and, if there are any, "targets" (a
  text or a list of right ones); either may end in `.gz`.

  Args:
    inputs: which file, and how much of it.
    vocabulary: with `encode(text) -> ids` and `eos_id`.

  Raises:
    FileNotFoundError: there is no such file.
    InputError: it is empty, is not UTF-8, a line is not what is wanted, or a
      text is too long; the line is named.
  """
  path, max_len = pathlib.Path(inputs.input_file), inputs.max_len
  if not path.is_file():
    raise FileNotFoundError(f"INPUT_FILE {path} does not exist")
  pairs = _parse(path, inputs.num_examples)
  if not any(text.strip() for _, text, _ in pairs):
    raise InputError(f"INPUT_FILE {path} is empty; give one text a line")
  examples, cut = [], 0
  for index, (number, text, references) in enumerate(pairs):
    tokens, num = encode(text, vocabulary, max_len)
    if num > max_len and not inputs.truncate:
      raise InputError(
        f"{path} line {number} has {num} tokens, TASK_FEATURE_LENGTHS allows"
        f" {max_len} for inputs: raise it, shorten the text, or set truncate ="
        " True"
      )
    cut += num > max_len
    examples.append(Source(index, text, tokens, references))
  return Sources(
    examples, vocabulary, max_len, str(inputs.input_file), num_cut=cut
  )


def _parse(path, num_examples):
  """Returns (line number, text, references) of each example."""
  is_json = path.name.removesuffix(".gz").endswith((".jsonl", ".json"))
  opener = gzip.open if path.name.endswith(".gz") else open
  pairs = []
  try:
    with opener(path, "rb") as file:
      for number, line in enumerate(file, start=1):
        if num_examples is not None and len(pairs) >= num_examples:
          break
        text = _utf8(line, path, number).rstrip("\r\n")
        if not is_json:
          pairs.append((number, text, ()))
        elif text.strip():
          pairs.append((number, *_from_json(text, path, number)))
  except (gzip.BadGzipFile, EOFError, zlib.error) as error:
    raise InputError(f"{path} is not a whole gzip file: {error}") from error
  return pairs


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
