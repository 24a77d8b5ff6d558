"""Registers the seqio tasks: the papers', the built-in task, and text files.

Importing this module registers the papers' tasks, which read TFDS, and
`speccascade_en_de`. Each task has the features `inputs` and `targets`, and
`references` if there are several right answers. A task reads its data when it
is used.
"""

from collections.abc import Callable, Sequence
import dataclasses
import difflib
import functools
import itertools
import json
import os
import pathlib
from typing import Annotated

import tensorflow_datasets as tfds

from speccascade.settings import fields
from speccascade.tasks import preprocess, quality, seqio_vocabularies
from speccascade.tasks._tf import seqio, tf
from speccascade.tasks.generated import SPLITS
import speccascade.tasks.generated.task
from speccascade.tasks.mmlu import MMLU, read_mmlu
from speccascade.tasks.registry import register
from speccascade.tasks.seqio_vocabularies import Vocabulary
from speccascade.text import text_files
from speccascade.text.sentence_pieces import T5_MODEL

# TASK_FEATURE_LENGTHS of the papers, as far as they are known (docs/tasks.md).
LENGTHS = {
  "wmt_t2t_ende_v003": {"inputs": 80, "targets": 80},
  "cnn_dailymail_v002": {"inputs": 1024, "targets": 128},
  "xsum": {"inputs": 1024, "targets": 64},
  "gsm8k_cot": {"inputs": 256, "targets": 256},
  "mmlu_cot": {"inputs": 768, "targets": 200},
}


def get(name: str, vocabulary: Vocabulary | None = None):
  """Returns a registered task or mixture, perhaps with another vocabulary.

  Args:
    name: name of the task or mixture in seqio's registries.
    vocabulary: replaces the vocabulary of `inputs` and `targets`; None leaves
      the task's own.

  A task that has targets alone, such as one for language models, gets the
  empty text as its inputs.

  Raises:
    ValueError: there is no such task; the message has names that are near.
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
    return with_inputs(provider)
  vocabulary = seqio_vocabularies.of(vocabulary)
  if isinstance(provider, seqio.Mixture):
    rates = map(provider.get_rate, provider.tasks)
    tasks = [_with_vocabulary(task, vocabulary) for task in provider.tasks]
    return seqio.Mixture(name, list(zip(tasks, rates)))
  return _with_vocabulary(provider, vocabulary)


def _with_vocabulary(task, vocabulary):
  """Returns a task with another vocabulary of `inputs` and `targets`."""
  features = dict(task.output_features)
  for name in ("inputs", "targets"):
    if name in features:
      feature = features[name]
      features[name] = dataclasses.replace(feature, vocabulary=vocabulary)
  return with_inputs(task.replace(output_features=features))


def with_inputs(task):
  """Returns a task whose examples have inputs: the empty text if they had none.

  Args:
    task: a seqio Task; a Mixture is returned as it is.
  """
  if isinstance(task, seqio.Mixture) or "inputs" in task.output_features:
    return task
  feature = dataclasses.replace(task.output_features["targets"], add_eos=True)

  def add_inputs(dataset):
    eos_id = tf.constant([feature.vocabulary.eos_id], feature.dtype)

    def add(example):
      # Like other features, the ids have no static length.
      ids = tf.compat.v1.placeholder_with_default(eos_id, [None])
      text = tf.constant("")
      return {**example, "inputs": ids, "inputs_pretokenized": text}

    return dataset.map(add)

  return task.replace(
    preprocessors=[*task.preprocessors, add_inputs],
    output_features={**task.output_features, "inputs": feature},
  )


@fields.checked
@dataclasses.dataclass(frozen=True)
class TextSplits:
  """The text files of a task.

  The files of a split are given as `text_files.read` takes them: a JSONL path,
  a list of line files, or a prefix NAME for NAME.en and NAME.de.

  Attributes:
    train: files of the training split, or None if there is no such split.
    validation: files of the validation split, or None.
    test: files of the test split, or None.
    languages: the two suffixes of a prefix NAME, the inputs' first.
  """

  train: text_files.Files | None = None
  validation: text_files.Files | None = None
  test: text_files.Files | None = None
  languages: tuple[str, str] = ("en", "de")

  @property
  def files(self) -> dict[str, text_files.Files]:
    """The files of each split that exists, by the split's name."""
    splits = {name: getattr(self, name) for name in SPLITS}
    return {name: files for name, files in splits.items() if files is not None}


