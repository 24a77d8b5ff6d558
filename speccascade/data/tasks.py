"""The seqio tasks: the papers' over TFDS, the built-in one, text files.

Importing this module registers the papers' tasks and `speccascade_en_de`. Each
task has the features `inputs` and `targets` and, where there are several right
answers, `references`. Only what a task needs is read, when it is read.
"""

from collections.abc import Callable, Iterator, Sequence
import csv
import dataclasses
import difflib
import functools
import itertools
import json
import operator
import os
import pathlib
from typing import Annotated, Literal, TypedDict

import tensorflow_datasets as tfds

from speccascade.data import preprocess, text_files
from speccascade.data._tf import seqio, tf
from speccascade.data.generated import SPLITS
from speccascade.data.generated import task as generated_task
from speccascade.data.registry import register
from speccascade.data.vocabularies import T5_MODEL, Vocabulary
from speccascade.evaluation import quality
from speccascade.settings import fields

# TASK_FEATURE_LENGTHS of the papers, where they are known (docs/tasks.md).
LENGTHS = {
  "wmt_t2t_ende_v003": {"inputs": 80, "targets": 80},
  "cnn_dailymail_v002": {"inputs": 1024, "targets": 128},
  "xsum": {"inputs": 1024, "targets": 64},
  "gsm8k_cot": {"inputs": 256, "targets": 256},
  "mmlu_cot": {"inputs": 768, "targets": 200},
}


class MMLUQuestion(TypedDict):
  """A question of MMLU, as its files have it."""

  question: str
  choices: tuple[str, str, str, str]
  answer: Literal["A", "B", "C", "D"]


MMLU = tuple(MMLUQuestion.__annotations__)


def get(name: str, vocabulary: Vocabulary | None = None):
  """Returns a registered task or mixture, perhaps with another vocabulary.

  Args:
    name: in seqio's registries.
    vocabulary: replaces that of `inputs` and `targets`; None keeps the task's.

  Raises:
    ValueError: no such task, with the near misses.
  """
  names = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
  if name not in names:
    close = difflib.get_close_matches(str(name), sorted(names), n=3)
    hint = f"did you mean {' or '.join(close)}?"
    if not close:
      hint = f"there are {', '.join(sorted(names))}"
    raise ValueError(
      f"MIXTURE_OR_TASK_NAME: no task or mixture {name!r}, {hint} Tasks of your"
      " own are registered by a module that a gin file imports"
    )
  provider = seqio.get_mixture_or_task(name)
  if vocabulary is None:
    return provider
  if isinstance(provider, seqio.Mixture):
    rates = map(provider.get_rate, provider.tasks)
    tasks = [_with_vocabulary(task, vocabulary) for task in provider.tasks]
    return seqio.Mixture(name, list(zip(tasks, rates)))
  return _with_vocabulary(provider, vocabulary)


def _with_vocabulary(task, vocabulary):
  features = {
    key: dataclasses.replace(feature, vocabulary=vocabulary)
    if key in ("inputs", "targets")
    else feature
    for key, feature in task.output_features.items()
  }
  return task.replace(output_features=features)


@fields.checked
@dataclasses.dataclass(frozen=True)
class TextSplits:
  """The text files of a task; checked when made.

  Attributes:
    train: files of the split, as `text_files.read` takes them: a JSONL path, a
      list of line files, or a prefix NAME for NAME.en and NAME.de; None for
      no such split.
    validation: likewise.
    test: likewise.
    languages: the suffixes of a prefix NAME, inputs first.
  """

  train: text_files.Files | None = None
  validation: text_files.Files | None = None
  test: text_files.Files | None = None
  languages: tuple[str, str] = ("en", "de")

  @property
  def files(self) -> dict[str, text_files.Files]:
    """Those of the splits that there are."""
    splits = {name: getattr(self, name) for name in SPLITS}
    return {name: files for name, files in splits.items() if files is not None}


