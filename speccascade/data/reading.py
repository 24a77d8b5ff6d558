"""Runs seqio tasks over a split, in order, and keeps the tokens."""

import functools
import os

import numpy as np
from tqdm import tqdm

from speccascade.data import tasks
from speccascade.data._tf import seqio, tf
from speccascade.data.arrays import FEATURES, TokenArrays, mixed
from speccascade.data.text_files import TextFileSource
from speccascade.data.vocabularies import Vocabulary


def from_task(
  task,
  split: str,
  lengths: dict[str, int] | None = None,
  *,
  vocabulary=None,
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
    vocabulary: replaces the task's.
    num: the first examples only.
    use_cached: read what seqio's own cache holds.
    seed: seeds preprocessors that draw.
    progress: show a bar on stderr.

  Raises:
    ValueError: unknown task or split, no examples, data that is not there.
  """
  if isinstance(task, str):
    task = tasks.get(task, vocabulary)
  if not isinstance(task, seqio.Mixture):
    return _from_one(task, split, lengths, num, use_cached, seed, progress)
  parts = [
    _from_one(part, split, lengths, num, use_cached, seed, progress)
    for part in task.tasks
  ]
  rates = np.array([task.get_rate(part) for part in task.tasks], float)
  return mixed(parts, rates / rates.sum())


def _from_one(task, split, lengths, num, use_cached, seed, progress):
  trims = _unwrapped(seqio.preprocessors.append_eos_after_trim)
  one_more = any(_unwrapped(p) is trims for p in task.preprocessors)
  # With room for one token more, a cut example is one that fills it.
  asked = lengths and {
    name: length + one_more for name, length in lengths.items()
  }
  dataset = open_split(task, split, asked, use_cached=use_cached, seed=seed)
  if num is not None:
    dataset = dataset.take(num)
  tokens = {name: [] for name in FEATURES}
  sizes = {name: [] for name in FEATURES}
  bar = tqdm(
    desc=f"tokenizing {task.name} {split}",
    unit=" examples",
    delay=3,
    mininterval=1,
    disable=not progress,
  )
  with bar:
    for batch in guarded(_in_batches(dataset), task):
      for name in FEATURES:
        tokens[name].append(batch[name].flat_values.numpy())
        sizes[name].append(batch[name].row_lengths().numpy())
      bar.update(len(sizes["inputs"][-1]))
  if not sizes["inputs"]:
    raise ValueError(f"task {task.name} has no examples in {split!r}")
  num_cut = dict.fromkeys(FEATURES, 0)
  for name, feature in task.output_features.items():
    tokens[name] = np.concatenate(tokens[name]).astype(np.int32)
    sizes[name] = np.concatenate(sizes[name])
    if lengths is None:
      continue
    ends = np.cumsum(sizes[name])
    if one_more:
      too_long = sizes[name] > lengths[name]
      # The last piece goes, end-of-sequence stays, if there is one.
      extra = ends[too_long] - 1 - feature.add_eos
      tokens[name] = np.delete(tokens[name], extra)
      sizes[name] = np.minimum(sizes[name], lengths[name])
    else:
      full = sizes[name] == lengths[name]
      last = tokens[name][np.maximum(ends - 1, 0)]
      too_long = full & feature.add_eos & (last != feature.vocabulary.eos_id)
    num_cut[name] = int(too_long.sum())
  return TokenArrays.joined(tokens, sizes, num_cut)


def _in_batches(dataset):
  """Returns inputs and targets, many at a time: one at a time costs most."""
  options = tf.data.Options()
  options.threading.private_threadpool_size = os.cpu_count() or 1
  options.threading.max_intra_op_parallelism = 1
  dataset = dataset.map(lambda example: {k: example[k] for k in FEATURES})
  return dataset.ragged_batch(512).with_options(options)


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
    name = getattr(_unwrapped(step), "__name__", type(step).__name__)
    steps.append((name, options))
  source = task.source
  if isinstance(source, TextFileSource):
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
  splits = list(guarded_call(lambda: task.source.splits, task))
  # TFDS knows the splits of data that it has, and no others.
  if splits and split.partition("[")[0] not in splits:
    raise ValueError(
      f"task {task.name} has no split {split!r}: it has {', '.join(splits)}"
    )
  return guarded_call(
    lambda: task.get_dataset(
      sequence_length=lengths,
      split=split,
      shuffle=False,
      use_cached=use_cached,
      seed=seed,
      try_in_mem_cache=False,
    ),
    task,
  )


def guarded_call(function, task):
  """Calls a function of seqio; TFDS's faults become one line."""
  try:
    return function()
  except Exception as error:
    raise _explained(error, task) from error


def guarded(iterator, task):
  """Yields from a data set, with faults as in `guarded_call`."""
  iterator, end = iter(iterator), object()
  step = lambda: next(iterator, end)
  while (example := guarded_call(step, task)) is not end:
    yield example


def _explained(error: Exception, task) -> Exception:
  if not isinstance(task.source, seqio.TfdsDataSource):
    return error
  files = []
  trace = error.__traceback__
  while trace is not None:
    files.append(trace.tb_frame.f_code.co_filename)
    trace = trace.tb_next
  from_tfds = any("tensorflow_datasets" in file for file in files)
  if not from_tfds and not isinstance(error, tf.errors.OpError):
    return error
  text = " ".join(str(error).split())
  return ValueError(
    f"task {task.name} needs the TFDS data set "
    f"{task.source.tfds_dataset.name}, which {tasks.tfds_data_dir()} does not "
    "have and which cannot be made there: pass --tfds_data_dir, or prepare it "
    f"on a machine with a network ({type(error).__name__}: {text[:200]})"
  )
