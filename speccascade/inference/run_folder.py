"""An output folder that says what run it holds, and refuses another.

Under OUTPUT_DIR `run.json` says what is being run. Decoding writes shards, each
whole, so that a killed run goes on: `shards/` holds what is done, and at the
end `predictions.jsonl` takes their place. Shards have fixed borders and rows do
not depend on their neighbours, so a run that was killed anywhere ends with the
same files as an unbroken one.
"""

from collections.abc import Iterable, Iterator
import json
import os
import pathlib
import shutil

from speccascade import files
from speccascade.inference.results import PREDICTIONS

_RUN = "run.json"


class OutputError(ValueError):
  """An output folder that holds something else."""


class RunFolder:
  """OUTPUT_DIR of one run, which `run.json` in it describes.

  Args:
    folder: OUTPUT_DIR.
    run: what is being run, JSON values; another run's folder is refused.
    product: name of the file that a run leaves.
  """

  def __init__(self, folder: str | os.PathLike, run: dict, product: str):
    self.folder = pathlib.Path(folder)
    self._run = json.loads(json.dumps(run))
    self._product = product

  def check(self):
    """Looks at what the folder holds; writes nothing.

    Raises:
      OutputError: it holds another run, or files that are not of a run.
    """
    if self.folder.exists() and not self.folder.is_dir():
      raise OutputError(f"OUTPUT_DIR {self.folder} is a file; give a folder")
    path = self.folder / _RUN
    if not path.exists():
      if (self.folder / self._product).exists():
        raise OutputError(
          f"OUTPUT_DIR {self.folder} holds {self._product} of an unknown run;"
          " give another folder or remove it"
        )
      return
    there = json.loads(path.read_text(encoding="utf-8"))
    for name in sorted({*there, *self._run}):
      old, new = there.get(name), self._run.get(name)
      if old != new:
        raise OutputError(
          f"OUTPUT_DIR {self.folder} holds another run: {name} is {old!r}"
          f" there and {new!r} here; give another folder, or remove that one"
        )

  def open(self):
    """Makes the folder and says in it what is being run."""
    path = self.folder / _RUN
    if not path.exists():
      files.write_whole(path, json.dumps(self._run, indent=2) + "\n")


class Shards(RunFolder):
  """The shards of one run.

  Args:
    folder: OUTPUT_DIR.
    run: what is being run, JSON values; another run's folder is refused.
    num_shards: how many there are to be.
  """

  def __init__(self, folder: str | os.PathLike, run: dict, num_shards: int):
    super().__init__(folder, run, PREDICTIONS)
    self._merged = self.folder / PREDICTIONS
    self._parts = self.folder / "shards"
    self._shards = [
      self._parts / f"{number:05d}-of-{num_shards:05d}.jsonl"
      for number in range(num_shards)
    ]

  def missing(self) -> list[int]:
    """Returns the numbers of the shards that are not written yet."""
    if self._merged.exists():
      return []
    return [n for n, path in enumerate(self._shards) if not path.exists()]

  def write(self, number: int, lines: Iterable[str]):
    """Writes a shard, whole."""
    files.write_whole(self._shards[number], lines)

  def merge(self):
    """Puts `predictions.jsonl` in the place of the shards."""
    if not self._merged.exists():
      texts = (path.read_text(encoding="utf-8") for path in self._shards)
      files.write_whole(self._merged, texts)
    shutil.rmtree(self._parts, ignore_errors=True)

  def records(self) -> Iterator[dict]:
    """Yields the records of `predictions.jsonl`."""
    with self._merged.open(encoding="utf-8") as file:
      yield from map(json.loads, file)
