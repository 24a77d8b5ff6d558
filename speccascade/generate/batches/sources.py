"""The examples that a run decodes: texts, their tokens and their references.

`sources_of_texts` takes the texts of a program; `inputs.Inputs` reads a seqio
task or a file.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import numbers
import types
from typing import Any, NamedTuple

import numpy as np

from speccascade.text import chat
from speccascade.text.prompting import Prompting, identity


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
    question: the fields `text_files.QUESTION` of a benchmark's question; empty
      for other examples.
    stop: the strings and ids that end this example's output, in addition to the
      decode's own.
  """

  index: int
  text: str
  tokens: np.ndarray
  references: tuple[str, ...] = ()
  messages: Sequence[Mapping] = ()
  question: Mapping = dataclasses.field(default_factory=dict)
  stop: tuple[str | int, ...] = ()


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
    num_cut: the number of examples that were truncated to `max_len`.
    metrics: the names in `quality.METRICS` that score the task.
    task_scores: the postprocessor and the further metrics of a seqio task, a
      `task_scores.TaskScores`; None for texts of a file or of a program.
    prompted: whether the examples are prompts, which a decoder-only model
      continues, and not sources.
    prompting: what made the tokens of the examples, and makes those of further
      turns; None where nothing is said after an output.
  """

  examples: Sequence[Source]
  vocabulary: object
  max_len: int
  task: str = ""
  split: str = ""
  num_cut: int = 0
  metrics: tuple[str, ...] = ("bleu",)
  task_scores: Any = None
  prompted: bool = False
  prompting: Prompting | None = None

  def fit_padding(self) -> "Sources":
    """Returns the same examples with `max_len` lowered to the longest one.

    Batches are then padded no further than the examples need.
    """
    return dataclasses.replace(self, max_len=longest(self.examples))

  def describe_unknown(self) -> str:
    """Returns a line on what the vocabulary cannot spell, or ""."""
    unknown = getattr(self.vocabulary, "unk_id", None)
    # Some tokenizers have no unknown token, and name another one instead.
    others = (getattr(self.vocabulary, name, None) for name in _MARKS)
    if unknown is None or unknown in others:
      return ""
    counts = [np.sum(example.tokens == unknown) for example in self.examples]
    if not (num := int(sum(counts))):
      return ""
    total = sum(len(example.tokens) for example in self.examples)
    places = np.flatnonzero(counts)
    return (
      f"the vocabulary cannot spell all of {len(places)} of {len(counts)}"
      f" texts, the first {self.examples[places[0]].text!r:.60}:"
      f" {num} of {total} tokens ({num / total:.1%}) are unknown"
    )

  def repeated(self, num: int) -> "Sources":
    """Returns each example so many times, one after the other."""
    if num == 1:
      return self
    examples = [
      dataclasses.replace(example, index=num * place + copy)
      for place, example in enumerate(self.examples)
      for copy in range(num)
    ]
    return dataclasses.replace(self, examples=examples)

  def with_references(self, references: Sequence[tuple[str, ...]]) -> "Sources":
    """Returns the same examples with the right outputs of each."""
    examples = [
      dataclasses.replace(example, references=right)
      for example, right in zip(self.examples, references, strict=True)
    ]
    return dataclasses.replace(self, examples=examples)

  @functools.cached_property
  def fingerprint(self) -> str:
    """The sha256 of all tokens, references, questions and stops, as hex."""
    digest = hashlib.sha256()
    for example in self.examples:
      # The zero byte ends the tokens, so that none counts as a reference.
      digest.update(example.tokens.tobytes() + b"\0")
      digest.update(json.dumps(example.references).encode())
      if example.question:
        digest.update(json.dumps(example.question).encode())
      if example.stop:
        digest.update(json.dumps({"stop": example.stop}).encode())
    return digest.hexdigest()

  @property
  def vocabulary_sha256(self) -> str | None:
    """The sha256 of the vocabulary's file, or None if it has no file."""
    return (identity(self.vocabulary) or {}).get("sha256")


_MARKS = ("bos_id", "eos_id", "pad_id")


class InputError(ValueError):
  """An example cannot be decoded, or there is no example."""


class RawExample(NamedTuple):
  """An example before it is tokenized.

  Attributes:
    name: the name of the example in messages.
    text: a text, or the messages of a conversation.
    references: the right outputs; empty where none is known.
    tokens: the ids of a source, EOS among them, where a task made them, or the
      ids that a program gave. None where the text is still to be tokenized.
    question: as in `Source`.
    stop: as in `Source`.
  """

  name: str
  text: str | Sequence[Mapping]
  references: Sequence[str] = ()
  tokens: np.ndarray | None = None
  question: Mapping = types.MappingProxyType({})
  stop: tuple[str | int, ...] = ()
  is_read_as_is: bool = False  # whether the tokens are all that is read


