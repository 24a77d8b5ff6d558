"""Writes files whole or not at all, reads files, and names the cache folder.

A run can be killed at any moment, so no file is written in place. The content
goes to a part file beside the destination, and the part file is then renamed.
"""

from collections.abc import Iterable, Iterator
import contextlib
import gzip
import itertools
import json
import math
import os
import pathlib
import shutil
from typing import IO, Any, NamedTuple
import zlib


@contextlib.contextmanager
def open_whole(
  path: str | os.PathLike[str], mode: str = "w"
) -> Iterator[IO[Any]]:
  """Opens a file that takes the place of `path` when the block ends well.

  The folder of the file is created if it does not exist. After an error, or
  after a kill at any moment, `path` still holds its former content.

  Args:
    path: path of the file to replace or create.
    mode: "w" for UTF-8 text, "wb" for bytes.
  """
  path = pathlib.Path(path)
  encoding = None if "b" in mode else "utf-8"
  if path.exists() and not (path.is_file() or path.is_dir()):
    # A device or a pipe, such as /dev/stdout, is written to and not replaced.
    with name_file_in_errors(path), path.open(mode, encoding=encoding) as file:
      yield file
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  # The part file is in the folder of `path`, because a rename is atomic only
  # inside one file system. The process id keeps two writers apart. After a
  # kill the part file stays; `folders.sole_writer` removes files of this name.
  part = path.with_name(f".{path.name}.{os.getpid()}.part")
  try:
    with name_file_in_errors(path):
      with part.open(mode, encoding=encoding) as file:
        yield file
        # The bytes have to be on the disk before the rename is: after a crash
        # of the machine a renamed but empty file would be at `path`.
        file.flush()
        os.fsync(file.fileno())
      os.replace(part, path)
  finally:
    part.unlink(missing_ok=True)  # After a good end it has been renamed.


@contextlib.contextmanager
def name_file_in_errors(path: str | os.PathLike[str]) -> Iterator[None]:
  """Adds the name of a file to OSErrors that the block raises without one.

  The error for a full disk, for example, names no file.
  """
  try:
    yield
  except OSError as error:
    if error.errno is None or error.filename is not None:
      raise
    raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def write_whole(
  path: str | os.PathLike[str], content: str | bytes | Iterable[str]
) -> None:
  """Writes a file whole or not at all, as `open_whole` does.

  Args:
    path: path of the file to replace or create.
    content: a text, the parts of a text, or bytes.
  """
  with open_whole(path, "wb" if isinstance(content, bytes) else "w") as file:
    if isinstance(content, str | bytes):
      file.write(content)
    else:
      file.writelines(content)


