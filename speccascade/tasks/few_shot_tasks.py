"""Registers few-shot tasks with seqio: over data of TFDS, or over files.

`few_shot.TASKS` says what the tasks are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import filecmp
import functools
import itertools
import os
import pathlib
from typing import Any, Literal

import numpy as np

from speccascade.settings import fields
from speccascade.tasks import few_shot, registry, tasks
from speccascade.tasks._tf import seqio, tf
from speccascade.tasks.few_shot import TASKS, AnsweredQuestion, FewShotTask
from speccascade.text import text_files

# One file of JSON lines or Parquet, or several.
Files = fields.Path | Sequence[fields.Path]


class ScoredSplits(seqio.TfdsDataSource):
  """Some splits of a data set of TFDS, and slices of them.

  Args:
    name: the data set's name.
    splits: the names of the splits.
  """

  # A sum of splits could hold examples that shots are drawn from.
  takes_sums = False

  def __init__(self, name: str, splits: Sequence[str]):
    super().__init__(name)
    self._scored = tuple(splits)

  @property
  def splits(self) -> tuple[str, ...]:
    """The names of the splits."""
    return self._scored


class FileSource(seqio.FunctionDataSource):
  """A source of seqio over files with the fields of a few-shot task.

  Args:
    task: the task.
    paths: the files; none of them for the file that the task names.
    shot_paths: the files that the shots are drawn from, for the stamp.
  """

  def __init__(
    self, task: FewShotTask, paths: Sequence[str], shot_paths: Sequence[str]
  ):
    self._task, self._paths, self._shot_paths = task, paths, shot_paths

    def open_split(split, shuffle_files=False, seed=None):
      # Nothing is shuffled here: examples are decoded in order.
      del shuffle_files, seed
      return self._read_split(split)

    super().__init__(open_split, splits=tuple(task.splits))

  def _read_split(self, split: str) -> tf.data.Dataset:
    paths = _files_of(self._task, self._paths)
    rows = list(_parse(self._task, split, _lines(paths)))
    if not rows:
      raise ValueError(f"{', '.join(paths)} has no examples of {split!r}")
    columns = map(_column, zip(*rows))
    names = self._task.fields
    return tf.data.Dataset.from_tensor_slices(dict(zip(names, columns)))

  def stamp(self, split: str) -> list[tuple]:
    """Returns (path, bytes, time of change) of each file."""
    del split
    paths = _files_of(self._task, self._paths)
    return text_files.stamp_of((*paths, *self._shot_paths))


def _column(values: Sequence):
  """Returns the values of a field, texts or tuples of texts, for a dataset."""
  if isinstance(values[0], str):
    return list(values)
  flat = tf.constant(list(itertools.chain(*values)), tf.string)
  return tf.RaggedTensor.from_row_lengths(flat, list(map(len, values)))


def _files_of(task: FewShotTask, paths: Sequence[str]) -> Sequence[str]:
  """Returns the files that are given, or else the one that the task names."""
  if paths:
    return paths
  path = tasks.tfds_data_dir() / "downloads" / "manual" / task.data
  if not path.is_file():
    raise FileNotFoundError(
      f"no {path}: TFDS does not have it; copy it there, or set TRAIN_FILES and"
      " TEST_FILES"
    )
  return (str(path),)


def _lines(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
  """Yields (where it is, line) of each row of some files."""
  for path in paths:
    for number, line in text_files.json_lines(path, "few-shot file"):
      yield f"{path}, line {number}", line


def _parse(task: FewShotTask, split: str, lines: Iterable) -> Iterator[tuple]:
  """Yields the values of the fields of each row that is in a split."""
  for where, line in lines:
    try:
      row = fields.fit("it", fields.of_json(line), Mapping[str, Any])
      if task.is_in(split, row):
        yield task.values(row)
    except ValueError as error:
      wanted = ", ".join(task.fields)
      raise ValueError(
        f"{where}: {error}; wanted a JSON object with {wanted}, as the data"
        " sets of TFDS and Hugging Face have them"
      ) from error


def _candidates(
  task: FewShotTask, paths: Sequence[str]
) -> list[AnsweredQuestion]:
  """Returns the examples of files among which the shots are drawn."""
  # Files may be sorted, such as by the article, and long: lines are taken from
  # all of a file, evenly, and no other line is parsed.
  num = sum(1 for _ in _lines(paths))
  most = min(num, few_shot.MOST_CANDIDATES)
  places = set(np.linspace(0, num - 1, most).round().astype(int).tolist())
  lines = (line for i, line in enumerate(_lines(paths)) if i in places)
  rows = _parse(task, task.shots_from, lines)
  return [task.read(*values) for values in rows]


def _tfds_candidates(task: FewShotTask) -> list[AnsweredQuestion]:
  """Returns the examples of TFDS among which the shots are drawn."""
  # TFDS shuffles a data set when it is made.
  source = seqio.TfdsDataSource(task.data)
  dataset = source.get_dataset(task.shots_from, shuffle=False)
  rows = dataset.as_numpy_iterator()
  return [
    few_shot.read_bytes(task, *_leaves(task, row))
    for row in itertools.islice(rows, few_shot.MOST_CANDIDATES)
  ]


def _leaves(task: FewShotTask, row: Mapping) -> list:
  """Returns what a row of a dataset has in the fields of a task."""
  return [
    row[field]
    if field in row
    else functools.reduce(
      lambda part, name: part[name],
      field.removesuffix(few_shot.SEVERAL).split("/"),
      row,
    )
    for field in task.fields
  ]


def _write_prompts(
  dataset,
  *,
  task: str,
  num_shots: int,
  shot_seed: int,
  shot_files: Sequence[str],
):
  """Makes the prompts of a dataset's rows, a preprocessor of seqio."""
  spec = TASKS[task]
  where = [spec.data]
  if shot_files or spec.ids:
    where = _files_of(spec, shot_files)
    candidates = _candidates(spec, where)
  else:
    candidates = _tfds_candidates(spec)
  try:
    before = spec.prompt(few_shot.draw(candidates, num_shots, shot_seed))
  except ValueError as error:
    name = f"split {spec.shots_from!r} of {', '.join(where)}"
    raise ValueError(f"few-shot task {task!r}: {name} {error}") from error

  def write(*values):
    example = few_shot.read_bytes(spec, *values)
    return before + example.question, list(example.answers)

  def to_texts(row):
    leaves = _leaves(spec, row)
    inputs, references = tf.numpy_function(write, leaves, [tf.string] * 2)
    references = tf.ensure_shape(references, [None])
    return {
      "inputs": tf.ensure_shape(inputs, []),
      "targets": references[0],
      "references": references,
    }

  return dataset.map(to_texts)


