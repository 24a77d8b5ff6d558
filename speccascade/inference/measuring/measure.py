"""Points in, result rows out: quality, counts and latency of one pair.

Points are measured in groups. The members of a group and the verifier alone
take turns on every timed example, so that a drift of the machine cancels; then
the other examples are decoded for quality. A point whose row stands already is
not measured again.
"""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import itertools

import jax
import numpy as np

from speccascade.evaluation import efficiency, quality, timing
from speccascade.evaluation.efficiency import Costs, Counts
from speccascade.inference.batches import batching
from speccascade.inference.batches.sources import Source
from speccascade.inference.measuring.agreement import agreement
from speccascade.inference.measuring.environment import (
  environment,
  holds_many_programs,
)
from speccascade.inference.measuring.study import Outputs, Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows import records, results
from speccascade.inference.rows.results import ResultRow
from speccascade.models.sharding.partitioning import fetch
from speccascade.runtime import processes
from speccascade.runtime.progress import ProgressBar, note

REFERENCE = "verifier"

Tick = Callable[[int], object]


def reference(point: Point) -> Point:
  """Returns the verifier alone at the point's sampling."""
  return point.of(REFERENCE)


def groups(points: Sequence[Point], size: int) -> Iterator[list[Point]]:
  """Yields groups of one sampling: they share a reference."""
  by_sampling = {}
  for point in points:
    by_sampling.setdefault((*point.sampled.values(),), []).append(point)
  for members in by_sampling.values():
    for start in range(0, len(members), size):
      yield members[start : start + size]


def _in_threads(study: Study, function: Callable, items: Sequence) -> dict:
  """Returns what a function gives for each item, several at a time."""
  with concurrent.futures.ThreadPoolExecutor(study.num_threads) as pool:
    return dict(zip(items, pool.map(function, items)))


def _compile(study: Study, points: Sequence[Point], tick: Tick):
  """Runs each program of the points once, but those that were run before.

  Programs of other points are forgotten before they fill the process.
  """
  if processes.agree(holds_many_programs):
    batching.forget_programs()
  todo = {}
  for point in points:
    todo |= study.program_examples(point)
  missing = [key for key in todo if key not in batching.EXECUTED_PROGRAMS]
  numbers = itertools.count(1)

  def compile_(key):
    note(f"compiling {next(numbers)} of {len(missing)}")
    batches, example = todo[key]
    batches.decode([example])
    tick(0)

  _in_threads(study, compile_, missing)
  note("")


def measure(
  study: Study,
  points: Sequence[Point],
  file: results.ResultFile,
  *,
  group_size: int = 16,
  tick: Tick | None = None,
) -> list[ResultRow]:
  """Measures the points that `file` lacks; returns the rows of all of them.

  Args:
    study: what they have in common.
    points: what to measure.
    file: where rows are kept; each group is appended when it is done.
    group_size: points that are timed in turns: neighbours in `points` of one
      sampling.
    tick: called, from several threads, with the examples decoded since; None
      shows a bar where the study's run does. What it raises ends the run; a
      group that is not done leaves no row.
  """
  for point in points:
    if not isinstance(point, Point):
      raise TypeError(
        f"points holds {point!r:.60}; wanted an inference.point.Point"
      )
  by_settings = {study.settings(point): point for point in points}
  missing = [p for known, p in by_settings.items() if known not in file]
  with ProgressBar(
    total=sum(map(study.num_decodes, missing)),
    unit="decode",
    desc="measure",
    disable=not study.run.progress or tick is not None,
  ) as bar:
    tick = tick or bar.update
    for members in groups(missing, len(missing)):
      costs = measure_costs(study, members) if study.timed_examples else None
      for group in groups(members, group_size):
        for row in _measure_group(study, group, costs, tick):
          file.append(row)
  rows = {row.key: row for row in file.rows}
  return [rows[study.settings(point).key] for point in points]


def time_points(
  study: Study,
  points: Sequence[Point],
  *,
  on_result: Callable[[Point, int, object], object] = lambda *_: None,
  tick: Tick = lambda num: None,
  is_over: Callable[[], bool] = lambda: False,
) -> dict[Point, timing.Latency]:
  """Times points of one sampling, and the verifier alone, in turns.

  Args:
    study: the first `num_timed` of its examples are timed at batch 1.
    points: the verifier alone is added where it lacks.
    on_result: called with (point, place among the timed, `Decoded`) once each.
    tick: called with the decodes made since.
    is_over: asked after each repeat; True leaves the others out.

  Returns:
    The latency of each point, and of the verifier, which comes first.

  Raises:
    NoDistributionError: a model gave none; example and step are named.
  """
  alone = reference(points[0])
  _compile(study, [alone, *points], tick)
  batches = {
    point: study.batches(point, timed=True) for point in [alone, *points]
  }
  prepared = [
    batches[alone].prepare([example]) for example in study.timed_examples
  ]
  lengths = {point: np.zeros(len(prepared), int) for point in batches}

  def checked(point, index, decoded):
    decoded = fetch(decoded)
    batching.check_finite(decoded, [study.timed_examples[index]])
    lengths[point][index] = decoded.lengths[0]
    on_result(point, index, decoded)

  seconds = timing.interleave(
    {
      point: lambda index, call=of_point.call: call(prepared[index])
      for point, of_point in batches.items()
    },
    range(len(prepared)),
    repeats=study.measuring.repeats,
    on_result=checked,
    tick=tick,
    is_over=is_over,
  )
  return {
    point: timing.latency(
      measured, seconds[alone], (lengths[point], lengths[alone])
    )
    for point, measured in seconds.items()
  }


