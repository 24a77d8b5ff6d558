"""Runs seqio tasks over a split, in order, and collects the tokens."""

from collections.abc import Iterator
import contextlib
import functools
import os
import re
import traceback

import numpy as np

from speccascade.runtime.progress import ProgressBar
from speccascade.runtime.standard_error import native_logs
from speccascade.tasks import tasks
from speccascade.tasks._tf import seqio, tf
from speccascade.text.arrays import FEATURES, TokenArrays, mix
from speccascade.text.prompting import Completion
from speccascade.text.sentence_pieces import SentencePieces

_SLICE = re.compile(r"[\w-]+\[(-?\d{1,15}%?|):(-?\d{1,15}%?|)\]")


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
  """Runs a seqio task or mixture over a split, and returns the tokens.

  Examples that are longer than `lengths` are truncated as in T5X, and counted.
  The rates of a mixture decide how often the examples of each task are in an
  epoch; every example is in it once or more.

  Args:
    task: name of a task, or a seqio Task or Mixture.
    split: the task's split.
    lengths: {feature: the most tokens, EOS included}; None means no limit.
    num: the number of examples to read, from the first one on; None reads all.
    use_cached: whether to read the task from seqio's own cache.
    seed: seeds preprocessors that draw random numbers.
    progress: whether to show a bar on stderr.

  Raises:
    ValueError: the task or the split is unknown, its data is not there, or it
      has no examples.
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
  task = tasks.with_inputs(task)
  # A preprocessor that trims examples leaves no trace of what it truncated.
  # With room for one token more, an example that fills the room would have been
  # truncated.
  trim = _unwrap(seqio.preprocessors.append_eos_after_trim)
  has_room = any(_unwrap(step) is trim for step in task.preprocessors)
  limits = lengths
  if lengths and has_room:
    limits = {name: length + 1 for name, length in lengths.items()}
  prefix = _source_prefix(task)
  if limits and prefix:
    limits = limits | {"inputs": limits["inputs"] - len(prefix)}
  dataset = open_split(task, split, limits, use_cached=use_cached, seed=seed)
  dataset = dataset.take(-1 if num is None else num)
  batches = _read_batches(dataset, task, split, progress)
  tokens, sizes, num_cut = {}, {}, {}
  for name, feature in task.output_features.items():
    flat = np.concatenate([batch[name].flat_values for batch in batches])
    rows = np.concatenate([batch[name].row_lengths() for batch in batches])
    if name == "inputs" and prefix:
      starts = np.repeat(np.cumsum(rows) - rows, len(prefix))
      flat = np.insert(flat, starts, np.tile(prefix, len(rows)))
      rows = rows + len(prefix)
    too_long = np.zeros(len(rows), bool)
    ends = np.cumsum(rows)
    if lengths and has_room:
      too_long = rows > lengths[name]
      # Of 5 6 7 1 with a limit of 3, the last piece 7 goes and EOS, 1, stays.
      # Without EOS, the last piece is the last token.
      last_piece = ends[too_long] - 1
      if feature.add_eos:
        last_piece -= 1
      flat = np.delete(flat, last_piece)
      rows = np.minimum(rows, lengths[name])
    elif lengths and feature.add_eos:
      # Other tasks trim after EOS: an example of full length that does not end
      # in EOS was truncated.
      last = flat[np.maximum(ends - 1, 0)]
      eos_id = feature.vocabulary.eos_id
      too_long = (rows == lengths[name]) & (last != eos_id)
    tokens[name], sizes[name] = flat.astype(np.int32), rows
    num_cut[name] = int(too_long.sum())
  return TokenArrays.join(tokens, sizes, num_cut)


def _source_prefix(task) -> list[int]:
  """Returns the ids that the inputs' tokenizer puts before every source."""
  vocabulary = task.output_features["inputs"].vocabulary
  return list(getattr(vocabulary, "source_prefix", ()))


def _read_batches(dataset, task, split: str, progress: bool) -> list[dict]:
  """Returns the examples of a dataset, in ragged batches."""
  # Handing over examples one at a time would cost more than tokenizing them.
  options = tf.data.Options()
  options.threading.private_threadpool_size = os.cpu_count() or 1
  options.threading.max_intra_op_parallelism = 1
  dataset = dataset.map(lambda example: {k: example[k] for k in FEATURES})
  dataset = dataset.ragged_batch(512).with_options(options)
  batches = []
  with ProgressBar(
    desc=f"tokenizing {task.name} {split}",
    unit=" examples",
    delay=3,
    mininterval=1,
    disable=not progress,
  ) as bar:
    for batch in guard(dataset, task):
      batches.append(batch)
      bar.update(int(batch["inputs"].nrows()))
  if not batches:
    raise ValueError(f"task {task.name} has no examples in {split!r}")
  return batches


