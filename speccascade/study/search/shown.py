"""Traced examples of a sweep: which model wrote each token, for the report."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import dataclasses
import pathlib
from typing import Annotated

from speccascade.decoding.programs.methods import find
from speccascade.generate import records
from speccascade.generate.batches.sources import Source
from speccascade.runtime import files, processes, progress
from speccascade.settings import fields
from speccascade.study.measuring.study import Measuring
from speccascade.study.search.candidates import Candidate
from speccascade.study.search.grid import Curve

FILE_NAME = "examples.jsonl"
_PORTION = 16  # points between two writes of the file


@fields.checked
@dataclasses.dataclass(frozen=True)
class Shown:
  """The points whose tokens are shown; its values are checked.

  Attributes:
    num_shown: the number of examples of each method. They are shown at the
      middle alpha, the middle gamma and the first seed; 0 shows none.
    methods: the names of the methods; None shows all methods.
  """

  num_shown: fields.NonNegative = 4
  methods: Sequence[Annotated[str, find]] | None = None

  def select(self, curves: Sequence[Curve]) -> list[Curve]:
    """Returns the curves whose middle points are shown."""
    if not self.num_shown:
      return []
    gammas = list(
      dict.fromkeys(x.base.gamma for x in curves if x.base.spec.has_blocks)
    )
    gamma = gammas[len(gammas) // 2] if gammas else None
    return [
      curve
      for curve in curves
      if curve.seed == curves[0].seed
      and (curve.base.gamma == gamma or not curve.base.spec.has_blocks)
      and (self.methods is None or curve.base.method in self.methods)
    ]


def write(
  path: pathlib.Path,
  points: Sequence[Candidate],
  num_examples: int,
  tick: Callable[[int], object],
):
  """Writes the traced records of points, and decodes those that `path` lacks.

  A record is one of `records.records`, with two members before the others:
  "settings", which holds the settings and the "key" of the point's row, and
  "label". The whole file is written again each time that a few points are done.

  Args:
    path: the path of the file.
    points: the points to show, in order.
    num_examples: how many examples of each point are shown, the first ones of
      the data.
    tick: called with the number of examples decoded since the last call. An
      error that it raises ends the run.
  """
  if not points:
    return
  study = points[0].study  # all studies have the same examples
  in_order = sorted(study.examples, key=lambda example: example.index)
  examples = in_order[:num_examples]
  traced_points = {
    point.settings.key: _with_trace(point, len(examples)) for point in points
  }
  indices = [example.index for example in examples]
  lines_by_key = processes.agree(lambda: _read(path, traced_points, indices))
  tick(num_examples * len(lines_by_key))

  def decode(key: str) -> list[str]:
    traced = traced_points[key]
    decoded = traced.study.batches(traced.point).decode(examples)
    head = {
      "settings": {**vars(traced.settings), "key": key},
      "label": traced.point.spec.label,
    }
    lines = [
      records.to_line({**head, **record})
      for record in traced.study.session.records(decoded, examples)
    ]
    tick(num_examples)
    return lines

  missing = [key for key in traced_points if key not in lines_by_key]
  for keys in _portions(missing, traced_points, examples):
    if num := sum(_is_new(traced_points[key], examples) for key in keys):
      progress.note(f"compiling {num} that trace tokens", leave_out=True)
    lines_by_key |= zip(keys, study.session.map_in_threads(decode, keys))
    lines = []
    for key in traced_points:
      lines += lines_by_key.get(key, [])
    progress.note("")
    if processes.is_first():
      files.write_whole(path, lines)


def _with_trace(point: Candidate, num_examples: int) -> Candidate:
  """Returns a point in a study that records traces, in one batch, untimed."""
  run = dataclasses.replace(
    point.study.run, trace=True, batch_size=num_examples
  )
  study = dataclasses.replace(point.study, measuring=Measuring())
  return Candidate(study.with_session(run=run), point.point)


def _is_new(traced: Candidate, examples: Sequence[Source]) -> bool:
  """Returns whether the program of a point is not compiled yet."""
  batches = traced.study.batches(traced.point)
  return batches.program_key(examples) not in batches.programs


def _portions(
  missing: Sequence[str],
  traced_points: Mapping[str, Candidate],
  examples: Sequence[Source],
) -> Iterator[list[str]]:
  """Yields the missing keys, a few at a time."""
  # The first portion has one point of each program. Points that are decoded
  # side by side then never compile one program twice.
  by_program = {}
  for key in missing:
    traced = traced_points[key]
    batches = traced.study.batches(traced.point)
    by_program.setdefault(batches.program_key(examples), key)
  first = list(by_program.values())
  if first:
    yield first
  rest = [key for key in missing if key not in first]
  for start in range(0, len(rest), _PORTION):
    yield rest[start : start + _PORTION]


def _read(
  path: pathlib.Path, keys: Collection[str], indices: Sequence[int]
) -> dict[str, list[str]]:
  """Returns the lines of the points that a file holds whole, by key."""
  by_key = {}
  try:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.splitlines(keepends=True):
      record = fields.of_json(line)
      lines = by_key.setdefault(record["settings"]["key"], {})
      lines[record["aux"]["index"]] = line
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f"{path} is damaged ({error!r}); remove it, it is made again"
    ) from error
  # A point with other examples is left out, and is decoded again.
  return {
    key: list(lines.values())
    for key, lines in by_key.items()
    if key in keys and list(lines) == indices
  }