@fields.checked
def register(
  task: Literal[*TASKS],
  num_shots: fields.NonNegative | None = None,
  seed: fields.NonNegative = 0,
  train_files: Files | None = None,
  test_files: Files | None = None,
  name: str | None = None,
) -> str:
  """Registers a task of few-shot prompts, and returns its name, for gin.

  In a gin file: `MIXTURE_OR_TASK_NAME = @few_shot_tasks.register()`. A second
  call with the same arguments changes nothing.

  Args:
    task: the name of a row of `few_shot.TASKS`.
    num_shots: how many shots a prompt has; None takes the task's number.
    seed: decides which shots are drawn.
    train_files: the files that the shots are drawn from, JSON lines or Parquet
      with the fields of TFDS's and of Hugging Face's data set; None reads TFDS.
    test_files: the files that are scored, whatever the split is called; given
      with `train_files`.
    name: the name of the task; None adds "_fewshot" to `task`.

  Raises:
    ValueError: only one kind of files is given, a file or a copy of it is given
      for both, or another task has this name.
  """
  spec = TASKS[task]
  shots, scored = (_paths(files) for files in (train_files, test_files))
  if bool(shots) != bool(scored):
    raise ValueError("give TRAIN_FILES and TEST_FILES, or neither of them")
  if spec.ids is None:
    _check_no_copies(shots, scored)
  settings = {
    "task": task,
    "num_shots": spec.num_shots if num_shots is None else num_shots,
    "shot_seed": seed,
    "shot_files": shots,
  }
  if scored or spec.ids:
    source = FileSource(spec, scored, shots)
  else:
    source = ScoredSplits(spec.data, spec.splits)
  return registry.register(
    name or f"{task}_fewshot",
    source,
    [functools.partial(_write_prompts, **settings)],
    spec.metrics,
    settings=settings | {"test_files": scored},
  )


def _check_no_copies(shots: Sequence[str], scored: Sequence[str]):
  """Raises ValueError where shots would be drawn from what is scored."""
  for shot, test in itertools.product(shots, scored):
    are_files = os.path.isfile(shot) and os.path.isfile(test)
    if os.path.realpath(shot) == os.path.realpath(test):
      fault = f"{shot} is in TRAIN_FILES and in TEST_FILES"
    elif are_files and filecmp.cmp(shot, test, shallow=False):
      fault = f"{shot} of TRAIN_FILES is a copy of {test} of TEST_FILES"
    else:
      continue
    raise ValueError(f"{fault}: no shot may be drawn from what is scored")


def _paths(files: Files | None) -> tuple[str, ...]:
  """Returns the paths of some files."""
  if files is None:
    return ()
  several = [files] if isinstance(files, str | os.PathLike) else files
  return tuple(os.fspath(pathlib.Path(path).expanduser()) for path in several)