class TextFileSource(seqio.FunctionDataSource):
  """A seqio source over text files; each split is read when it is first used.

  Args:
    splits: the files.
  """

  def __init__(self, splits: TextSplits):
    self._files, self._languages = splits.files, splits.languages
    # Batches are shuffled by index.
    open_split = functools.cache(self._open)
    super().__init__(
      lambda split, shuffle_files=False, seed=None: open_split(split),
      splits=tuple(self._files),
    )

  def _open(self, split: str) -> tf.data.Dataset:
    examples = text_files.read(self._files[split], self._languages)
    references = [example.references for example in examples]
    columns = {
      "inputs": [example.inputs for example in examples],
      "targets": [several[0] for several in references],
      "references": tf.RaggedTensor.from_row_lengths(
        list(itertools.chain(*references)), list(map(len, references))
      ),
    }
    return tf.data.Dataset.from_tensor_slices(columns)

  def stamp(self, split: str) -> list[tuple]:
    """Returns path, size and time of a split's files: equal, if untouched."""
    return text_files.stamp(self._files[split], self._languages)


@fields.checked
def register_text_task(
  name: str,
  splits: TextSplits,
  prefix: str = "",
  vocabulary: fields.Path | None = None,
  extra_ids: fields.NonNegative | None = None,
  metrics: Sequence[Annotated[str, quality.metric]] = ("bleu", "chrf"),
  edit: Callable[[str, str], tuple[str, str]] | None = None,
) -> str:
  """Registers a task over text files and returns its name, for gin.

  In a gin file: `MIXTURE_OR_TASK_NAME = @tasks.register_text_task()`. Calling
  it again with the same arguments changes nothing.

  Args:
    name: the task's name.
    splits: its files.
    prefix: put before every input.
    vocabulary: path of a SentencePiece model; None is T5's.
    extra_ids: see `Vocabulary`.
    metrics: names in `quality.METRICS`.
    edit: makes inputs and targets of what the files hold, such as
      `preprocess.gsm8k`; applied to every reference.

  Raises:
    ValueError: no split, an unknown metric, or a name that is taken.
  """
  vocabulary = T5_MODEL if vocabulary is None else os.fspath(vocabulary)
  if not splits.files:
    fault = f" is None, as all splits of task {name!r} are; give files"
    raise fields.SettingError("train", fault, TextSplits)
  settings = (
    *(json.dumps(splits.files, sort_keys=True), prefix, vocabulary, extra_ids),
    *(tuple(metrics), splits.languages),
    edit and f"{edit.__module__}.{edit.__qualname__}",
  )
  return register(
    name,
    TextFileSource(splits),
    [
      *([functools.partial(_edited, edit=edit)] if edit else []),
      functools.partial(_prefixed, prefix=prefix),
    ],
    metrics,
    Vocabulary(vocabulary, extra_ids),
    settings=settings,
  )


@seqio.map_over_dataset
def _prefixed(example, prefix, inputs="inputs", targets="targets"):
  kept = {k: text for k, text in example.items() if k == "references"}
  text = tf.strings.join([prefix, example[inputs]])
  return {"inputs": text, "targets": example[targets], **kept}


@seqio.map_over_dataset
def _edited(example, edit):
  def to_text(source, references):
    edited = [edit(source.decode(), text.decode()) for text in references]
    return edited[0][0], [target for _, target in edited]

  source, references = _call(to_text, example, "inputs", "references")
  references = tf.ensure_shape(references, [None])
  return {
    "inputs": tf.ensure_shape(source, []),
    "targets": references[0],
    "references": references,
  }


@seqio.map_over_dataset
def _prompted(example, fields, to_text):
  """Inputs and targets that a function makes of the bytes of some fields."""
  texts = _call(to_text, example, *fields)
  return {
    name: tf.ensure_shape(text, [])
    for name, text in zip(("inputs", "targets"), texts)
  }


def _gsm8k(question: bytes, answer: bytes):
  return preprocess.gsm8k(question.decode(), answer.decode())


def _mmlu(question: bytes, choices, answer: bytes):
  choices = [choice.decode() for choice in choices]
  return preprocess.mmlu_prompt(question.decode(), choices), answer


def _call(function, example, *names):
  """Returns the two results of a Python function of an example's bytes."""
  fields = [example[name] for name in names]
  return tf.numpy_function(function, fields, [tf.string] * 2)


def tfds_data_dir() -> pathlib.Path:
  """Returns the folder of --tfds_data_dir, or TFDS's own default."""
  folder = seqio.utils._TFDS_DATA_DIR_OVERRIDE
  return pathlib.Path(folder or tfds.core.constants.DATA_DIR).expanduser()


