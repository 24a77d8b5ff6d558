"""Sweeps methods, alphas, block sizes, temperatures and seeds; resumable.

Leaves in OUTPUT_DIR: `rows.jsonl` (a `ResultRow` for each point),
`examples.jsonl` (who wrote each token of a few examples), `config.gin` (the
resolved configuration) and `run.json` (what a later start compares itself
with).
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import os
import pathlib

import numpy as np

from speccascade.decoding.methods import find
from speccascade.evaluation import quality
from speccascade.inference import inputs as sources
from speccascade.inference import measure, results
from speccascade.inference import pair as pairs
from speccascade.inference.cascades import Cascade
from speccascade.inference.inputs import Example
from speccascade.inference.point import Point
from speccascade.inference.results import ResultFile, ResultRow
from speccascade.inference.run_folder import RunFolder
from speccascade.inference.study import Study
from speccascade.models.t5.config import T5Config
from speccascade.sweep import grids
from speccascade.sweep import plan as plan
from speccascade.sweep.plan import Curve
from speccascade.sweep.runner import Runner, Stopped
from speccascade.sweep.sweep_models import Models
from speccascade.training import signals


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a sweep ended.

  Attributes:
    folder: OUTPUT_DIR.
    rows: of all points on disk.
    num_shown: points that `examples.jsonl` shows; 0 where it was not written.
    stop: the signal that ended it, or None.
  """

  folder: pathlib.Path
  rows: Sequence[ResultRow]
  num_shown: int
  stop: signals.Stop | None = None


def sweep(
  *,
  output_dir: str | os.PathLike,
  task_feature_lengths: Mapping[str, int],
  vocabulary=None,
  drafter: T5Config | Sequence[T5Config] | None = None,
  verifier: T5Config | None = None,
  drafter_checkpoint: str | Sequence[str] | None = None,
  verifier_checkpoint: str | None = None,
  cascade: Cascade | None = None,
  mixture_or_task_name: str | None = None,
  split: str = "validation",
  input_file: str | None = None,
  num_examples: int | None = None,
  methods: Sequence[str] | None = None,
  alphas: str | Mapping[str, Sequence[float]] = plan.DEFAULT,
  budget: int = 8,
  gammas: Sequence[int] = (5,),
  temperatures: Sequence[float] = (0.0, 1.0),
  seeds: Sequence[int] = (0,),
  trials: int = 1,
  top_k: int | None = None,
  top_p: float | None = None,
  bonus: str = "target",
  verification: str = "token",
  draft_length: str | tuple[str, float] = "fixed",
  max_decode_len: int = 128,
  batch_size: int = 32,
  num_lengths: int = 1,
  num_timed: int = 100,
  repeats: int = 3,
  metrics: Sequence[str] | None = None,
  num_shown: int = 4,
  shown_methods: Sequence[str] | None = None,
  dtype: str = "float32",
  truncate: bool = False,
  use_cached: bool = False,
  progress: bool = True,
  on_start: Callable[[pathlib.Path], object] | None = None,
) -> Outcome:
  """Measures every point that OUTPUT_DIR lacks, and says how it ended.

  Args:
    output_dir: a new folder, or that of the same sweep, which is taken up; it
      may be taken up with more methods, alphas, gammas, temperatures or seeds.
    task_feature_lengths: {"inputs": most tokens of a source}.
    vocabulary: as in `infer.infer`, like the models and examples below.
    drafter: architecture, or several.
    verifier: architecture.
    drafter_checkpoint: path, or several, largest first. Methods that take one
      drafter get the first.
    verifier_checkpoint: path.
    cascade: how the drafters are combined for methods with blocks, or None.
    mixture_or_task_name: a registered seqio task; or else `input_file`.
    split: of the task.
    input_file: text lines or JSONL.
    num_examples: the first of them; None takes all.
    methods: names in `METHODS`; None takes all that the drafters allow. The two
      models alone are always measured.
    alphas: "default" (see `grids`), "adaptive", or {method: values}; methods
      that it lacks take the default.
    budget: points of a curve in an adaptive sweep.
    gammas: block sizes.
    temperatures: 0 is greedy.
    seeds: of the keys.
    trials: decodes of each example for quality, where temperature is not 0.
    top_k: None keeps all.
    top_p: None keeps all.
    bonus: "target" or "verifier".
    verification: "token" or "block".
    draft_length: "fixed", or (policy, threshold).
    max_decode_len: most tokens of an output, EOS counted.
    batch_size: rows decoded at once for quality.
    num_lengths: source lengths that batches are padded to. More save time on
      long sources, and each has every method compiled once more.
    num_timed: examples timed at batch 1, drawn from all by a fixed seed; 0
      leaves latency out.
    repeats: how often each is timed.
    metrics: names in `quality.METRICS`; None takes the task's, or BLEU.
    num_shown: examples whose tokens are shown for each method, at the alpha in
      the middle, the gamma in the middle and the first seed; 0 shows none.
    shown_methods: the methods shown; None shows all.
    dtype: of the activations.
    truncate: cut texts of a file that are too long instead of refusing them.
    use_cached: read the task's cached examples.
    progress: show a bar.
    on_start: called with `output_dir` once it exists.

  Raises:
    ValueError: a setting, a model or an input does not fit; nothing is written
      before all points are checked.
    NotFiniteError: a model gave no distribution; example and step are named.
  """
  _check(
    {
      "MAX_DECODE_LEN": max_decode_len,
      "BATCH_SIZE": batch_size,
      "NUM_LENGTHS": num_lengths,
      "REPEATS": repeats,
      "TRIALS": trials,
      "BUDGET": budget,
    },
    {"NUM_TIMED": num_timed, "NUM_SHOWN": num_shown},
    {
      "METHODS": (methods, find),
      "SHOWN_METHODS": (shown_methods, find),
      "METRICS": (metrics, quality.metric),
    },
  )
  with signals.caught() as stop:
    found = sources.read(
      vocabulary,
      max_len=sources.input_length(task_feature_lengths),
      mixture_or_task_name=mixture_or_task_name,
      split=split,
      input_file=input_file,
      num_examples=num_examples,
      truncate=truncate,
      use_cached=use_cached,
    )
    pair = pairs.load_pair(
      drafter=drafter,
      verifier=verifier,
      drafter_checkpoint=drafter_checkpoint,
      verifier_checkpoint=verifier_checkpoint,
      dtype=dtype,
    )
    identity = sources.identity(found.vocabulary)
    pairs.check_vocabulary(pair, found.vocabulary.vocab_size, identity)
    models = Models.of(pair, cascade, (identity or {}).get("sha256"))
    names = methods
    if names is None:
      names = models.allowed(
        plan.default_methods(len(pair.drafters)), _policy(draft_length)
      )
    curves = plan.curves(
      names,
      alphas,
      gammas=gammas,
      temperatures=temperatures,
      seeds=seeds,
      vocab_size=pair.verifier.lm.vocab_size,
      top_k=top_k,
      top_p=top_p,
      bonus=bonus,
      verification=verification,
      draft_length=_policy(draft_length),
    )
    plan.check_temperatures(methods or (), temperatures)
    for curve in curves:
      models.check(curve.points)
    study = Study(
      pair=pair,
      vocabulary=found.vocabulary,
      examples=_timed_first(found.examples, num_timed),
      task=mixture_or_task_name or str(input_file),
      split=split if mixture_or_task_name else "",
      max_decode_len=max_decode_len,
      num_timed=num_timed,
      repeats=repeats,
      trials=trials,
      batch_size=batch_size,
      score=measure.scorer(metrics or found.metrics),
      dtype=dtype,
      num_lengths=num_lengths,
      num_cut=found.num_cut,
    )
    folder = RunFolder(
      output_dir,
      _identity(study, found, metrics or found.metrics),
      results.FILE_NAME,
    )
    folder.check()
    run = Runner(
      models,
      study,
      ResultFile(folder.folder / results.FILE_NAME),
      budget if alphas == plan.ADAPTIVE else 0,
    )
    folder.open()
    if on_start is not None:
      on_start(folder.folder)
    chosen = _chosen(curves, gammas, seeds, shown_methods) if num_shown else []
    try:
      run.run(curves, chosen, num_shown, progress, stop)
    except Stopped:
      return Outcome(folder.folder, run.file.rows, 0, stop)
    return Outcome(folder.folder, run.file.rows, len(chosen))


