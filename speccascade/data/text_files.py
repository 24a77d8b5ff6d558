"""Examples from text files: pairs of line files, and JSON lines.

An example is a dict of `inputs`, `targets` (strings) and `references`, the
list of all right answers, `targets` first. Files may be compressed (`.gz`).
"""

import gzip
import json
import os
import pathlib

from speccascade.data._tf import seqio, tf

JSONL = (".jsonl", ".jsonl.gz")


def read_lines(path) -> list[str]:
  """Returns the lines of a text file, without their line breaks.

  Only a line break ends a line: stray separators that Unicode also knows would
  shift one side of a pair against the other.

  Raises:
    FileNotFoundError: no such file.
    ValueError: empty, or not UTF-8 (with the line), or not gzip inside `.gz`.
  """
  path = pathlib.Path(path).expanduser()
  if not path.is_file():
    raise FileNotFoundError(f"no text file at {path}")
  content = path.read_bytes()
  if path.suffix == ".gz":
    try:
      content = gzip.decompress(content)
    except (OSError, EOFError) as error:
      raise ValueError(f"{path} is not whole gzip data: {error}") from error
  if not content.strip():
    raise ValueError(f"{path} is empty: want one text a line")
  lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
  if not lines[-1]:
    lines.pop()
  texts = []
  for number, line in enumerate(lines, 1):
    try:
      texts.append(line.removesuffix(b"\r").decode("utf-8"))
    except UnicodeDecodeError as error:
      raise ValueError(
        f"{path}, line {number}: invalid UTF-8 ({error.reason} at byte "
        f"{error.start}); convert the file to UTF-8"
      ) from error
  return texts


def read_pairs(source, *targets) -> list[dict]:
  """Returns the examples of line-aligned files.

  Args:
    source: path of the file of inputs.
    *targets: path of the file of targets, then those of further references.

  Raises:
    ValueError: the files have different numbers of lines.
  """
  columns = [read_lines(path) for path in (source, *targets)]
  for path, lines in zip(targets, columns[1:]):
    if len(lines) != len(columns[0]):
      raise ValueError(
        f"{source} has {len(columns[0])} lines, {path} has {len(lines)}: line "
        "i of one must translate line i of the other"
      )
  return [
    {"inputs": inputs, "targets": several[0], "references": list(several)}
    for inputs, *several in zip(*columns)
  ]


def read_jsonl(path) -> list[dict]:
  """Returns the examples of a file of JSON objects, one a line.

  Each has the strings `inputs` and `targets`, and may have the list of strings
  `extra_targets`, further references. Other fields are left out.

  Raises:
    ValueError: a line that is no such object, with its number.
  """
  examples = []
  for number, line in enumerate(read_lines(path), 1):
    if not line.strip():
      continue
    try:
      row = json.loads(line)
      several = [row["targets"], *(row.get("extra_targets") or [])]
      texts = [row["inputs"], *several]
      good = all(isinstance(text, str) for text in texts)
    except (ValueError, TypeError, KeyError, AttributeError):
      good = False
    if not good:
      raise ValueError(
        f"{path}, line {number}: want a JSON object with the strings inputs "
        "and targets, and perhaps extra_targets, a list of strings"
      )
    examples.append(
      {"inputs": texts[0], "targets": several[0], "references": several}
    )
  return examples


def paths_of(files, languages=("en", "de")) -> list[str]:
  """Returns the paths of one split of a task.

  Args:
    files: a `.jsonl` or `.jsonl.gz` path; or a list of paths, inputs first,
      then targets, then further references; or a prefix NAME that stands for
      NAME.en and NAME.de, each plain or with `.gz`.
    languages: the two suffixes that a prefix gets.
  """
  if not isinstance(files, str | os.PathLike):
    if len(files) < 2:
      raise ValueError(f"{list(files)}: want a file of inputs and of targets")
    return [os.fspath(path) for path in files]
  files = os.fspath(files)
  if files.endswith(JSONL):
    return [files]
  return [_plain_or_gz(f"{files}.{name}") for name in languages]


def read(files, languages=("en", "de")) -> list[dict]:
  """Returns the examples of one split of a task; see `paths_of`."""
  paths = paths_of(files, languages)
  return read_pairs(*paths) if len(paths) > 1 else read_jsonl(*paths)


def _plain_or_gz(path: str) -> str:
  for name in (path, f"{path}.gz"):
    if pathlib.Path(name).expanduser().is_file():
      return name
  raise FileNotFoundError(f"no text file {path} or {path}.gz")


def dataset(examples: list[dict]) -> tf.data.Dataset:
  """Returns examples as a `tf.data.Dataset` of strings."""
  references = tf.RaggedTensor.from_row_lengths(
    [text for example in examples for text in example["references"]],
    [len(example["references"]) for example in examples],
  )
  return tf.data.Dataset.from_tensor_slices(
    {
      "inputs": [example["inputs"] for example in examples],
      "targets": [example["targets"] for example in examples],
      "references": references,
    }
  )


class TextFileSource(seqio.FunctionDataSource):
  """A seqio source over text files; each split is read when it is first used.

  Args:
    splits: split name -> what `read` takes.
    languages: suffixes of a prefix.
  """

  def __init__(self, splits: dict, languages=("en", "de")):
    self.files = dict(splits)
    self._languages = tuple(languages)
    self._read = {}
    super().__init__(self._dataset, splits=tuple(splits))

  def _dataset(self, split, shuffle_files=False, seed=None):
    del shuffle_files, seed  # batches are shuffled by index
    if split not in self._read:
      self._read[split] = read(self.files[split], self._languages)
    return dataset(self._read[split])

  def stamp(self, split: str) -> list[tuple]:
    """Returns path, size and time of a split's files: equal, if untouched."""
    paths = paths_of(self.files[split], self._languages)
    stats = [pathlib.Path(path).expanduser().stat() for path in paths]
    return [
      (path, stat.st_size, stat.st_mtime_ns) for path, stat in zip(paths, stats)
    ]