def read_mmlu(folder, split: str) -> list[MMLUQuestion]:
  """Returns MMLU's questions, of its own release or of JSON lines.

  Args:
    folder: holds dev/, val/ and test/ with SUBJECT_SPLIT.csv, as the authors'
      archive does, or SPLIT.jsonl.gz with question, choices and targets.
    split: dev, val or test.

  Returns:
    The questions, one or more.

  Raises:
    FileNotFoundError: the folder has no such files.
    ValueError: they hold no questions, or something else; file and line are
      named.
  """
  folder = pathlib.Path(folder)
  tables = sorted((folder / split).glob("*.csv"))
  lines = folder / f"{split}.jsonl.gz"
  if not tables and not lines.is_file():
    raise FileNotFoundError(
      f"no MMLU in {folder}: TFDS does not have it; unpack the authors'"
      f" data.tar (github.com/hendrycks/test) so that {folder / split} holds"
      " its CSV files"
    )
  if tables:
    rows = itertools.chain.from_iterable(map(_mmlu_table, tables))
  else:
    rows = _mmlu_lines(lines)
  questions = list(rows)
  if not questions:
    raise ValueError(
      f"{folder / split if tables else lines} has no question of MMLU: unpack"
      " the authors' data.tar (github.com/hendrycks/test) again"
    )
  return questions


def _mmlu_table(path: pathlib.Path) -> Iterator[MMLUQuestion]:
  """Yields the questions of a CSV file, which may have several lines each."""
  lines = (f"{line}\n" for line in text_files.lines_of(path, "MMLU's table"))
  reader, row = csv.reader(lines), None
  try:
    for row in filter(None, reader):
      question = dict(zip(MMLU, (row[0], row[1:-1], row[-1])))
      yield fields.fit("it", question, MMLUQuestion)
  except (fields.SettingError, csv.Error) as error:
    reason = f" ({error})" if isinstance(error, csv.Error) else ""
    raise ValueError(
      f"{path}, line {reader.line_num} is no question of MMLU{reason}: wanted"
      " six columns, a question, four choices, and A, B, C or D; last read was"
      f" {row!r:.60}"
    ) from error


def _mmlu_lines(path: pathlib.Path) -> Iterator[MMLUQuestion]:
  """Yields the questions of a file of JSON lines."""
  stored = operator.itemgetter("question", "choices", "targets")
  for number, line in enumerate(text_files.lines_of(path, "MMLU's file"), 1):
    try:
      question = dict(zip(MMLU, stored(fields.of_json(line))))
      yield fields.fit("it", question, MMLUQuestion)
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(
        f"{path}, line {number} is {line:.60}; wanted a JSON object with"
        ' "question", the four texts "choices", and "targets", A, B, C or D'
      ) from error


def _mmlu_dataset(split, shuffle_files=False, seed=None):
  folder = tfds_data_dir() / "downloads" / "manual" / "mmlu"
  questions = read_mmlu(folder, {"validation": "val"}.get(split, split))
  columns = {key: [question[key] for question in questions] for key in MMLU}
  return tf.data.Dataset.from_tensor_slices(columns)


def _register_papers_tasks():
  fields = {
    # T5's own task of this name; T5 tokenizes for BLEU as "intl".
    "wmt_t2t_ende_v003": ("wmt_t2t_translate/de-en:1.0.0", "en", "de"),
    # T5's task has version 3.1.0, which TFDS no longer builds; since then only
    # a blank before a full stop went, and unused fields were added.
    "cnn_dailymail_v002": ("cnn_dailymail:3.4.0", "article", "highlights"),
    "xsum": ("xsum:1.1.0", "document", "summary"),
  }
  for name, (tfds_name, inputs, targets) in fields.items():
    is_translation = inputs == "en"
    prefix = preprocess.TRANSLATE if is_translation else preprocess.SUMMARIZE
    named = {"prefix": prefix, "inputs": inputs, "targets": targets}
    register(
      name,
      seqio.TfdsDataSource(tfds_name=tfds_name),
      [functools.partial(_prefixed, **named)],
      ["bleu_intl", "chrf"] if is_translation else ["rouge"],
    )
  gsm8k = seqio.TfdsDataSource(tfds_name="gsm8k:1.0.0")
  mmlu = seqio.FunctionDataSource(
    _mmlu_dataset, splits=("dev", "validation", "test")
  )
  for metric, source, names, to_text in (
    ("gsm8k", gsm8k, ("question", "answer"), _gsm8k),
    ("mmlu", mmlu, MMLU, _mmlu),
  ):
    prompted = functools.partial(_prompted, fields=names, to_text=to_text)
    register(f"{metric}_cot", source, [prompted], [metric])


_register_papers_tasks()
generated_task.register()
