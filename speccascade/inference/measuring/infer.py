"""Decodes a task's split, or a file, by one method; resumable.

Leaves in OUTPUT_DIR: `predictions.jsonl` (a line for each example and trial),
`metrics.json` (one `ResultRow`), `config.gin` (the resolved configuration) and
`run.json` (what a later start compares itself with); with a trace also
`tokens.html`, who wrote each token of the first examples.
"""

from collections.abc import Callable, Sequence
import dataclasses
import itertools
import json
import pathlib

from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Counts
from speccascade.inference.batches.batching import Speed
from speccascade.inference.batches.inputs import Inputs
from speccascade.inference.measuring import measure
from speccascade.inference.measuring.study import Study
from speccascade.inference.pair.pairs import PairSpec
from speccascade.inference.points import advice_files
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Measuring, Run
from speccascade.inference.rows import records, results
from speccascade.inference.rows.results import ResultRow
from speccascade.inference.rows.run_folder import Shards
from speccascade.runtime import files, folders, processes
from speccascade.runtime.progress import ProgressBar
from speccascade.settings import fields

TOKENS = "tokens.html"
# What a killed run may lose, a shard, has so many examples and batches or more.
_SHARD = 128, 4


@dataclasses.dataclass(frozen=True)
class DecodeOutcome:
  """What a decode left.

  Attributes:
    row: of `metrics.json`.
    folder: OUTPUT_DIR.
    batch_size: rows decoded at once.
    speed: of what this start decoded.
  """

  row: ResultRow
  folder: pathlib.Path
  batch_size: int
  speed: Speed


@fields.checked
def infer(
  *,
  pair: PairSpec,
  inputs: Inputs,
  point: Point,
  run: Run,
  measuring: Measuring = Measuring(),
  num_shown: fields.NonNegative = 20,
  page: Callable[[Sequence[dict], str], str] | None = None,
  on_start: Callable[[pathlib.Path], object] = lambda folder: None,
) -> DecodeOutcome:
  """Decodes, writes, and says what was measured.

  Args:
    pair: the models.
    inputs: what is decoded.
    point: method and settings.
    run: OUTPUT_DIR, and how it is decoded.
    measuring: what is measured; timing needs both models.
    num_shown: first examples on the page of a trace; 0 writes none.
    page: the HTML of some records under a title; None writes none.
    on_start: called with OUTPUT_DIR once it exists.

  Raises:
    ValueError: a setting, a model or an input does not fit; nothing is written
      before the first examples are decoded.
    NoDistributionError: a model gave none; example and step are named.
  """
  with folders.sole_writer(run.folder):
    study, point = _study(pair, inputs, point, run, measuring)
    shards, speed = _decoded(study, point)
    on_start(shards.folder)
    shards.merge()
    settings = study.settings(point, trials=run.trials)
    if run.trace and num_shown and page and processes.is_first():
      shown = list(itertools.islice(shards.records(), num_shown))
      about = f"{settings.task} {settings.split}".rstrip()
      title = ", ".join([point.spec.label, *settings.words, about])
      files.write_whole(shards.folder / TOKENS, page(shown, title))
    path = shards.folder / results.METRICS
    if processes.agree(path.exists):
      [row] = results.agreed(lambda: [results.read_row(path)])
    else:
      row = _row(study, point, shards)
      if processes.is_first():
        files.write_whole(path, json.dumps(json.loads(row.to_json()), indent=2))
    return DecodeOutcome(row, shards.folder, run.batch_size, speed)


def _study(
  pair: PairSpec, inputs: Inputs, point: Point, run: Run, measuring: Measuring
) -> tuple[Study, Point]:
  """Reads models and inputs, and checks that the point fits them."""
  sources, spec = inputs.read(pair.vocabulary_path), point.spec
  models = pair.load(
    sources.vocabulary,
    needs_drafter=spec.execution.needs_drafter or measuring.num_timed > 0,
    needs_verifier=spec.execution.needs_verifier or measuring.num_timed > 0,
  )
  if pair.cascade is not None:
    models = models.combine_drafters(
      pair.cascade, spec, sources.vocabulary_sha256
    )
  point = advice_files.resolved(point, models)
  study = Study(models, sources, run, measuring)
  study.batches(point, shared=False).check()
  return study, point


def _decoded(study: Study, point: Point) -> tuple[Shards, Speed]:
  """Decodes what OUTPUT_DIR lacks; returns the shards, all written."""
  run, spec = study.run, point.spec
  batches = study.batches(point, shared=False)
  settings = study.settings(point, trials=run.trials)
  size = run.batch_size * max(-(-_SHARD[0] // run.batch_size), _SHARD[1])
  jobs = [
    (trial, study.examples[start : start + size])
    for trial in range(run.trials)
    for start in range(0, len(study.examples), size)
  ]
  shards = Shards(
    run.folder,
    {
      **dataclasses.asdict(settings),
      "inputs_sha256": study.sources.fingerprint,
      "trace": run.trace,
      "log_probs": run.log_probs or None,  # which older folders do not say
      "batch_size": run.batch_size,
    },
    [len(examples) for _, examples in jobs],
  )
  shards.check()
  with ProgressBar(
    total=len(study.examples) * run.trials,
    unit="ex",
    desc=spec.label,
    disable=not run.progress,
  ) as bar:
    missing = set(shards.missing())
    for number, (trial, examples) in enumerate(jobs):
      if number not in missing:
        bar.update(len(examples))
        continue
      decoded = batches.decode_all(examples, trial, bar.update)
      written = records.records(decoded, examples, study.vocabulary, trial)
      shards.open()
      shards.write(number, map(records.to_line, written))
  shards.open()
  return shards, batches.speed


def _row(study: Study, point: Point, shards: Shards) -> ResultRow:
  """Returns the row of all records, timed if asked."""
  latency = costs = None
  if study.timed_examples:
    latency = measure.time_points(study, [point])[point]
    costs = measure.measure_costs(study, [point])

  def rows() -> list[ResultRow]:
    by_index = {example.index: example for example in study.examples}
    kept = [
      (aux["counts"], aux["index"], record["prediction"], aux.get("log_probs"))
      for record in shards.records()  # whose traces are large
      for aux in [record["aux"]]
    ]
    counts, indices, texts, log_probs = zip(*kept)
    row = measure.result_row(
      study,
      point,
      efficiency.total([Counts(**count) for count in counts]),
      [by_index[index] for index in indices],
      texts,
      latency=latency,
      costs=costs,
      trials=study.run.trials,
      log_probs=log_probs if study.run.log_probs else (),
    )
    return [row]

  [row] = results.agreed(rows)
  return row