class TextFileSource(seqio.FunctionDataSource):
  """A source of seqio over text files; a split is read when it is first used.

  Args:
    splits: the files of the splits.
  """

  def __init__(self, splits: TextSplits):
    self._files, self._languages = splits.files, splits.languages
    read_split = functools.cache(self._read_split)

    def open_split(split, shuffle_files=False, seed=None):
      # Nothing is shuffled here: batches of training are drawn by index.
      del shuffle_files, seed
      return read_split(split)

    super().__init__(open_split, splits=tuple(self._files))

  def _read_split(self, split: str) -> tf.data.Dataset:
    """Returns the examples of a split as a dataset."""
    examples = text_files.read(self._files[split], self._languages)
    references = [example.references for example in examples]
    columns = {
      "inputs": [example.inputs for example in examples],
      "targets": [answers[0] for answers in references],
      "references": tf.RaggedTensor.from_row_lengths(
        list(itertools.chain(*references)), list(map(len, references))
      ),
    }
    return tf.data.Dataset.from_tensor_slices(columns)

  def stamp(self, split: str) -> list[tuple]:
    """Returns (path, bytes, time of change) of each file of a split."""
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
  """Registers a task over text files, and returns its name, for gin.

  In a gin file: `MIXTURE_OR_TASK_NAME = @tasks.register_text_task()`. A second
  call with the same arguments changes nothing.

  Args:
    name: the task's name.
    splits: the files of the splits.
    prefix: text that is put before every input.
    vocabulary: path of a SentencePiece model, or "bytes"; None takes T5's.
    extra_ids: how many sentinels the vocabulary has; see `vocabularies.load`.
    metrics: names in `quality.METRICS`.
    edit: a function from the (inputs, target) of the files to the (inputs,
      target) of the task, such as `preprocess.gsm8k`. It is called for every
      reference.

  Raises:
    ValueError: there is no split, a metric is unknown, or another task has this
      name.
  """
  vocabulary = T5_MODEL if vocabulary is None else os.fspath(vocabulary)
  if not splits.files:
    fault = f" is None, as all splits of task {name!r} are; give files"
    raise fields.SettingError("train", fault, TextSplits)
  settings = {
    "files": json.dumps(splits.files, sort_keys=True),
    "languages": splits.languages,
    "prefix": prefix,
    "vocabulary": vocabulary,
    "extra_ids": extra_ids,
    "metrics": tuple(metrics),
    "edit": edit and f"{edit.__module__}.{edit.__qualname__}",
  }
  to_text = [functools.partial(_add_prefix, prefix=prefix)]
  if edit:
    to_text.insert(0, functools.partial(_edit, edit=edit))
  return register(
    name,
    TextFileSource(splits),
    to_text,
    metrics,
    seqio_vocabularies.named(vocabulary, extra_ids),
    settings=settings,
  )


@seqio.map_over_dataset
def _add_prefix(example, prefix, inputs="inputs", targets="targets"):
  """Returns an example with a prefix before its inputs."""
  text = tf.strings.join([prefix, example[inputs]])
  result = {"inputs": text, "targets": example[targets]}
  if "references" in example:
    result["references"] = example["references"]
  return result


