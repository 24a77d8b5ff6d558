"""What is timed of points, and how: whole decodes, and the costs of passes.

Points of one sampling and the verifier alone decode examples in turns, at batch
size 1. Hot loops time the passes of both models, whose costs predict the speed
of points.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from speccascade.decoding import Decoded
from speccascade.generate.batches import batching
from speccascade.generate.batches.batching import Batches
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.records import Outputs
from speccascade.generate.session import Tick
from speccascade.models.sharding.partitioning import fetch
from speccascade.study.evaluation import efficiency, timing, walltime
from speccascade.study.measuring.study import Study
from speccascade.study.rows.results import ResultRow

REFERENCE, DRAFTER = "verifier", "drafter"


def reference(point: Point) -> Point:
  """Returns the point of the verifier alone at the sampling of a point."""
  return point if point.method == REFERENCE else point.of(REFERENCE)


def time_points(
  study: Study,
  points: Sequence[Point],
  *,
  outputs: Mapping[Point, Outputs] | None = None,
  tick: Tick = lambda num: None,
  is_over: Callable[[], bool] = lambda: False,
) -> dict[Point, walltime.Latency]:
  """Times points of one sampling, and the verifier alone, in turns.

  A latency is the time of one example at batch size 1, the encoder or the
  prompt included. It does not include compiling, padding, the transfer of the
  input to the device, or the transfer of the output from it.

  Args:
    study: its timed examples are decoded.
    points: the points to time. The verifier alone is added if it is missing.
    outputs: what each point writes is added to its outputs; None drops it.
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
  alone = reference(points[0])
  timed = {
    point: study.batches(point, timed=True) for point in [alone, *points]
  }
  # Compiling takes seconds and would be timed as decoding otherwise.
  study.session.compile(timed.values(), tick)
  return time_batches(study, timed, outputs or {}, tick=tick, is_over=is_over)


def time_batches(
  study: Study,
  timed: Mapping[Point, Batches],
  outputs: Mapping[Point, Outputs],
  *,
  tick: Tick,
  is_over: Callable[[], bool] = lambda: False,
) -> dict[Point, walltime.Latency]:
  """Times batches that are compiled, in turns; see `time_points`.

  Args:
    study: its timed examples are decoded.
    timed: the batches of the verifier alone, then those of the other points.
    outputs: what each of these points writes is added to its outputs.
    tick: as in `time_points`.
    is_over: as in `time_points`.
  """
  (alone, *_), examples = timed, study.timed_examples
  # The inputs of an example are the same for all points. They are padded to one
  # length and put on the device before the clock starts.
  prepared = [timed[alone].prepare([example]) for example in examples]
  competitors = {}
  for point, batches in timed.items():
    bound = [batches.bind(each) for each in prepared]
    competitors[point] = lambda index, bound=bound: bound[index]()
  written: dict[Point, dict[int, Decoded]] = {point: {} for point in timed}

  def check_result(point: Point, index: int, decoded: Decoded):
    decoded = fetch(decoded)
    batching.check_finite(decoded, [examples[index]])
    written[point][index] = decoded

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
  lengths = {
    point: np.array([by_index[i].lengths[0] for i in range(len(examples))])
    for point, by_index in written.items()
  }
  for point in outputs:
    for index, decoded in written[point].items():
      outputs[point].add(decoded, [examples[index]])
  return {
    point: walltime.latency(
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
  num_distributions = study.pair.num_distributions
  widths, heads = set(), set()
  for point in points:
    if efficiency.is_predictable(point):
      heads.add(efficiency.num_heads(point, num_distributions))
    # The speed of a tree is not predicted, but its pass is of one width, too.
    if efficiency.is_predictable(point) or point.spec.takes_trees:
      widths.add(point.verify_width)
  batches = study.batches(points[0], timed=True)
  return timing.cost_loops(
    study.pair.drafter_lm,
    study.pair.verifier_lm,
    batches.prepare(study.timed_examples[:1]).inputs,
    points[0].sampling,
    max_decode_len=study.run.max_decode_len,
    widths=widths,
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
  latencies: Mapping[Point, walltime.Latency],
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
