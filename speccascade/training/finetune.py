"""Trains a model on a task or on files: `python -m speccascade.train` runs it.

gin files name `TrainingData` and `Evaluating` by this module, which imports
them. The modules that read tasks are imported when a run starts, so the package
`training` itself needs neither seqio nor TensorFlow.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

from speccascade.checkpoints import hub, hub_names, storage
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models.architectures import drafts_alone
from speccascade.models.parameters import Config
from speccascade.models.sharding.partitioning import Layout
from speccascade.runtime import folders, processes
from speccascade.settings import fields
from speccascade.training import (
  evaluate,
  learned_vocabulary,
  objectives,
  optimizers,
  teachers,
  trainer,
  training_checks,
)
from speccascade.training.checkpointing import Checkpoints
from speccascade.training.evaluate import Evaluating
from speccascade.training.event_files import EventFiles
from speccascade.training.kinds import kind_of
from speccascade.training.memory_need import MemoryNeed
from speccascade.training.objectives import Objective
from speccascade.training.states import Teacher
from speccascade.training.training_data import TrainingData
from speccascade.training.tuned_checkpoints import TunedCheckpoints
from speccascade.training.verifier_tuning import VERIFIER
from speccascade.training.written_text import WrittenText


@fields.checked
@dataclasses.dataclass(frozen=True)
class ModelDir:
  """Where a run writes, and which of its files stay.

  Attributes:
    path: MODEL_DIR: a new folder, or the folder of a run to continue.
    keep_latest: how many of the latest checkpoints are kept.
    best_metric: "loss", "accuracy" or a metric of the task, by which the best
      checkpoint is kept too; None keeps the latest checkpoints only.
    tensorboard: whether to write event files for TensorBoard.
  """

  path: fields.Path
  keep_latest: fields.Positive = 1
  best_metric: str | None = "loss"
  tensorboard: bool = True

  @property
  def folder(self) -> str:
    """MODEL_DIR as an absolute path; a gs:// address stays as it is.

    Raises:
      ValueError: MODEL_DIR is not a folder, or cannot be reached.
    """
    if not self.path:
      raise ValueError("MODEL_DIR is empty; give a folder")
    try:
      folder = storage.Directory(self.path)
      folder.reach()
    except CheckpointError as error:
      raise ValueError(f"MODEL_DIR: {error}") from error
    return folder.url


@fields.checked
def train(
  model: Config,
  data: TrainingData,
  run: trainer.TrainingRun,
  model_dir: ModelDir,
  optimizer: optimizers.Optimizer | None = None,
  objective: Objective | None = None,
  evaluating: Evaluating = Evaluating(),
  on_start: Callable[[str], object] = lambda folder: None,
) -> trainer.TrainingOutcome:
  """Trains a model on a task or files, from a checkpoint or from nothing.

  Leaves in MODEL_DIR: `checkpoint_<step>` of the latest and the best step,
  TensorBoard's event files, the vocabulary, with which a folder that was moved
  still decodes, and the files that `on_start` writes. The run
  starts from the latest checkpoint in MODEL_DIR, else from the initial
  checkpoint, else from random parameters, as in T5X.

  Everything is checked before the first step, the cheap checks first: a run
  that cannot fit memory, or has the wrong vocabulary, fails before it reads
  data.

  Draft heads are trained in the same way. Their teacher is their verifier: it
  gives them their shape, and stays as it is. With `Objective.tuning` a copy of
  it is trained too, and is left in `verifier/` of MODEL_DIR. Look-ahead
  embeddings are a kind of draft heads, whose verifier always stays as it is. So
  does that of an early exit, whose new layers and norm are trained.

  Args:
    model: the architecture, with its dropout rate and its activations' dtype;
      or draft heads, or an early exit.
    data: what the model learns, and the batches.
    run: how long the run is, where it starts, how often it is measured.
    model_dir: where the run writes, and which files stay.
    optimizer: None takes T5 v1.1's Adafactor at 1e-3.
    objective: None takes T5 v1.1's objective.
    evaluating: what the model is measured on.
    on_start: called with the folder when everything has been checked.

  Raises:
    ValueError: a setting, the task or a checkpoint does not fit.
    LossNotFiniteError: the loss became NaN or infinite.
  """
  optimizer = optimizer or optimizers.T5_FINE_TUNING
  objective = objective or objectives.T5_FINE_TUNING
  # One job at a time writes to the folder: checkpoints rely on it.
  with folders.sole_writer(model_dir.folder, "MODEL_DIR"):
    job, kept_ids = prepare(
      model, data, run, model_dir, optimizer, objective, evaluating
    )

    def write_first_files():
      _save_vocabulary(data, model_dir.folder, objective, kept_ids)
      on_start(model_dir.folder)

    return job.run(write_first_files)


def prepare(
  model: Config,
  data: TrainingData,
  run: trainer.TrainingRun,
  model_dir: ModelDir,
  optimizer: optimizers.Optimizer,
  objective: Objective,
  evaluating: Evaluating,
) -> tuple[trainer.TrainingJob, Sequence[int] | None]:
  """Reads the models and the data of a run, and checks all of its settings.

  The arguments are those of `train`. The caller is the folder's only writer.

  Returns:
    (job, kept_ids): the job, and the ids of the draft vocabulary that it
    learns, or None.

  Raises:
    ValueError: a setting, the task or a checkpoint does not fit.
  """
  from speccascade.text import vocabularies

  training_checks.check_kind(model, data, objective)
  learned_vocabulary.check_kind(model, data)
  alone, folder = drafts_alone(model), model_dir.folder
  is_tuned = objective.tuning is not None
  layout = run.mesh.layout_for(model, data.batch_size)
  # Parameters that cannot fit are refused before anything is read.
  need = MemoryNeed(num_parts=layout.num_parts if layout else 1)
  need.add_model(model)
  need.check()
  # Vocabulary and teacher are compared before the data is tokenized.
  vocabulary = data.prompting.vocabulary
  teacher = initial_params = None
  if not alone:
    training_checks.check_verifier(model, data, layout)
    teacher = teachers.read(data.teacher_checkpoint, model, data.identity)
    verifier, params = teacher.module, teacher.params
    model = model.of_verifier(verifier.config, params)
    make_params = kind_of(model).initial_params
    assert make_params is not None  # only a language model needs no verifier
    initial_params = make_params(model, verifier, params)
    need.add_model(model)
  training_checks.check_texts(vocabulary, model, data)
  vocabularies.check_saved(vocabulary, folder, "MODEL_DIR")
  if alone:
    teacher = _read_teacher(model, data, objective, layout)
  if teacher:
    need.add_teacher(teacher, is_tuned=is_tuned)
  written = None
  if data.student_text or data.teacher_text:
    written = WrittenText(
      data.student_text,
      data.teacher_text,
      seed=run.seed,
      eos_id=vocabulary.eos_id,
      teacher=teacher if data.teacher_text else None,
    )
  batches, kept_ids = _read_batches(model, data, run, objective, teacher, need)
  if kept_ids is not None:
    assert teacher is not None  # a state reader has a verifier
    teacher = learned_vocabulary.with_cut_head(teacher, kept_ids, vocabulary)
  evaluation = evaluate.evaluation(model, data, evaluating, run, teacher)
  metric = None
  if evaluation is not None and model_dir.best_metric:
    names = evaluation.names(model, is_tuned=is_tuned)
    metric = _best_metric(model_dir, names)
  make_checkpoints = Checkpoints
  if is_tuned:
    make_checkpoints = functools.partial(TunedCheckpoints, verifier=teacher)
  checkpoints = make_checkpoints(
    folder,
    model,
    vocabulary=data.identity,
    keep_latest=model_dir.keep_latest,
    layout=layout,
    metric=metric and f"eval/{metric}",
    initial_params=initial_params,
    settings=_settings_to_resume(model, data, objective, batches.arrays)
    | learned_vocabulary.to_resume(kept_ids),
  )
  print(
    f"{data.name}: {len(batches.arrays)} training examples, "
    f"{batches.steps_per_epoch} steps an epoch, to {folder}"
  )
  writes_events = model_dir.tensorboard and processes.is_first()
  job = trainer.TrainingJob(
    model,
    batches.iterator,
    checkpoints,
    run,
    optimizer=optimizer,
    objective=objective,
    teacher=teacher,
    written=written,
    evaluation=evaluation,
    writer=EventFiles(folder) if writes_events else None,
  )
  return job, kept_ids


def _read_teacher(
  model: Config,
  data: TrainingData,
  objective: Objective,
  layout: Layout | None,
) -> Teacher | None:
  """Returns the teacher of a language model, with its earlier drafters."""
  teacher = teachers.read(data.teacher_checkpoint, model, data.identity, layout)
  if teacher is None:
    if objective.needs_teacher:
      raise ValueError("LOSS and TEACHER_SHARE need a TEACHER_CHECKPOINT")
    return None
  earlier = [
    teachers.read(path, model, data.identity, layout, "EARLIER_DRAFTERS")
    for path in data.earlier_drafters
  ]
  return teacher.replace(earlier=tuple(earlier))


def _read_batches(
  model: Config,
  data: TrainingData,
  run: trainer.TrainingRun,
  objective: Objective,
  teacher: Teacher | None,
  need: MemoryNeed,
):
  """Reads the training data.

  Returns:
    (its `TrainBatches`, the ids of the draft vocabulary that is learned or
    None).
  """
  from speccascade.training import training_batches

  arrays = data.training_tokens(run)
  for feature, count in arrays.num_cut.items():
    if count:
      print(
        f"{count} of {len(arrays)} {feature} of train were longer than "
        "TASK_FEATURE_LENGTHS and were truncated"
      )
  batches = training_batches.train_batches(
    arrays, seed=run.seed, pack=data.pack, **data.shapes
  )
  # Logits are a step's largest arrays; their size is known with the batches.
  kept_ids = learned_vocabulary.ids_of(data, arrays)
  # Of a head of its own all logits are computed, and the kept ones are taken.
  is_whole = kept_ids is None or getattr(model, "own_head", False)
  num_tokens = None if is_whole else len(kept_ids)
  need.add_logits(batches, model, objective, num_tokens)
  need.check(
    BATCH_SIZE=data.batch_size,
    TASK_FEATURE_LENGTHS=dict(data.task_feature_lengths),
  )
  # The teacher reads each text once, before the first step.
  reads_hidden = kind_of(model).reads_hidden and objective.tuning is None
  # States of several layers are not stored, and give the last ones as well.
  is_stored = data.teacher_cache_dir and not getattr(model, "fused", False)
  if is_stored and (objective.needs_teacher or reads_hidden):
    batches = teachers.with_hidden(
      teacher,
      batches,
      data.teacher_cache_dir,
      run.progress,
      prompts=kind_of(model).reads_prompts,
    )
  return batches, kept_ids


def _save_vocabulary(
  data: TrainingData,
  folder: str,
  objective: Objective,
  kept_ids: Sequence[int] | None,
):
  """Writes the vocabulary beside the checkpoints of all that is trained.

  Ids of a draft vocabulary are written with it.
  """
  from speccascade.text import vocabularies

  # One process writes: all processes of a job share the folder.
  if processes.is_first():
    vocabulary = data.prompting.vocabulary
    vocabularies.save(vocabulary, folder, "MODEL_DIR")
    if objective.tuning is not None:
      vocabularies.save(vocabulary, f"{folder}/{VERIFIER}", "MODEL_DIR")
    if kept_ids is not None:
      learned_vocabulary.save(folder, kept_ids, vocabulary)


def _best_metric(model_dir: ModelDir, names: Sequence[str]) -> str:
  """Returns the metric by which the best checkpoint is kept."""
  # The names are compared now, not at the first evaluation, which may come
  # hours after the start.
  metric = model_dir.best_metric
  if metric not in names:
    raise fields.SettingError(
      "best_metric",
      f" is {metric!r}; the evaluation gives {', '.join(names)}",
      ModelDir,
    )
  return metric


def _settings_to_resume(
  model: Config, data: TrainingData, objective: Objective, arrays
) -> dict[str, Any]:
  """Returns what a resumed run must have in common with the run it resumes."""
  # With another value of these a resumed run would read other batches, or learn
  # something else, and would not end as the unbroken run does.
  settings = {
    "MIXTURE_OR_TASK_NAME": data.name,
    "HEAD_DECAY": objective.head_decay,
    "BATCH_SIZE": data.batch_size,
    "BUCKETS": data.buckets and list(data.buckets),
    "PACK": data.pack,
    "training data of sha256": arrays.digest[:16],
  }
  # Without a choice the settings are those of runs that had none.
  if objective.loss is None:
    settings["TEACHER_SHARE"] = objective.teacher_share or 0.0
  else:
    settings["LOSS"] = str(objective.whole)
  for name in ("student_text", "teacher_text"):
    if getattr(data, name):
      settings[name.upper()] = getattr(data, name)
  settings |= _named(data)
  if objective.tuning is not None:
    settings["VERIFIER_TUNING"] = str(objective.tuning)
    settings["TEACHER_CHECKPOINT of sha256"] = model.verifier_sha256[:16]
  return settings


def _named(data: TrainingData) -> dict[str, Any]:
  """Returns teachers and files of a run, those of the hub by their commits."""
  settings: dict[str, Any] = {}
  if data.earlier_drafters:
    settings["EARLIER_DRAFTERS"] = [
      str(hub.recorded(x)) for x in data.earlier_drafters
    ]
  # A local folder is not named: it may have been moved.
  if hub_names.parse(data.teacher_checkpoint):
    settings["TEACHER_CHECKPOINT"] = hub.recorded(data.teacher_checkpoint)
  paths = [
    path
    for files in data.files.values()
    for path in (files if isinstance(files, tuple) else (files,))
  ]
  if any(hub_names.parse_file(path) for path in paths):
    settings["TRAIN_FILES"] = [hub.recorded(path) for path in paths if path]
  return settings