@seqio.map_over_dataset
def _edit(example, edit):
  """Returns an example whose inputs and references a function has edited."""

  def to_text(source, references):
    pairs = [edit(source.decode(), text.decode()) for text in references]
    return pairs[0][0], [target for _, target in pairs]

  source, references = _call(to_text, example, "inputs", "references")
  references = tf.ensure_shape(references, [None])
  return {
    "inputs": tf.ensure_shape(source, []),
    "targets": references[0],
    "references": references,
  }


@seqio.map_over_dataset
def _make_prompt(example, fields, to_text):
  """Returns the example that a function makes from some fields."""
  inputs, targets = _call(to_text, example, *fields)
  return {
    "inputs": tf.ensure_shape(inputs, []),
    "targets": tf.ensure_shape(targets, []),
  }


def _gsm8k(question: bytes, answer: bytes):
  """Returns (inputs, targets) of a GSM8K example, from bytes."""
  return preprocess.gsm8k(question.decode(), answer.decode())


def _mmlu(question: bytes, choices, answer: bytes):
  """Returns (inputs, targets) of an MMLU question, from bytes."""
  choices = [choice.decode() for choice in choices]
  return preprocess.mmlu_prompt(question.decode(), choices), answer


def _call(function, example, *names):
  """Returns the two results of a Python function of some features' bytes."""
  fields = [example[name] for name in names]
  return tf.numpy_function(function, fields, [tf.string] * 2)


def tfds_data_dir() -> pathlib.Path:
  """Returns the folder of --tfds_data_dir, or TFDS's own default."""
  # seqio has a function to set this folder, and none to read it.
  folder = seqio.utils._TFDS_DATA_DIR_OVERRIDE
  return pathlib.Path(folder or tfds.core.constants.DATA_DIR).expanduser()


def _mmlu_dataset(split, shuffle_files=False, seed=None):
  """Returns a split of MMLU as a dataset, for a source of seqio."""
  del shuffle_files, seed
  folder = tfds_data_dir() / "downloads" / "manual" / "mmlu"
  questions = read_mmlu(folder, {"validation": "val"}.get(split, split))
  columns = {key: [question[key] for question in questions] for key in MMLU}
  return tf.data.Dataset.from_tensor_slices(columns)


def _register_papers_tasks():
  """Registers the tasks of the papers."""
  translate = functools.partial(
    _add_prefix, prefix=preprocess.TRANSLATE, inputs="en", targets="de"
  )
  register(
    # T5 has a task of this name, and tokenizes as "intl" for BLEU.
    "wmt_t2t_ende_v003",
    seqio.TfdsDataSource(tfds_name="wmt_t2t_translate/de-en:1.0.0"),
    [translate],
    ["bleu_intl", "chrf"],
  )
  summarize = functools.partial(_add_prefix, prefix=preprocess.SUMMARIZE)
  register(
    # T5's task reads version 3.1.0, which TFDS no longer builds. Since then
    # only a blank before a full stop was removed, and unused fields were added.
    "cnn_dailymail_v002",
    seqio.TfdsDataSource(tfds_name="cnn_dailymail:3.4.0"),
    [functools.partial(summarize, inputs="article", targets="highlights")],
    ["rouge"],
  )
  register(
    "xsum",
    seqio.TfdsDataSource(tfds_name="xsum:1.1.0"),
    [functools.partial(summarize, inputs="document", targets="summary")],
    ["rouge"],
  )
  register(
    "gsm8k_cot",
    seqio.TfdsDataSource(tfds_name="gsm8k:1.0.0"),
    [
      functools.partial(
        _make_prompt, fields=("question", "answer"), to_text=_gsm8k
      )
    ],
    ["gsm8k"],
  )
  register(
    "mmlu_cot",
    seqio.FunctionDataSource(
      _mmlu_dataset, splits=("dev", "validation", "test")
    ),
    [functools.partial(_make_prompt, fields=MMLU, to_text=_mmlu)],
    ["mmlu"],
  )


_register_papers_tasks()
speccascade.tasks.generated.task.register()