def fingerprint(task, split: str) -> str:
  """Returns a text that changes when a task reads other data, for caches.

  The text has size and time of text files, and name and version of TFDS data.
  It does not depend on the vocabulary and the lengths.

  Args:
    task: a seqio Task or Mixture.
    split: the task's split.
  """
  if isinstance(task, seqio.Mixture):
    parts = [
      (fingerprint(part, split), task.get_rate(part)) for part in task.tasks
    ]
    return str(parts)
  steps = []
  for step in task.preprocessors:
    options = sorted(getattr(step, "keywords", {}).items())
    # The text of a function has its address, which differs between processes.
    options = [(k, getattr(v, "__qualname__", v)) for k, v in options]
    name = getattr(_unwrap(step), "__name__", type(step).__name__)
    steps.append((name, options))
  source = task.source
  if stamp := getattr(source, "stamp", None):
    data = stamp(split.partition("[")[0])
  elif isinstance(source, seqio.TfdsDataSource):
    data = source.tfds_dataset.name
  else:
    data = type(source).__name__
  return str((task.name, split, data, steps))


def _unwrap(preprocessor):
  """Returns the function inside of `functools.partial` objects."""
  while isinstance(preprocessor, functools.partial):
    preprocessor = preprocessor.func
  return preprocessor


def open_split(task, split, lengths, *, use_cached=False, seed=0):
  """Returns a split of a task, in order, as a `tf.data.Dataset`.

  Args:
    task: a seqio Task.
    split: the task's split, or a slice of it, as in "test[:5]" or
      "train[10%:20%]". TFDS slices its data sets itself.
    lengths: {feature: the most tokens}; None means no limit.
    use_cached: whether to read the task from seqio's own cache.
    seed: seeds preprocessors that draw random numbers.

  Raises:
    ValueError: the task is a mixture, has no such split, or its data is not
      there.
  """
  if isinstance(task, seqio.Mixture):
    raise ValueError(
      f"{task.name} is a mixture, whose order is drawn: name one of its tasks, "
      f"{', '.join(part.name for part in task.tasks)}"
    )
  # A vocabulary that is missing should raise here. Inside a graph, TensorFlow
  # would bury the message.
  for feature in task.output_features.values():
    if isinstance(feature.vocabulary, SentencePieces):
      feature.vocabulary.load_model()
  with _explain_errors(task):
    splits = list(task.source.splits)
  # TFDS knows only the splits of data that is there.
  name = split.partition("[")[0]
  if splits and name not in splits:
    hint = ""
    is_ours = isinstance(task.source, tasks.TextFileSource)
    if is_ours and split in tasks.SPLITS:
      hint = f"; set {split.upper()}_FILES"
    raise ValueError(
      f"task {task.name} has no split {split!r}: it has"
      f" {', '.join(splits)}{hint}"
    )
  if name != split and not getattr(task.source, "takes_sums", True):
    _ends_of(split)  # raises where it is not a slice of one split
  options = {"use_cached": use_cached, "seed": seed, "try_in_mem_cache": False}
  slices_itself = isinstance(task.source, seqio.TfdsDataSource)
  ends = None
  if name != split and (use_cached or not slices_itself):
    ends, split = _ends_of(split), name
  with _explain_errors(task):
    dataset = task.get_dataset(lengths, split, shuffle=False, **options)
    return dataset if ends is None else _slice(dataset, *ends)


def _ends_of(split: str) -> tuple[str, str]:
  """Returns where a slice begins and ends, as it is written.

  >>> _ends_of("test[10%:-5]")
  ('10%', '-5')

  Raises:
    ValueError: the split has no slice of this form.
  """
  if match := _SLICE.fullmatch(split):
    return match[1], match[2]
  raise ValueError(
    f"split is {split!r:.60}; wanted a name, or a slice of one split such as"
    " test[:5], test[-100:] or test[10%:20%]"
  )


def _slice(dataset, begin: str, end: str):
  """Returns a part of a dataset."""
  if not any(mark in begin + end for mark in "-%"):
    dataset = dataset.take(int(end)) if end else dataset
    return dataset.skip(int(begin or 0))
  # seqio's datasets do not know how many examples they have.
  total = int(dataset.reduce(np.int64(0), lambda count, _: count + 1))

  def place(text: str, default: int) -> int:
    if not text:
      return default
    value = int(text.removesuffix("%"))
    if text.endswith("%"):
      value = round(total * value / 100)
    return min(max(value + total if text.startswith("-") else value, 0), total)

  return dataset.take(place(end, total)).skip(place(begin, 0))


def completions(task, split: str) -> Iterator[Completion]:
  """Yields the texts of a seqio task's split."""
  dataset = open_split(task, split, None).as_numpy_iterator()
  for index, example in enumerate(guard(dataset, task)):
    texts = (example[f"{name}_pretokenized"].decode() for name in FEATURES)
    yield Completion(f"{task.name} {index}", *texts)


def guard(iterator, task):
  """Yields the examples of a dataset; errors of TFDS become one line.

  Args:
    iterator: the dataset, or an iterator over it.
    task: the seqio Task.

  Raises:
    ValueError: TFDS cannot read the data.
  """
  end = object()
  # The first example creates the tokenizers, which write to stderr.
  with native_logs(), _explain_errors(task):
    iterator = iter(iterator)
    example = next(iterator, end)
  while example is not end:
    # Errors of the caller must not be explained, so that `yield` is outside.
    yield example
    with _explain_errors(task):
      example = next(iterator, end)


@contextlib.contextmanager
def _explain_errors(task):
  """Turns errors of TFDS into one line that says what is missing."""
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
