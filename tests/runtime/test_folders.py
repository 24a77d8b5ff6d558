"""Checks that one job at a time writes to a folder, and what it leaves."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from speccascade.runtime import folders, processes
from speccascade.runtime.folders import OutputError, sole_writer

HOLD = """
import sys, time
from speccascade.runtime import folders
with folders.sole_writer(sys.argv[1]):
  print("held", flush=True)
  time.sleep(60)
"""


def refused(message, *args, **options):
  with pytest.raises(OutputError, match=message), sole_writer(*args, **options):
    pass


BUSY = "is being written to by process"


@pytest.mark.parametrize("name", ["config.gin", "metrics.json", "rows.jsonl"])
def test_a_folder_in_the_place_of_a_file_is_found_before_the_work(
  tmp_path, name
):
  (tmp_path / "out" / name).mkdir(parents=True)
  refused(f"out holds a folder {name}, and a file", tmp_path / "out")
  with pytest.raises(OutputError, match="LABEL holds a folder"):
    folders.check_files(tmp_path / "out", "LABEL", name)
  # Other folders, and other files, are right.
  (tmp_path / "out" / name).rmdir()
  (tmp_path / "out" / "checkpoint_5").mkdir()
  (tmp_path / "out" / name).write_text("")
  with sole_writer(tmp_path / "out"):
    pass


def test_the_lock_dies_with_its_process(tmp_path):
  command = [sys.executable, "-c", HOLD, tmp_path / "out"]
  with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
    assert process.stdout.readline() == b"held\n"
    refused(f"OUTPUT_DIR .*/out {BUSY} {process.pid} ", tmp_path / "out")
    process.send_signal(signal.SIGKILL)
  assert (tmp_path / "out" / ".writer").exists()
  with sole_writer(tmp_path / "out"):
    assert f"process {os.getpid()} " in (tmp_path / "out/.writer").read_text()
  assert not list((tmp_path / "out").iterdir())


def test_what_stays_empty_is_removed(tmp_path, monkeypatch):
  with pytest.raises(KeyError), sole_writer(tmp_path / "a" / "b"):
    raise KeyError
  assert not (tmp_path / "a").exists()
  monkeypatch.chdir(tmp_path)
  with sole_writer("a/b"):
    (tmp_path / "a" / "b" / "rows").touch()
  assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["rows"]


def test_a_caller_may_hold_it_already(tmp_path, other_job):
  with sole_writer(tmp_path / "out"), sole_writer(tmp_path / "out"):
    pass
  other_job(tmp_path / "out")
  with sole_writer(tmp_path / "other"):
    refused(BUSY, tmp_path / "out")


def test_writers_of_other_files_stay(tmp_path, other_job):
  parts = [tmp_path / f".{name}.npz.7.part" for name in ("one", "two")]
  for part in parts:
    part.touch()
  other_job(tmp_path, file="one.npz")
  with sole_writer(tmp_path, file="two.npz"):
    refused(BUSY, tmp_path, file="one.npz")
  # The part file that a killed writer of the same file left is gone.
  assert not any(part.exists() for part in parts)
  assert [path.name for path in tmp_path.iterdir()] == [".one.npz.writer"]
  parts[0].touch()
  with sole_writer(tmp_path, file="two.npz"):
    assert parts[0].exists()
  with sole_writer(tmp_path):
    assert not parts[0].exists()


def test_where_nothing_is_locked(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with sole_writer("gs://bucket/run"), sole_writer("gs://bucket/run"):
    assert not list(tmp_path.iterdir())
  with monkeypatch.context() as patch:  # the second process of a job
    patch.setattr(processes, "index", lambda: 1)
    with sole_writer(tmp_path / "out"):
      assert not list(tmp_path.iterdir())

  def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")

  monkeypatch.setattr(folders.fcntl, "flock", no_locks)
  with sole_writer(tmp_path / "out"):
    assert (tmp_path / "out").is_dir()


def test_a_lock_whose_file_was_just_removed_is_none(tmp_path, monkeypatch):
  flock, path = fcntl.flock, tmp_path / "out" / ".writer"
  ended = iter([True, False])

  def slow(*args):
    # The holder ends after the file is opened here, and before it is locked.
    if next(ended):
      path.unlink()
      path.parent.rmdir()
    flock(*args)

  monkeypatch.setattr(folders.fcntl, "flock", slow)
  with sole_writer(path.parent):
    assert path.exists()
