"""Points in, result rows out: quality, counts and latency of one pair.

Points are measured in groups. The members of a group and the verifier alone
take turns on every timed example, so that a drift of the machine cancels; then
the other examples are decoded for quality. A point whose row stands already is
not measured again.
"""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import dataclasses
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding import methods
from speccascade.evaluation import efficiency, quality, timing
from speccascade.evaluation.efficiency import Costs, Counts
from speccascade.experiments import examples as sources
from speccascade.experiments import records, results
from speccascade.experiments.examples import Example
from speccascade.experiments.infer import Batches, time_batches
from speccascade.experiments.pair import Pair
from speccascade.experiments.points import Point

REFERENCE = "verifier"
# Float32 sums depend on the shapes they are made in: choices this close tie.
TIE = 1e-4

Score = Callable[[Sequence[Example], Sequence[str]], dict]


@dataclasses.dataclass(frozen=True)
class Study:
  """What all points of a trade-off have in common.

  Attributes:
    pair: both models.
    vocabulary: for texts and EOS.
    examples: decoded for quality and counts.
    task: name of the task.
    split: of it.
    max_decode_len: most tokens, EOS counted.
    num_timed: how many of the examples, the first ones, are timed too.
    repeats: how often each is timed.
    seed: of the keys.
    trials: decodes of each example for quality, with other keys; where a
      temperature is 0 one is enough.
    batch_size: rows decoded at once for quality; 1 shares its programs with the
      timed runs.
    score: (examples, texts) to `ResultRow.quality`; None is BLEU.
    threads: at work where nothing is timed; None takes the cores.
  """

  pair: Pair
  vocabulary: object
  examples: Sequence[Example]
  task: str
  split: str
  max_decode_len: int
  num_timed: int
  repeats: int = 3
  seed: int = 0
  trials: int = 1
  batch_size: int = 1
  score: Score | None = None
  threads: int | None = None

  @functools.cached_property
  def lengths(self) -> list[int]:
    longest = max(len(example.tokens) for example in self.examples)
    return sources.buckets(longest)

  @property
  def timed(self) -> Sequence[Example]:
    return self.examples[: self.num_timed]

  @functools.cached_property
  def timed_length(self) -> int:
    """One length for all timed sources: nothing compiles under the clock."""
    same_programs = self.examples if self.batch_size == 1 else self.timed
    longest = max(len(example.tokens) for example in same_programs)
    return sources.bucket_of(longest, self.lengths)

  def num_trials(self, point: Point) -> int:
    return 1 if point.sampling.greedy else self.trials

  def settings(self, point: Point) -> results.Settings:
    """Returns what a point's row is known by."""
    return point.settings(
      max_decode_len=self.max_decode_len,
      task=self.task,
      split=self.split,
      num_examples=len(self.examples),
      drafter=self.pair.drafter_name,
      verifier=self.pair.verifier_name,
      seed=self.seed,
      trials=self.num_trials(point),
    )

  def batches(self, point: Point, *, timed: bool) -> Batches:
    """Returns what decodes a point, at batch 1 where it is timed."""
    single = timed or self.batch_size == 1
    return Batches(
      self.pair,
      point,
      self.vocabulary,
      lengths=[self.timed_length] if single else self.lengths,
      batch_size=1 if single else self.batch_size,
      max_decode_len=self.max_decode_len,
      seed=self.seed,
    )

  @property
  def num_threads(self) -> int:
    return self.threads or max(1, min(8, os.cpu_count() or 1))


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


def warm_up(study: Study, points: Sequence[Point], tick=None):
  """Compiles every point's programs, several at once.

  Programs do not depend on the parameters: a study of random models of the same
  architectures warms up that of the trained ones.

  Args:
    study: with the examples to come, or any of their lengths.
    points: what will be measured.
    tick: called after each point.
  """
  longest = max(study.timed, key=lambda example: len(example.tokens))

  def compile_(point: Point):
    jax.block_until_ready(study.batches(point, timed=True).run([longest]))
    if tick is not None:
      tick()

  with concurrent.futures.ThreadPoolExecutor(study.num_threads) as pool:
    list(pool.map(compile_, points))
  for members in _groups(points, len(points)):
    measure_costs(study, members, rounds=1)


def measure(
  study: Study,
  points: Sequence[Point],
  file: results.ResultFile,
  *,
  group_size: int = 16,
  progress: bool = True,
) -> list[results.ResultRow]:
  """Measures the points that `file` lacks; returns the rows of all of them.

  Args:
    study: what they have in common.
    points: what to measure.
    file: where rows are kept; each group is appended when it is done.
    group_size: points that are timed in turns.
    progress: show a bar.
  """
  from tqdm import tqdm

  missing = [p for p in points if study.settings(p) not in file]
  calls = sum(_num_calls(study, point) for point in missing)
  with tqdm(
    total=calls, unit="decode", desc="measure", disable=not progress
  ) as bar:
    for members in _groups(missing, len(missing)):
      warm_up(study, [reference(members[0]), *members])
      costs = measure_costs(study, members)
      for group in _groups(members, group_size):
        for row in _measure_group(study, group, costs, bar.update):
          file.append(row)
  rows = {row.key: row for row in file.rows}
  return [rows[study.settings(point).key] for point in points]


