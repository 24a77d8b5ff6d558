"""The configuration of the examples of a run, read from a task or a file."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Annotated, Any, Literal

from absl import logging

from speccascade.checkpoints import hub
from speccascade.generate.batches.sources import (
  InputError,
  RawExample,
  Sources,
  encode,
)
from speccascade.settings import fields
from speccascade.tasks.task_scores import TaskMetrics, TaskScores
from speccascade.text import text_files, vocabulary_paths
from speccascade.text.prompting import FORMATS, Prompting


def _check_vocabulary(value):
  """Raises ValueError unless a value is a vocabulary, its path, or None."""
  if isinstance(value, fields.Path) or not hasattr(value, "encode"):
    vocabulary_paths.check_vocabulary_path(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSource:
  """A task's split, or a file of texts.

  The fields are checked when the object is made.

  Attributes:
    vocabulary: the path of a SentencePiece model or of a Hugging Face
      directory, or an object as in `sources.Sources`. None takes the
      vocabulary that lies beside the models, or else the task's.
    mixture_or_task_name: the name of a registered seqio task. None where
      `input_file` names a file.
    split: the split of the task.
    input_file: a file with one text a line, or a file of JSON lines or
      Parquet; see `text_files.read_texts`. None where a task is named.
    num_examples: how many of the first examples are read; None reads all.
    use_cached: whether to read the task's cached examples.

  Raises:
    InputError: neither a task nor a file is named, or both are.
  """

  vocabulary: Annotated[object, _check_vocabulary] = None
  mixture_or_task_name: str | None = None
  split: str = "validation"
  input_file: fields.Path | None = None
  num_examples: fields.Positive | None = None
  use_cached: bool = False

  def __post_init__(self):
    if bool(self.mixture_or_task_name) == bool(self.input_file):
      raise InputError(
        "give MIXTURE_OR_TASK_NAME or INPUT_FILE, one of them and not both; got"
        f" {self.mixture_or_task_name!r} and {str(self.input_file or '')!r}"
      )

  def load_vocabulary(self, default_path: str | None = None):
    """Returns the vocabulary, or None for the vocabulary of the task.

    Args:
      default_path: the path of the vocabulary that lies beside the models, or
        None. It is used where `vocabulary` is None.

    Raises:
      InputError: the examples come from a file, and no vocabulary is known.
    """
    vocabulary = default_path if self.vocabulary is None else self.vocabulary
    if isinstance(vocabulary, str | os.PathLike):
      from speccascade.text import vocabularies

      vocabulary = vocabularies.load(os.fspath(vocabulary))
    if self.input_file and vocabulary is None:
      raise InputError(
        "INPUT_FILE needs a VOCABULARY; neither a file nor these models bring"
        " one"
      )
    return vocabulary

  def texts(self, **options) -> list[text_files.TextExample]:
    """Returns the examples of the file.

    Args:
      **options: further arguments of `text_files.read_texts`.
    """
    return text_files.read_texts(
      self.input_file, self.num_examples, what="INPUT_FILE", **options
    )


@fields.checked
@dataclasses.dataclass(frozen=True)
class Inputs(TextSource):
  """The configuration of the examples that a run decodes.

  The fields are checked when the object is made.

  Attributes:
    task_feature_lengths: {"inputs": the most tokens of an example, EOS
      counted}.
    truncate: whether a text of a file that is too long is truncated. It is
      refused otherwise.
    prompt: the format of a model's input; see `Prompting.format`.
    chat_variables: the variables that the chat template reads besides the
      messages.
  """

  task_feature_lengths: Annotated[
    Mapping[str, fields.Size], fields.Keys(("inputs",))
  ]
  truncate: bool = False
  prompt: Literal[FORMATS] | None = None
  chat_variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def max_len(self) -> int:
    """The most tokens of an example, EOS counted."""
    return self.task_feature_lengths["inputs"]

  def read(self, default_path: str | None = None) -> Sources:
    """Reads the examples.

    Args:
      default_path: the path of the vocabulary that lies beside the models, or
        None; see `load_vocabulary`.

    Raises:
      FileNotFoundError: the file does not exist.
      ValueError: there are no examples, or an example cannot be decoded.
    """
    vocabulary = self.load_vocabulary(default_path)
    if not self.input_file:
      return self._read_task(vocabulary)
    examples = self.texts(chats=True)
    raw_examples = [
      RawExample(
        name=f"{self.input_file} line {example.line}",
        text=example.inputs,
        references=example.references,
        question=example.question,
        stop=example.stop,
      )
      for example in examples
    ]
    _warn_of_turns(examples)
    prompting = Prompting(vocabulary, self.prompt, self.chat_variables)
    task = hub.task_of(self.input_file)
    return self._encode(raw_examples, prompting, task=task)

  def _encode(self, raw_examples, prompting, **facts) -> Sources:
    sources = encode(
      raw_examples,
      prompting,
      max_len=self.max_len,
      setting="TASK_FEATURE_LENGTHS",
      truncate=self.truncate,
      **facts,
    )
    if line := sources.describe_unknown():
      logging.warning("%s", line)
    return sources

  def _read_task(self, vocabulary) -> Sources:
    """Returns the examples of the seqio task; None keeps its vocabulary."""
    from speccascade.tasks import reading, tasks  # they load TensorFlow

    name = self.mixture_or_task_name
    task = tasks.get(name, vocabulary)
    vocabulary = task.output_features["inputs"].vocabulary
    prompting = Prompting(vocabulary, self.prompt, self.chat_variables)
    dataset = reading.open_split(
      task, self.split, None, use_cached=self.use_cached
    )
    if self.num_examples is not None:
      dataset = dataset.take(self.num_examples)
    features = list(reading.guard(dataset.as_numpy_iterator(), task))
    if not features:
      raise InputError(f"{name} has no examples in split {self.split!r}")
    metrics = TaskMetrics.of(task)
    scores = TaskScores(
      name,
      metrics,
      task.postprocess_fn,
      features,
      [_target_of(example) for example in features],
    )
    raw_examples = [
      _task_example(f"{name} {index}", example, task, scores.references(index))
      for index, example in enumerate(features)
    ]
    return self._encode(
      raw_examples,
      prompting,
      task=name,
      split=self.split,
      metrics=metrics.names or (() if metrics.functions else ("bleu",)),
      task_scores=scores,
    )


def _warn_of_turns(examples: Sequence[text_files.TextExample]):
  """Warns where a question continues after the text that is decoded."""
  num = sum(
    isinstance(example.inputs, str) and len(example.question["turns"]) > 1
    for example in examples
    if "turns" in example.question
  )
  if num:
    logging.warning(
      "%d of %d questions have several turns: the first one is decoded, or all"
      " turns of chats with ONE_AT_A_TIME = True",
      num,
      len(examples),
    )


def _task_example(
  name: str, features: Mapping, task, references: Sequence[str]
) -> RawExample:
  """Returns the example of a seqio task that has NumPy `features`."""
  tokens = features["inputs"]
  if "inputs_pretokenized" in features:
    text = _text(features["inputs_pretokenized"])
  else:
    vocabulary = task.output_features["inputs"].vocabulary
    text = vocabulary.decode(tokens.tolist())
  return RawExample(name, text, references, tokens)


def _target_of(features: Mapping) -> str | None:
  """Returns the target of a task's example as text, None if it has none."""
  if "targets_pretokenized" not in features:
    return None
  return _text(features["targets_pretokenized"])


def _text(value) -> str:
  """Returns a string that TensorFlow may hold as UTF-8 bytes."""
  return value.decode("utf-8") if isinstance(value, bytes) else str(value)
