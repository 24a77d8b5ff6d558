"""Writes the answer of a search: JSON, Markdown to read, gin to paste."""

from collections.abc import Mapping, Sequence
import json
import pathlib

from speccascade.evaluation.timing import Latency
from speccascade.report import tables
from speccascade.runtime import files


def write(
  folder: pathlib.Path, name: str, page: str, values: Mapping, snippet: str
) -> str:
  """Writes NAME.json, NAME.gin and NAME.md; returns the last of them.

  Args:
    folder: OUTPUT_DIR.
    name: the name of the files, without an ending.
    page: the answer as Markdown.
    values: all that was found, as JSON values.
    snippet: the settings to paste, see `gin`.
  """
  text = json.dumps(values, indent=1, allow_nan=False)
  files.write_whole(folder / f"{name}.json", text + "\n")
  files.write_whole(folder / f"{name}.gin", snippet)
  files.write_whole(folder / f"{name}.md", page)
  return page


def gin(settings: Mapping[str, object], comment: str = "") -> str:
  """Returns macros of a gin file, those without a value left out.

  >>> print(gin({"METHOD": "spec_decode", "ALPHA": None, "GAMMA": 3}), end="")
  METHOD = "spec_decode"
  GAMMA = 3
  """
  lines = [f"# {comment}\n"] if comment else []
  for name, value in settings.items():
    if value is not None:
      literal = f'"{value}"' if isinstance(value, str) else str(value)
      lines.append(f"{name} = {literal}\n")
  return "".join(lines)


def fenced(text: str) -> str:
  """Returns lines as a block of code in Markdown."""
  return f"```\n{text.rstrip()}\n```\n"


def bullets(lines: Sequence[str]) -> str:
  """Returns lines as a list in Markdown."""
  return "".join(f"- {line}\n" for line in lines)


def times(latency: Latency) -> str:
  """Returns a speed-up with its interval, as "1.68 [1.58, 1.79]"."""
  return "{:.2f} [{:.2f}, {:.2f}]".format(*tables.speedup(latency))
