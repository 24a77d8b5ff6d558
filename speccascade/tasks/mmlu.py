"""Reads the questions of MMLU: the authors' tables, or JSON lines."""

from collections.abc import Iterator
import csv
import itertools
import operator
import pathlib
from typing import Literal, TypedDict

from speccascade.settings import fields
from speccascade.text import text_files


class MMLUQuestion(TypedDict):
  """A question of MMLU, as MMLU's files have it."""

  question: str
  choices: tuple[str, str, str, str]
  answer: Literal["A", "B", "C", "D"]


MMLU = tuple(MMLUQuestion.__annotations__)  # the names of the fields


def read_mmlu(folder, split: str) -> list[MMLUQuestion]:
  """Returns the questions of MMLU, from the authors' tables or JSON lines.

  Args:
    folder: a folder with dev/, val/ and test/, which have SUBJECT_SPLIT.csv, as
      in the authors' archive; or with SPLIT.jsonl.gz, whose objects have
      question, choices and targets.
    split: "dev", "val" or "test".

  Returns:
    One question or more.

  Raises:
    FileNotFoundError: the folder has no such files.
    ValueError: a file has no questions, or a wrong line. The message names the
      file and the line.
  """
  folder = pathlib.Path(folder)
  tables = sorted((folder / split).glob("*.csv"))
  lines = folder / f"{split}.jsonl.gz"
  if not tables and not lines.is_file():
    raise FileNotFoundError(
      f"no MMLU in {folder}: TFDS does not have it; unpack the authors'"
      f" data.tar (github.com/hendrycks/test) so that {folder / split} holds"
      " its CSV files"
    )
  if tables:
    rows = itertools.chain.from_iterable(map(_table, tables))
  else:
    rows = _lines(lines)
  questions = list(rows)
  if not questions:
    raise ValueError(
      f"{folder / split if tables else lines} has no question of MMLU: unpack"
      " the authors' data.tar (github.com/hendrycks/test) again"
    )
  return questions


def _table(path: pathlib.Path) -> Iterator[MMLUQuestion]:
  """Yields the questions of a CSV file; a question may have several lines."""
  lines = (f"{line}\n" for line in text_files.lines_of(path, "MMLU's table"))
  reader, row = csv.reader(lines), None
  try:
    for row in filter(None, reader):
      question = dict(zip(MMLU, (row[0], row[1:-1], row[-1])))
      yield fields.fit("it", question, MMLUQuestion)
  except (fields.SettingError, csv.Error) as error:
    reason = f" ({error})" if isinstance(error, csv.Error) else ""
    raise ValueError(
      f"{path}, line {reader.line_num} is not a question of MMLU{reason}:"
      " wanted six columns, a question, four choices, and A, B, C or D; last"
      f" read was {row!r:.60}"
    ) from error


def _lines(path: pathlib.Path) -> Iterator[MMLUQuestion]:
  """Yields the questions of a file of JSON lines."""
  stored = operator.itemgetter("question", "choices", "targets")
  for number, line in enumerate(text_files.lines_of(path, "MMLU's file"), 1):
    try:
      question = dict(zip(MMLU, stored(fields.of_json(line))))
      yield fields.fit("it", question, MMLUQuestion)
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(
        f"{path}, line {number} is {line:.60}; wanted a JSON object with"
        ' "question", the four texts "choices", and "targets", A, B, C or D'
      ) from error
