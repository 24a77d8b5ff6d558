"""The seqio tasks: the papers' over TFDS, the built-in one, text files.

Importing this module registers the papers' tasks and `speccascade_en_de`. Each
task has the features `inputs` and `targets` and, where there are several right
answers, `references`. Only what a task needs is read, when it is read.
"""

from collections.abc import Callable, Sequence
import csv
import dataclasses
import difflib
import functools
import json
import os
import pathlib

import tensorflow_datasets as tfds

from speccascade.data import preprocess, text_files
from speccascade.data._tf import seqio, tf
from speccascade.data.generated import task as generated_task
from speccascade.data.vocabularies import T5_MODEL, Vocabulary
from speccascade.evaluation import quality

# TASK_FEATURE_LENGTHS of the papers, where they are known (docs/tasks.md).
LENGTHS = {
  "wmt_t2t_ende_v003": {"inputs": 80, "targets": 80},
  "cnn_dailymail_v002": {"inputs": 1024, "targets": 128},
  "xsum": {"inputs": 1024, "targets": 64},
  "gsm8k_cot": {"inputs": 256, "targets": 256},
  "mmlu_cot": {"inputs": 768, "targets": 200},
}

_REGISTERED_TEXT: dict[str, tuple] = {}


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
    hint = f"there are {', '.join(sorted(names))}"
    if close:
      hint = f"did you mean {' or '.join(close)}?"
    raise ValueError(
      f"no task or mixture {name!r}, {hint} Tasks of your own are registered "
      "by a module that a gin file imports"
    )
  provider = seqio.get_mixture_or_task(name)
  if vocabulary is None:
    return provider
  if isinstance(provider, seqio.Mixture):
    rated = lambda task: (
      _with_vocabulary(task, vocabulary),
      provider.get_rate(task),
    )
    return seqio.Mixture(name, [rated(task) for task in provider.tasks])
  return _with_vocabulary(provider, vocabulary)


def _with_vocabulary(task, vocabulary):
  features = {
    key: dataclasses.replace(feature, vocabulary=vocabulary)
    if key in ("inputs", "targets")
    else feature
    for key, feature in task.output_features.items()
  }
  return task.replace(output_features=features)


def references_of(target: str, example=None, is_target: bool = False):
  """A task's `postprocess_fn`: all right answers where it is given a target."""
  if is_target and example is not None and "references" in example:
    return [tf.compat.as_text(text) for text in example["references"]]
  return target


def register(
  name: str,
  source,
  to_text: Sequence,
  metrics: Sequence[str],
  vocabulary: Vocabulary | None = None,
):
  """Adds a text-to-text task to seqio's registry, once.

  Args:
    name: the task's name. One that is there already, such as T5's own, stays.
    source: a seqio data source.
    to_text: preprocessors up to the strings `inputs` and `targets`.
    metrics: names in `quality.METRICS`.
    vocabulary: both features' vocabulary; default T5's.
  """
  if name in seqio.TaskRegistry.names():
    return
  vocabulary = vocabulary or Vocabulary()
  feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)
  seqio.TaskRegistry.add(
    name,
    source=source,
    preprocessors=[
      *to_text,
      seqio.preprocessors.tokenize,
      seqio.CacheDatasetPlaceholder(),
      seqio.preprocessors.append_eos_after_trim,
    ],
    postprocess_fn=references_of,
    metric_fns=[quality.seqio_metric(metric) for metric in metrics],
    output_features={"inputs": feature, "targets": feature},
  )


def register_text_task(
  name: str,
  train=None,
  validation=None,
  test=None,
  prefix: str = "",
  vocabulary: str | None = None,
  extra_ids: int | None = None,
  metrics: Sequence[str] = ("bleu", "chrf"),
  languages: Sequence[str] = ("en", "de"),
  edit: Callable[[str, str], tuple[str, str]] | None = None,
) -> str:
  """Registers a task over text files and returns its name, for gin.

  In a gin file: `MIXTURE_OR_TASK_NAME = @tasks.register_text_task()`. Calling
  it again with the same arguments changes nothing.

  Args:
    name: the task's name.
    train: files of the split, as `text_files.read` takes them: a JSONL path, a
      list of line files, or a prefix NAME for NAME.en and NAME.de; None for
      no such split.
    validation: likewise.
    test: likewise.
    prefix: put before every input.
    vocabulary: path of a SentencePiece model; None is T5's.
    extra_ids: see `Vocabulary`.
    metrics: names in `quality.METRICS`.
    languages: the suffixes of a prefix NAME, inputs first.
    edit: makes inputs and targets of what the files hold, such as
      `preprocess.gsm8k`; applied to every reference.

  Raises:
    ValueError: no split, an unknown metric, or a name that is taken.
  """
  vocabulary = T5_MODEL if vocabulary is None else vocabulary
  splits = {"train": train, "validation": validation, "test": test}
  splits = {key: files for key, files in splits.items() if files is not None}
  if not splits:
    raise ValueError(
      f"task {name!r} has no files: give train, validation or test"
    )
  made_of = (
    json.dumps(splits, sort_keys=True),
    prefix,
    os.fspath(vocabulary),
    extra_ids,
    tuple(metrics),
    tuple(languages),
    edit and f"{edit.__module__}.{edit.__qualname__}",
  )
  if name in seqio.TaskRegistry.names():
    if _REGISTERED_TEXT.get(name) == made_of:
      return name
    raise ValueError(f"there is a task {name!r} already: choose another name")
  register(
    name,
    text_files.TextFileSource(splits, languages),
    [
      *([functools.partial(_edited, edit=edit)] if edit else []),
      functools.partial(_prefixed, prefix=prefix),
    ],
    metrics,
    Vocabulary(vocabulary, extra_ids),
  )
  _REGISTERED_TEXT[name] = made_of
  return name


