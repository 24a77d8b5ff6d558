"""Runs cases in a worker that has imported everything once, and watches it.

A worker that hangs, takes too much memory or dies is ended, and another
continues with the next case.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import os
import pathlib
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time

from tests.audit.fuzz.case import ROOT, Case

LIMIT_S = 60
LIMIT_BYTES = 2 << 30
_START_S = 300  # the worker's imports, and the right files, on a busy machine


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a case ended.

  Attributes:
    case: the case.
    faults: what is wrong with it; none if it is right.
    line: what was on stderr, truncated.
    seconds: how long it took.
    bytes: most memory that it held.
  """

  case: Case
  faults: Sequence[str]
  line: str
  seconds: float
  bytes: int


class _Worker:
  """A process that runs one case after the other; see `worker.py`."""

  def __init__(self, base: pathlib.Path, log: pathlib.Path):
    self._process = subprocess.Popen(
      [sys.executable, "-m", "tests.audit.fuzz.worker", str(base), str(log)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      cwd=ROOT,
    )
    if self._answer(_START_S)[0] is None:
      raise RuntimeError("the worker did not start; it has said why")

  def run(self, argv: Sequence[str]) -> tuple[int | None, int, str]:
    """Runs a command line.

    Returns:
      (exit code, most bytes of memory, "" or why the worker was ended).
    """
    self._process.stdin.write(repr(list(argv)) + "\n")
    self._process.stdin.flush()
    return self._answer(LIMIT_S)

  @property
  def is_alive(self) -> bool:
    return self._process.poll() is None

  def end(self):
    """Ends it."""
    self._process.kill()
    self._process.wait()

  def _answer(self, limit_s: float) -> tuple[int | None, int, str]:
    begun, most, ending = time.monotonic(), 0, ""
    while not select.select([self._process.stdout], [], [], 0.05)[0]:
      most = max(most, self._resident())
      if time.monotonic() - begun > limit_s:
        ending = f"longer than {limit_s} s"
      elif most > LIMIT_BYTES:
        ending = "more than 2 GB"
      if ending:
        self.end()
        return None, most, ending
    most = max(most, self._resident())
    code = self._process.stdout.readline().strip()
    if not code:
      self._process.wait()
      return None, most, f"died with {self._process.returncode}"
    return int(code), most, ""

  def _resident(self) -> int:
    path = pathlib.Path(f"/proc/{self._process.pid}/statm")
    with contextlib.suppress(OSError, IndexError):
      return int(path.read_text().split()[1]) * resource.getpagesize()
    return 0


def run(cases: Sequence[Case]) -> Iterator[Outcome]:
  """Runs cases one by one; yields how each ended."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    worker = None
    try:
      for number, case in enumerate(cases):
        if worker is None or not worker.is_alive:
          worker = _Worker(folder / "base", folder / "log")
        yield _outcome(case, folder, f"work{number}", worker)
    finally:
      if worker is not None:
        worker.end()


def _outcome(
  case: Case, folder: pathlib.Path, name: str, worker: _Worker
) -> Outcome:
  work, log = folder / name, folder / "log"
  work.mkdir()
  for path, content in case.files.items():
    (work / path).parent.mkdir(parents=True, exist_ok=True)
    (work / path).write_bytes(content.replace(b"@work", os.fsencode(work)))
  before = _listed(folder)
  begun = time.monotonic()
  code, most, ending = worker.run(case.argv(folder / "base", work))
  seconds = time.monotonic() - begun
  text = log.read_text(encoding="utf-8", errors="replace")
  # A bar that is drawn again is one line.
  lines = [line.rpartition("\r")[2] for line in text.splitlines()]
  errors = [line for line in lines if line.startswith("error: ")]
  faults = [ending] if ending else []
  if not ending and code != case.code:
    faults.append(f"exit code {code}, not {case.code}")
  if len(errors) != 1 or "Traceback" in text or len(lines) > 1:
    faults.append(f"{len(lines)} lines, {len(errors)} of them errors")
  elif case.says.replace("@work", str(work)) not in errors[0]:
    faults.append(f"does not say {case.says!r}")
  elif len(errors[0]) > 2000:
    faults.append(f"a line of {len(errors[0])} characters")
  if left := _listed(folder) - before - {"log"}:
    faults.append(f"left {', '.join(sorted(left)[:3])}")
  shutil.rmtree(work)
  line = errors[0] if len(errors) == 1 else text[-2000:]
  return Outcome(case, faults, line, seconds, most)


def _listed(folder: pathlib.Path) -> set[str]:
  return {str(path.relative_to(folder)) for path in folder.rglob("*")}
