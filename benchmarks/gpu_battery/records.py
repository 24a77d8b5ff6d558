"""Rows of results on disk, as tables, and the time that is left."""

from collections.abc import Sequence
import json
import pathlib
import time

import numpy as np

from speccascade.runtime import files

ROWS, TABLES = "rows.jsonl", "tables.md"


class Clock:
  """How long the battery has run, and how long it may."""

  def __init__(self, budget_s: float):
    self._began = time.monotonic()
    self._budget_s = budget_s

  @property
  def elapsed(self) -> float:
    return time.monotonic() - self._began

  @property
  def left(self) -> float:
    return self._budget_s - self.elapsed

  def say(self, text: str):
    """Prints a line that begins with the seconds since the start."""
    print(f"[{self.elapsed:6.1f} s] {text}", flush=True)


class Records:
  """The rows of a battery's folder.

  A row has the name of its part. Each row is appended to the file at once, and
  the tables are rewritten at the end of a part. The last row of a part says
  that it is whole; a battery that continues leaves such a part as it is.

  Attributes:
    rows: all rows, those of earlier runs first.
  """

  def __init__(self, folder: pathlib.Path):
    folder.mkdir(parents=True, exist_ok=True)
    self.folder = folder
    self.rows: list[dict] = []
    path = folder / ROWS
    if path.exists():
      # A run that was killed may have left half a line.
      for line in path.read_text(encoding="utf-8").splitlines():
        try:
          self.rows.append(json.loads(line))
        except json.JSONDecodeError:
          continue
    # Rows of a part that was cut short are measured again.
    whole = {row["part"] for row in self.rows if row.get("whole")}
    self.rows = [row for row in self.rows if row["part"] in whole]
    self._rewrite()

  def _rewrite(self):
    lines = [json.dumps(row) + "\n" for row in self.rows]
    files.write_whole(self.folder / ROWS, "".join(lines))

  def is_whole(self, part: str) -> bool:
    return any(row.get("whole") for row in self.rows if row["part"] == part)

  def of(self, part: str, table: str | None = None) -> list[dict]:
    """Returns the rows of a part, or of one of its tables."""
    return [
      row
      for row in self.rows
      if row["part"] == part
      and "table" in row
      and (table is None or row["table"] == table)
    ]

  def add(self, part: str, table: str, **values):
    """Appends a row."""
    self._append({"part": part, "table": table, **values})

  def finish(self, part: str, **values):
    """Says that a part is whole."""
    self._append({"part": part, "whole": True, **values})

  def _append(self, row: dict):
    self.rows.append(row)
    with open(self.folder / ROWS, "a", encoding="utf-8") as file:
      file.write(json.dumps(row) + "\n")

  def write_tables(self, notes: Sequence[str] = ()):
    """Writes the tables of all rows, and notes after them."""
    lines = ["# A battery on one GPU", ""]
    for part in dict.fromkeys(row["part"] for row in self.rows):
      lines += self.tables(part)
    lines += [f"- {note}" for note in notes]
    files.write_whole(self.folder / TABLES, "\n".join(lines) + "\n")

  def tables(self, part: str) -> list[str]:
    """Returns the lines of the tables of a part."""
    lines = []
    for name in dict.fromkeys(row["table"] for row in self.of(part)):
      rows = self.of(part, name)
      columns = [
        key
        for key in dict.fromkeys(key for row in rows for key in row)
        if key not in ("part", "table")
      ]
      lines += [f"## {name}", ""]
      lines += ["| " + " | ".join(columns).replace("_", " ") + " |"]
      lines += ["| --- " + "| ---: " * (len(columns) - 1) + "|"]
      for row in rows:
        cells = [_cell(row.get(key, "")) for key in columns]
        lines += ["| " + " | ".join(cells) + " |"]
      lines += [""]
    return lines


def _cell(value) -> str:
  """Returns a value as a table shows it; a list is [middle, low, high]."""
  if isinstance(value, list):
    middle, low, high = map(_cell, value)
    return f"{middle} [{low}, {high}]"
  if isinstance(value, float):
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
  if isinstance(value, int) and abs(value) >= 100_000:
    return f"{value / 1e6:,.1f} M"
  return str(value)


def spread(values: Sequence[float]) -> list[float]:
  """Returns [median, least, most]."""
  return [float(f(values)) for f in (np.median, np.min, np.max)]


def ratio_spread(over: Sequence[float], under: Sequence[float]) -> list[float]:
  """Returns the spread of the ratio within each round."""
  return spread(np.divide(over, under))