@seqio.map_over_dataset
def _prefixed(example, prefix):
  return {**example, "inputs": tf.strings.join([prefix, example["inputs"]])}


@seqio.map_over_dataset
def _fields(example, prefix, inputs, targets):
  return {
    "inputs": tf.strings.join([prefix, example[inputs]]),
    "targets": example[targets],
  }


@seqio.map_over_dataset
def _edited(example, edit):
  def to_text(source, references):
    edited = [edit(source.decode(), text.decode()) for text in references]
    return edited[0][0], [target for _, target in edited]

  inputs, references = tf.numpy_function(
    to_text, [example["inputs"], example["references"]], [tf.string] * 2
  )
  references = tf.ensure_shape(references, [None])
  return {
    "inputs": tf.ensure_shape(inputs, []),
    "targets": references[0],
    "references": references,
  }


@seqio.map_over_dataset
def _gsm8k(example):
  def to_text(question, answer):
    return preprocess.gsm8k(question.decode(), answer.decode())

  return _call(to_text, example, "question", "answer")


@seqio.map_over_dataset
def _mmlu(example):
  def to_text(question, choices, answer):
    choices = [choice.decode() for choice in choices]
    return preprocess.mmlu_prompt(question.decode(), choices), answer

  return _call(to_text, example, "question", "choices", "answer")


def _call(function, example, *names):
  """Returns inputs and targets that a Python function makes of bytes."""
  fields = [example[name] for name in names]
  inputs, targets = tf.numpy_function(function, fields, [tf.string] * 2)
  return {
    "inputs": tf.ensure_shape(inputs, []),
    "targets": tf.ensure_shape(targets, []),
  }


def tfds_data_dir() -> pathlib.Path:
  """Returns the folder of --tfds_data_dir, or TFDS's own default."""
  folder = seqio.utils._TFDS_DATA_DIR_OVERRIDE
  return pathlib.Path(folder or tfds.core.constants.DATA_DIR).expanduser()


def read_mmlu(folder, split: str) -> list[dict]:
  """Returns MMLU's questions, of its own release or of JSON lines.

  Args:
    folder: holds dev/, val/ and test/ with SUBJECT_SPLIT.csv, as the authors'
      archive does, or SPLIT.jsonl.gz with question, choices and targets.
    split: dev, val or test.

  Returns:
    dicts of question, choices (four strings) and answer (a letter).
  """
  folder = pathlib.Path(folder)
  tables = sorted((folder / split).glob("*.csv"))
  lines = folder / f"{split}.jsonl.gz"
  fields = ("question", "choices", "answer")
  if tables:
    texts = (path.read_text(encoding="utf-8") for path in tables)
    rows = [r for text in texts for r in csv.reader(text.splitlines(True))]
    return [dict(zip(fields, (row[0], row[1:5], row[5]))) for row in rows]
  if lines.is_file():
    stored = ("question", "choices", "targets")
    rows = map(json.loads, text_files.read_lines(lines))
    return [dict(zip(fields, (row[key] for key in stored))) for row in rows]
  raise FileNotFoundError(
    f"no MMLU in {folder}: TFDS does not have it; unpack the authors' data.tar "
    f"(github.com/hendrycks/test) so that {folder / split} holds its CSV files"
  )


def _mmlu_dataset(split, shuffle_files=False, seed=None):
  del shuffle_files, seed
  folder = tfds_data_dir() / "downloads" / "manual" / "mmlu"
  names = {"validation": "val"}
  questions = read_mmlu(folder, names.get(split, split))
  return tf.data.Dataset.from_tensor_slices(
    {
      key: [question[key] for question in questions]
      for key in ("question", "choices", "answer")
    }
  )


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
    register(
      name,
      seqio.TfdsDataSource(tfds_name=tfds_name),
      [
        functools.partial(
          _fields, prefix=prefix, inputs=inputs, targets=targets
        )
      ],
      ["bleu_intl", "chrf"] if is_translation else ["rouge"],
    )
  gsm8k = seqio.TfdsDataSource(tfds_name="gsm8k:1.0.0")
  register("gsm8k_cot", gsm8k, [_gsm8k], ["gsm8k"])
  mmlu = seqio.FunctionDataSource(
    _mmlu_dataset, splits=("dev", "validation", "test")
  )
  register("mmlu_cot", mmlu, [_mmlu], ["mmlu"])


_register_papers_tasks()
generated_task.register()
