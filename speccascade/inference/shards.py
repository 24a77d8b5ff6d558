"""Decoding in shards, each written whole, so that a killed run goes on.

Under OUTPUT_DIR: `run.json` says what is being run, `shards/` holds what is
done, and at the end `predictions.jsonl` takes their place. Shards have fixed
borders and rows do not depend on their neighbours, so a run that was killed
anywhere ends with the same files as an unbroken one.
"""

from collections.abc import Iterator
import json
import os
import pathlib
import shutil

from speccascade import files
from speccascade.inference.results import PREDICTIONS
from speccascade.inference.run_folder import OutputError, RunFolder

__all__ = ["PREDICTIONS", "OutputError", "Shards"]


class Shards(RunFolder):
  """The shards of one run.

  Args:
    folder: OUTPUT_DIR.
    run: what is being run, JSON values; another run's folder is refused.
    num_shards: how many there are to be.
  """

  def __init__(self, folder: str | os.PathLike, run: dict, num_shards: int):
    super().__init__(folder, run, PREDICTIONS)
    self.num_shards = num_shards
    self._parts = self.folder / "shards"

  @property
  def is_complete(self) -> bool:
    """Whether `predictions.jsonl` stands."""
    return (self.folder / PREDICTIONS).exists()

  def path(self, number: int) -> pathlib.Path:
    """Returns where a shard is written."""
    return self._parts / f"{number:05d}-of-{self.num_shards:05d}.jsonl"

  def missing(self) -> list[int]:
    """Returns the numbers of the shards that are not written yet."""
    if self.is_complete:
      return []
    return [n for n in range(self.num_shards) if not self.path(n).exists()]

  def write(self, number: int, lines: list[str]):
    """Writes a shard, whole."""
    files.write_whole(self.path(number), "".join(lines))

  def merge(self):
    """Puts `predictions.jsonl` in the place of the shards."""
    if not self.is_complete:
      lines = (
        line
        for number in range(self.num_shards)
        for line in self.path(number).open(encoding="utf-8")
      )
      files.write_whole(self.folder / PREDICTIONS, lines)
    shutil.rmtree(self._parts, ignore_errors=True)

  def records(self) -> Iterator[dict]:
    """Yields the records of `predictions.jsonl`."""
    with (self.folder / PREDICTIONS).open(encoding="utf-8") as file:
      for line in file:
        yield json.loads(line)
