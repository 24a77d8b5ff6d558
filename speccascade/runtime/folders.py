"""Output folders: one job at a time writes to one."""

from collections.abc import Iterable, Iterator
import contextlib
import contextvars
import datetime
import errno
import fcntl
import glob
import os
import pathlib
import platform
import time
from typing import IO

from speccascade.runtime import processes

# The lock files that the callers of a function hold.
_held = contextvars.ContextVar("held", default=frozenset())


class OutputError(ValueError):
  """A folder that cannot be written to, or that holds something else."""


@contextlib.contextmanager
def sole_writer(
  folder: str | os.PathLike, name: str = "OUTPUT_DIR", *, file: str = ""
) -> Iterator[None]:
  """Keeps other jobs from writing to a folder until the block ends.

  The folder is made, which tells whether it can be written to; where nothing
  else has come into it, it is removed again. So is what killed writers left
  half written. The lock is the system's (flock) and ends with its process,
  however that ends; the file `.writer` says whose it is. Of a job of several
  processes the first holds it for all, and what is called from the block may
  ask for it again. Object stores and file systems without locks have none.

  Args:
    folder: what is written to.
    name: what its user calls it.
    file: the one file in it that is written, where others may write the rest.

  Raises:
    OutputError: it cannot be written to, or another job does, which is named.
  """
  lock = f".{file}.writer" if file else ".writer"
  path = pathlib.Path(os.path.abspath(folder), lock)
  is_remote = "://" in os.fspath(folder)
  if is_remote or path in _held.get() or not processes.is_first():
    yield
    return
  what = f"{name} {folder}"
  with contextlib.ExitStack() as at_end:
    try:
      created = [at for at in path.parents if not at.exists()]
      at_end.callback(_remove_empty, created)
      lock = _locked(path, what)
      at_end.callback(lock.close)
      at_end.callback(path.unlink, missing_ok=True)  # while it is locked
      for part in path.parent.glob(f".{glob.escape(file) or '*'}.*.part"):
        part.unlink()
    except OutputError:
      raise
    except (OSError, ValueError) as error:
      reason = f"cannot be written to: {getattr(error, 'strerror', error)}"
      if os.path.isfile(folder):
        reason = "is a file"
      raise OutputError(f"{what} {reason}; give another folder") from error
    at_end.callback(_held.reset, _held.set(_held.get() | {path}))
    yield


def _remove_empty(folders: Iterable[pathlib.Path]):
  for folder in folders:
    with contextlib.suppress(OSError, ValueError):
      folder.rmdir()


def _locked(path: pathlib.Path, what: str) -> IO[str]:
  """Returns the file at a path, locked, which then says who holds it.

  Raises:
    OutputError: another process holds it; the folder is called `what`.
  """
  for _ in range(9):
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # its holder has just ended
      file = path.open("a+", encoding="utf-8")
      if holder := _lock(file):
        raise OutputError(
          f"{what} is being written to by {holder}; let it end, or give another"
          " folder"
        )
      if os.path.samestat(os.fstat(file.fileno()), path.stat()):
        now = datetime.datetime.now()
        file.truncate(0)
        file.write(
          f"process {os.getpid()} on {platform.node()} since {now:%F %H:%M}"
        )
        file.flush()
        return file
  raise OSError(errno.ENOENT, "no file can be made in it")


def _lock(file: IO[str]) -> str:
  """Locks an open file; returns what it says where another process has it."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    for _ in range(20):  # who has just locked it is about to say so
      file.seek(0)
      if holder := file.read():
        return holder
      time.sleep(0.05)
    return "another job"
  except OSError:
    pass  # a file system without locks
  return ""
