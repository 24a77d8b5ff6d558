"""Traced examples of a sweep's points: who wrote each token, for the report."""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import dataclasses
import json
import pathlib

from speccascade import files
from speccascade.decoding.methods import find
from speccascade.fields import at_least, names_of
from speccascade.inference import records
from speccascade.inference.inputs import Source
from speccascade.inference.point import Point
from speccascade.inference.settings import Measuring
from speccascade.inference.study import Study
from speccascade.sweep.grids import middle_of
from speccascade.sweep.plan import Curve

FILE_NAME = "examples.jsonl"
_PORTION = 16  # points between two writes of the file


@dataclasses.dataclass(frozen=True)
class Shown:
  """Whose tokens are shown; checked when made.

  Attributes:
    num_shown: examples of each method, at the alpha in the middle, the gamma in
      the middle and the first seed; 0 shows none.
    methods: their names; None shows all.
  """

  num_shown: int = 4
  methods: Sequence[str] | None = None

  def __post_init__(self):
    at_least(0, NUM_SHOWN=self.num_shown)
    names_of(find, SHOWN_METHODS=self.methods)

  def chosen(self, curves: Sequence[Curve]) -> list[tuple[Curve, Point]]:
    """Returns the points whose tokens are shown."""
    if not self.num_shown:
      return []
    gammas = list(dict.fromkeys(curve.base.gamma for curve in curves))
    gamma = gammas[middle_of(len(gammas))]
    return [
      (curve, curve.middle)
      for curve in curves
      if curve.seed == curves[0].seed
      and (curve.base.gamma == gamma or not curve.base.spec.has_blocks)
      and (self.methods is None or curve.base.method in self.methods)
    ]


def write(
  path: pathlib.Path,
  points: Sequence[tuple[Study, Point]],
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
  chosen = {
    study.settings(point).key: (study, point) for study, point in points
  }
  done = {
    key: lines
    for key, lines in _read(path).items()
    if key in chosen
    and _indices(lines) == _wanted(chosen[key][0], num_examples)
  }
  missing = [key for key in chosen if key not in done]
  tick(num_examples * len(done))
  if not missing:
    return

  def decode(key: str) -> list[str]:
    lines = _lines(*chosen[key], num_examples)
    tick(num_examples)
    return lines

  with concurrent.futures.ThreadPoolExecutor(points[0][0].num_threads) as pool:
    for keys in _portions(missing, chosen):
      done |= dict(zip(keys, pool.map(decode, keys)))
      files.write_whole(
        path, [line for key in chosen if key in done for line in done[key]]
      )


def _portions(missing, chosen) -> Iterator[list[str]]:
  """Yields keys: first one of each program, so that none is compiled twice."""
  by_program = {}
  for key in missing:
    study, point = chosen[key]
    greedy = point.sampling.greedy
    program, _ = _traced(study, 1).batches(point).decoder.program(greedy)
    by_program.setdefault((program, greedy), key)
  first = list(by_program.values())
  yield first
  rest = [key for key in missing if key not in first]
  for start in range(0, len(rest), _PORTION):
    yield rest[start : start + _PORTION]


def _first(study: Study, num: int) -> list[Source]:
  return sorted(study.examples, key=lambda example: example.index)[:num]


def _wanted(study: Study, num: int) -> list[int]:
  return [example.index for example in _first(study, num)]


def _indices(lines: Sequence[str]) -> list[int]:
  return [json.loads(line)["aux"]["index"] for line in lines]


def _traced(study: Study, size: int) -> Study:
  """The same study, tracing batches of `size` and timing none."""
  run = dataclasses.replace(study.run, trace=True, batch_size=size)
  return dataclasses.replace(study, run=run, measuring=Measuring())


def _lines(study: Study, point: Point, num: int) -> list[str]:
  batch = _first(study, num)
  decoded = _traced(study, len(batch)).batches(point).decode(batch)
  settings = study.settings(point)
  head = {
    "settings": {**dataclasses.asdict(settings), "key": settings.key},
    "label": point.spec.label,
  }
  return [
    records.to_line({**head, **record})
    for record in records.records(decoded, batch, study.vocabulary, 0)
  ]


def _read(path: pathlib.Path) -> dict[str, list[str]]:
  """Returns the lines of a file by key of their point."""
  by_key = {}
  if path.exists():
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
      by_key.setdefault(json.loads(line)["settings"]["key"], []).append(line)
  return by_key
