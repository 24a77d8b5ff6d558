"""Writes the answer of a search: tables, text to read, gin to paste."""

from collections.abc import Mapping, Sequence
import json
import pathlib

from speccascade.evaluation.walltime import Latency
from speccascade.report import tables
from speccascade.runtime import files


def write(folder: pathlib.Path, answer: Mapping[str, str | Mapping]):
  """Writes the files of an answer, each of them whole.

  Args:
    folder: OUTPUT_DIR.
    answer: by the name of a file its text, or JSON values.
  """
  for name, content in answer.items():
    if not isinstance(content, str):
      content = json.dumps(content, indent=1, allow_nan=False) + "\n"
    files.write_whole(folder / name, content)


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
