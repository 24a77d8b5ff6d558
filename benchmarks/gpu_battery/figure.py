"""Figure 2 on a GPU: a trained pair's methods in wall-clock time, at T = 1."""

from collections.abc import Callable, Sequence
import dataclasses
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_battery import models, passes, programs, texts, training
from benchmarks.gpu_battery.ahead import Ahead
from benchmarks.gpu_battery.records import Clock, Records, ratio_spread, spread
from benchmarks.gpu_battery.sizes import Sizes
from speccascade.decoding.programs import decoders
from speccascade.models import T5LM
from speccascade.runtime import files
from speccascade.tasks import quality

OUTPUTS, PAIR = "outputs.json", "pair.npz"
TREE, DEEP_TREE = (3, 2, 1), (2, 1, 1, 1, 1)
VERIFIER_WIDTHS, DRAFTER_WIDTHS = (1, 4, 6, 16), (1, 2)
TREES = {16: TREE}
LEAST = 20  # sentences, before a part that is short of time is given up
BOOTSTRAPS = 1000


@dataclasses.dataclass(frozen=True)
class Case:
  """A method, its block, and the alphas at which it is timed."""

  method: str
  gamma: int = 1
  tree: tuple[int, ...] | None = None
  alphas: tuple[float, ...] = (0.0,)

  @property
  def name(self) -> str:
    if self.method in ("verifier", "drafter"):
      return self.method
    block = f"tree {self.tree}" if self.tree else f"chain of {self.gamma}"
    return f"{self.method}, {block}"

  def decoder(self, sizes: Sizes) -> decoders.Decoder:
    return decoders.decoder(
      self.method,
      gamma=self.gamma,
      tree=self.tree,
      max_decode_len=sizes.decode_len,
      eos_id=texts.EOS,
    )

  def models(self, drafter: T5LM, verifier: T5LM) -> tuple:
    """Returns the models of a call: the drafter and the verifier, or None."""
    if self.method == "verifier":
      return None, verifier
    return drafter, None if self.method == "drafter" else verifier


CASES = (
  Case("verifier"),
  Case("drafter"),
  Case("spec_decode", 5),
  Case("spec_decode", 3),
  Case("spec_decode", 3, TREE),
  Case("spec_decode", 5, DEEP_TREE),
  Case("spec_decode_lossy", 5, None, (0.3, 0.6)),
  Case("spec_cascade_opt", 5, None, (-0.3, 0.3, 0.9)),
  Case("spec_cascade_opt", 3, TREE, (0.3,)),
  Case("spec_cascade_token_v3", 5, None, (0.1, 0.4, 0.8)),
)