def encode(
  raw_examples: Iterable[RawExample],
  prompting: Prompting,
  *,
  max_len: int,
  setting: str,
  truncate: bool,
  **facts,
) -> Sources:
  """Returns the tokenized examples, numbered from 0.

  Args:
    raw_examples: the examples.
    prompting: makes the tokens of all examples that have none.
    max_len: the most tokens of an example, EOS counted.
    setting: the name of the setting that gives `max_len`, for messages.
    truncate: whether a longer text is truncated. It is refused otherwise.
    **facts: further fields of `Sources`.

  Raises:
    InputError: an example cannot be decoded, or is too long.
  """
  examples, num_cut = [], 0
  for index, raw_example in enumerate(raw_examples):
    name, text, references, tokens, question, stop, as_is = raw_example
    # The tokens of a task are a source with EOS. Others are made from the text.
    if as_is:
      if is_cut := len(tokens) > max_len:
        raise InputError(
          f"{name} has {len(tokens)} ids, {setting} allows {max_len}: raise it,"
          " or give fewer"
        )
    elif tokens is None or prompting.format != "source":
      try:
        tokens, is_cut = prompting.tokens(text, max_len, setting, truncate)
      except ValueError as error:
        raise InputError(f"{name} {error}") from error
    else:
      # A task knows nothing of the ids that a tokenizer puts before a source.
      prefix = getattr(prompting.vocabulary, "source_prefix", ())
      tokens = np.append(np.asarray(prefix, np.int32), tokens)
      # T5X truncates a task's source without asking; EOS still ends it.
      is_cut = len(tokens) > max_len
      if is_cut:
        tokens = np.append(tokens[: max_len - 1], tokens[-1])
    if not prompting.prompted and 0 in tokens:
      raise InputError(
        f"{name} has a token with the id 0, which is padding here; where it"
        " stands for text that the vocabulary cannot spell, remove that text"
      )
    num_cut += is_cut
    examples.append(
      Source(
        index=index,
        text=chat.format_messages(text),
        tokens=np.asarray(tokens, np.int32),
        references=tuple(references),
        messages=() if isinstance(text, str) else text,
        question=dict(question),
        stop=tuple(stop),
      )
    )
  vocabulary = prompting.vocabulary
  if prompting.format == "text" and hasattr(vocabulary, "continuing"):
    vocabulary = vocabulary.continuing()
  return Sources(
    examples,
    vocabulary,
    max_len,
    num_cut=num_cut,
    prompted=prompting.prompted,
    prompting=prompting,
    **facts,
  )


def split_references(examples: Any) -> tuple[list, list[tuple[str, ...]]]:
  """Returns the texts of examples, and the references of each.

  Args:
    examples: (text, reference) of each; a reference is a text, or several.

  Raises:
    InputError: there is no example, or one is not such a pair.
  """
  wanted = "wanted (text, reference), where a reference is a text or a list"
  if isinstance(examples, str | Mapping) or not hasattr(examples, "__iter__"):
    kind = type(examples).__name__
    raise InputError(f"examples is of type {kind}; wanted a list, {wanted[7:]}")
  texts, references = [], []
  for index, each in enumerate(examples):
    is_pair = isinstance(each, list | tuple) and len(each) == 2
    right = (each[1],) if is_pair and isinstance(each[1], str) else ()
    if is_pair and isinstance(each[1], list | tuple):
      right = tuple(each[1])
    if not right or not all(isinstance(text, str) for text in right):
      raise InputError(f"example {index} is {each!r:.60}; {wanted}")
    texts.append(each[0])
    references.append(right)
  if not texts:
    raise InputError("there are no examples; give one or more")
  return texts, references


def sources_of_texts(
  texts: str | Sequence, prompting: Prompting, *, max_len: int, truncate: bool
) -> Sources:
  """Returns the examples of texts that a program holds in memory.

  Args:
    texts: a text, or a list of texts. A conversation, which is a list of
      messages, may replace a text; so may a row of ids, which is read as it
      is.
    prompting: the `Prompting` that makes the tokens.
    max_len: the most tokens of an example, EOS counted.
    truncate: whether a longer text is truncated. It is refused otherwise.

  Raises:
    InputError: there is no text, an item is not a string, or one is too long.
  """
  texts = [texts] if isinstance(texts, str) else texts
  # A set has no order, and a text's random numbers go by its place. A message
  # is not a list of strings: a conversation is a list of messages.
  no_list = isinstance(texts, bytes | Mapping | set | frozenset)
  if no_list or not hasattr(texts, "__iter__"):
    raise InputError(
      f"texts is of type {type(texts).__name__}; wanted a string, or a list"
      " of strings or of messages"
    )
  texts = list(texts)
  # A list of messages is one conversation, and not several texts.
  if texts and isinstance(texts[0], Mapping):
    texts = [texts]
  if texts and all(isinstance(text, numbers.Integral) for text in texts):
    texts = [texts]  # the ids of one text
  raw_examples = []
  for index, text in enumerate(texts):
    name, ids = f"text {index}", _ids(text)
    if ids is not None:
      size = prompting.vocabulary.vocab_size
      if outside := [each for each in ids if not 0 <= each < size]:
        raise InputError(
          f"{name} has the id {outside[0]}; the vocabulary has ids from 0 to"
          f" {size - 1}"
        )
      shown = prompting.vocabulary.decode(ids)
      tokens = np.asarray(ids, np.int32)
      raw_examples.append(
        RawExample(name, shown, tokens=tokens, is_read_as_is=True)
      )
      continue
    if not isinstance(text, list | tuple):
      _check_text(index, text)
    raw_examples.append(RawExample(name, text))
  if not texts:
    raise InputError("there are no texts; give one or more")
  return encode(
    raw_examples,
    prompting,
    max_len=max_len,
    setting="max_input_len",
    truncate=truncate,
  )


def _ids(text: Any) -> list[int] | None:
  """Returns the ids that an item is, if it is a row of whole numbers."""
  if isinstance(text, str) or not isinstance(text, Sequence | np.ndarray):
    return None
  if not len(text) or np.ndim(text[0]):
    return None
  is_id = lambda x: isinstance(x, numbers.Integral) and not isinstance(x, bool)
  return [int(x) for x in text] if all(map(is_id, text)) else None


def _check_text(index: int, text):
  """Raises InputError unless an item is a string that UTF-8 can hold."""
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
