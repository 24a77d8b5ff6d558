"""An output folder that describes the run it holds, and refuses another run.

`run.json` under OUTPUT_DIR describes the run. A decode writes shards, each of
them whole, so that a killed run can continue: the folder `shards` holds the
finished shards, and at the end `predictions.jsonl` takes their place. Shards
have fixed borders, and rows do not depend on their neighbours. So a run that
was killed anywhere ends with the same files as an unbroken run.
"""

from collections.abc import Iterable, Iterator, Sequence
import json
import os
import pathlib
import shutil

from speccascade.runtime import files, processes
from speccascade.runtime.folders import OutputError
from speccascade.settings import fields
from speccascade.study.rows.results import PREDICTIONS

_RUN = "run.json"
_REVISIONS = "revisions"  # "org/name@commit" of models of the hub


class RunFolder:
  """The OUTPUT_DIR of one run, which `run.json` in it describes.

  Of several processes the first reads and writes the folder for all of them.

  Args:
    folder: OUTPUT_DIR.
    run: the description of the run, JSON values. A folder with another
      description is refused.
    product: the name of the file that a run leaves.
  """

  def __init__(self, folder: str | os.PathLike, run: dict, product: str):
    self.folder = pathlib.Path(folder)
    # Values as `run.json` gives them back: lists where there were tuples.
    self._run = json.loads(json.dumps(run))
    self._product = product

  def check(self):
    """Checks that the folder holds this run or none; writes nothing.

    Raises:
      OutputError: the folder holds another run, or files of an unknown run.
      ValueError: `run.json` is damaged.
    """
    if not processes.is_first():
      return
    path = self.folder / _RUN
    if not path.exists():
      if (self.folder / self._product).exists():
        raise OutputError(
          f"OUTPUT_DIR {self.folder} holds {self._product} of an unknown run;"
          " give another folder or remove it"
        )
      return
    stored = files.read_object(path)
    # Commits differ with the names of models, and say what to give.
    names = sorted({*stored, *self._run}, key=lambda x: (x != _REVISIONS, x))
    for name in names:
      old, new = stored.get(name), self._run.get(name)
      if old != new:
        advice = "give another folder, or remove that one"
        if name == _REVISIONS and old and new:
          advice = f"name the models as they are there, or {advice}"
        raise OutputError(
          f"OUTPUT_DIR {self.folder} holds another run: {name} is {old!r}"
          f" there and {new!r} here; {advice}"
        )

  def open(self):
    """Makes the folder, and writes the description of the run into it."""
    path = self.folder / _RUN
    if processes.is_first() and not path.exists():
      files.write_whole(path, json.dumps(self._run, indent=2) + "\n")


class Shards(RunFolder):
  """The shards of one run.

  Args:
    folder: OUTPUT_DIR.
    run: the description of the run, JSON values.
    sizes: the number of records of each shard.
  """

  def __init__(
    self, folder: str | os.PathLike, run: dict, sizes: Sequence[int]
  ):
    super().__init__(folder, run, PREDICTIONS)
    self._merged = self.folder / PREDICTIONS
    self._parts = self.folder / "shards"
    self._sizes = sizes
    self._shards = [
      self._parts / f"{number:05d}-of-{len(sizes):05d}.jsonl"
      for number in range(len(sizes))
    ]

  def check(self):
    """Checks that the folder holds this run or none; writes nothing.

    Raises:
      OutputError: the folder holds something else; see `RunFolder.check`.
      ValueError: `run.json` is damaged.
    """
    super().check()
    if self._parts.exists() and not self._parts.is_dir():
      raise OutputError(
        f"OUTPUT_DIR {self.folder} holds a file {self._parts.name}, and a"
        " folder of that name is written: remove it, or give another folder"
      )

  def missing(self) -> list[int]:
    """Returns the numbers of the shards that are not written yet.

    Raises:
      OutputError: a shard is damaged; the message names it.
    """
    return processes.agree(self._find_missing)

  def _find_missing(self) -> list[int]:
    if self._merged.exists():
      return []
    missing = []
    for number, path in enumerate(self._shards):
      # A whole file may still be damaged, by other hands or by the disk.
      if path.exists():
        for _ in _read_records(path, self._sizes[number]):
          pass
      else:
        missing.append(number)
    return missing

  def write(self, number: int, lines: Iterable[str]):
    """Writes a shard, whole or not at all."""
    if processes.is_first():
      files.write_whole(self._shards[number], lines)

  def merge(self):
    """Puts `predictions.jsonl` in the place of the shards."""
    if not processes.is_first():
      return
    # A run killed after the merge has the file, and perhaps some shards.
    if not self._merged.exists():
      texts = (path.read_text(encoding="utf-8") for path in self._shards)
      files.write_whole(self._merged, texts)
    shutil.rmtree(self._parts, ignore_errors=True)

  def records(self) -> Iterator[dict]:
    """Yields the records of `predictions.jsonl`.

    Raises:
      OutputError: the file is damaged.
    """
    return _read_records(self._merged, sum(self._sizes))


def _read_records(path: pathlib.Path, num: int) -> Iterator[dict]:
  """Yields a file's `num` records; raises OutputError if it is damaged."""
  line = 0
  with path.open("rb") as file:
    for line, text in enumerate(file, start=1):
      try:
        record = fields.of_json(text)
        if lacking := {"aux", "prediction"} - {*record}:
          raise ValueError(f"no {', '.join(sorted(lacking))}")
      except (ValueError, TypeError) as error:
        raise OutputError(
          f"{path} line {line} is damaged ({error}); remove the file, its"
          " examples are decoded again"
        ) from error
      yield record
  if line != num:
    raise OutputError(
      f"{path} has {line} records, wanted {num}; remove the file, its examples"
      " are decoded again"
    )
