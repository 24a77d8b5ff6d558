"""Trains a model on a task or on files: `python -m speccascade.train` runs it.

The modules that read tasks are imported when a run starts, so the package
`training` itself needs neither seqio nor TensorFlow.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
from typing import Annotated, Any, Literal

from speccascade.checkpoints import storage
from speccascade.checkpoints.errors import CheckpointError
from speccascade.data import prompting, text_files
from speccascade.data.prompting import FORMATS, Prompting
from speccascade.models import draft_heads
from speccascade.models.draft_heads import LOOKAHEAD, HeadsConfig
from speccascade.models.parameters import Config
from speccascade.runtime import folders, processes
from speccascade.settings import fields
from speccascade.training import evaluate, optimizers, teachers, trainer
from speccascade.training.checkpointing import Checkpoints
from speccascade.training.memory_need import MemoryNeed
from speccascade.training.states import Objective, Teacher, is_prompted
from speccascade.training.tuned_checkpoints import TunedCheckpoints
from speccascade.training.verifier_tuning import VERIFIER
from speccascade.training.written_text import WrittenText


def _is_rising(buckets):
  """Raises ValueError where the widths of buckets are not in rising order."""
  widths = [w if isinstance(w, tuple) else (w, w) for w in buckets]
  if not widths or any(
    max(narrow) > max(wide) for narrow, wide in itertools.pairwise(widths)
  ):
    raise ValueError(f"wanted widths in rising order, not {list(buckets)}")


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
  """The data that a model is trained on, and its batches.

  Attributes:
    mixture_or_task_name: a task or mixture registered with seqio; None where
      `files` are given.
    files: {"train": ..., "validation": ...}, the files of each split. They are
      line files, or JSON lines with `targets`, or JSON lines that `decode`
      wrote; see `prompting.read_files`.
    teacher_checkpoint: the checkpoint of a teacher. `Objective.loss`
      says what is learned of its distributions; evaluations compare the
      model with it.
    earlier_drafters: checkpoints of drafters of the teacher, already trained.
      The model learns only positions where the most likely token of none of
      them is the teacher's.
    student_text: the share of steps whose texts the model itself writes, see
      `WrittenText`.
    teacher_text: the share of steps whose texts the teacher writes.
    prompt: see `Prompting.format`.
    chat_variables: see `Prompting.variables`.
    task_feature_lengths: {"inputs": ..., "targets": ...}, the most tokens of
      each feature. Longer examples are cut, and the run prints how many.
    batch_size: rows of a batch; with buckets, rows of a batch of the widest.
    vocabulary: path of a SentencePiece model, or of a Hugging Face directory;
      None takes the task's vocabulary.
    use_cached: whether to read the task's cached examples.
    token_cache_dir: a folder that holds the tokenized training split, so that a
      next start need not tokenize it again; None tokenizes at each start.
    teacher_cache_dir: a folder that holds a decoder-only teacher's hidden
      states for the training split, in float16; None computes the teacher's
      distributions anew in each step.
    num_examples: how many examples of the training split are used, the first
      ones; None takes all.
    buckets: the widths of batches; None pads all batches to the feature
      lengths.
    pack: whether to put several examples in a row.
  """

  mixture_or_task_name: str | None = None
  files: Mapping[str, text_files.Files | None] = dataclasses.field(
    default_factory=dict
  )
  teacher_checkpoint: fields.Path | None = None
  earlier_drafters: Sequence[fields.Path] = ()
  student_text: fields.Share = 0.0
  teacher_text: fields.Share = 0.0
  prompt: Literal[FORMATS] | None = None
  chat_variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  task_feature_lengths: Annotated[
    Mapping[str, fields.Size], fields.Keys(("inputs", "targets"))
  ]
  batch_size: fields.Size
  vocabulary: fields.Path | None = None
  use_cached: bool = False
  token_cache_dir: fields.Path | None = None
  teacher_cache_dir: fields.Path | None = None
  num_examples: fields.Positive | None = None
  buckets: (
    Annotated[
      Sequence[fields.Size | tuple[fields.Size, fields.Size]], _is_rising
    ]
    | None
  ) = None
  pack: bool = False

  def __post_init__(self):
    if bool(self.mixture_or_task_name) == bool(self.files):
      raise ValueError(
        "give MIXTURE_OR_TASK_NAME or TRAIN_FILES, one of them and not both"
      )
    if self.files and not self.vocabulary:
      raise ValueError("files need a VOCABULARY: they do not bring one")
    if (self.student_text or self.teacher_text) and (
      self.pack or self.teacher_cache_dir
    ):
      raise ValueError(
        "STUDENT_TEXT and TEACHER_TEXT are written during the run, in rows"
        " apart; leave out PACK and TEACHER_CACHE_DIR"
      )
    if self.earlier_drafters and not self.teacher_checkpoint:
      raise ValueError("EARLIER_DRAFTERS need a TEACHER_CHECKPOINT")

  @functools.cached_property
  def _vocabulary_of_path(self):
    """The vocabulary that `vocabulary` names; None where it names none."""
    from speccascade.data import vocabularies

    if not self.vocabulary:
      return None
    return vocabularies.load(os.fspath(self.vocabulary))

  @functools.cached_property
  def task(self):
    """The task, with the vocabulary in use; None where there are files."""
    from speccascade.data import tasks

    name = self.mixture_or_task_name
    return tasks.get(name, self._vocabulary_of_path) if name else None

  @property
  def name(self) -> str:
    """The task's name, or "files"."""
    return self.task.name if self.task else "files"

  @functools.cached_property
  def prompting(self) -> Prompting:
    """How texts become tokens, with the vocabulary in use."""
    vocabulary = self._vocabulary_of_path
    if self.task:
      vocabulary = self.task.output_features["targets"].vocabulary
    return Prompting(vocabulary, self.prompt, self.chat_variables)

  @property
  def shapes(self) -> dict[str, Any]:
    """The arguments of `train_batches` and `eval_batches` on shapes."""
    return {
      "batch_size": self.batch_size,
      "lengths": None if self.buckets else dict(self.task_feature_lengths),
      "buckets": self.buckets,
      "prompted": self.prompting.prompted,
    }

  def read(self, split: str, num: int | None, run: trainer.TrainingRun):
    """Returns the tokens of a split's examples, a `TokenArrays`.

    Args:
      split: the split's name.
      num: how many examples are read, the first ones; None reads all.
      run: has the seed, and says whether to show a progress bar.
    """
    from speccascade.data import reading

    lengths = dict(self.task_feature_lengths)
    if self.task and not self.prompting.prompted:
      return reading.from_task(
        self.task,
        split,
        lengths,
        num=num,
        use_cached=self.use_cached,
        seed=run.seed,
        progress=run.progress,
      )
    if self.task:
      examples = prompting.read_task(self.task, split)
    else:
      examples = prompting.read_files(self.files, split)
    examples = itertools.islice(examples, num)
    return prompting.tokenize(examples, self.prompting, lengths)

  def fingerprint(self, split: str) -> str:
    """Returns a text that differs where a split or its prompts differ.

    Caches have it in their names, so that a change of data is not overlooked.
    """
    from speccascade.data import reading

    if self.task:
      source = reading.fingerprint(self.task, split)
    else:
      source = str(text_files.stamp(self.files[split]))
    return f"{source} {self.prompting.format} {dict(self.chat_variables)}"


