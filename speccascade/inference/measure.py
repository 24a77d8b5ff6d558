"""Points in, result rows out: quality, counts and latency of one pair.

Points are measured in groups. The members of a group and the verifier alone
take turns on every timed example, so that a drift of the machine cancels; then
the other examples are decoded for quality. A point whose row stands already is
not measured again.
"""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import dataclasses

import jax
import numpy as np

from speccascade.decoding import methods
from speccascade.evaluation import efficiency, quality, timing
from speccascade.evaluation.efficiency import Costs
from speccascade.inference import inputs as sources
from speccascade.inference import records, results
from speccascade.inference.agreement import Outputs, agreement
from speccascade.inference.batching import time_batches
from speccascade.inference.inputs import Example
from speccascade.inference.point import Point
from speccascade.inference.study import Score, Study

REFERENCE = "verifier"

Tick = Callable[[int], object]


def all_points(
  temperatures: Sequence[float], *, num_drafters: int = 1, **settings
) -> list[Point]:
  """Returns every method of the table at its default alpha, where defined.

  Methods that are greedy only come at temperature 0 alone; those that compose
  more drafters than there are are left out.

  Args:
    temperatures: of the points.
    num_drafters: drafters at hand.
    **settings: further fields of `Point`.
  """
  return [
    Point(name, temperature=temperature, **settings)
    for temperature in temperatures
    for name, method in methods.METHODS.items()
    if method.num_drafters <= num_drafters
    and not (method.greedy_only and temperature > 0)
  ]


def reference(point: Point) -> Point:
  """Returns the verifier alone at the point's sampling."""
  return dataclasses.replace(point, method=REFERENCE, alpha=None)


def warm_up(study: Study, points: Sequence[Point], tick: Tick | None = None):
  """Compiles all that measuring the points needs, several programs at once.

  Programs do not depend on the parameters: a study of random models of the same
  architectures warms up that of the trained ones.

  Args:
    study: with the examples to come, or any of their lengths.
    points: what will be measured.
    tick: called with 0 after each program.
  """
  _compile(study, points, tick)
  for members in groups(points, len(points)):
    measure_costs(study, members, rounds=1)


def _compile(study: Study, points: Sequence[Point], tick: Tick | None):
  """Runs each program of the points once, but those that were run before."""
  todo = {}
  for point in points:
    todo |= study.programs(point)

  def compile_(key):
    run, example = todo[key]
    jax.block_until_ready(run.run([example]))
    study.compiled.add(key)
    if tick is not None:
      tick(0)

  with concurrent.futures.ThreadPoolExecutor(study.num_threads) as pool:
    list(pool.map(compile_, [key for key in todo if key not in study.compiled]))


def measure(
  study: Study,
  points: Sequence[Point],
  file: results.ResultFile,
  *,
  group_size: int = 16,
  progress: bool = True,
  tick: Tick | None = None,
) -> list[results.ResultRow]:
  """Measures the points that `file` lacks; returns the rows of all of them.

  Args:
    study: what they have in common.
    points: what to measure.
    file: where rows are kept; each group is appended when it is done.
    group_size: points that are timed in turns: neighbours in `points` of one
      sampling.
    progress: show a bar, unless there is a `tick`.
    tick: called, from several threads, with the examples decoded since. What it
      raises ends the run; a group that is not done leaves no row.
  """
  from tqdm import tqdm

  missing = [p for p in points if study.settings(p) not in file]
  with tqdm(
    total=sum(map(study.num_decodes, missing)),
    unit="decode",
    desc="measure",
    disable=not progress or tick is not None,
  ) as bar:
    tick = tick or bar.update
    for members in groups(missing, len(missing)):
      costs = measure_costs(study, members) if study.timed else None
      for group in groups(members, group_size):
        _compile(study, [reference(group[0]), *group], tick)
        for row in _measure_group(study, group, costs, tick):
          file.append(row)
  rows = {row.key: row for row in file.rows}
  return [rows[study.settings(point).key] for point in points]


def groups(points: Sequence[Point], size: int) -> Iterator[list[Point]]:
  """Yields groups of one sampling: they share a reference."""
  by_sampling = {}
  for point in points:
    key = (point.temperature, point.top_k, point.top_p)
    by_sampling.setdefault(key, []).append(point)
  for members in by_sampling.values():
    for start in range(0, len(members), size):
      yield members[start : start + size]


