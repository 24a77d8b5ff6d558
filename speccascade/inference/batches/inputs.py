"""The examples that a run decodes: texts, their tokens and their references.

Examples come from a seqio task, from a file (`Inputs.read`), or from a program
(`of_texts`).
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import os
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from speccascade.checkpoints import CheckpointError, restore
from speccascade.data import chat, text_files
from speccascade.data.prompting import FORMATS, Prompting, identity
from speccascade.evaluation import quality
from speccascade.settings import fields


@dataclasses.dataclass(frozen=True)
class Source:
  """One example.

  Attributes:
    index: the place of the example in the data set, counted from 0. The
      example's random keys are made from it.
    text: the text before tokenizing. The text of a conversation is the form in
      which records show it.
    tokens: [S] int32 ids without padding. The ids of a source end with EOS.
    references: the right outputs; empty where none is known.
    messages: the messages of a conversation; () for a text.
  """

  index: int
  text: str
  tokens: np.ndarray
  references: tuple[str, ...] = ()
  messages: Sequence[Mapping] = ()


def longest(examples: Sequence[Source]) -> int:
  """Returns the number of tokens of the longest example."""
  return max(len(example.tokens) for example in examples)


@dataclasses.dataclass(frozen=True)
class Sources:
  """Examples, and the facts about them that rows record.

  Attributes:
    examples: the examples, in the order of the data set.
    vocabulary: the vocabulary of the tokens, an object with
      `encode(text) -> ids`, `decode(ids) -> text`, `eos_id` and `vocab_size`.
    max_len: the most tokens that an example may have, EOS counted. The lengths
      that batches are padded to are shares of it.
    task: the name of the task or of the input file, for rows.
    split: the split of the task, for rows.
    num_cut: the number of examples that were cut to `max_len`.
    metrics: the names in `quality.METRICS` that score the task.
    prompted: whether the examples are prompts, which a decoder-only model
      continues, and not sources.
  """

  examples: Sequence[Source]
  vocabulary: object
  max_len: int
  task: str = ""
  split: str = ""
  num_cut: int = 0
  metrics: tuple[str, ...] = ("bleu",)
  prompted: bool = False

  def fit_padding(self) -> "Sources":
    """Returns the same examples with `max_len` lowered to the longest one.

    Batches are then padded no further than the examples need.
    """
    return dataclasses.replace(self, max_len=longest(self.examples))

  @functools.cached_property
  def fingerprint(self) -> str:
    """The sha256 of all tokens and references, in hexadecimal digits."""
    digest = hashlib.sha256()
    for example in self.examples:
      # The zero byte ends the tokens, so that none counts as a reference.
      digest.update(example.tokens.tobytes() + b"\0")
      digest.update(json.dumps(example.references).encode())
    return digest.hexdigest()

  @property
  def vocabulary_sha256(self) -> str | None:
    """The sha256 of the vocabulary's file, or None if it has no file."""
    return (identity(self.vocabulary) or {}).get("sha256")


class InputError(ValueError):
  """An example cannot be decoded, or there is no example."""


def check_vocabulary_path(value):
  """Raises ValueError unless a value is the path of a vocabulary, or None."""
  path = os.fspath(value) if isinstance(value, fields.Path) else ""
  if value is not None and not (path.strip() and fields.is_text(path)):
    raise ValueError(
      "wanted the path of a SentencePiece model or of a Hugging Face"
      f" directory, or None, not {value!r:.60}"
    )


