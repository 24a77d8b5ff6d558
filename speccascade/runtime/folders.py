"""Lets one job at a time write to an output folder."""

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

from speccascade.runtime import files, processes

# Ends of the names of files that commands write into an output folder.
_ENDS = (
  *(".csv", ".gin", ".gz", ".html", ".json", ".jsonl", ".md", ".model"),
  *(".npz", ".png", ".svg", ".txt"),
)
# Paths of the lock files that callers up the stack hold already. A function
# that asks for a folder again does not wait for its own caller.
_held_locks: contextvars.ContextVar[frozenset[pathlib.Path]] = (
  contextvars.ContextVar("held_locks", default=frozenset())
)


class OutputError(ValueError):
  """An output folder that cannot be written to, or holds something else."""


@contextlib.contextmanager
def sole_writer(
  folder: str | os.PathLike[str], name: str = "OUTPUT_DIR", *, file: str = ""
) -> Iterator[None]:
  """Keeps other jobs from writing to a folder until the block ends.

  The folder is created, so that a folder that cannot be written to is reported
  before any work is done. If the folder is still empty at the end, it is
  removed again. Part files that killed writers left are removed at the start.

  The lock is the operating system's (flock). The system releases the lock when
  its process ends, however the process ends; no stale lock can stay. The file
  `.writer` holds the lock and says which process has it.

  In a job of several processes the first process holds the lock for all. A
  function that is called inside the block may ask for the same folder again.
  Object stores, and file systems without locks, are not locked.

  Args:
    folder: the folder that is written to.
    name: what the user calls the folder, for messages.
    file: the one file in the folder that is written; other jobs may then write
      other files in it. The default locks the whole folder.

  Raises:
    OutputError: the folder cannot be written to, or another job writes to it.
      The message then names that job.
  """
  lock_name = f".{file}.writer" if file else ".writer"
  path = pathlib.Path(os.path.abspath(folder), lock_name)
  is_remote = "://" in os.fspath(folder)
  if is_remote or path in _held_locks.get() or not processes.is_first():
    yield
    return
  label = f"{name} {folder}"
  # Callbacks run in the opposite order of their registration: the lock file is
  # removed while it is still locked, then it is closed, which unlocks it, and
  # then folders that are empty are removed.
  with contextlib.ExitStack() as at_end:
    try:
      new_folders = [parent for parent in path.parents if not parent.exists()]
      at_end.callback(_remove_empty, new_folders)
      lock_file = _open_locked(path, label)
      at_end.callback(lock_file.close)
      at_end.callback(path.unlink, missing_ok=True)
      if not file:
        check_files(path.parent, label)
      # No other process writes here now, so these part files are left over.
      for part in path.parent.glob(f".{glob.escape(file) or '*'}.*.part"):
        part.unlink()
    except OutputError:
      raise
    except (OSError, ValueError) as error:
      reason = f"cannot be written to: {getattr(error, 'strerror', error)}"
      if os.path.isfile(folder):
        reason = "is a file"
      raise OutputError(f"{label} {reason}; give another folder") from error
    token = _held_locks.set(_held_locks.get() | {path})
    at_end.callback(_held_locks.reset, token)
    yield


def check_files(
  folder: str | os.PathLike[str], label: str, file: str = ""
) -> None:
  """Checks that no folder is where a file will be written.

  The error would otherwise come with the writing, after hours of work.

  Args:
    folder: the folder that is written to. It need not exist.
    label: what a message calls the folder.
    file: the one file in the folder that is written. The default checks all
      names that end like those of files.

  Raises:
    OutputError: a folder has the name of a file.
  """
  names = [file] if file else []
  if not file and os.path.isdir(folder):
    names = sorted(name for name in os.listdir(folder) if name.endswith(_ENDS))
  for name in names:
    if os.path.isdir(os.path.join(folder, name)):
      raise OutputError(
        f"{label} holds a folder {name}, and a file of that name is written:"
        " remove it, or give another folder"
      )


def _remove_empty(folders: Iterable[pathlib.Path]) -> None:
  """Removes folders, innermost first, and leaves those that are not empty."""
  for folder in folders:
    with contextlib.suppress(OSError, ValueError):
      folder.rmdir()


def _open_locked(path: pathlib.Path, label: str) -> IO[str]:
  """Returns the lock file at a path, open, locked, and naming this process."""
  # The last holder removes the lock file, and perhaps its folder, when it ends.
  # It may do so between any two lines below, so each failure is tried again.
  for _ in range(9):
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
      file = path.open("a+", encoding="utf-8")
      if holder := _lock(file):
        raise OutputError(
          f"{label} is being written to by {holder}; let it end, or give"
          " another folder"
        )
      # If the last holder removed the file after it was opened here, the lock
      # is on a file that no other process can see, and protects nothing.
      if os.path.samestat(os.fstat(file.fileno()), path.stat()):
        now = datetime.datetime.now()
        with files.name_file_in_errors(path):
          file.truncate(0)
          file.write(
            f"process {os.getpid()} on {platform.node()} since {now:%F %H:%M}"
          )
          file.flush()
        return file
  raise OSError(errno.ENOENT, "no file can be made in it")


def _lock(file: IO[str]) -> str:
  """Locks an open file; returns who holds it, or "" for this process."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    # The holder locks the file first and writes its name then. Between the two
    # the file is empty, so it is read again for a second.
    for _ in range(20):
      file.seek(0)
      if holder := file.read():
        return holder
      time.sleep(0.05)
    return "another job"
  except OSError:
    pass  # A file system without locks: the run continues without one.
  return ""