def _measure_group(study, group, costs, tick) -> list[results.ResultRow]:
  alone = reference(group[0])
  first, latencies = {}, dict.fromkeys(group)
  if study.timed:
    seconds = time_batches(
      {point: study.batches(point, timed=True) for point in [alone, *group]},
      study.timed,
      repeats=study.repeats,
      on_result=lambda point, index, out: first.update({(point, index): out}),
      tick=lambda num: tick(num if alone in group else num - 1),
    )
    for point in group:
      latencies[point] = timing.latency(seconds[point], seconds[alone])
  others = [point for point in group if point != alone]
  if alone in group or (alone.sampling.greedy and alone not in study.alone):
    ticked = tick if alone in group else lambda num: tick(0)
    study.alone[alone] = _decode(study, alone, first, ticked)

  def row(point: Point) -> results.ResultRow:
    is_alone = point == alone
    own = study.alone[alone] if is_alone else _decode(study, point, first, tick)
    return _row(study, point, own, alone, latencies[point], costs)

  with concurrent.futures.ThreadPoolExecutor(study.num_threads) as pool:
    made = dict(zip(others, pool.map(row, others)))
  if alone in group:
    made[alone] = row(alone)
  return [made[point] for point in group]


def measure_costs(
  study: Study, points: Sequence[Point], rounds: int = 7
) -> Costs | None:
  """Returns the costs that predict points of one sampling; see `timing`.

  None where the drafter is several models, or a composed one.
  """
  if len(study.pair.drafters) != 1 or study.pair.composed is not None:
    return None
  inputs, _ = sources.pad_batch(study.timed[:1], 1, [study.timed_length])
  return timing.measure_costs(
    study.pair.drafter_lm,
    study.pair.verifier_lm,
    inputs,
    points[0].sampling,
    max_decode_len=study.max_decode_len,
    widths={point.verify_width for point in points if point.is_predictable},
    rounds=rounds,
  )


def _decode(study, point: Point, first, tick) -> Outputs:
  """Decodes all examples; the timed ones have been, in trial 0."""
  run = study.batches(point, timed=False)
  tokens, counts = {}, []
  for trial in range(study.num_trials(point)):
    todo = list(study.examples)
    if trial == 0:
      todo = todo[len(study.timed) :]
      for index, example in enumerate(study.timed):
        _collect(tokens, counts, [example], trial, first[point, index])
      tick(len(study.timed))
    todo.sort(key=lambda example: len(example.tokens))
    for start in range(0, len(todo), run.batch_size):
      batch = todo[start : start + run.batch_size]
      _collect(tokens, counts, batch, trial, run.run(batch, trial))
      tick(len(batch))
  return Outputs(tokens, efficiency.total(counts))


def _collect(tokens, counts, batch, trial, decoded):
  lengths = np.asarray(decoded.lengths)
  emitted = np.asarray(decoded.tokens)
  for row, example in enumerate(batch):
    tokens[trial, example.index] = emitted[row, : lengths[row]]
  counts += efficiency.row_counts(decoded)[: len(batch)]


def _row(study, point, own: Outputs, alone: Point, latency, costs):
  texts, examples = [], []
  for trial in range(study.num_trials(point)):
    for example in study.examples:
      tokens = own.tokens[trial, example.index]
      texts.append(records.text_of(study.vocabulary, tokens))
      examples.append(example)
  same = None
  if point.sampling.greedy:
    same = agreement(
      study.pair.verifier_lm,
      study.examples,
      own,
      study.alone[alone],
      length=study.lengths[-1],
      max_decode_len=study.max_decode_len,
    )
  predicted = costs and point.predicted_speedup(own.counts, costs)
  return results.ResultRow(
    settings=study.settings(point),
    label=point.spec.label,
    counts=own.counts,
    efficiency=efficiency.summary(own.counts),
    quality=(study.score or bleu)(examples, texts),
    latency=latency,
    costs=costs,
    predicted_speedup=predicted,
    measured_speedup=latency and 1 / latency.relative_latency,
    agreement=same,
    num_truncated=study.num_cut,
    environment=results.environment(timing.device_name()),
  )


def scorer(metrics: Sequence[str]) -> Score:
  """Returns what scores texts by `quality.METRICS`.

  Trials of an example are resampled together, and resamples are the same for
  every point: their replicates can be compared in pairs. Where references lack,
  nothing is scored.
  """

  def score(examples: Sequence[Example], texts: Sequence[str]) -> dict:
    references = [list(example.references) for example in examples]
    if not all(references):
      return {}
    scores = {}
    for name in metrics:
      for statistics in quality.metric(name)(texts, references):
        scores[statistics.name] = score_entry(statistics, examples)
    return scores

  return score


bleu = scorer(["bleu"])


def score_entry(
  statistics: quality.Statistics, examples: Sequence[Example]
) -> dict:
  """Returns a score as `ResultRow.quality` holds it, replicates included."""
  return statistics.entry(
    groups=[example.index for example in examples],
    replicates=quality.REPLICATES,
  )
