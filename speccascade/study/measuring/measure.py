"""Measures points: the quality, the counts and the latency of each.

`measure` takes points and returns result rows. It measures points in groups of
one sampling, and a group in four steps (`_measure_group`):
  compile: `Study.compile` compiles the programs of all points.
  time: `time_batches` has every point and the verifier alone decode the first
    examples at batch size 1, in turns.
  decode: `Batches.decode_all` decodes the other examples, several points at a
    time.
  row: `scoring.result_row` makes the row of each point.

A point whose row is in the result file already is not measured again.
"""

from collections.abc import Iterator, Sequence

from absl import logging

from speccascade.generate.batches.batching import Batches
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.records import Outputs
from speccascade.generate.session import Tick
from speccascade.runtime.progress import ProgressBar
from speccascade.study.evaluation import walltime
from speccascade.study.measuring import scoring
from speccascade.study.measuring.point_timing import (
  costs_by_clock,
  measure_costs,
  reference,
  time_batches,
)
from speccascade.study.measuring.study import Study
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultRow


def groups(points: Sequence[Point], size: int) -> Iterator[list[Point]]:
  """Yields the points in groups of one sampling.

  The points of a group are compared with one reference, the verifier alone at
  their sampling.

  Args:
    points: the points.
    size: the most points of a group.
  """
  by_sampling = {}
  for point in points:
    key = tuple(point.sampled.values())
    by_sampling.setdefault(key, []).append(point)
  for members in by_sampling.values():
    for start in range(0, len(members), size):
      yield members[start : start + size]


def measure(
  study: Study,
  points: Sequence[Point],
  file: results.ResultFile,
  *,
  group_size: int = 16,
  tick: Tick | None = None,
) -> list[ResultRow]:
  """Measures the points whose rows a file lacks.

  Args:
    study: the models, the examples and the settings of all points.
    points: the points to measure.
    file: the file of the rows. The points of a group are timed first. Then
      each row is appended once its quality and those before it are measured.
    group_size: the most points that are timed in turns. Neighbours in `points`
      that have one sampling make a group.
    tick: called with the number of decodes since its last call, from several
      threads. An error that it raises ends the run, and points whose quality
      is not measured leave no row. None shows a progress bar if the study's run
      does.

  Returns:
    One row for each of `points`, in their order.

  Raises:
    TypeError: an item of `points` is not a `Point`.
    NoDistributionError: a model gave no distribution. The message names the
      example and the step.
  """
  for point in points:
    if not isinstance(point, Point):
      raise TypeError(
        f"points holds {point!r:.60}; wanted an inference.point.Point"
      )
  # Points that differ only in what their method does not use have one row, and
  # one reference.
  points = [point.of(point.method, alpha=point.alpha) for point in points]
  in_order = [study.settings(point) for point in points]
  by_settings = dict(zip(in_order, points))
  missing = [
    point for settings, point in by_settings.items() if settings not in file
  ]
  with ProgressBar(
    total=sum(map(study.num_decodes, missing)),
    unit="decode",
    desc="measure",
    disable=not study.run.progress or tick is not None,
  ) as bar:
    tick = tick or bar.update
    for members in groups(missing, len(missing)):
      # The groups of one sampling share one measurement of the costs.
      costs = measure_costs(study, members) if study.timed_examples else None
      for group in groups(members, group_size):
        for row in _measure_group(study, group, costs, tick, file.rows):
          file.append(row)
  rows = {row.key: row for row in file.rows}
  return [rows[settings.key] for settings in in_order]


def _measure_group(
  study: Study,
  group: Sequence[Point],
  costs: Costs | None,
  tick: Tick,
  rows: Sequence[ResultRow],
) -> Iterator[ResultRow]:
  """Measures points of one sampling, after other `rows`; yields their rows."""
  alone = reference(group[0])
  # The verifier is decoded first, if its outputs are those of a point or are to
  # be compared with others. It is timed in any case.
  compares = study.measuring.agreement and alone.sampling.greedy
  decodes_alone = alone in group or (
    compares and alone not in study.verifier_outputs
  )
  outputs = {point: Outputs() for point in [alone, *group]}

  # Compile. Points share programs, and several threads compile at once.
  timed = {point: study.batches(point, timed=True) for point in outputs}
  decoded = [alone, *group] if decodes_alone else group
  untimed = {point: study.batches(point) for point in decoded}
  study.session.compile([*timed.values(), *untimed.values()], tick)

  # Time the first examples. Their outputs are those of trial 0.
  latencies: dict[Point, walltime.Latency] = {}
  if study.timed_examples:
    # The verifier alone is timed in every group, but progress counts it only
    # where it is a point that was asked for.
    latencies = time_batches(
      study,
      timed,
      outputs,
      tick=lambda num: tick(num * len(group) // len(outputs)),
    )
    costs = costs_by_clock(study, alone, costs, latencies, rows)
    if costs is not None and costs.doubt and not rows:
      logging.warning("%s", costs.doubt)

  # Decode the other examples.
  def decode_trials(batches: Batches, written: Outputs, tick: Tick):
    tick(len(study.timed_examples))
    for trial, examples in batches.trials:
      decoded = batches.decode_all(examples, trial, tick)
      written.add(decoded, examples, trial)

  if decodes_alone:
    # (A tick of 0 reports no progress, and may end the run by an error.)
    alone_tick = tick if alone in group else lambda num: tick(0)
    decode_trials(untimed[alone], outputs[alone], alone_tick)
    study.verifier_outputs[alone] = outputs[alone]
  exact = scoring.exact_lengths(study, alone, outputs[alone], rows)

  def measure_point(point: Point) -> ResultRow:
    written = study.verifier_outputs.get(point)
    if written is None:
      written = outputs[point]
      decode_trials(untimed[point], written, tick)

    # The row.
    agreement = None
    if compares:
      agreement = scoring.count_identical(
        study, written, study.verifier_outputs[alone]
      )
    return scoring.result_row(
      study,
      point,
      written,
      latency=latencies.get(point),
      costs=costs,
      agreement=agreement,
      exact=exact,
    )

  # Nothing is timed any more, so that points may share the machine.
  yield from study.session.map_in_threads(measure_point, group)