def _measure_group(study, group, costs, tick) -> list[ResultRow]:
  alone = reference(group[0])
  first, latencies = {}, {}
  if study.timed_examples:
    latencies = time_points(
      study,
      group,
      on_result=lambda point, index, out: first.update({(point, index): out}),
      tick=lambda num: tick(num * len(group) // len({alone, *group})),
    )
  else:
    _compile(study, [alone, *group], tick)
  compares = study.measuring.agreement and alone.sampling.greedy
  if alone in group or (compares and alone not in study.verifier_outputs):
    ticked = tick if alone in group else lambda num: tick(0)
    study.verifier_outputs[alone] = _decode(study, alone, first, ticked)

  def row(point: Point) -> ResultRow:
    outputs = study.verifier_outputs.get(point) or _decode(
      study, point, first, tick
    )
    same = None
    if compares:
      same = agreement(study, outputs, study.verifier_outputs[alone])
    places = sorted(outputs.tokens)
    by_index = {example.index: example for example in study.examples}
    return result_row(
      study,
      point,
      outputs.counts,
      [by_index[index] for _, index in places],
      [records.text_of(study.vocabulary, outputs.tokens[at]) for at in places],
      latency=latencies.get(point),
      costs=costs,
      agreement=same,
      log_probs=outputs.log_probs,
    )

  rows = _in_threads(study, row, [point for point in group if point != alone])
  if alone in group:
    rows[alone] = row(alone)
  return [rows[point] for point in group]


def cost_loops(
  study: Study,
  points: Sequence[Point],
  rounds: int = 7,
  *,
  is_over: Callable[[], bool] = lambda: False,
) -> timing.CostLoops | None:
  """Returns the loops that tell the costs of points of one sampling.

  None where the drafter is several models, or a composed one.

  Args:
    study: the first timed example is fed.
    points: those whose blocks are timed.
    rounds: how often each loop is timed.
    is_over: asked after each round; True leaves the others out.
  """
  if not study.pair.has_costs:
    return None
  inputs = study.pad_examples(study.timed_examples[:1], 1, [study.timed_length])
  return timing.cost_loops(
    study.pair.drafter_lm,
    study.pair.verifier_lm,
    inputs,
    points[0].sampling,
    max_decode_len=study.run.max_decode_len,
    widths={point.verify_width for point in points if point.is_predictable},
    rounds=rounds,
    is_over=is_over,
  )


def measure_costs(study: Study, points: Sequence[Point]) -> Costs | None:
  """Returns the costs that predict points of one sampling; see `cost_loops`."""
  loops = cost_loops(study, points)
  return loops and loops.costs


def _decode(study, point: Point, first, tick) -> Outputs:
  """Decodes all examples; the timed ones have been, in trial 0."""
  batches, num_timed = study.batches(point), len(study.timed_examples)
  tokens, counts, log_probs = {}, [], []

  def collect(examples, trial, decoded):
    lengths, emitted = np.asarray(decoded.lengths), np.asarray(decoded.tokens)
    for row, example in enumerate(examples):
      tokens[trial, example.index] = emitted[row, : lengths[row]]
    counts.extend(efficiency.row_counts(decoded)[: len(examples)])
    if decoded.log_probs is not None:
      columns = jax.tree.map(lambda x: x[: len(examples)], decoded.log_probs)
      log_probs.append(vars(columns))

  for index, example in enumerate(study.timed_examples):
    collect([example], 0, first[point, index])
  tick(num_timed)
  for trial in range(study.num_trials(point)):
    if rest := study.examples[0 if trial else num_timed :]:
      collect(rest, trial, batches.decode_all(rest, trial, tick))
  return Outputs(tokens, efficiency.total(counts), log_probs)


def result_row(
  study: Study,
  point: Point,
  counts: Counts,
  examples: Sequence[Source] = (),
  texts: Sequence[str] = (),
  *,
  latency: timing.Latency | None = None,
  costs: Costs | None = None,
  agreement: dict | None = None,
  trials: int | None = None,
  log_probs: Sequence[dict] = (),
) -> ResultRow:
  """Returns the row of a point that was decoded.

  Args:
    study: what it was decoded in.
    point: method and settings.
    counts: summed over all that was decoded.
    examples: the source of each text; trials repeat it.
    texts: what was written; none leave quality out.
    latency: of the point, or None.
    costs: of the pair, or None.
    agreement: with the greedy verifier, or None.
    trials: see `Study.settings`.
    log_probs: parts for `efficiency.mean_log_probs`.
  """
  return ResultRow(
    settings=study.settings(point, trials=trials),
    label=point.spec.label,
    counts=counts,
    efficiency=efficiency.summary(counts),
    quality=_score(study.metrics, examples, texts),
    latency=latency,
    costs=costs,
    predicted_speedup=costs and point.predicted_speedup(counts, costs),
    measured_speedup=latency and 1 / latency.relative_latency,
    agreement=agreement,
    num_truncated=study.sources.num_cut,
    environment=environment(study.pair.layout),
    num_parameters=study.pair.num_parameters,
    log_probs=efficiency.mean_log_probs(log_probs),
  )


def _score(metrics, examples, texts) -> dict[str, dict]:
  """Returns what `quality.evaluate` says of texts; nothing without references.

  Trials of an example are resampled together, and resamples are the same for
  every point: their replicates can be compared in pairs.
  """
  references = [list(example.references) for example in examples]
  if not texts or not all(references):
    return {}
  return quality.evaluate(
    metrics,
    texts,
    references,
    groups=[example.index for example in examples],
    replicates=quality.REPLICATES,
  )
