"""Files that are written whole or not at all, and where caches are kept."""

from collections.abc import Iterable, Iterator
import contextlib
import gzip
import json
import os
import pathlib
import shutil
from typing import IO
import zlib

import platformdirs


@contextlib.contextmanager
def open_whole(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
  """Opens a file that takes the place of `path` when the block ends well.

  Its folder is made if need be. After an error, or a kill at any moment, what
  stood at `path` stands there still.

  Args:
    path: of the file.
    mode: "w" for UTF-8 text, "wb" for bytes.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.with_name(f".{path.name}.{os.getpid()}.part")
  try:
    with name_file_in_errors(path):
      with part.open(mode, encoding=None if "b" in mode else "utf-8") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      os.replace(part, path)
  finally:
    part.unlink(missing_ok=True)


@contextlib.contextmanager
def name_file_in_errors(path: str | os.PathLike) -> Iterator[None]:
  """Makes the system's errors name a file, as those of writing do not."""
  try:
    yield
  except OSError as error:
    if error.errno is None or error.filename is not None:
      raise
    raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def write_whole(path: str | os.PathLike, content: str | bytes | Iterable[str]):
  """Writes a file, from a text, its parts, or bytes, whole or not at all."""
  with open_whole(path, "wb" if isinstance(content, bytes) else "w") as file:
    is_one = isinstance(content, str | bytes)
    file.writelines([content] if is_one else content)


@contextlib.contextmanager
def make_whole_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Gives a new folder that is renamed to `path` when the block ends well.

  After an error it is removed; a kill leaves it beside `path`, its name ending
  in ".tmp-" and the process, as readers of checkpoints pass over.
  """
  part = pathlib.Path(f"{os.fspath(path)}.tmp-{os.getpid()}")
  shutil.rmtree(part, ignore_errors=True)  # of a killed process
  try:
    part.mkdir(parents=True)
    yield part
    part.rename(path)
  except BaseException:
    shutil.rmtree(part, ignore_errors=True)
    raise


@contextlib.contextmanager
def open_bytes(path: str | os.PathLike) -> Iterator[IO[bytes]]:
  """Opens a file to read its bytes, those inside where it ends in .gz.

  Raises:
    ValueError: they are not whole gzip data.
  """
  try:
    is_packed = os.fspath(path).endswith(".gz")
    with (
      name_file_in_errors(path),
      (gzip.open if is_packed else open)(path, "rb") as file,
    ):
      yield file
  except (gzip.BadGzipFile, EOFError, zlib.error) as error:
    raise ValueError(f"{path} is not whole gzip data: {error}") from error


def read_object(path: str | os.PathLike, *names: str) -> dict:
  """Returns the JSON object in a file, which has members of these names.

  Raises:
    ValueError: it holds none, or lacks one; the file is named.
  """
  try:
    value = json.loads(pathlib.Path(path).read_bytes())
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is no JSON, or not whole: {error}") from error
  if not isinstance(value, dict) or not value.keys() >= {*names}:
    wanted = f" with {', '.join(names)}" if names else ""
    raise ValueError(f"{path} is no JSON object{wanted}")
  return value


def find(path: str | os.PathLike) -> pathlib.Path | None:
  """Returns the path of a file, plain or PATH.gz; None if neither is there."""
  paths = (pathlib.Path(f"{path}{suffix}") for suffix in ("", ".gz"))
  return next((path for path in paths if path.is_file()), None)


def cache_dir(*names: str) -> pathlib.Path:
  """Returns a folder in the user's cache; it may not exist yet.

  >>> cache_dir("jax").parts[-2:]
  ('speccascade', 'jax')
  """
  return platformdirs.user_cache_path("speccascade").joinpath(*names)
