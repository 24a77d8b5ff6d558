"""Fine-tunes a T5 on a task: what `python -m speccascade.train` runs.

What reads tasks is imported when a run starts, so that the package `training`
needs neither seqio nor TensorFlow.
"""

from collections.abc import Callable, Mapping, Sequence
import hashlib
import json
import os
import pathlib
from typing import Any

import numpy as np

from speccascade.models.t5.config import T5Config
from speccascade.training import evaluate, optimizers, trainer
from speccascade.training.checkpointing import Checkpoints
from speccascade.training.state import Objective


def train(
  *,
  model: T5Config,
  model_dir: str,
  mixture_or_task_name: str,
  task_feature_lengths: Mapping[str, int],
  train_steps: int,
  batch_size: int,
  initial_checkpoint_path: str | None = None,
  restore_optimizer: bool = True,
  vocabulary: str | None = None,
  use_cached: bool = False,
  token_cache_dir: str | None = None,
  num_train_examples: int | None = None,
  buckets: Sequence[int | tuple[int, int]] | None = None,
  pack: bool = False,
  optimizer: optimizers.Optimizer | None = None,
  z_loss: float = 1e-4,
  label_smoothing: float = 0.0,
  smoothing_ends: int | None = None,
  loss_normalizing_factor: float | str | None = None,
  microbatches: int = 1,
  random_seed: int = 0,
  eval_split: str = "validation",
  eval_period: int = 1000,
  num_eval_examples: int | None = 1000,
  num_decoded_examples: int | None = 200,
  decoded_task_name: str | None = None,
  max_decode_len: int = 128,
  checkpoint_period: int = 1000,
  keep_latest: int = 1,
  best_metric: str | None = "loss",
  log_period: int = 100,
  tensorboard: bool = True,
  progress: bool = True,
  on_start: Callable[[str], object] | None = None,
) -> trainer.Outcome:
  """Fine-tunes a T5 on a seqio task, or trains it from random parameters.

  Leaves in `model_dir`: `checkpoint_<step>` of the latest and the best step,
  TensorBoard's event files, and what `on_start` writes. The run starts from
  the latest checkpoint in `model_dir`, else from `initial_checkpoint_path`,
  else from scratch, as T5X does.

  Args:
    model: the architecture; dropout and activations' dtype are its own.
    model_dir: a new folder, or that of the same run, which is taken up.
    mixture_or_task_name: registered with seqio.
    task_feature_lengths: {"inputs": ..., "targets": ...}; longer examples are
      cut, and counted.
    train_steps: step to stop at, an initial checkpoint's steps included.
    batch_size: rows of a batch; with buckets, rows of the widest one.
    initial_checkpoint_path: of any layout that `checkpoints.load` reads.
    restore_optimizer: take over Adafactor's accumulators where it has any.
    vocabulary: path of a SentencePiece model; None takes the task's.
    use_cached: read the task's cached examples.
    token_cache_dir: keeps the tokenized training split between starts.
    num_train_examples: the first of the split; None takes all.
    buckets: widths of batches; None pads all to the feature lengths.
    pack: put several examples in a row.
    optimizer: None is T5 v1.1's Adafactor at 1e-3.
    z_loss: see `Objective`, as the four that follow.
    label_smoothing: mass that the label gives to other tokens.
    smoothing_ends: step from which on there is no smoothing.
    loss_normalizing_factor: what the summed loss is divided by.
    microbatches: parts that a batch is fed in.
    random_seed: of parameters, data order and dropout.
    eval_split: of the task.
    eval_period: steps between evaluations.
    num_eval_examples: examples of the loss; None takes all, 0 evaluates
      nothing.
    num_decoded_examples: how many of them are decoded greedily and scored by
      the task's metrics; None takes all.
    decoded_task_name: task of these, where `mixture_or_task_name` is a mixture.
    max_decode_len: most tokens decoded.
    checkpoint_period: steps between checkpoints.
    keep_latest: how many of the latest are kept.
    best_metric: "loss", "accuracy" or a metric of the task, by which the best
      checkpoint is kept as well; None keeps none.
    log_period: steps between lines of the log.
    tensorboard: write event files.
    progress: show bars.
    on_start: called with `model_dir` when everything has been checked.

  Raises:
    ValueError: a setting, the task or a checkpoint does not fit.
    NotFiniteError: the loss became NaN or infinite.
  """
  from speccascade.data import batches as batching
  from speccascade.data import reading, tasks, vocabularies

  model_dir = _local(model_dir)
  objective = Objective(
    z_loss=z_loss,
    label_smoothing=label_smoothing,
    smoothing_ends=smoothing_ends,
    loss_normalizing_factor=loss_normalizing_factor,
    microbatches=microbatches,
  )
  for name, count in (
    ("TRAIN_STEPS", train_steps),
    ("BATCH_SIZE", batch_size),
    ("eval_period", eval_period),
    ("checkpoint_period", checkpoint_period),
    ("log_period", log_period),
  ):
    if count < 1:
      raise ValueError(f"{name} is {count}; wanted 1 or more")
  if vocabulary is not None:
    vocabulary = vocabularies.load(vocabulary)
  task = tasks.get(mixture_or_task_name, vocabulary)
  vocabulary = task.output_features["targets"].vocabulary
  vocabularies.check_fits(vocabulary, model.vocab_size, "MODEL")
  common = {"use_cached": use_cached, "seed": random_seed, "progress": progress}
  read = lambda split, num: reading.from_task(
    task, split, dict(task_feature_lengths), num=num, **common
  )
  arrays = _cached(
    lambda: read("train", num_train_examples),
    token_cache_dir,
    [
      task.name,
      reading.fingerprint(task, "train"),
      dict(task_feature_lengths),
      num_train_examples,
      random_seed,
      _identity(vocabulary),
    ],
  )
  _tell_cut(arrays, "train")
  batches = batching.train_batches(
    arrays,
    batch_size=batch_size,
    seed=random_seed,
    lengths=None if buckets else dict(task_feature_lengths),
    buckets=buckets,
    pack=pack,
  )
  evaluation = None
  if num_eval_examples != 0:
    evaluation = evaluate.Evaluation(
      list(
        batching.eval_batches(
          read(eval_split, num_eval_examples),
          batch_size=batch_size,
          lengths=None if buckets else dict(task_feature_lengths),
          buckets=buckets,
        )
      ),
      max_decode_len=max_decode_len,
      batch_size=min(batch_size, 64),
      eos_id=vocabulary.eos_id,
      **_decoded(
        decoded_task_name or task,
        vocabulary,
        eval_split,
        num_decoded_examples,
        task_feature_lengths,
      ),
    )
  checkpoints = Checkpoints(
    model_dir,
    model,
    vocabulary=_identity(vocabulary),
    keep_latest=keep_latest,
    metric=f"eval/{best_metric}" if best_metric and evaluation else None,
    best_mode="min" if best_metric == "loss" else "max",
    settings={
      "MIXTURE_OR_TASK_NAME": task.name,
      "BATCH_SIZE": batch_size,
      "BUCKETS": buckets and list(buckets),
      "PACK": pack,
      "training data of sha256": _digest(arrays),
    },
  )
  if on_start is not None:
    on_start(model_dir)
  print(
    f"{task.name}: {len(arrays)} training examples, "
    f"{batches.steps_per_epoch} steps an epoch, to {model_dir}"
  )
  return trainer.run(
    model,
    batches.iterator,
    checkpoints,
    train_steps=train_steps,
    optimizer=optimizer,
    objective=objective,
    evaluation=evaluation,
    initial_checkpoint_path=initial_checkpoint_path,
    restore_optimizer=restore_optimizer,
    seed=random_seed,
    eval_period=eval_period,
    checkpoint_period=checkpoint_period,
    log_period=log_period,
    writer=_writer(model_dir) if tensorboard else None,
    progress=progress,
  )


