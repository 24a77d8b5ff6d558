"""Trains a model on texts: what `python -m speccascade.train` runs.

What reads tasks is imported when a run starts, so that the package `training`
needs neither seqio nor TensorFlow.
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
from speccascade.models import parameters
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import Config
from speccascade.runtime import folders, memory, processes
from speccascade.settings import fields
from speccascade.training import evaluate, optimizers, teachers, trainer
from speccascade.training.checkpointing import Checkpoints
from speccascade.training.states import Objective, Teacher


def _is_rising(buckets):
  widths = [w if isinstance(w, tuple) else (w, w) for w in buckets]
  if not widths or any(
    max(narrow) > max(wide) for narrow, wide in itertools.pairwise(widths)
  ):
    raise ValueError(f"wanted widths in rising order, not {list(buckets)}")


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
  """What a model is trained on, and in which batches.

  Attributes:
    mixture_or_task_name: registered with seqio; or else `files`.
    files: {"train": ..., "validation": ...}, line files or JSON lines, of which
      each has `targets` or is one that `decode` wrote; see `of_files`.
    teacher_checkpoint: of a model whose distributions are learned as well, as
      `Objective.teacher_share` says, and that evaluations compare with.
    prompt: see `Prompting.format`.
    chat_variables: see `Prompting.variables`.
    task_feature_lengths: {"inputs": ..., "targets": ...}; longer examples are
      cut, and counted.
    batch_size: rows of a batch; with buckets, rows of the widest one.
    vocabulary: path of a SentencePiece model, or of a Hugging Face directory;
      None takes the task's.
    use_cached: read the task's cached examples.
    token_cache_dir: keeps the tokenized training split between starts.
    teacher_cache_dir: keeps a decoder-only teacher's hidden states of the
      training split, in float16, for steps and starts; None computes them in
      each step.
    num_examples: the first of the split; None takes all.
    buckets: widths of batches; None pads all to the feature lengths.
    pack: put several examples in a row.
  """

  mixture_or_task_name: str | None = None
  files: Mapping[str, text_files.Files | None] = dataclasses.field(
    default_factory=dict
  )
  teacher_checkpoint: fields.Path | None = None
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

  @functools.cached_property
  def _loaded(self):
    from speccascade.data import vocabularies

    return self.vocabulary and vocabularies.load(os.fspath(self.vocabulary))

  @functools.cached_property
  def task(self):
    """The task, with the vocabulary in use; None of files."""
    from speccascade.data import tasks

    name = self.mixture_or_task_name
    return tasks.get(name, self._loaded) if name else None

  @property
  def name(self) -> str:
    """The task's, or "files"."""
    return self.task.name if self.task else "files"

  @functools.cached_property
  def prompting(self) -> Prompting:
    """How texts become tokens, with the vocabulary in use."""
    vocabulary = self._loaded
    if self.task:
      vocabulary = self.task.output_features["targets"].vocabulary
    return Prompting(vocabulary, self.prompt, self.chat_variables)

  @property
  def shapes(self) -> dict[str, Any]:
    """What says the shapes of batches, for training and evaluation."""
    lengths = None if self.buckets else dict(self.task_feature_lengths)
    buckets = self.buckets
    shapes = dict(batch_size=self.batch_size, lengths=lengths, buckets=buckets)
    return shapes | {"prompted": self.prompting.prompted}

  def read(self, split: str, num: int | None, run: trainer.TrainingRun):
    """Returns the tokens of a split, of its first `num` examples."""
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
      examples = prompting.of_task(self.task, split)
    else:
      examples = prompting.of_files(self.files, split)
    some = itertools.islice(examples, num)
    return prompting.tokenized(some, self.prompting, lengths)

  def fingerprint(self, split: str) -> str:
    """Returns a text that changes with what is read, for names of caches."""
    from speccascade.data import reading

    if self.task:
      read = reading.fingerprint(self.task, split)
    else:
      read = str(text_files.stamp(self.files[split]))
    return f"{read} {self.prompting.format} {dict(self.chat_variables)}"


@fields.checked
@dataclasses.dataclass(frozen=True)
class Evaluating:
  """What a model is measured on while it trains.

  Attributes:
    split: the task's split.
    num_examples: examples of the loss; None takes all, 0 evaluates nothing.
    num_decoded: how many of them are decoded greedily and scored by the task's
      metrics; None takes all.
    decoded_task_name: task of these, where the training data is a mixture.
    max_decode_len: most tokens decoded.
  """

  split: str = "validation"
  num_examples: fields.NonNegative | None = 1000
  num_decoded: fields.NonNegative | None = 200
  decoded_task_name: str | None = None
  max_decode_len: fields.Size = 128


