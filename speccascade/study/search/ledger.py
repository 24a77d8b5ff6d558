"""Where a search stores measured rows, and finds them again after a kill."""

from collections.abc import Sequence
import dataclasses
import functools
import os

from speccascade.generate.session import Tick
from speccascade.study.measuring import measure
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultFile, ResultRow
from speccascade.study.rows.run_folder import RunFolder
from speccascade.study.search.candidates import Candidate


class Ledger(RunFolder):
  """OUTPUT_DIR of a search: what is searched, and the rows measured so far.

  `run.json` says what is searched, and `rows.jsonl` has a row for each point
  that was measured. A row is appended when its point is done, so a search that
  was killed starts again from the rows.

  Args:
    folder: OUTPUT_DIR.
    run: what is being searched, JSON values; another search's folder is
      refused.
  """

  def __init__(self, folder: str | os.PathLike, run: dict):
    super().__init__(folder, run, results.FILE_NAME)

  @functools.cached_property
  def file(self) -> ResultFile:
    """The rows on disk; opening them drops a torn last line."""
    return ResultFile(self.folder / results.FILE_NAME)

  def check(self):
    """Reads the folder; drops a torn last row, and writes nothing else.

    Raises:
      OutputError: the folder holds another search, or rows of an unknown one.
      ValueError: `run.json` or a row is damaged.
    """
    super().check()
    _ = self.file  # after the folder was found to be this search's

  @property
  def rows(self) -> list[ResultRow]:
    """The rows on disk, in the order in which they were measured."""
    return self.file.rows

  def __contains__(self, candidate: Candidate) -> bool:
    return candidate.settings in self.file

  def measure(
    self,
    candidates: Sequence[Candidate],
    *,
    tick: Tick | None = None,
  ) -> list[Candidate]:
    """Measures the candidates without a row; returns all with their rows.

    Candidates of one study are timed in turns with each other and with the
    verifier alone; see `measure.measure`.

    Args:
      candidates: what to measure.
      tick: called, from several threads, with the number of examples decoded
        since the last call; None shows a bar where the study's run does. What
        it raises ends the run.
    """
    by_study = {}  # a study is equal to itself alone
    for candidate in candidates:
      by_study.setdefault(candidate.study, []).append(candidate)
    rows = {}
    for study, members in by_study.items():
      points = [member.point for member in members]
      rows |= zip(members, measure.measure(study, points, self.file, tick=tick))
    return [
      dataclasses.replace(candidate, row=rows[candidate])
      for candidate in candidates
    ]