def _local(model_dir: str) -> str:
  """Returns MODEL_DIR as an absolute path; gs:// stays as it is."""
  if not model_dir:
    raise ValueError("MODEL_DIR is empty; give a folder")
  if "://" in model_dir:
    return model_dir
  path = pathlib.Path(model_dir).expanduser().absolute()
  if path.exists() and not path.is_dir():
    raise ValueError(f"MODEL_DIR {path} is a file; give a folder")
  return str(path)


def _identity(vocabulary) -> dict[str, str] | None:
  known = getattr(vocabulary, "identity", None)
  return known and {"path": vocabulary.path, "sha256": known["sha256"]}


def _cached(make, folder, key):
  """Returns token arrays, kept in `folder` under what made them."""
  from speccascade.data.arrays import TokenArrays

  if folder is None:
    return make()
  digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
  path = pathlib.Path(folder).expanduser() / f"{key[0]}-{digest[:16]}.npz"
  if not path.is_file():
    make().save(path)
  return TokenArrays.load(path)


def _digest(arrays) -> str:
  """Returns what tells tokenized examples apart."""
  digest = hashlib.sha256()
  for feature in sorted(arrays.tokens):
    digest.update(np.ascontiguousarray(arrays.tokens[feature]))
    digest.update(np.ascontiguousarray(arrays.offsets[feature]))
  return digest.hexdigest()[:16]


def _tell_cut(arrays, split):
  for feature, count in arrays.num_cut.items():
    if count:
      print(
        f"{count} of {len(arrays)} {feature} of {split} were longer than "
        "TASK_FEATURE_LENGTHS and were cut"
      )


def _decoded(task, vocabulary, split, num, lengths) -> dict[str, Any]:
  """Returns what of `Evaluation` concerns decoding: sources and score.

  Targets and predictions pass the task's postprocessor, as in seqio.
  """
  from speccascade.data import reading, tasks

  task = tasks.get(task, vocabulary) if isinstance(task, str) else task
  if num == 0 or not getattr(task, "metric_fns", None):
    return {}
  dataset = reading.open_split(task, split, dict(lengths))
  if num is not None:
    dataset = dataset.take(num)
  found = list(reading.guarded(dataset.as_numpy_iterator(), task))
  finish = task.postprocess_fn or (lambda text, **_: text)
  to_text = getattr(vocabulary, "text", None) or (
    lambda ids: vocabulary.decode(ids.tolist())
  )
  targets = [
    finish(
      example["targets_pretokenized"].decode(), example=example, is_target=True
    )
    for example in found
  ]

  def score(outputs: list[np.ndarray]) -> dict[str, float]:
    predictions = [
      finish(to_text(ids), example=example, is_target=False)
      for ids, example in zip(outputs, found)
    ]
    metrics = {}
    for function in task.metric_fns:
      metrics |= function(targets, predictions)
    return metrics

  sources = [np.asarray(example["inputs"], np.int32) for example in found]
  return {"sources": sources, "score": score}


def _writer(model_dir: str):
  """Returns clu's writer of TensorBoard event files."""
  from speccascade.cli import quiet

  quiet.import_tensorflow()
  with quiet.native_logs():
    from clu import metric_writers

  pathlib.Path(model_dir).mkdir(parents=True, exist_ok=True)
  return metric_writers.SummaryWriter(os.fspath(model_dir))
