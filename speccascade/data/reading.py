"""Runs seqio tasks over a split, in order, and keeps the tokens."""

import contextlib
import functools
import os
import traceback

import numpy as np

from speccascade.cli import quiet
from speccascade.data import tasks
from speccascade.data._tf import seqio, tf
from speccascade.data.arrays import FEATURES, TokenArrays, mix
from speccascade.data.vocabularies import Vocabulary
from speccascade.runtime.progress import ProgressBar


def from_task(
  task,
  split: str,
  lengths: dict[str, int] | None = None,
  *,
  num: int | None = None,
  use_cached: bool = False,
  seed: int = 0,
  progress: bool = True,
) -> TokenArrays:
  """Runs a seqio task or mixture over a split and keeps the tokens.

  Examples longer than `lengths` are cut as T5X cuts them, and counted. In a
  mixture the tasks' rates say how often each is in an epoch; in the longest
  run that is needed, every example occurs.

  Args:
    task: name, or a seqio Task or Mixture.
    split: the task's split.
    lengths: feature -> most tokens, end-of-sequence included; None: no limit.
    num: the first examples only.
    use_cached: read what seqio's own cache holds.
    seed: seeds preprocessors that draw.
    progress: show a bar on stderr.

  Raises:
    ValueError: unknown task or split, no examples, data that is not there.
  """
  if isinstance(task, str):
    task = tasks.get(task)
  if isinstance(task, seqio.Mixture):
    options = {"num": num, "use_cached": use_cached, "seed": seed}
    parts = [
      from_task(part, split, lengths, progress=progress, **options)
      for part in task.tasks
    ]
    rates = np.array([task.get_rate(part) for part in task.tasks], float)
    return mix(parts, rates / rates.sum())
  trims = _unwrapped(seqio.preprocessors.append_eos_after_trim)
  one_more = any(_unwrapped(p) is trims for p in task.preprocessors)
  # With room for one token more, a cut example is one that fills it.
  asked = lengths and {
    name: length + one_more for name, length in lengths.items()
  }
  dataset = open_split(task, split, asked, use_cached=use_cached, seed=seed)
  dataset = dataset.take(-1 if num is None else num)
  # Many at a time: one at a time costs most.
  options = tf.data.Options()
  options.threading.private_threadpool_size = os.cpu_count() or 1
  options.threading.max_intra_op_parallelism = 1
  dataset = dataset.map(lambda example: {k: example[k] for k in FEATURES})
  dataset = dataset.ragged_batch(512).with_options(options)
  read = []
  bar = {"desc": f"tokenizing {task.name} {split}", "unit": " examples"}
  with ProgressBar(**bar, delay=3, mininterval=1, disable=not progress) as bar:
    for batch in guard(dataset, task):
      read.append(batch)
      bar.update(int(batch["inputs"].nrows()))
  if not read:
    raise ValueError(f"task {task.name} has no examples in {split!r}")
  tokens, sizes, num_cut = {}, {}, {}
  for name, feature in task.output_features.items():
    flat = np.concatenate([batch[name].flat_values for batch in read])
    rows = np.concatenate([batch[name].row_lengths() for batch in read])
    too_long = np.zeros(len(rows), bool)
    ends = np.cumsum(rows)
    if lengths and one_more:
      too_long = rows > lengths[name]
      # The last piece goes, end-of-sequence stays, if there is one.
      flat = np.delete(flat, ends[too_long] - 1 - feature.add_eos)
      rows = np.minimum(rows, lengths[name])
    elif lengths and feature.add_eos:
      last = flat[np.maximum(ends - 1, 0)]
      eos_id = feature.vocabulary.eos_id
      too_long = (rows == lengths[name]) & (last != eos_id)
    tokens[name], sizes[name] = flat.astype(np.int32), rows
    num_cut[name] = int(too_long.sum())
  return TokenArrays.join(tokens, sizes, num_cut)


def fingerprint(task, split: str) -> str:
  """Returns a text that changes with what a task reads, for names of caches.

  Of text files it has size and time; of TFDS data the name with its version.
  The vocabulary and the lengths are not in it.
  """
  if isinstance(task, seqio.Mixture):
    return str([(fingerprint(t, split), task.get_rate(t)) for t in task.tasks])
  steps = []
  for step in task.preprocessors:
    options = sorted(getattr(step, "keywords", {}).items())
    # A function's own text has its address, another in every process.
    options = [(k, getattr(v, "__qualname__", v)) for k, v in options]
    name = getattr(_unwrapped(step), "__name__", type(step).__name__)
    steps.append((name, options))
  source = task.source
  if isinstance(source, tasks.TextFileSource):
    read = source.stamp(split)
  elif isinstance(source, seqio.TfdsDataSource):
    read = source.tfds_dataset.name
  else:
    read = type(source).__name__
  return str((task.name, split, read, steps))


def _unwrapped(preprocessor):
  while isinstance(preprocessor, functools.partial):
    preprocessor = preprocessor.func
  return preprocessor


def open_split(task, split, lengths, *, use_cached=False, seed=0):
  """Returns a split of a task, in order, as a `tf.data.Dataset`.

  Raises:
    ValueError: the task has no such split, or its data is not there.
  """
  if isinstance(task, seqio.Mixture):
    raise ValueError(
      f"{task.name} is a mixture, whose order is drawn: name one of its tasks, "
      f"{', '.join(part.name for part in task.tasks)}"
    )
  # Before TensorFlow traces a graph, which would bury the message.
  for feature in task.output_features.values():
    if isinstance(feature.vocabulary, Vocabulary):
      feature.vocabulary.load_model()
  with _explained(task):
    splits = list(task.source.splits)
  # TFDS knows the splits of data that it has, and no others.
  if splits and split.partition("[")[0] not in splits:
    hint = ""
    is_ours = isinstance(task.source, tasks.TextFileSource)
    if is_ours and split in tasks.SPLITS:
      hint = f"; set {split.upper()}_FILES"
    raise ValueError(
      f"task {task.name} has no split {split!r}: it has"
      f" {', '.join(splits)}{hint}"
    )
  options = {"use_cached": use_cached, "seed": seed, "try_in_mem_cache": False}
  with _explained(task):
    return task.get_dataset(lengths, split, shuffle=False, **options)


def guard(iterator, task):
  """Yields from a data set; TFDS's faults become one line."""
  end = object()
  with quiet.native_logs(), _explained(task):  # tokenizers are made
    iterator = iter(iterator)
    example = next(iterator, end)
  while example is not end:
    yield example
    with _explained(task):
      example = next(iterator, end)


@contextlib.contextmanager
def _explained(task):
  """Makes faults of TFDS one line that says what lacks."""
  try:
    yield
  except Exception as error:
    frames = traceback.extract_tb(error.__traceback__)
    from_tfds = isinstance(error, tf.errors.OpError) or any(
      "tensorflow_datasets" in frame.filename for frame in frames
    )
    if not from_tfds or not isinstance(task.source, seqio.TfdsDataSource):
      raise
    text = " ".join(str(error).split())
    name = task.source.tfds_dataset.name
    raise ValueError(
      f"task {task.name} needs the TFDS data set {name}, which"
      f" {tasks.tfds_data_dir()} does not have and which cannot be made there:"
      " pass --tfds_data_dir, or prepare it on a machine with a network"
      f" ({type(error).__name__}: {text[:200]})"
    ) from error
