"""Examples from text files: pairs of line files, and JSON lines.

Files may be compressed (`.gz`).
"""

from collections.abc import Iterator, Mapping, Sequence
import itertools
import os
import pathlib
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from speccascade.data import chat
from speccascade.runtime import files
from speccascade.settings import fields

JSON = (".jsonl", ".jsonl.gz", ".json", ".json.gz")


class _Row(TypedDict):
  inputs: NotRequired[str]
  messages: NotRequired[Sequence[Mapping[str, Any]]]
  targets: NotRequired[str | Sequence[str]]
  extra_targets: NotRequired[Sequence[str] | None]


class _Aux(TypedDict):
  tokens: Sequence[fields.NonNegative]


class _Record(TypedDict):
  aux: _Aux


class TextExample(NamedTuple):
  """An example of a file.

  Attributes:
    line: its number, from 1.
    inputs: the source, a text; or the messages of a conversation.
    references: all right answers, the target first; none where not known. Of a
      record, the ids that a model wrote.
  """

  line: int
  inputs: str | tuple[Mapping, ...]
  references: tuple[str | tuple[int, ...], ...] = ()


def lines_of(path, what: str) -> Iterator[str]:
  """Yields the lines of a text file, without their line breaks.

  Only a line break ends a line: stray separators that Unicode also knows would
  shift one side of a pair against the other.

  Args:
    path: of the file; one that ends in `.gz` is compressed.
    what: what a message calls the file.

  Raises:
    FileNotFoundError: no such file.
    ValueError: a line is not UTF-8, or the file is not gzip inside `.gz`.
  """
  path, number = pathlib.Path(path).expanduser(), 0
  if not path.is_file():
    raise FileNotFoundError(f"{what} {path} does not exist")
  try:
    with files.open_bytes(path) as file:
      for number, line in enumerate(file, 1):
        encoding = "utf-8-sig" if number == 1 else "utf-8"
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode(encoding)
  except UnicodeDecodeError as error:
    raise ValueError(
      f"{path}, line {number}: invalid UTF-8 ({error.reason} at byte "
      f"{error.start}); convert the file to UTF-8"
    ) from error


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

  One text a line, without references; or, in `.jsonl`, one JSON object a line.
  Such an object has the string `inputs`, and may have `targets`, a string or a
  list of right ones, and `extra_targets`, a list of further ones. Its other
  fields are left out.

  Args:
    path: of the file.
    num: how many; None takes all.
    what: what a message calls the file.
    needs_targets: whether an object must have `targets`.
    chats: whether it may have `messages` in the place of `inputs`, objects with
      `role` and `content`.
    records: whether it may be a line of predictions.jsonl, whose prediction
      then is the target.

  Raises:
    FileNotFoundError: no such file.
    ValueError: empty, or not UTF-8 or no such object (with the line), or not
      gzip inside `.gz`.
  """
  lines = enumerate(lines_of(path, what), 1)
  if os.fspath(path).endswith(JSON):
    lines = ((i, line) for i, line in lines if line.strip())
    options = (needs_targets, chats, records)
    examples = (_of_json(path, *line, *options) for line in lines)
  else:
    examples = itertools.starmap(TextExample, lines)
  examples = list(itertools.islice(examples, num))
  if not any(
    chat.format_messages(example.inputs).strip() for example in examples
  ):
    raise ValueError(f"{what} {path} is empty; give one text a line")
  return examples


def _of_json(path, number, line, needs_targets, chats, records) -> TextExample:
  try:
    row = fields.fit("it", fields.of_json(line), _Row)
    if chats and "messages" in row:
      prompt = row["messages"]
      chat.check_messages(prompt)
    elif (prompt := row.get("inputs")) is None:
      raise ValueError("no inputs")
    if records := records and "prediction" in row:
      tokens = tuple(fields.fit("it", row, _Record)["aux"]["tokens"])
  except ValueError as error:
    or_chat = ', or a conversation\'s "messages",' if chats else ""
    raise ValueError(
      f"{path}, line {number} is {line:.60}; wanted a JSON object with the text"
      f' "inputs"{or_chat} and perhaps "targets", a text or a list of texts,'
      ' and "extra_targets", a list of texts'
    ) from error
  if records:
    return TextExample(number, prompt, (tokens,))
  targets = row.get("targets", ())
  several = [targets] if isinstance(targets, str) else list(targets)
  several += row.get("extra_targets") or ()
  if needs_targets and not several:
    raise ValueError(f'{path}, line {number} has no "targets"')
  return TextExample(number, prompt, tuple(several))


def paths_of(
  paths: str | os.PathLike | Sequence, languages=("en", "de")
) -> list[str]:
  """Returns the paths of one split of a task.

  Args:
    paths: a `.jsonl` or `.jsonl.gz` path; or a list of paths, inputs first,
      then targets, then further references; or a prefix NAME that stands for
      NAME.en and NAME.de, each plain or with `.gz`.
    languages: the two suffixes that a prefix gets.
  """
  if not isinstance(paths, str | os.PathLike):
    if len(paths) < 2:
      raise ValueError(f"{list(paths)}: want a file of inputs and of targets")
    return [os.fspath(path) for path in paths]
  name = os.fspath(paths)
  if name.endswith(JSON):
    return [name]
  paths = []
  for path in (f"{name}.{language}" for language in languages):
    path_or_gz = files.find(pathlib.Path(path).expanduser())
    if path_or_gz is None:
      raise FileNotFoundError(f"no text file {path} or {path}.gz")
    paths.append(os.fspath(path_or_gz))
  return paths


# The files of a split, as `read` takes them.
Files = fields.Path | Annotated[Sequence[fields.Path], paths_of]


def stamp(paths, languages=("en", "de")) -> list[tuple]:
  """Returns path, size and time of a split's files: equal, if untouched."""
  paths = paths_of(paths, languages)
  stats = [pathlib.Path(path).expanduser().stat() for path in paths]
  return [
    (path, stat.st_size, stat.st_mtime_ns) for path, stat in zip(paths, stats)
  ]


def read(paths, languages=("en", "de"), **options) -> list[TextExample]:
  """Returns the examples of one split; see `paths_of`.

  Args:
    paths: its files; of line-aligned ones that of the inputs comes first, then
      targets, then further references.
    languages: as there.
    **options: of `read_texts`, for a JSONL file.

  Raises:
    ValueError: the files have different numbers of lines.
  """
  source, *targets = paths_of(paths, languages)
  if not targets:
    return read_texts(source, needs_targets=True, **options)
  texts = lambda path: [example.inputs for example in read_texts(path)]
  inputs, *columns = map(texts, (source, *targets))
  for path, lines in zip(targets, columns):
    if len(lines) != len(inputs):
      raise ValueError(
        f"{source} has {len(inputs)} lines, {path} has {len(lines)}: line "
        "i of one must translate line i of the other"
      )
  rows = enumerate(zip(inputs, zip(*columns)), 1)
  return [TextExample(number, *row) for number, row in rows]