class Pair:
  """The pair that is trained: its texts, its trainings, its programs.

  Args:
    sizes: the sizes.
    data: the texts.
    path: a file of the trained pair; one that is there is read, and the pair
      is not trained.
    cases: what is timed.
  """

  def __init__(
    self, sizes: Sizes, data: texts.Texts, path: pathlib.Path, cases=CASES
  ):
    self.sizes, self.data, self.path, self.cases = sizes, data, path, cases
    self.is_trained = path.exists()
    how = sizes.training
    size = {"vocab_size": data.vocab_size}
    self.trainers = [
      training.Trainer(role, dataclasses.replace(config, **size), dropout, how)
      for role, config, dropout in (
        ("pair's verifier", sizes.verifier, how.dropout),
        ("pair's drafter", sizes.drafter, how.dropout / 2),
      )
    ]

  @property
  def training_programs(self) -> set[str]:
    """The names of the programs of the training, if there is one."""
    if self.is_trained:
      return set()
    return {name for each in self.trainers for name in each.programs}

  def add_training(self, ahead: Ahead):
    """Adds the programs of the training, if there is one."""
    for trainer in () if self.is_trained else self.trainers:
      trainer.add(ahead, len(self.data.train_inputs))

  def add(self, ahead: Ahead):
    """Adds the programs of the decodes, and of the passes that price them."""
    verifier, drafter = (models.described(x.config) for x in self.trainers)
    for case in self.cases:
      program, arguments = self._call(case, drafter, verifier)
      ahead.add(f"pair, {case.name}", program.run, *arguments)
    for trainer, lm, widths in self._passes(verifier, drafter):
      ahead_of = trainer.role, lm, widths, self.sizes.passes
      passes.add(ahead, *ahead_of, trees=TREES)

  def _passes(self, verifier, drafter):
    both = zip(self.trainers, (verifier, drafter))
    widths = VERIFIER_WIDTHS, DRAFTER_WIDTHS
    return [(*each, wide) for each, wide in zip(both, widths)]

  def _call(self, case: Case, drafter, verifier, alpha: float | None = None):
    """Returns what a decode of the first sentence runs."""
    return case.decoder(self.sizes).call(
      *case.models(drafter, verifier),
      self.data.test_inputs[:1].astype(np.int32),
      programs.keys(),
      case.alphas[0] if alpha is None else alpha,
      programs.sampled(),
    )

  def measure(
    self, ahead: Ahead, records: Records, clock: Clock, part: str, until: float
  ):
    """Trains the pair, and decodes the test sentences by each method in turn.

    A trained pair is written at once, so that a battery that was stopped does
    not train it again.

    Args:
      ahead: the compiled programs.
      records: where the rows go.
      clock: the time that is left.
      part: the part of the battery.
      until: elapsed seconds at which no further sentence begins.
    """
    if self.is_trained:
      clock.say(f"reading the pair of {self.path}")
      lms, rows = training.load(self.path, self.trainers)
    else:
      lms, rows = training.train(self.trainers, self.data, ahead, clock)
      training.save(self.path, self.trainers, lms, rows)
    for row in rows:
      records.add(part, f"The pair, trained on {self.data.name}", **row)
    verifier, drafter = lms
    clock.say("timing the passes of the pair")
    self._record_passes(ahead, records, part, verifier, drafter)
    clock.say("decoding the test sentences")
    points = self._points(ahead, drafter, verifier)
    runs = self._decode(points, clock, until)
    records_of = {name: Point.of(outs) for name, outs in runs.items()}
    self._record(records, part, records_of)
    self._write_outputs(records, records_of)

  def _record_passes(self, ahead, records, part, verifier, drafter):
    step = None
    for trainer, lm, widths in self._passes(verifier, drafter):
      times = passes.measure(
        ahead, trainer.role, lm, widths, self.sizes.passes, self.sizes.rounds
      )
      step = step or times.get((ahead.variant, 1), next(iter(times.values())))
      for (_, width), each in times.items():
        records.add(
          part,
          "Passes of the pair",
          model=trainer.role,
          tokens=width or "encoder",
          ms=[1e3 * x for x in spread(each)],
          over_verifier_step=ratio_spread(each, step),
        )

  def _points(self, ahead: Ahead, drafter, verifier) -> dict[str, Callable]:
    """Returns, by name, functions from a sentence and a key to a call."""
    points = {}
    for case in self.cases:
      program = f"pair, {case.name}"
      ready = ahead.ready(program)
      for alpha in case.alphas if ready else ():
        run = ready[program]
        has_alpha = len(case.alphas) > 1 or alpha
        name = f"{case.name}, alpha {alpha:g}" if has_alpha else case.name
        fixed = self._call(case, drafter, verifier, alpha)[1]

        def point(inputs, key, run=run, fixed=fixed):
          return run(*fixed._replace(inputs=inputs, rngs=key))

        points[name] = point
    return points

  def _decode(self, points: dict, clock: Clock, until: float) -> dict:
    """Returns (seconds, Decoded) of each sentence, by the names of points."""
    num = min(self.sizes.sentences, len(self.data.test_inputs))
    inputs = [
      jnp.asarray(row[None], jnp.int32) for row in self.data.test_inputs[:num]
    ]
    keys = [programs.keys(i) for i in range(num)]
    jax.block_until_ready((inputs, keys))
    for point in points.values():
      for _ in range(2):
        jax.block_until_ready(point(inputs[0], keys[0]))
    runs: dict[str, list] = {name: [] for name in points}
    names = list(points)
    for i in range(num):
      if clock.elapsed > until and i >= min(LEAST, num):
        clock.say(f"stopped at {i} of {num} sentences: the time is up")
        break
      # Each sentence begins with another method.
      first = i % len(names)
      for name in names[first:] + names[:first]:
        out: list[Any] = []
        call = lambda name=name, i=i, out=out: out.append(
          points[name](inputs[i], keys[i])
        )
        time = programs.seconds(lambda call=call, out=out: (call(), out[0])[1])
        runs[name].append((time, out[0]))
      if i % 50 == 49:
        clock.say(f"{i + 1} of {num} sentences")
    return runs

  def _record(self, records: Records, part: str, points: dict[str, "Point"]):
    """Adds a row for each point: its quality, its time, its blocks."""
    processor = self.data.processor
    base = points["verifier"]
    for name, point in points.items():
      outputs = point.texts(processor)
      references = self.data.references[: len(outputs)]
      [bleu] = quality.metric("bleu")(outputs, references)
      entry = bleu.entry()
      blocks = sum(point.blocks)
      records.add(
        part,
        f"Figure 2, T = 1, {len(outputs)} sentences of {self.data.name}",
        method=name,
        bleu=[entry["value"], entry["low"], entry["high"]],
        ms_a_sentence=1e3 * float(np.mean(point.seconds)),
        ms_a_token=1e3 * sum(point.seconds) / sum(point.lengths),
        speed_up_a_token=_speed_up(base, point),
        relative_latency=sum(point.seconds) / sum(base.seconds),
        tokens_a_block=sum(point.lengths) / blocks if blocks else "",
        accepted_a_block=sum(point.accepted) / blocks if blocks else "",
        acceptance=(
          sum(point.accepted) / sum(point.examined) if blocks else ""
        ),
      )

  def _write_outputs(self, records: Records, points: dict[str, "Point"]):
    processor = self.data.processor
    outputs = {
      name: {
        "texts": point.texts(processor),
        "seconds": point.seconds,
        "lengths": point.lengths,
        "blocks": point.blocks,
        "accepted": point.accepted,
      }
      for name, point in points.items()
    }
    text = json.dumps(outputs, ensure_ascii=False)
    files.write_whole(records.folder / OUTPUTS, text)


