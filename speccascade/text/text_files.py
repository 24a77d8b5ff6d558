"""Reads examples from text files: aligned files of lines, and JSON lines.

Files may be compressed (`.gz`). JSON lines are read from Parquet, too. A name
hf://datasets/org/name/file is of a data set on Hugging Face's hub; see
`hub.file`.
"""

from collections.abc import Iterator, Mapping, Sequence
import itertools
import json
import os
import pathlib
import types
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from speccascade.runtime import files
from speccascade.settings import fields
from speccascade.text import chat

# The endings of files with one JSON object a line.
JSON = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
# Data sets on Hugging Face's hub; a `pathlib.Path` of a name has one slash.
_OF_A_HUB = "hf:/"
PARQUET = ".parquet"
_ROWS_AT_A_TIME = 256  # of Parquet
_ROW_BYTES = 128  # of memory that a row takes beside its values
# The fields of a benchmark's question that go to the records of its answers.
QUESTION = ("question_id", "category", "turns")
# SPEED-Bench has this text in the place of a text that has to be fetched.
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"


_Stop = fields.Content | fields.NonNegative


class _Row(TypedDict):
  """An example, as a line of a JSON file has it."""

  inputs: NotRequired[str]
  messages: NotRequired[Sequence[Mapping[str, Any]]]
  turns: NotRequired[Annotated[Sequence[str], fields.NOT_EMPTY]]
  question_id: NotRequired[int | str | None]
  category: NotRequired[str | None]
  targets: NotRequired[str | Sequence[str]]
  extra_targets: NotRequired[Sequence[str] | None]
  stop: NotRequired[fields.Content | Sequence[_Stop] | None]


class _Aux(TypedDict):
  """The part of a record of `decode` that has its tokens."""

  tokens: Sequence[fields.NonNegative]


class _Record(TypedDict):
  """A record of `decode`, as a line of predictions.jsonl has it."""

  aux: _Aux


class TextExample(NamedTuple):
  """An example of a file.

  Attributes:
    line: number of the example's line, from 1.
    inputs: the source, a text; or the messages of a conversation.
    references: all right answers, the target first; empty if none is known. For
      a record of `decode`, the token ids that the model wrote.
    question: the fields `QUESTION` of a benchmark's question, as far as the
      line has them.
    stop: the strings and ids that end the output, of this example alone.
  """

  line: int
  inputs: str | tuple[Mapping, ...]
  references: tuple[str | tuple[int, ...], ...] = ()
  question: Mapping[str, Any] = types.MappingProxyType({})
  stop: tuple[str | int, ...] = ()


def lines_of(path, what: str) -> Iterator[str]:
  """Yields the lines of a text file, without their line breaks.

  Only a line break ends a line. Unicode has further separators; if these ended
  lines too, a stray one would shift one file of a pair against the other.

  Args:
    path: path of the file; a name that ends in `.gz` means a compressed file.
    what: what a message calls the file.

  Raises:
    FileNotFoundError: the file does not exist.
    ValueError: a line is not UTF-8, or a `.gz` file is not gzip data.
  """
  path, number = _find(path, what), 0
  try:
    with files.open_bytes(path) as file:
      for number, line in enumerate(file, 1):
        # Some programs begin a file with a byte-order mark.
        encoding = "utf-8-sig" if number == 1 else "utf-8"
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode(encoding)
  except UnicodeDecodeError as error:
    raise ValueError(
      f"{path}, line {number}: invalid UTF-8 ({error.reason} at byte "
      f"{error.start}); convert the file to UTF-8"
    ) from error


def _find(path, what: str) -> pathlib.Path:
  """Returns the local path of a file that exists, see `_local`."""
  path = _local(path)
  if not path.is_file():
    raise FileNotFoundError(f"{what} {path} does not exist")
  return path


def _local(path: str | os.PathLike) -> pathlib.Path:
  """Returns the local path of a file, which may be one of a hub's data set."""
  if os.fspath(path).startswith(_OF_A_HUB):
    # The package of checkpoints imports JAX.
    from speccascade.checkpoints import hub

    path = hub.file(path)
  return pathlib.Path(path).expanduser()


