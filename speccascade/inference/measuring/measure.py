"""Measures points: the quality, the counts and the latency of each.

`measure` takes points and returns result rows. It measures points in groups of
one sampling, and a group in four steps (`_measure_group`): the programs are
compiled; under the clock, every point and the verifier alone decode the first
examples at batch size 1, in turns; without the clock, several points at a time,
every point decodes the other examples; and the row of each point is made.

A point whose row is in the result file already is not measured again.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
import concurrent.futures
import itertools

from absl import logging
import jax
import numpy as np

from speccascade.decoding import Decoded
from speccascade.evaluation import efficiency, timing
from speccascade.evaluation.efficiency import Costs
from speccascade.inference.batches import batching
from speccascade.inference.batches.sources import Source
from speccascade.inference.measuring import scoring
from speccascade.inference.measuring.environment import holds_many_programs
from speccascade.inference.measuring.study import Outputs, Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows import results
from speccascade.inference.rows.results import ResultRow
from speccascade.models.sharding.partitioning import fetch
from speccascade.runtime import processes
from speccascade.runtime.progress import ProgressBar, note

REFERENCE, DRAFTER = "verifier", "drafter"

# Takes the number of decodes since its last call.
Tick = Callable[[int], object]


def reference(point: Point) -> Point:
  """Returns the point of the verifier alone at the sampling of a point."""
  return point.of(REFERENCE)


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
    TypeError: an item of `points` is no `Point`.
    NoDistributionError: a model gave no distribution. The message names the
      example and the step.
  """
  for point in points:
    if not isinstance(point, Point):
      raise TypeError(
        f"points holds {point!r:.60}; wanted an inference.point.Point"
      )
  # Points that differ only in what their method does not use have one row.
  by_settings = {study.settings(point): point for point in points}
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
  return [rows[study.settings(point).key] for point in points]