@fields.checked
@dataclasses.dataclass(frozen=True)
class Evaluating:
  """What a model is measured on while it trains.

  Attributes:
    split: the split that is held out, of the task or of the files.
    num_examples: how many examples the loss is measured on, the first ones;
      None takes all, 0 evaluates nothing.
    num_decoded: how many examples are decoded greedily and scored by the task's
      metrics, the first ones; None takes all.
    decoded_task_name: the task whose examples are decoded, where the training
      data is a mixture of tasks; None takes the training data's task.
    max_decode_len: most tokens of an output.
  """

  split: str = "validation"
  num_examples: fields.NonNegative | None = 1000
  num_decoded: fields.NonNegative | None = 200
  decoded_task_name: str | None = None
  max_decode_len: fields.Size = 128


@fields.checked
@dataclasses.dataclass(frozen=True)
class ModelDir:
  """Where a run writes, and which of its files stay.

  Attributes:
    path: MODEL_DIR: a new folder, or the folder of a run that is to go on.
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
  embeddings are a kind of draft heads, whose verifier always stays as it is.

  Args:
    model: the architecture, with its dropout rate and its activations' dtype;
      or draft heads.
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
  from speccascade.data import training_batches, vocabularies

  objective = objective or Objective()
  layout = run.mesh.layout_for(model, data.batch_size)
  # Parameters that cannot fit are refused before anything is read or written.
  need = MemoryNeed(num_parts=layout.num_parts if layout else 1)
  # The parameters, their gradients and an update, all in float32.
  need.add_parameters("MODEL", model, bytes_each=12)
  need.check()
  folder = model_dir.folder
  # One job at a time writes to the folder: checkpoints rely on it.
  with folders.sole_writer(folder, "MODEL_DIR"):
    # Vocabulary and teacher are compared before the data is tokenized.
    vocabulary = data.prompting.vocabulary
    identity = prompting.identity(vocabulary)
    teacher = initial_params = None
    if isinstance(model, HeadsConfig):
      if not data.teacher_checkpoint or layout is not None:
        raise ValueError(
          "draft heads need a TEACHER_CHECKPOINT, which is their verifier, and"
          " one device: set it, and leave MESH out"
        )
      if data.student_text or data.earlier_drafters:
        raise ValueError(
          "STUDENT_TEXT and EARLIER_DRAFTERS are for drafters that are models;"
          " leave them out for draft heads, and set TEACHER_TEXT for the"
          " verifier's own text"
        )
      if model.kind == LOOKAHEAD and objective.tuning is not None:
        raise ValueError(
          "VERIFIER_TUNING is for draft heads over hidden states; the verifier"
          " of look-ahead embeddings stays as it is: leave it out"
        )
      teacher = teachers.read(data.teacher_checkpoint, model, identity)
      verifier, params = teacher.module, teacher.params
      model = model.of_verifier(verifier.config, params)
      initial_params = draft_heads.initial_params(model, verifier, params)
      need.add_parameters("MODEL", model, bytes_each=12)
    elif objective.tuning is not None:
      raise ValueError(
        "VERIFIER_TUNING is for draft heads, and MODEL is a language model:"
        " leave it out"
      )
    _check_vocabulary(vocabulary, model, data)
    vocabularies.check_saved(vocabulary, folder, "MODEL_DIR")
    if teacher is None:
      teacher = teachers.read(data.teacher_checkpoint, model, identity, layout)
    if teacher:
      # A verifier that is tuned has a gradient and an update as well.
      num_arrays = 1 if objective.tuning is None else 4
      need.add_parameters(
        "TEACHER_CHECKPOINT", teacher.module.config, bytes_each=4 * num_arrays
      )
    elif objective.needs_teacher:
      raise ValueError("LOSS and TEACHER_SHARE need a TEACHER_CHECKPOINT")
    if teacher and data.earlier_drafters:
      earlier = [
        teachers.read(path, model, identity, layout, "EARLIER_DRAFTERS")
        for path in data.earlier_drafters
      ]
      for drafter in earlier:
        need.add_parameters(
          "EARLIER_DRAFTERS", drafter.module.config, bytes_each=4
        )
      teacher = teacher.replace(earlier=tuple(earlier))
    written = None
    if data.student_text or data.teacher_text:
      written = WrittenText(
        data.student_text,
        data.teacher_text,
        seed=run.seed,
        eos_id=vocabulary.eos_id,
        teacher=teacher if data.teacher_text else None,
      )
    # Read the training data, and plan its batches.
    arrays = _training_tokens(data, run, identity)
    _print_num_cut(arrays)
    batches = training_batches.train_batches(
      arrays, seed=run.seed, pack=data.pack, **data.shapes
    )
    # Logits are a step's largest arrays; their size is known with the batches.
    need.add_logits(batches, model, objective)
    need.check(
      BATCH_SIZE=data.batch_size,
      TASK_FEATURE_LENGTHS=dict(data.task_feature_lengths),
    )
    # The teacher reads each text once, before the first step.
    is_tuned = objective.tuning is not None
    needs_hidden = objective.needs_teacher or (
      isinstance(model, HeadsConfig)
      and model.kind != LOOKAHEAD
      and not is_tuned
    )
    if data.teacher_cache_dir and needs_hidden:
      batches = teachers.with_hidden(
        teacher, batches, data.teacher_cache_dir, run.progress
      )
    # Read the held-out data.
    evaluation = _evaluation(model, data, evaluating, run, teacher, is_tuned)
    metric = _best_metric(model_dir, evaluation)
    kind = Checkpoints
    if is_tuned:
      kind = functools.partial(TunedCheckpoints, verifier=teacher)
    checkpoints = kind(
      folder,
      model,
      vocabulary=identity,
      keep_latest=model_dir.keep_latest,
      layout=layout,
      metric=metric and f"eval/{metric}",
      best_mode=_best_mode(metric),
      initial_params=initial_params,
      settings=_settings_to_resume(model, data, objective, arrays),
    )

    def write_first_files():
      # One process writes: all processes of a job share the folder.
      if processes.is_first():
        vocabularies.save(vocabulary, folder, "MODEL_DIR")
        if is_tuned:
          vocabularies.save(vocabulary, f"{folder}/{VERIFIER}", "MODEL_DIR")
      on_start(folder)

    writes_events = model_dir.tensorboard and processes.is_first()
    print(
      f"{data.name}: {len(arrays)} training examples, "
      f"{batches.steps_per_epoch} steps an epoch, to {folder}"
    )
    return trainer.run(
      model,
      batches.iterator,
      checkpoints,
      run,
      optimizer=optimizer,
      objective=objective,
      teacher=teacher,
      written=written,
      evaluation=evaluation,
      writer=trainer.EventFiles(folder) if writes_events else None,
      on_start=write_first_files,
    )


def _check_vocabulary(vocabulary, model: Config, data: TrainingData):
  """Raises ValueError where the vocabulary or the prompts do not fit."""
  from speccascade.data import vocabularies

  vocabularies.check_fits(vocabulary, model.vocab_size, "MODEL")
  data.prompting.check_fits(prompted=is_prompted(model))
  if data.teacher_cache_dir and not data.prompting.prompted:
    raise ValueError("TEACHER_CACHE_DIR is for decoder-only models")


def _print_num_cut(arrays):
  """Prints how many examples were longer than the feature lengths."""
  for feature, count in arrays.num_cut.items():
    if count:
      print(
        f"{count} of {len(arrays)} {feature} of train were longer than "
        "TASK_FEATURE_LENGTHS and were cut"
      )


def _best_metric(
  model_dir: ModelDir, evaluation: evaluate.Evaluation | None
) -> str | None:
  """Returns the metric by which the best checkpoint is kept, or None.

  The names are compared now, not at the first evaluation, which may come hours
  after the start.

  Raises:
    SettingError: the evaluation does not measure the metric.
  """
  metric = model_dir.best_metric
  if evaluation is None or not metric:
    return None
  names = evaluation.names()
  if metric not in names:
    raise fields.SettingError(
      "best_metric",
      f" is {metric!r}; the evaluation gives {', '.join(names)}",
      ModelDir,
    )
  return metric


def _best_mode(metric: str | None) -> str:
  """Returns "min" for a metric that is better where it is smaller.

  >>> [_best_mode(name) for name in ("loss", "loss_2", "verifier_loss", "bleu")]
  ['min', 'min', 'min', 'max']
  """
  is_cost = metric and ("loss" in metric or "divergence" in metric)
  return "min" if is_cost else "max"


def _settings_to_resume(
  model: Config, data: TrainingData, objective: Objective, arrays
) -> dict[str, Any]:
  """Returns what a resumed run must have in common with the run it resumes.

  With another value of these a resumed run would read other batches, or learn
  something else, and would not end as the unbroken run does.
  """
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
  if data.earlier_drafters:
    settings["EARLIER_DRAFTERS"] = [str(x) for x in data.earlier_drafters]
  if objective.tuning is not None:
    settings["VERIFIER_TUNING"] = str(objective.tuning)
    settings["TEACHER_CHECKPOINT of sha256"] = model.verifier_sha256[:16]
  return settings


def _evaluation(
  model: Config,
  data: TrainingData,
  evaluating: Evaluating,
  run: trainer.TrainingRun,
  teacher: Teacher | None,
  is_tuned: bool,
) -> evaluate.Evaluation | None:
  """Returns the evaluation during training; None where nothing is measured."""
  from speccascade.data import training_batches

  if evaluating.num_examples == 0:
    return None
  held_out = data.read(evaluating.split, evaluating.num_examples, run)
  # Heads change no text, so that nothing is decoded with them.
  num_heads = model.num_heads if isinstance(model, HeadsConfig) else 0
  decoding = evaluate.TaskDecoding()
  if not num_heads:
    decoding = evaluate.task_decoding(
      data.task, data.prompting, evaluating, dict(data.task_feature_lengths)
    )
  return evaluate.Evaluation(
    list(training_batches.eval_batches(held_out, **data.shapes)),
    sources=decoding.sources,
    score=decoding.score,
    max_decode_len=evaluating.max_decode_len,
    # Decoding holds a cache for each row, so a large training batch is cut.
    batch_size=min(data.batch_size, 64),
    eos_id=data.prompting.vocabulary.eos_id,
    teacher=teacher,
    num_heads=num_heads,
    is_tuned=is_tuned,
  )


def _training_tokens(data: TrainingData, run: trainer.TrainingRun, identity):
  """Returns the training split's tokens, from the token cache where it is set.

  A cache file's name holds a digest of all that the tokens depend on, so a file
  that is there need not be compared with the data.
  """
  from speccascade.data.arrays import TokenArrays

  if data.token_cache_dir is None:
    return data.read("train", data.num_examples, run)
  key = [
    data.name,
    data.fingerprint("train"),
    dict(data.task_feature_lengths),
    data.num_examples,
    run.seed,
    identity,
  ]
  digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
  folder = pathlib.Path(data.token_cache_dir).expanduser()
  path = folder / f"{data.name}-{digest[:16]}.npz"
  if not path.is_file():
    data.read("train", data.num_examples, run).save(path)
  # The tokens are read back even after they were written: a first start then
  # trains on the arrays that a next start will read.
  return TokenArrays.load(path)
