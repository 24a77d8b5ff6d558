"""Decodes a task's split, or a file, by one method.

A killed run continues where it stopped. It leaves these files in
OUTPUT_DIR:
  predictions.jsonl: a line for each example and trial.
  metrics.json: one `ResultRow`.
  config.gin: the resolved configuration.
  run.json: the settings that a later start compares with its own.
  draft_costs.json: what rounds cost, where GAMMA is "adaptive".
  tokens.html: who wrote each token of the first examples, if a trace was
    recorded.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools
import json
import pathlib
from typing import Any, NamedTuple

from speccascade.generate import records
from speccascade.generate.batches.batching import Batches, Speed
from speccascade.generate.batches.sources import Source
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points import (
  advice_files,
  draft_costs,
  point_checks,
  round_times,
)
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.generate.points.point import Point
from speccascade.generate.records import Outputs
from speccascade.generate.run import Run
from speccascade.generate.session import Session, Tick
from speccascade.runtime import files, folders, processes, signals
from speccascade.runtime.progress import ProgressBar
from speccascade.settings import fields
from speccascade.study.measuring import point_timing, scoring
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.measuring.timed_answers import TimedAnswers
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultRow
from speccascade.study.rows.run_folder import RunFolder, Shards
from speccascade.tasks.inputs import Inputs

TOKENS = "tokens.html"
# The least size of a shard. A run that is killed loses the shard that it was
# decoding, so a shard should be small. The examples of a shard are put into
# batches by their lengths, so batches of a larger shard hold less padding.
LEAST_EXAMPLES, LEAST_BATCHES = 128, 4


@dataclasses.dataclass(frozen=True)
class DecodeOutcome:
  """The result of a decode.

  Attributes:
    row: the row that is in `metrics.json`.
    folder: OUTPUT_DIR.
    batch_size: the number of rows decoded at once.
    speed: the speed of decoding in this start. Examples that an earlier start
      decoded are not part of it.
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
  """Decodes the examples, writes the outputs, and measures them.

  Args:
    pair: the checkpoints of the models.
    inputs: the configuration of the examples.
    point: the method and its settings.
    run: OUTPUT_DIR, and how the examples are decoded.
    measuring: what is measured. Timing needs both models.
    num_shown: the number of examples on the page of a trace; 0 writes no page.
    page: returns the HTML page of some records under a title. None writes no
      page.
    on_start: called with OUTPUT_DIR once the folder exists.

  Returns:
    The row, the folder and the speed.

  Raises:
    ValueError: a setting, a model or an input does not fit. Nothing is written
      before the first examples are decoded.
    NoDistributionError: a model gave no distribution. The message names the
      example and the step.
  """
  resume = f"the same command continues from what is in {run.folder}"
  if run.one_at_a_time:
    run = dataclasses.replace(run, batch_size=1)
  with folders.sole_writer(run.folder), signals.interruptible(resume):
    study, point = _make_study(pair, inputs, point, run, measuring)
    shards, speed = _decode(study, point)
    on_start(shards.folder)
    shards.merge()
    if run.trace and num_shown and page and processes.is_first():
      records_shown = list(itertools.islice(shards.records(), num_shown))
      text = page(records_shown, _page_title(study, point))
      files.write_whole(shards.folder / TOKENS, text)
    # A start after the row was written finds it.
    path = shards.folder / results.METRICS
    if processes.agree(path.exists):
      [row] = results.share_rows(lambda: [results.read_row(path)])
    else:
      row = _measure(study, point, shards)
      if processes.is_first():
        # The row's own JSON is one line: a file of one row is read by people.
        text = json.dumps(json.loads(row.to_json()), indent=2)
        files.write_whole(path, text)
    rows = study.session.own_rows
    return DecodeOutcome(row, shards.folder, rows, speed)


def _page_title(study: Study, point: Point) -> str:
  """Returns the title of the page of a trace: the method and the task."""
  settings = study.settings(point, trials=study.run.trials)
  task = f"{settings.task} {settings.split}".rstrip()
  return ", ".join([point.spec.label, *settings.words, task])


def _make_study(
  pair: PairSpec, inputs: Inputs, point: Point, run: Run, measuring: Measuring
) -> tuple[Study, Point]:
  """Returns the study, and the point with its gamma or costs; checks both."""
  point_checks.check_draft_costs_are_used(point)
  sources, spec = inputs.read(pair.vocabulary_path), point.spec
  # A timed method is compared with the verifier, and the costs that predict its
  # speed are measured on both models.
  models = pair.load(
    sources.vocabulary,
    needs_drafter=spec.execution.needs_drafter or measuring.num_timed > 0,
    needs_verifier=spec.execution.needs_verifier or measuring.num_timed > 0,
  )
  if pair.cascade is not None:
    models = models.combine_drafters(
      pair.cascade, spec, sources.vocabulary_sha256
    )
  point = advice_files.resolve_gamma(point, models)
  study = Study(Session(models, sources, run, methods=(spec,)), measuring)
  costs_file = run.folder / draft_costs.FILE_NAME
  # Rounds are timed for a new folder alone: another run is in one that has a
  # description, and no costs.
  if point.is_adaptive and not processes.agree(costs_file.exists):
    RunFolder(run.folder, _identity(study, point), results.PREDICTIONS).check()
  batches_at = functools.partial(_batches, study, bool(study.timed_examples))
  point = round_times.priced(point, batches_at, costs_file)
  _batches(study, False, point).check()
  return study, point