def _num_calls(study: Study, point: Point) -> int:
  timed = len(study.timed) * study.repeats
  return timed + len(study.examples) * study.num_trials(point)


def _groups(points: Sequence[Point], size: int) -> Iterator[list[Point]]:
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
  runs = {point: study.batches(point, timed=True) for point in [alone, *group]}
  first = {}
  seconds = time_batches(
    runs,
    study.timed,
    repeats=study.repeats,
    on_result=lambda point, index, out: first.update({(point, index): out}),
    tick=lambda num: tick(num if alone in group else num - 1),
  )
  with concurrent.futures.ThreadPoolExecutor(study.num_threads) as pool:
    decoded = dict(
      zip(
        runs,
        pool.map(lambda point: _decode(study, point, first, tick), runs),
      )
    )
  return [
    _row(
      study,
      point,
      decoded[point],
      decoded[alone],
      timing.latency(seconds[point], seconds[alone]),
      costs,
    )
    for point in group
  ]


def measure_costs(
  study: Study, points: Sequence[Point], rounds: int = 7
) -> Costs | None:
  """Returns the costs that predict points of one sampling; see `timing`.

  None where the drafter is several models.
  """
  if len(study.pair.drafters) != 1:
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


@dataclasses.dataclass(frozen=True)
class Outputs:
  """What a point wrote: tokens by (trial, index), and its counts."""

  tokens: dict[tuple[int, int], np.ndarray]
  counts: Counts


def _decode(study, point: Point, first, tick) -> Outputs:
  """Decodes all examples; the timed ones have been, at batch 1, in trial 0."""
  run = study.batches(point, timed=False)
  tokens, counts = {}, []
  for trial in range(study.num_trials(point)):
    todo = list(study.examples)
    if study.batch_size == 1 and trial == 0:
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


def _row(study, point, own: Outputs, alone: Outputs, latency, costs):
  texts, examples = [], []
  for trial in range(study.num_trials(point)):
    for example in study.examples:
      tokens = own.tokens[trial, example.index]
      texts.append(records.text_of(study.vocabulary, tokens))
      examples.append(example)
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
    measured_speedup=1 / latency.relative_latency,
    agreement=agreement(study, own, alone) if point.sampling.greedy else None,
    environment=results.environment(timing.device_name()),
  )


def bleu(examples: Sequence[Example], texts: Sequence[str]) -> dict:
  """Returns BLEU with its interval, or nothing where references lack."""
  references = [list(example.references) for example in examples]
  if not all(references):
    return {}
  return quality.evaluate(["bleu"], texts, references)


def agreement(study: Study, own: Outputs, alone: Outputs) -> dict:
  """Returns how many examples have the greedy verifier's tokens.

  Where they first differ, the two choices count as a near tie if the verifier's
  logits of both lie within `TIE` behind the common prefix.
  """
  same = ties = 0
  for example in study.examples:
    mine, theirs = (out.tokens[0, example.index] for out in (own, alone))
    if np.array_equal(mine, theirs):
      same += 1
      continue
    num = min(len(mine), len(theirs))
    differs = np.flatnonzero(mine[:num] != theirs[:num])
    if differs.size:
      at = int(differs[0])
      gap = _logit_gap(study, example, theirs[:at], mine[at], theirs[at])
      ties += gap <= TIE
  return {
    "identical": same,
    "near_ties": ties,
    "num_examples": len(study.examples),
  }


def _logit_gap(study, example, prefix, one, other) -> float:
  inputs, _ = sources.pad_batch([example], 1, [study.timed_length])
  fed = np.zeros((1, study.max_decode_len), np.int32)
  fed[0, 1 : 1 + len(prefix)] = prefix  # behind the start token
  logits = _logits(
    study.pair.verifier_lm, inputs, fed, jnp.int32(len(prefix) + 1)
  )
  return float(abs(logits[0, one] - logits[0, other]))


@jax.jit
def _logits(model, inputs, fed, count):
  """Returns [1, V], the logits behind the first `count` tokens of `fed`."""
  state = model.prefill(inputs, capacity=fed.shape[1])
  counts = jnp.full((1,), count)
  _, out = model.extend(state, fed, counts, read=counts[:, None] - 1)
  return out.logits[:, 0]
