"""Traced examples of a sweep's points: who wrote each token, for the report."""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import dataclasses
import json
import pathlib

from speccascade.inference import inputs as sources
from speccascade.inference import records, results
from speccascade.inference.batching import Batches
from speccascade.inference.point import Point
from speccascade.inference.study import Study

FILE_NAME = "examples.jsonl"
_PORTION = 16  # points between two writes of the file


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
      results.write_whole(
        path, [line for key in chosen if key in done for line in done[key]]
      )


def _portions(missing, chosen) -> Iterator[list[str]]:
  """Yields keys: first one of each program, so that none is compiled twice."""
  by_program = {}
  for key in missing:
    study, point = chosen[key]
    run = _batches(study, point, 1)
    program, _ = run.decoder.program(run.sampling.greedy)
    by_program.setdefault((program, run.sampling.greedy), key)
  first = list(by_program.values())
  yield first
  rest = [key for key in missing if key not in first]
  for start in range(0, len(rest), _PORTION):
    yield rest[start : start + _PORTION]


def _first(study: Study, num: int) -> list[sources.Example]:
  return sorted(study.examples, key=lambda example: example.index)[:num]


def _wanted(study: Study, num: int) -> list[int]:
  return [example.index for example in _first(study, num)]


def _indices(lines: Sequence[str]) -> list[int]:
  return [json.loads(line)["aux"]["index"] for line in lines]


def _batches(study: Study, point: Point, size: int) -> Batches:
  return Batches(
    study.pair,
    point,
    study.vocabulary,
    lengths=study.lengths,
    batch_size=size,
    max_decode_len=study.max_decode_len,
    seed=study.seed,
    trace=True,
    shared=study.shared,
  )


def _lines(study: Study, point: Point, num: int) -> list[str]:
  batch = _first(study, num)
  run = _batches(study, point, len(batch))
  settings = study.settings(point)
  head = {
    "settings": {**dataclasses.asdict(settings), "key": settings.key},
    "label": point.spec.label,
  }
  made = records.records(run.run(batch), batch, study.vocabulary, 0)
  return [records.to_line({**head, **record}) for record in made]


def _read(path: pathlib.Path) -> dict[str, list[str]]:
  """Returns the lines of a file by key of their point."""
  found = {}
  if path.exists():
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
      found.setdefault(json.loads(line)["settings"]["key"], []).append(line)
  return found