def _batches(study: Study, timed: bool, point: Point) -> Batches:
  """Returns the batches of a run, which decodes one set of examples."""
  return study.batches(
    point, timed=timed, shared=False, num_rows=study.session.own_rows
  )


class _Batched:
  """Decodes examples in batches, as `TimedAnswers` does one at a time."""

  def __init__(self, study: Study, point: Point):
    self._study, self._batches = study, _batches(study, False, point)
    self.speed = self._batches.speed

  def num_records(self, example: Source) -> int:
    return 1

  def records(
    self, examples: Sequence[Source], trial: int, tick: Tick
  ) -> list[dict]:
    decoded = self._batches.decode_all(examples, trial, tick)
    return self._study.session.records(decoded, examples, trial)


class _Part(NamedTuple):
  """The examples of one shard, and the trial in which they are decoded."""

  trial: int
  examples: Sequence[Source]


def _make_parts(study: Study) -> list[_Part]:
  """Returns the parts of a run in order; each of them makes one shard."""
  size = study.run.batch_size
  # Whole batches, so that only the last shard of a trial may end in a batch
  # that is not full. A shard has 16 batches of 8 rows, or 4 batches of 32.
  num_batches = max(-(-LEAST_EXAMPLES // size), LEAST_BATCHES)
  step = size * num_batches
  return [
    _Part(trial, study.examples[start : start + step])
    for trial in range(study.run.trials)
    for start in range(0, len(study.examples), step)
  ]


def _identity(study: Study, point: Point) -> dict[str, Any]:
  """Returns what identifies the run of a folder."""
  run = study.run
  identity = {
    **dataclasses.asdict(study.settings(point, trials=run.trials)),
    "inputs_sha256": study.sources.fingerprint,
    "trace": run.trace,
    # None where it is off: folders of older versions have no such entry.
    "log_probs": run.log_probs or None,
    "batch_size": run.batch_size,
    "one_at_a_time": run.one_at_a_time or None,
    "revisions": study.pair.revisions or None,
    # They determine each row's gammas.
    "draft_costs": None,
  }
  if isinstance(point.draft_costs, DraftCosts) and point.is_adaptive:
    identity["draft_costs"] = dataclasses.asdict(point.draft_costs)
  return identity


def _decode(study: Study, point: Point) -> tuple[Shards, Speed]:
  """Decodes the shards that OUTPUT_DIR lacks; returns all, and the speed."""
  run, parts = study.run, _make_parts(study)
  if run.one_at_a_time:
    answers = TimedAnswers(study.session, point)
  else:
    answers = _Batched(study, point)
  sizes = [sum(map(answers.num_records, part.examples)) for part in parts]
  shards = Shards(run.folder, _identity(study, point), sizes)
  shards.check()
  with ProgressBar(
    total=len(study.examples) * run.trials,
    unit="ex",
    desc=point.spec.label,
    disable=not run.progress,
  ) as bar:
    missing = set(shards.missing())
    for number, (trial, examples) in enumerate(parts):
      if number not in missing:
        bar.update(len(examples))
        continue
      written = answers.records(examples, trial, bar.update)
      # The folder is made with the first shard: a run that fails while it
      # decodes its first examples leaves nothing behind.
      if isinstance(point.draft_costs, DraftCosts) and processes.is_first():
        point.draft_costs.write(shards.folder / draft_costs.FILE_NAME)
      shards.open()
      shards.write(number, map(records.to_line, written))
  # Where no shard was missing, this start has not yet written `run.json`.
  shards.open()
  return shards, answers.speed


def _measure(study: Study, point: Point, shards: Shards) -> ResultRow:
  """Returns the row of all records, with its latency if it is asked for."""
  latency = costs = exact = None
  if study.timed_examples:
    alone, answers = point_timing.reference(point), Outputs()
    latency = point_timing.time_points(
      study, [point], outputs={alone: answers}
    )[point]
    exact = scoring.exact_lengths(study, alone, answers)
    costs = point_timing.measure_costs(study, [point])

  def make_rows() -> list[ResultRow]:
    outputs = Outputs()
    # A record goes once it is read: the traces of all would fill the memory.
    for record in shards.records():
      outputs.add_record(record)
    return [
      scoring.result_row(
        study, point, outputs, latency=latency, costs=costs, exact=exact
      )
    ]

  # Only the first process has the records; it sends the others the row.
  [row] = results.share_rows(make_rows)
  return row
