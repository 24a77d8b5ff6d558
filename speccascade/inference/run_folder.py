"""An output folder that says what run it holds, and refuses another."""

import json
import os
import pathlib

from speccascade import files

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