def _check(positive: dict, counts: dict, names: dict):
  for least, values in ((1, positive), (0, counts)):
    for name, value in values.items():
      if value < least:
        raise ValueError(f"{name} is {value}; wanted {least} or more")
  for label, (given, look_up) in names.items():
    if isinstance(given, str):
      raise ValueError(f"{label} is {given!r}; wanted a list, as [{given!r}]")
    for name in given or ():
      look_up(name)


def _policy(draft_length):
  """A list of a config as the tuple that can be a key."""
  is_text = isinstance(draft_length, str)
  return draft_length if is_text else tuple(draft_length)


def _identity(study: Study, found: sources.Found, metrics) -> dict:
  """What makes two starts one sweep: all that its points have in common."""
  models = [*study.pair.drafters, study.pair.verifier]
  return {
    "models": [[model.name, model.path] for model in models],
    "task": study.task,
    "split": study.split,
    "inputs_sha256": sources.fingerprint(found.examples),
    "num_examples": len(found.examples),
    "max_decode_len": study.max_decode_len,
    "num_timed": study.num_timed,
    "repeats": study.repeats,
    "trials": study.trials,
    "batch_size": study.batch_size,
    "metrics": list(metrics),
    "dtype": study.dtype,
  }


def _timed_first(examples: Sequence[Example], num: int) -> list[Example]:
  """Returns the examples with `num` drawn from all of them in front."""
  order = np.random.default_rng(0).permutation(len(examples))
  drawn = set(order[:num].tolist())
  return [examples[i] for i in sorted(drawn)] + [
    example for i, example in enumerate(examples) if i not in drawn
  ]


def _chosen(curves, gammas, seeds, names) -> list[tuple[Curve, Point]]:
  """Returns the points whose tokens are shown."""
  gamma = gammas[grids.middle_of(len(gammas))]
  return [
    (curve, curve.middle)
    for curve in curves
    if curve.seed == seeds[0]
    and (curve.base.gamma == gamma or not curve.base.spec.has_blocks)
    and (names is None or curve.base.method in names)
  ]
