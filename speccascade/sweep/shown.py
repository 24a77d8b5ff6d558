"""Traced examples of a sweep's points: who wrote each token, for the report."""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import dataclasses
import pathlib
from typing import Annotated

from speccascade.decoding.programs.methods import find
from speccascade.inference.points.settings import Measuring
from speccascade.inference.rows import records
from speccascade.runtime import files, processes
from speccascade.search.grid import Curve, StudyPoint
from speccascade.settings import fields

FILE_NAME = "examples.jsonl"
_PORTION = 16  # points between two writes of the file


@fields.checked
@dataclasses.dataclass(frozen=True)
class Shown:
  """Whose tokens are shown; checked when made.

  Attributes:
    num_shown: examples of each method, at the alpha in the middle, the gamma in
      the middle and the first seed; 0 shows none.
    methods: their names; None shows all.
  """

  num_shown: fields.NonNegative = 4
  methods: Sequence[Annotated[str, find]] | None = None

  def chosen(self, curves: Sequence[Curve]) -> list[Curve]:
    """Returns the curves whose middle points are shown."""
    if not self.num_shown:
      return []
    gammas = list(dict.fromkeys(curve.base.gamma for curve in curves))
    gamma = gammas[len(gammas) // 2]
    return [
      curve
      for curve in curves
      if curve.seed == curves[0].seed
      and (curve.base.gamma == gamma or not curve.base.spec.has_blocks)
      and (self.methods is None or curve.base.method in self.methods)
    ]


def write(
  path: pathlib.Path,
  points: Sequence[StudyPoint],
  num_examples: int,
  tick: Callable[[int], object],
):
  """Writes the traced records of points, those that `path` lacks being decoded.

  A record is one of `records.records`, with "settings" (those of the point's
  row, and its "key") and "label" in front. The file is written whole, each time
  a few points are done.

  Args:
    path: of the file.
    points: what to show, in order.
    num_examples: of each, the first ones of the data.
    tick: called with the examples done since; what it raises ends the run.
  """
  if not points:
    return
  first = points[0].study
  in_order = sorted(first.examples, key=lambda example: example.index)
  batch, chosen = in_order[:num_examples], {}
  for each in points:
    run = dataclasses.replace(each.study.run, trace=True, batch_size=len(batch))
    traced = dataclasses.replace(each.study, run=run, measuring=Measuring())
    chosen[each.settings.key] = StudyPoint(traced, each.point)
  indices = [example.index for example in batch]
  done = processes.agreed(lambda: _read(path, chosen, indices))
  tick(num_examples * len(done))

  def decode(key: str) -> list[str]:
    study, point = chosen[key].study, chosen[key].point
    settings = {**vars(chosen[key].settings), "key": key}
    decoded = study.batches(point).decode(batch)
    head = {"settings": settings, "label": point.spec.label}
    lines = [
      records.to_line({**head, **record})
      for record in records.records(decoded, batch, study.vocabulary, 0)
    ]
    tick(num_examples)
    return lines

  missing = [key for key in chosen if key not in done]
  with concurrent.futures.ThreadPoolExecutor(first.num_threads) as pool:
    for keys in _portions(missing, chosen):
      done |= dict(zip(keys, pool.map(decode, keys)))
      lines = [line for key in chosen if key in done for line in done[key]]
      if processes.is_first():
        files.write_whole(path, lines)


def _portions(missing, chosen) -> Iterator[list[str]]:
  """Yields keys: first one of each program, so that none is compiled twice."""
  by_program = {}
  for key in missing:
    study, point = chosen[key].study, chosen[key].point
    greedy = point.sampling.greedy
    program, _ = study.batches(point).decoder.program(greedy)
    by_program.setdefault((program, greedy), key)
  if first := list(by_program.values()):
    yield first
  rest = [key for key in missing if key not in first]
  for start in range(0, len(rest), _PORTION):
    yield rest[start : start + _PORTION]


def _read(path: pathlib.Path, keys, indices: list[int]) -> dict[str, list[str]]:
  """Returns a file's lines by key of their point, where all examples are."""
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
  return {
    key: list(lines.values())
    for key, lines in by_key.items()
    if key in keys and list(lines) == indices
  }