def _measure_group(
  study: Study,
  group: Sequence[Point],
  costs: Costs | None,
  tick: Tick,
  rows: Sequence[ResultRow],
) -> Iterator[ResultRow]:
  """Measures points of one sampling, after other `rows`; yields their rows."""
  alone = reference(group[0])

  # Compile. Points share programs, and several threads compile at once.
  _compile(study, [alone, *group], tick)

  # Time the first examples. Their outputs are those of trial 0.
  latencies: dict[Point, timing.Latency] = {}
  timed: dict[tuple[Point, int], Decoded] = {}
  if study.timed_examples:
    # The verifier alone is timed in every group, but progress counts it only
    # where it is a point that was asked for.
    num_timed = len({alone, *group})
    latencies = time_points(
      study,
      group,
      on_result=lambda point, index, out: timed.update({(point, index): out}),
      tick=lambda num: tick(num * len(group) // num_timed),
    )
    costs = costs_by_clock(study, alone, costs, latencies, rows)
    if costs is not None and costs.doubt and not rows:
      logging.warning("%s", costs.doubt)

  # Decode the other examples. The verifier comes first: the outputs of other
  # points are compared with its own.
  compares = study.measuring.agreement and alone.sampling.greedy
  if alone in group or (compares and alone not in study.verifier_outputs):
    # (A tick of 0 reports no progress, and may end the run by an error.)
    alone_tick = tick if alone in group else lambda num: tick(0)
    outputs = _decode_all(study, alone, timed, alone_tick)
    study.verifier_outputs[alone] = outputs

  def measure_point(point: Point) -> ResultRow:
    outputs = study.verifier_outputs.get(point)
    if outputs is None:
      outputs = _decode_all(study, point, timed, tick)
    agreement = None
    if compares:
      agreement = scoring.count_identical(
        study, outputs, study.verifier_outputs[alone]
      )

    # The row. Outputs are ordered by trial and index, so that the bootstrap
    # resamples the examples of every point alike.
    by_index = {example.index: example for example in study.examples}
    in_order = sorted(outputs.tokens)
    return scoring.result_row(
      study,
      point,
      outputs.counts,
      [by_index[index] for _, index in in_order],
      [study.text_of(outputs.tokens[x]) for x in in_order],
      latency=latencies.get(point),
      costs=costs,
      agreement=agreement,
      log_probs=outputs.log_probs,
    )

  # Nothing is timed any more, so that points may share the machine.
  yield from _map_in_threads(study, measure_point, group)


def _compile(study: Study, points: Sequence[Point], tick: Tick):
  """Compiles the programs that the study lacks of points, after a tick each."""
  examples = {}
  for point in points:
    examples |= study.program_examples(point)
  missing = [key for key in examples if key not in study.programs]
  # Programs of other points are dropped before they fill the process. All
  # processes of a job must drop them together, as they compile together.
  if missing and processes.agree(holds_many_programs):
    study.programs.forget()
    missing = list(examples)
  numbers = itertools.count(1)

  def compile_program(key: Hashable):
    tick(0)
    note(f"compiling {next(numbers)} of {len(missing)}")
    batches, example = examples[key]
    batches.bind(batches.prepare([example]))

  list(_map_in_threads(study, compile_program, missing))
  note("")


def _map_in_threads(
  study: Study, function: Callable, items: Sequence
) -> Iterator:
  """Yields the result of a function for each item in turn, made in threads."""
  with concurrent.futures.ThreadPoolExecutor(study.num_threads) as pool:
    yield from pool.map(function, items)


def _decode_all(
  study: Study,
  point: Point,
  timed: Mapping[tuple[Point, int], Decoded],
  tick: Tick,
) -> Outputs:
  """Decodes all examples in all trials, but for what was `timed` in trial 0."""
  batches, num_timed = study.batches(point), len(study.timed_examples)
  tokens, counts, log_probs = {}, [], []

  def collect(examples: Sequence[Source], trial: int, out: Decoded):
    emitted, lengths = np.asarray(out.tokens), np.asarray(out.lengths)
    # Rows after the examples only pad a batch.
    for row, example in enumerate(examples):
      tokens[trial, example.index] = emitted[row, : lengths[row]]
    counts.extend(efficiency.row_counts(out)[: len(examples)])
    if out.log_probs is not None:
      columns = jax.tree.map(lambda x: x[: len(examples)], out.log_probs)
      log_probs.append(vars(columns))

  for index, example in enumerate(study.timed_examples):
    collect([example], 0, timed[point, index])
  tick(num_timed)
  for trial in range(study.num_trials(point)):
    examples = study.examples[num_timed:] if trial == 0 else study.examples
    if examples:
      collect(examples, trial, batches.decode_all(examples, trial, tick))
  return Outputs(tokens, efficiency.total(counts), log_probs)


def time_points(
  study: Study,
  points: Sequence[Point],
  *,
  on_result: Callable[[Point, int, Decoded], object] = lambda *_: None,
  tick: Tick = lambda num: None,
  is_over: Callable[[], bool] = lambda: False,
) -> dict[Point, timing.Latency]:
  """Times points of one sampling, and the verifier alone, in turns.

  A latency is the time of one example at batch size 1, the encoder or the
  prompt included. It does not include compiling, padding, the transfer of the
  input to the device, or the transfer of the output from it.

  Args:
    study: its timed examples are decoded.
    points: the points to time. The verifier alone is added if it is missing.
    on_result: called once for each point and timed example, with the point, the
      number of the example among the timed ones, and its `Decoded` of one row.
    tick: called with the number of decodes since its last call; with 0 before
      a program is compiled, and before the first timed decode. An error that it
      raises ends the timing.
    is_over: called after each repeat. True ends the timing early.

  Returns:
    The latency of the verifier alone, then of each point.

  Raises:
    NoDistributionError: a model gave no distribution. The message names the
      example and the step.
  """
  alone, examples = reference(points[0]), study.timed_examples
  # Compiling takes seconds and would be timed as decoding otherwise.
  _compile(study, [alone, *points], tick)
  batches = {
    point: study.batches(point, timed=True) for point in [alone, *points]
  }
  # The inputs of an example are the same for all points. They are padded to one
  # length and put on the device before the clock starts.
  prepared = [batches[alone].prepare([example]) for example in examples]
  competitors, lengths = {}, {}
  for point, point_batches in batches.items():
    bound = [point_batches.bind(each) for each in prepared]
    competitors[point] = lambda index, bound=bound: bound[index]()
    lengths[point] = np.zeros(len(examples), int)

  def check_result(point: Point, index: int, decoded: Decoded):
    decoded = fetch(decoded)
    batching.check_finite(decoded, [examples[index]])
    lengths[point][index] = decoded.lengths[0]
    on_result(point, index, decoded)

  # The points and the verifier take turns, so that a machine that slows down
  # for a while slows all of them: the ratio of two latencies hardly changes.
  seconds = timing.interleave(
    competitors,
    range(len(examples)),
    repeats=study.measuring.repeats,
    on_result=check_result,
    tick=tick,
    is_over=is_over,
  )
  return {
    point: timing.latency(
      point_seconds, seconds[alone], (lengths[point], lengths[alone])
    )
    for point, point_seconds in seconds.items()
  }


def cost_loops(
  study: Study,
  points: Sequence[Point],
  rounds: int = 7,
  *,
  tick: Tick = lambda num: None,
  is_over: Callable[[], bool] = lambda: False,
) -> timing.CostLoops | None:
  """Times the loops that give the costs of points of one sampling.

  Args:
    study: the first timed example is fed to the models.
    points: the points whose block widths are timed.
    rounds: how often each loop is timed.
    tick: as in `time_points`.
    is_over: called after each round. True ends the timing early.

  Returns:
    The loops, or None where a drafter step has no single cost because several
    models draft; see `ModelPair.has_costs`.
  """
  if not study.pair.has_costs:
    return None
  example = study.timed_examples[:1]
  predictable = [point for point in points if point.is_predictable]
  # The speed of a tree is not predicted, but its pass is of one width, too.
  one_width = [
    point for point in points if point.is_predictable or point.spec.takes_trees
  ]
  heads = {study.num_heads_of(point) for point in predictable}
  return timing.cost_loops(
    study.pair.drafter_lm,
    study.pair.verifier_lm,
    study.pad_examples(example, 1, [study.timed_length]),
    points[0].sampling,
    max_decode_len=study.run.max_decode_len,
    widths={point.verify_width for point in one_width},
    # The verifier alone draws from no heads.
    heads=heads - {0} or {1},
    rounds=rounds,
    tick=tick,
    is_over=is_over,
  )


def measure_costs(study: Study, points: Sequence[Point]) -> Costs | None:
  """Returns the costs that predict points of one sampling; see `cost_loops`."""
  loops = cost_loops(study, points)
  return None if loops is None else loops.costs


def check_costs(
  study: Study,
  point: Point,
  costs: Costs | None,
  *,
  tick: Tick = lambda num: None,
  is_over: Callable[[], bool] = lambda: False,
) -> Costs | None:
  """Returns costs with the c of whole decodes of both models alone.

  Both models decode the timed examples in turns; see `costs_by_clock`.

  Args:
    study: the models and the examples.
    point: its sampling is used.
    costs: by hot loops. They stay as they are where the drafter writes no text
      alone, and so does None.
    tick: as in `time_points`.
    is_over: as in `time_points`.
  """
  if costs is None or not study.pair.drafts_alone:
    return costs
  alone = reference(point)
  latencies = time_points(
    study, [alone.of(DRAFTER)], tick=tick, is_over=is_over
  )
  return costs_by_clock(study, alone, costs, latencies)


def costs_by_clock(
  study: Study,
  alone: Point,
  costs: Costs | None,
  latencies: Mapping[Point, timing.Latency],
  rows: Sequence[ResultRow] = (),
) -> Costs | None:
  """Returns costs with the c of whole decodes, if both models were timed.

  Hot loops time one pass after another, and may flatter a pass that a decode
  does not make alone. Where both models decoded alone, on the same examples in
  turns, their seconds a token say what a step of the drafter takes, in steps of
  the verifier. Neither an encoder nor the fixed cost of a call has a part in
  that.

  Args:
    study: the models, the examples and the settings of all points.
    alone: the verifier alone at the sampling.
    costs: the costs by hot loops, or None, which stays as it is.
    latencies: what was timed in turns just now.
    rows: rows of earlier turns, which count where the drafter alone was timed
      in those.
  """
  if costs is None:
    return None
  pair = alone.of(DRAFTER), alone
  by_key = {row.key: row.latency for row in rows}
  for drafter, verifier in (
    map(latencies.get, pair),
    (by_key.get(study.settings(point).key) for point in pair),
  ):
    if drafter is None or verifier is None:
      continue
    if drafter.token_s is not None and verifier.token_s is not None:
      return costs.by_clock(drafter.token_s / verifier.token_s)
  return costs