@dataclasses.dataclass(frozen=True)
class Point:
  """What a point gave for each sentence."""

  seconds: list[float]
  tokens: list[np.ndarray]
  lengths: list[int]
  blocks: list[int]
  accepted: list[int]
  examined: list[int]

  @classmethod
  def of(cls, runs: Sequence[tuple]) -> "Point":
    seconds, outs = zip(*runs)
    outs = jax.device_get(outs)
    number = lambda values: [int(value[0]) for value in values]
    return cls(
      list(seconds),
      [out.tokens[0, : out.lengths[0]] for out in outs],
      number(out.lengths for out in outs),
      number(out.stats.num_blocks for out in outs),
      number(out.stats.accepted for out in outs),
      number(out.stats.examined for out in outs),
    )

  def texts(self, processor) -> list[str]:
    return [texts.text_of(processor, row) for row in self.tokens]


def _speed_up(base: Point, point: Point) -> list[float]:
  """Returns how many times faster a token is: [value, low, high], 95%.

  Sentences are drawn again, the same ones for both.
  """
  columns = [base.seconds, base.lengths, point.seconds, point.lengths]
  values = np.asarray(columns, np.float64)
  rng, num = np.random.default_rng(0), values.shape[1]
  weights = rng.multinomial(num, np.full(num, 1 / num), BOOTSTRAPS)

  def ratio(sums):
    base_s, base_len, point_s, point_len = sums
    return (base_s / base_len) / (point_s / point_len)

  low, high = np.percentile(ratio(values @ weights.T), [2.5, 97.5])
  return [float(ratio(values.sum(1))), float(low), float(high)]