def _check_vocabulary(value):
  """Raises ValueError unless a value is a vocabulary, its path, or None."""
  if isinstance(value, fields.Path) or not hasattr(value, "encode"):
    check_vocabulary_path(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSource:
  """A task's split, or a file of texts.

  The fields are checked when the object is made.

  Attributes:
    vocabulary: the path of a SentencePiece model or of a Hugging Face
      directory, or an object as in `Sources`. None takes the vocabulary that
      lies beside the models, or else the task's.
    mixture_or_task_name: the name of a registered seqio task. None where
      `input_file` names a file.
    split: the split of the task.
    input_file: a file with one text a line, or a JSONL file; see
      `text_files.read_texts`. None where a task is named.
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
      from speccascade.data import vocabularies  # loads TensorFlow

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
    truncate: whether a text of a file that is too long is cut. It is refused
      otherwise.
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
    raw_examples = [
      _RawExample(
        name=f"{self.input_file} line {example.line}",
        text=example.inputs,
        references=example.references,
      )
      for example in self.texts(chats=True)
    ]
    prompting = Prompting(vocabulary, self.prompt, self.chat_variables)
    task = str(self.input_file)
    return _encode(raw_examples, prompting, self._length_limit, task=task)

  @property
  def _length_limit(self) -> "_LengthLimit":
    return _LengthLimit(self.max_len, "TASK_FEATURE_LENGTHS", self.truncate)

  def _read_task(self, vocabulary) -> Sources:
    """Returns the examples of the seqio task.

    Args:
      vocabulary: replaces the task's vocabulary; None keeps it.
    """
    from speccascade.data import reading, tasks  # they load TensorFlow

    name = self.mixture_or_task_name
    task = tasks.get(name, vocabulary)
    vocabulary = task.output_features["inputs"].vocabulary
    prompting = Prompting(vocabulary, self.prompt, self.chat_variables)
    dataset = reading.open_split(
      task, self.split, None, use_cached=self.use_cached
    )
    if self.num_examples is not None:
      dataset = dataset.take(self.num_examples)
    features = reading.guard(dataset.as_numpy_iterator(), task)
    raw_examples = [
      _task_example(f"{name} {index}", example, task)
      for index, example in enumerate(features)
    ]
    if not raw_examples:
      raise InputError(f"{name} has no examples in split {self.split!r}")
    names = [metric.__name__ for metric in getattr(task, "metric_fns", ())]
    metrics = tuple(name for name in names if name in quality.METRICS)
    return _encode(
      raw_examples,
      prompting,
      self._length_limit,
      task=name,
      split=self.split,
      metrics=metrics or ("bleu",),
    )


class _RawExample(NamedTuple):
  """An example before it is tokenized.

  Attributes:
    name: the name of the example in messages.
    text: a text, or the messages of a conversation.
    references: the right outputs; empty where none is known.
    tokens: the ids of a source, EOS among them, where a task made them. None
      where the text is still to be tokenized.
  """

  name: str
  text: str | Sequence[Mapping]
  references: Sequence[str] = ()
  tokens: np.ndarray | None = None


class _LengthLimit(NamedTuple):
  """The arguments of `Prompting.tokens` that limit the length of an example.

  Attributes:
    max_len: the most tokens of an example, EOS counted.
    setting: the name of the setting that gives `max_len`, for messages.
    truncate: whether a longer text is cut. It is refused otherwise.
  """

  max_len: int
  setting: str
  truncate: bool


def _task_example(name: str, features: Mapping, task) -> _RawExample:
  """Returns one example of a seqio task.

  Args:
    name: the name of the example in messages.
    features: the features of the example, as NumPy values.
    task: the seqio task.
  """
  tokens = features["inputs"]
  if "inputs_pretokenized" in features:
    text = _text(features["inputs_pretokenized"])
  else:
    vocabulary = task.output_features["inputs"].vocabulary
    text = vocabulary.decode(tokens.tolist())
  references = [_text(each) for each in _task_references(features, task)]
  return _RawExample(name, text, references, tokens)


def _task_references(features: Mapping, task) -> Sequence:
  """Returns the right outputs of a task's example: postprocessed targets."""
  if "targets_pretokenized" not in features:
    return []
  targets = _text(features["targets_pretokenized"])
  if hasattr(task, "postprocess_fn"):
    targets = task.postprocess_fn(targets, example=features, is_target=True)
  return targets if isinstance(targets, list | tuple) else [targets]


def _text(value) -> str:
  """Returns a text that TensorFlow may hold as UTF-8 bytes."""
  return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _encode(
  raw_examples: Iterable[_RawExample],
  prompting: Prompting,
  limit: _LengthLimit,
  **facts,
) -> Sources:
  """Returns the tokenized examples, numbered from 0.

  Args:
    raw_examples: the examples.
    prompting: makes the tokens of all examples that have none.
    limit: the most tokens of an example.
    **facts: further fields of `Sources`.

  Raises:
    InputError: an example cannot be decoded, or is too long.
  """
  examples, num_cut = [], 0
  for index, (name, text, references, tokens) in enumerate(raw_examples):
    # The tokens of a task are a source: a prompt is made of the text anew.
    if tokens is None or prompting.prompted:
      try:
        tokens, is_cut = prompting.tokens(text, *limit)
      except ValueError as error:
        raise InputError(f"{name} {error}") from error
    else:
      # T5X cuts a task's source without asking; EOS still ends it.
      is_cut = len(tokens) > limit.max_len
      if is_cut:
        tokens = np.append(tokens[: limit.max_len - 1], tokens[-1])
    num_cut += is_cut
    examples.append(
      Source(
        index=index,
        text=chat.format_messages(text),
        tokens=np.asarray(tokens, np.int32),
        references=tuple(references),
        messages=() if isinstance(text, str) else text,
      )
    )
  return Sources(
    examples,
    prompting.vocabulary,
    limit.max_len,
    num_cut=num_cut,
    prompted=prompting.prompted,
    **facts,
  )


def of_texts(
  texts: str | Sequence, prompting: Prompting, *, max_len: int, truncate: bool
) -> Sources:
  """Returns the examples of texts that a program holds in memory.

  Args:
    texts: a text, or a list of texts. A conversation, which is a list of
      messages, may stand in the place of a text.
    prompting: the `Prompting` that makes the tokens.
    max_len: the most tokens of an example, EOS counted.
    truncate: whether a longer text is cut. It is refused otherwise.

  Raises:
    InputError: there is no text, an item is no text, or a text is too long.
  """
  texts = [texts] if isinstance(texts, str) else texts
  if isinstance(texts, bytes) or not hasattr(texts, "__iter__"):
    raise InputError(
      f"texts is of type {type(texts).__name__}; wanted a text, or several"
    )
  texts = list(texts)
  # A list of messages is one conversation, and not several texts.
  if texts and isinstance(texts[0], Mapping):
    texts = [texts]
  for index, text in enumerate(texts):
    if not isinstance(text, list | tuple):
      _check_text(index, text)
  if not texts:
    raise InputError("there are no texts; give one or more")
  raw_examples = [
    _RawExample(f"text {index}", text) for index, text in enumerate(texts)
  ]
  limit = _LengthLimit(max_len, "max_input_len", truncate)
  return _encode(raw_examples, prompting, limit)


def _check_text(index: int, text):
  """Raises InputError unless an item is a text that UTF-8 can hold."""
  try:
    text.encode("utf-8")
  except AttributeError as error:
    kind = type(text).__name__
    raise InputError(f"text {index} is of type {kind}; wanted str") from error
  except UnicodeEncodeError as error:
    raise InputError(
      f"text {index} has half a surrogate pair at {error.start}, which UTF-8"
      " cannot hold; decode its source as UTF-16 or remove it"
    ) from error


def vocabulary_path_of(checkpoint: str | os.PathLike | None) -> str | None:
  """Returns the directory beside a checkpoint that holds its vocabulary.

  Args:
    checkpoint: the path of a checkpoint, or None.

  Returns:
    The checkpoint's Hugging Face directory, or the MODEL_DIR of its training
    run. None where neither holds a vocabulary.
  """
  try:
    directory = restore.vocabulary_directory(checkpoint or "")
    return str(directory) if directory else None
  except CheckpointError:
    return None  # Reading the checkpoint will raise it with a message.