def read_texts(
  path,
  num: int | None = None,
  *,
  what: str = "text file",
  needs_targets: bool = False,
  chats: bool = False,
  records: bool = False,
) -> list[TextExample]:
  """Returns the first examples of a file.

  A file of lines has one text a line, without references. A file whose name
  ends in one of `JSON` has one JSON object a line. The object has the text
  `inputs`. It may have `targets`, a text or a list of right texts, and
  `extra_targets`, a list of further right texts; and `stop`, a string that ends
  its output, or a list of strings and of ids. A file whose name ends in
  `PARQUET` has such objects as its rows. Other fields are ignored.

  Args:
    path: path of the file.
    num: how many examples; None takes all.
    what: what a message calls the file.
    needs_targets: whether an object must have `targets`.
    chats: whether an object may have something else in the place of `inputs`:
      `messages`, a list of objects with `role` and `content`; or `turns`, the
      texts that a user says one after another, of which the first is read.
    records: whether an object may be a line of predictions.jsonl. Its
      prediction then is the target.

  Raises:
    FileNotFoundError: the file does not exist.
    ValueError: the file is empty, a line is not UTF-8 or has no such object, or
      a `.gz` file is not gzip data.
  """
  if os.fspath(path).endswith((*JSON, PARQUET)):
    examples = (
      _parse_json(path, number, line, needs_targets, chats, records)
      for number, line in json_lines(path, what)
    )
  else:
    lines = enumerate(lines_of(path, what), 1)
    examples = itertools.starmap(TextExample, lines)
  examples = list(itertools.islice(examples, num))
  if not any(
    chat.format_messages(example.inputs).strip() for example in examples
  ):
    raise ValueError(f"{what} {path} is empty; give one text a line")
  return examples


def json_lines(path, what: str) -> Iterator[tuple[int, str]]:
  """Yields (number from 1, line) of a file of JSON lines that are not blank.

  The lines of a Parquet file are its rows, as JSON.

  Args:
    path: path of the file.
    what: what a message calls the file.

  Raises:
    FileNotFoundError: the file does not exist.
    ValueError: a line is not UTF-8, or the file is not gzip data or not
      Parquet.
  """
  is_table = os.fspath(path).endswith(PARQUET)
  lines = (_rows_of if is_table else lines_of)(path, what)
  return ((i, line) for i, line in enumerate(lines, 1) if line.strip())


def _rows_of(path, what: str) -> Iterator[str]:
  """Yields the rows of a Parquet file, as lines of JSON."""
  path = _find(path, what)
  try:
    from pyarrow import parquet
  except ImportError as error:
    raise ValueError(
      f"{what} {path} is read with pyarrow: pip install pyarrow, or write the"
      " file as JSON lines"
    ) from error
  for row in _few_at_a_time(parquet, path, what):
    # A table has every field in every row. It holds None where a row has none.
    row = {name: value for name, value in row.items() if value is not None}
    yield json.dumps(row, default=_as_json)


def _as_json(value) -> str | None:
  """Returns a value that JSON has not, for a row of a Parquet file."""
  # Columns of texts may be stored as bytes. Other bytes, such as images, become
  # None, which no field takes for a text. Further values, such as dates, are in
  # fields that are not used.
  if isinstance(value, bytes):
    try:
      return value.decode("utf-8")
    except UnicodeDecodeError:
      return None
  return str(value)


def _few_at_a_time(parquet, path, what: str) -> Iterator[dict]:
  """Yields the rows of a Parquet file."""
  # A column that repeats a value takes a few bytes for millions of rows, so
  # that rows are read in parts, within the bounds of a compressed file.
  most = files.TEXTS.of_compressed(path.stat().st_size)
  try:
    with parquet.ParquetFile(path) as file:
      groups = map(file.metadata.row_group, range(file.num_row_groups))
      # Sizes of pages, in which a repeated value is stored once.
      total = sum(group.total_byte_size for group in groups)
      batches = file.iter_batches(batch_size=_ROWS_AT_A_TIME)
      while total <= most and (batch := next(batches, None)) is not None:
        total += batch.nbytes + _ROW_BYTES * batch.num_rows
        yield from batch.to_pylist()
  except (OSError, ValueError, NotImplementedError) as error:
    # pyarrow's errors are of these types, and may have several lines.
    reason = " ".join(str(error).split())
    raise ValueError(f"{what} {path} is not Parquet: {reason:.200}") from error
  if total > most:
    raise ValueError(
      f"{what} {path} holds too much for a Parquet of its size, over {most:,}"
      " bytes: write it as JSON lines if it is right"
    )