@fields.checked
@dataclasses.dataclass(frozen=True)
class ModelDir:
  """What a run leaves.

  Attributes:
    path: MODEL_DIR, a new folder, or that of the same run, which is taken up.
    keep_latest: how many of the latest checkpoints are kept.
    best_metric: "loss", "accuracy" or a metric of the task, by which the best
      checkpoint is kept as well; None keeps none.
    tensorboard: write event files.
  """

  path: fields.Path
  keep_latest: fields.Positive = 1
  best_metric: str | None = "loss"
  tensorboard: bool = True

  @property
  def folder(self) -> str:
    """MODEL_DIR as an absolute path; gs:// stays as it is.

    Raises:
      ValueError: it is no folder, or out of reach.
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

  Leaves in MODEL_DIR: `checkpoint_<step>` of the latest and the best step, the
  vocabulary, by which a folder that was moved still decodes, TensorBoard's
  event files, and what `on_start` writes. The run starts from
  the latest checkpoint there, else from the initial one, else from scratch, as
  T5X does.

  Args:
    model: the architecture; dropout and activations' dtype are its own.
    data: what it learns, and its batches.
    run: how long, from where, how often.
    model_dir: where, and what is kept.
    optimizer: None is T5 v1.1's Adafactor at 1e-3.
    objective: None is T5 v1.1's.
    evaluating: what is measured.
    on_start: called with the folder when everything has been checked.

  Raises:
    ValueError: a setting, the task or a checkpoint does not fit.
    LossNotFiniteError: the loss became NaN or infinite.
  """
  from speccascade.data import training_batches as batching
  from speccascade.data import vocabularies

  objective = objective or Objective()
  layout = run.mesh.layout_for(model, data.batch_size)
  num_parts = layout.num_parts if layout else 1
  count = parameters.num_parameters(model)
  # The parameters, their gradients and an update, all in float32.
  held, sizes = 12 * count / num_parts, {"MODEL": f"of {count:,} parameters"}
  memory.check(held, **sizes)
  folder = model_dir.folder
  with folders.sole_writer(folder, "MODEL_DIR"):
    vocabulary = data.prompting.vocabulary
    vocabularies.check_fits(vocabulary, model.vocab_size, "MODEL")
    data.prompting.check_fits(prompted=isinstance(model, LlamaConfig))
    if data.teacher_cache_dir and not data.prompting.prompted:
      raise ValueError("TEACHER_CACHE_DIR is for decoder-only models")
    identity = prompting.identity(vocabulary)
    vocabularies.check_saved(vocabulary, folder, "MODEL_DIR")
    teacher = teachers.read(data.teacher_checkpoint, model, identity, layout)
    if teacher:
      count = parameters.num_parameters(teacher.module.config)
      held += 4 * count / num_parts
      sizes["TEACHER_CHECKPOINT"] = f"of {count:,} parameters"
    elif objective.teacher_share:
      raise ValueError("TEACHER_SHARE needs a TEACHER_CHECKPOINT")
    arrays = _training_tokens(data, run, identity)
    for feature, count in arrays.num_cut.items():
      if count:
        print(
          f"{count} of {len(arrays)} {feature} of train were longer than "
          "TASK_FEATURE_LENGTHS and were cut"
        )
    batches = batching.train_batches(
      arrays, seed=run.seed, pack=data.pack, **data.shapes
    )
    memory.check(
      held + trainer.logit_bytes(batches, model, objective) / num_parts,
      **sizes,
      BATCH_SIZE=data.batch_size,
      TASK_FEATURE_LENGTHS=dict(data.task_feature_lengths),
    )
    if data.teacher_cache_dir and objective.teacher_share:
      batches = teachers.with_hidden(
        teacher, batches, data.teacher_cache_dir, run.progress
      )
    evaluation = _evaluation(data, evaluating, run, teacher)
    best = evaluation and model_dir.best_metric
    if best and best not in (names := evaluation.names()):
      raise fields.SettingError(
        "best_metric",
        f" is {best!r}; the evaluation gives {', '.join(names)}",
        ModelDir,
      )
    checkpoints = Checkpoints(
      folder,
      model,
      vocabulary=identity,
      keep_latest=model_dir.keep_latest,
      layout=layout,
      metric=best and f"eval/{best}",
      best_mode="min" if best in ("loss", "divergence") else "max",
      settings={
        "MIXTURE_OR_TASK_NAME": data.name,
        "TEACHER_SHARE": objective.teacher_share,
        "BATCH_SIZE": data.batch_size,
        "BUCKETS": data.buckets and list(data.buckets),
        "PACK": data.pack,
        "training data of sha256": arrays.digest[:16],
      },
    )

    def starting():
      if processes.is_first():
        vocabularies.save(vocabulary, folder, "MODEL_DIR")
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
      evaluation=evaluation,
      writer=trainer.EventFiles(folder) if writes_events else None,
      on_start=starting,
    )


def _evaluation(
  data: TrainingData,
  evaluating: Evaluating,
  run: trainer.TrainingRun,
  teacher: Teacher | None,
) -> evaluate.Evaluation | None:
  """Returns what is measured while it trains, None where nothing is."""
  from speccascade.data import training_batches as batching

  if evaluating.num_examples == 0:
    return None
  held_out = data.read(evaluating.split, evaluating.num_examples, run)
  return evaluate.Evaluation(
    list(batching.eval_batches(held_out, **data.shapes)),
    max_decode_len=evaluating.max_decode_len,
    batch_size=min(data.batch_size, 64),
    eos_id=data.prompting.vocabulary.eos_id,
    teacher=teacher,
    **evaluate.decoded(
      *(data.task, data.prompting, evaluating), dict(data.task_feature_lengths)
    ),
  )


def _training_tokens(data: TrainingData, run: trainer.TrainingRun, identity):
  """Returns the training split's tokens, kept under what made them."""
  from speccascade.data.arrays import TokenArrays

  read = lambda: data.read("train", data.num_examples, run)
  if data.token_cache_dir is None:
    return read()
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
    read().save(path)
  return TokenArrays.load(path)