@contextlib.contextmanager
def make_whole_folder(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Gives a new folder that is renamed to `path` when the block ends well.

  After an error the new folder is removed. A killed process leaves the new
  folder beside `path`, with a name that ends in ".tmp-" and the process id.
  Readers of checkpoints pass over folders of such names.

  Args:
    path: path of the folder to create; nothing may exist there.
  """
  part = pathlib.Path(f"{os.fspath(path)}.tmp-{os.getpid()}")
  # A killed process that had this process id may have left one.
  shutil.rmtree(part, ignore_errors=True)
  try:
    part.mkdir(parents=True)
    yield part
    part.rename(path)
  except BaseException:  # Ctrl-C must not leave half a folder either.
    shutil.rmtree(part, ignore_errors=True)
    raise


class FileBounds(NamedTuple):
  """What a file may hold; a small one could otherwise fill the memory.

  A few megabytes of gzip may hold gigabytes. Texts and numbers never are as
  regular as that, so that what a compressed file holds is bounded by its size.

  Attributes:
    line: the most bytes of a line, and of a file that is read whole.
    size: the bytes that a compressed file may hold, however small it is.
    ratio: the further bytes that it may hold for each of its own.
  """

  line: int = 1 << 25
  size: int = 1 << 26
  ratio: int = 100

  def of_compressed(self, num_bytes: int) -> int:
    """Returns the most bytes that a compressed file of a size may hold."""
    return self.size + self.ratio * num_bytes


TEXTS = FileBounds()
_LINE_BYTES = 128  # of memory that a line takes beside its text


class BoundedReader:
  """Reads an open file within bounds.

  Args:
    file: the file, which is decompressed where it is compressed.
    path: its path.
    bounds: what it may hold.
    most: the most bytes that it may hold, with `_LINE_BYTES` for each line.
  """

  def __init__(
    self,
    file: IO[bytes] | gzip.GzipFile,
    path: str | os.PathLike[str],
    bounds: FileBounds,
    most: float,
  ):
    self._file, self._path = file, path
    self._bounds, self._most = bounds, most

  def __iter__(self) -> Iterator[bytes]:
    """Yields lines, with their line breaks.

    Raises:
      ValueError: a line is too long, or all are too many.
    """
    total, most_line = 0, self._bounds.line
    for number in itertools.count(1):
      line = self._file.readline(most_line + 1)
      if not line:
        return
      total += len(line) + _LINE_BYTES
      if len(line) > most_line:
        raise ValueError(
          f"{self._path}, line {number} is longer than {most_line:,} bytes:"
          " want a line for each example or row"
        )
      if total > self._most:
        raise ValueError(
          f"{self._path} holds too much for a compressed file of its size, over"
          f" {total:,} bytes by line {number}: decompress it first if it is"
          " right"
        )
      yield line

  def read(self) -> bytes:
    """Returns all bytes.

    Raises:
      ValueError: there are more than a line may have.
    """
    content = self._file.read(self._bounds.line + 1)
    if len(content) > self._bounds.line:
      raise ValueError(
        f"{self._path} holds more than {self._bounds.line:,} bytes"
      )
    return content


@contextlib.contextmanager
def open_bytes(
  path: str | os.PathLike[str], bounds: FileBounds = TEXTS
) -> Iterator[BoundedReader]:
  """Opens a file to read its bytes; a file named `*.gz` is decompressed.

  Args:
    path: path of the file.
    bounds: what the file may hold.

  Raises:
    ValueError: a file named `*.gz` is not gzip data, or is cut off; or, where
      it is read, the file holds more than `bounds` allows.
  """
  is_compressed = os.fspath(path).endswith(".gz")
  open_file = gzip.open if is_compressed else open
  try:
    with name_file_in_errors(path), open_file(path, "rb") as file:
      most = math.inf
      if is_compressed:
        most = bounds.of_compressed(os.path.getsize(path))
      yield BoundedReader(file, path, bounds, most)
  except (gzip.BadGzipFile, EOFError, zlib.error) as error:
    raise ValueError(f"{path} is not whole gzip data: {error}") from error


def read_object(path: str | os.PathLike[str], *names: str) -> dict[str, Any]:
  """Returns the JSON object in a file.

  Args:
    path: path of the file.
    *names: members that the object must have.

  Raises:
    ValueError: the file holds no JSON object, or the object lacks one of the
      members. The message names the file.
  """
  try:
    value = json.loads(pathlib.Path(path).read_bytes())
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is not JSON, or not whole: {error}") from error
  if not isinstance(value, dict) or not value.keys() >= {*names}:
    wanted = f" with {', '.join(names)}" if names else ""
    raise ValueError(f"{path} is not a JSON object{wanted}")
  return value


def find(path: str | os.PathLike[str]) -> pathlib.Path | None:
  """Returns the path of a file that may be compressed; None if there is none.

  Args:
    path: path of the file without ".gz". This file is taken if it exists, and
      the file at `path` + ".gz" otherwise.
  """
  paths = (pathlib.Path(f"{path}{suffix}") for suffix in ("", ".gz"))
  return next((path for path in paths if path.is_file()), None)


def cache_dir(*names: str) -> pathlib.Path:
  """Returns a folder in the user's cache folder; it may not exist yet.

  >>> cache_dir("jax").parts[-2:]
  ('speccascade', 'jax')
  """
  # Imported here: reading and writing files needs nothing to be installed.
  import platformdirs

  return platformdirs.user_cache_path("speccascade").joinpath(*names)