def _parse_json(
  path, number: int, line: str, needs_targets: bool, chats: bool, records: bool
) -> TextExample:
  """Returns the example of a JSON line; the arguments are `read_texts`'s."""
  try:
    row = fields.fit("it", fields.of_json(line), _Row, builds=True)
    if chats and "messages" in row:
      prompt = row["messages"]
      chat.check_messages(prompt)
    elif chats and "turns" in row and "inputs" not in row:
      prompt = row["turns"][0]
    elif (prompt := row.get("inputs")) is None:
      raise ValueError("no inputs")
    is_record = records and "prediction" in row
    if is_record:
      tokens = tuple(fields.fit("it", row, _Record)["aux"]["tokens"])
  except ValueError as error:
    or_chat = ', a conversation\'s "messages" or "turns",' if chats else ""
    raise ValueError(
      f"{path}, line {number} is {line:.60}; wanted a JSON object with the text"
      f' "inputs"{or_chat} and perhaps "targets" or "stop", a string or a'
      ' list of strings, and "extra_targets", a list of strings'
    ) from error
  if is_record:
    return TextExample(number, prompt, (tokens,))
  targets = row.get("targets", ())
  references = [targets] if isinstance(targets, str) else list(targets)
  references += row.get("extra_targets") or ()
  if needs_targets and not references:
    raise ValueError(f'{path}, line {number} has no "targets"')
  if isinstance(prompt, str) and prompt.startswith(_PLACEHOLDER):
    raise ValueError(
      f"{path}, line {number} has a text that SPEED-Bench takes from elsewhere:"
      " make the file with its prepare_data.py"
    )
  question = {x: row[x] for x in QUESTION if chats and row.get(x) is not None}
  stop = row.get("stop") or ()
  stop = (stop,) if isinstance(stop, str) else tuple(stop)
  if "" in stop:
    raise ValueError(
      f"{path}, line {number} has an empty stop, which is everywhere: leave it"
      " out"
    )
  return TextExample(number, prompt, tuple(references), question, stop)


def paths_of(
  paths: str | os.PathLike | Sequence, languages=("en", "de")
) -> list[str]:
  """Returns the paths of the files of one split of a task.

  Args:
    paths: a `.jsonl`, `.jsonl.gz` or `.parquet` path; or a list of paths, the
      inputs first, then the targets, then further references; or a prefix NAME
      that stands for NAME.en and NAME.de, each plain or with `.gz`.
    languages: the two suffixes of a prefix.

  Raises:
    FileNotFoundError: the files of a prefix do not exist.
    ValueError: a list has less than two paths.
  """
  if not isinstance(paths, str | os.PathLike):
    if len(paths) < 2:
      raise ValueError(f"{list(paths)}: want a file of inputs and of targets")
    return [os.fspath(path) for path in paths]
  name = os.fspath(paths)
  if name.endswith((*JSON, PARQUET)):
    return [name]
  paths = []
  for path in (f"{name}.{language}" for language in languages):
    if path.startswith(_OF_A_HUB):
      paths.append(path)
      continue
    path_or_gz = files.find(pathlib.Path(path).expanduser())
    if path_or_gz is None:
      raise FileNotFoundError(f"no text file {path} or {path}.gz")
    paths.append(os.fspath(path_or_gz))
  return paths


# The type of a setting for the files of a split, as `read` takes them.
Files = fields.Path | Annotated[Sequence[fields.Path], paths_of]


def stamp(paths, languages=("en", "de")) -> list[tuple]:
  """Returns (path, bytes, time of change) of each file of a split.

  They are equal as long as the files do not change.
  """
  return stamp_of(paths_of(paths, languages))


def stamp_of(paths: Sequence[str]) -> list[tuple]:
  """Returns (path, bytes, time of change) of each path."""
  stats = [(path, _local(path).stat()) for path in paths]
  return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def read(paths, languages=("en", "de"), **options) -> list[TextExample]:
  """Returns the examples of one split.

  Args:
    paths: the files of the split, as in `paths_of`. Line i of each file belongs
      to line i of the others.
    languages: the two suffixes of a prefix.
    **options: options of `read_texts`, for a JSONL file.

  Raises:
    FileNotFoundError: a file does not exist.
    ValueError: a file is wrong, or the files have different numbers of lines.
  """
  source, *targets = paths_of(paths, languages)
  if not targets:
    return read_texts(source, needs_targets=True, **options)
  inputs, *columns = [
    [example.inputs for example in read_texts(path)]
    for path in (source, *targets)
  ]
  for path, lines in zip(targets, columns):
    if len(lines) != len(inputs):
      raise ValueError(
        f"{source} has {len(inputs)} lines, {path} has {len(lines)}: line "
        "i of one must translate line i of the other"
      )
  rows = zip(inputs, zip(*columns))
  return [
    TextExample(number, text, references)
    for number, (text, references) in enumerate(rows, 1)
  ]
