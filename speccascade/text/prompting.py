"""Turns texts and conversations into the tokens that a model reads.

An encoder-decoder reads a source. A decoder-only model reads a prompt, which it
continues. Training of a decoder-only model learns outputs after their prompts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from speccascade.checkpoints import hub
from speccascade.settings import fields
from speccascade.text import continuations, text_files
from speccascade.text.arrays import FEATURES, TokenArrays
from speccascade.text.chat import ChatError

FORMATS = ("source", "source_text", "source_chat", "text", "chat")


@dataclasses.dataclass(frozen=True)
class Prompting:
  """Turns texts and conversations into tokens.

  Attributes:
    vocabulary: a vocabulary, as in `sources.Sources`.
    format: a name in `FORMATS`. "source" puts EOS after a text, for encoders.
      "text" gives the tokens of a text, after BOS if the tokenizer has one, and
      without EOS. "chat" renders a text as a user's message by the chat
      template, up to where the assistant begins. "source_text" and
      "source_chat" make such tokens for an encoder, as T5Gemma's published
      models read them. None takes "source" for SentencePiece, the vocabulary of
      T5; "chat" for a tokenizer with a chat template, because its model was
      last trained on chats; and "text" for other tokenizers.
    variables: variables of the chat template; see `ChatTemplate.render`.

  Raises:
    ValueError: the format is unknown, or the vocabulary has no chat template.
  """

  vocabulary: object
  format: str | None = None
  variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    template = getattr(self.vocabulary, "chat_template", None)
    if self.format is None:
      chosen = "source"
      if getattr(self.vocabulary, "prompted", False):
        chosen = "chat" if template else "text"
      object.__setattr__(self, "format", chosen)
    fields.one_of(FORMATS, PROMPT=self.format)
    if self.is_chat and template is None:
      name = getattr(self.vocabulary, "path", "the vocabulary")
      other = self.format.replace("chat", "text")
      raise ValueError(
        f"PROMPT is {self.format!r}, and {name} has no chat template; set"
        f" PROMPT = {other!r}"
      )
    if self.variables and not self.is_chat:
      raise ValueError(
        f"CHAT_VARIABLES are of a chat template, and PROMPT is {self.format!r}"
      )

  @property
  def prompted(self) -> bool:
    """Whether the tokens are prompts, for decoder-only models."""
    return not self.format.startswith("source")

  @property
  def is_chat(self) -> bool:
    """Whether texts and conversations are rendered by the chat template."""
    return self.format.endswith("chat")

  def check_fits(self, *, prompted: bool):
    """Raises ValueError if MODEL reads prompts and this makes sources.

    The other way round is an error too.

    Args:
      prompted: whether MODEL is decoder-only.
    """
    if self.prompted != prompted:
      kind = "an encoder-decoder"
      wanted = "'source', 'source_text' or 'source_chat'"
      if prompted:
        kind, wanted = "decoder-only", "'text' or 'chat'"
      raise ValueError(
        f"PROMPT is {self.format!r}, and MODEL is {kind}: set PROMPT = {wanted}"
      )

  def render(self, messages: Sequence[Mapping]) -> str:
    """Returns the text of a conversation.

    Raises:
      ValueError: the messages are wrong, or PROMPT has no chat template.
    """
    if not self.is_chat:
      wanted = "chat" if self.prompted else "source_chat"
      raise ValueError(
        f"has messages, which want PROMPT = {wanted!r}, and it is"
        f" {self.format!r}"
      )
    return self.vocabulary.chat_template.render(messages, **self.variables)

  def tokens(
    self, text: str | Sequence[Mapping], max_len: int, limit: str, cut: bool
  ) -> tuple[list[int], bool]:
    """Returns (token ids, whether they were truncated) of a text or
    conversation.

    Args:
      text: the text, or the messages of a conversation.
      max_len: the most ids, EOS included.
      limit: the name of the setting that gives `max_len`.
      cut: whether a longer text is truncated. A source is truncated at its end,
        and EOS still follows where there was one. A prompt is truncated at its
        start, because the output follows its end.

    Raises:
      ValueError: there are no ids; or there are too many, and `cut` is False or
        the text is a chat, which cannot be truncated; or UTF-8 cannot hold the
        text.
    """
    vocabulary = self.vocabulary
    if isinstance(text, str) and not fields.is_utf8(text):
      raise ValueError(
        f"is {text!r:.60}, with half of a surrogate pair; wanted whole"
        " characters, as UTF-8 has them"
      )
    if self.is_chat:
      ids = list(vocabulary.encode(self.render(_messages(text))))
    elif not isinstance(text, str):
      self.render(text)  # raises, since other formats take no messages
    elif self.format == "source":
      prefix = getattr(vocabulary, "source_prefix", ())
      ids = [*prefix, *vocabulary.encode(text), vocabulary.eos_id]
    else:
      ids = list(getattr(vocabulary, "prompt", vocabulary.encode)(text))
    if not ids:
      raise ValueError(
        "is an empty prompt, and a decoder-only model continues from one token"
        " or more; give a text"
      )
    if len(ids) <= max_len:
      return ids, False
    if not cut or self.is_chat:
      hint = " (no chat is truncated)" if cut else ", or set truncate=True"
      raise ValueError(
        f"has {len(ids)} tokens, {limit} allows {max_len}: raise it,"
        f" shorten the text{hint}"
      )
    if self.format == "source":
      return [*ids[: max_len - 1], vocabulary.eos_id], True
    if self.format == "source_text":
      return ids[:max_len], True
    # A prompt of 7 ids with BOS first and max_len = 4 keeps BOS and the last 3.
    if ids[0] == getattr(vocabulary, "bos_id", None):
      return [ids[0], *ids[len(ids) - max_len + 1 :]], True
    return ids[len(ids) - max_len :], True

  def output(self, prompt: str | Sequence[Mapping], output: str) -> list[int]:
    """Returns the ids of an output that follows a prompt, without EOS.

    The output of an encoder-decoder is a text of its own. That of a
    decoder-only model continues its prompt: it has the blanks that the chat
    template puts around an answer, and no blank of the tokenizer's.

    Args:
      prompt: a text, or the messages of a conversation.
      output: the text of the output.
    """
    if not self.prompted:
      return list(self.vocabulary.encode(output))
    if not self.is_chat:
      return continuations.output_ids(self.vocabulary, prompt, output)
    messages = _messages(prompt)
    before = self.render(messages)
    output = self._as_answer(messages, before, output)
    return continuations.output_ids(self.vocabulary, before, output)

  def _as_answer(
    self, messages: Sequence[Mapping], before: str, output: str
  ) -> str:
    """Returns an output with the blanks that the template puts around it."""
    answer = {"role": "assistant", "content": output}
    variables = {**self.variables, "add_generation_prompt": False}
    try:
      whole = self.vocabulary.chat_template.render(
        [*messages, answer], **variables
      )
    except ChatError:  # a template may refuse an answer at the end
      return output
    if not output or not whole.startswith(before):
      return output
    # "[/INST] ok </s>" has the answer " ok ".
    lead, found, tail = whole[len(before) :].partition(output)
    if not found or lead.strip():
      return output
    ends = getattr(self.vocabulary, "eos_ids", (self.vocabulary.eos_id,))
    names = tuple(self.vocabulary.decode([i]) for i in ends)
    end = tail.lstrip()
    blanks = tail[: len(tail) - len(end)] if end.startswith(names) else ""
    return lead + output + blanks


def _messages(prompt: str | Sequence[Mapping]) -> Sequence[Mapping]:
  """Returns the messages of a prompt; a text is a user's message."""
  if isinstance(prompt, str):
    return [{"role": "user", "content": prompt}]
  return prompt


def eos_ids(vocabulary) -> int | tuple[int, ...]:
  """Returns the id that ends an output, or a tuple if several ids end one."""
  several = getattr(vocabulary, "eos_ids", ()) or (vocabulary.eos_id,)
  return several if len(several) > 1 else several[0]


def identity(vocabulary) -> dict[str, str] | None:
  """Returns {"path", "sha256"} of a vocabulary's file; None if it has none."""
  file_identity = getattr(vocabulary, "identity", None)
  if not file_identity:
    return None
  path = hub.recorded(vocabulary.path)
  return {"path": path, "sha256": file_identity["sha256"]}


class Completion(NamedTuple):
  """A prompt with the output that is learned after it.

  Attributes:
    name: the example's name in messages of errors.
    prompt: a text, or the messages of a conversation.
    output: a text, or the token ids that a model wrote.
  """

  name: str
  prompt: str | Sequence[Mapping]
  output: str | Sequence[int]


def read_files(files: Mapping, split: str) -> Iterator[Completion]:
  """Yields the examples of a split's files.

  An object of a JSONL file has `inputs` or `messages`, and `targets`. It may
  also be a record of `decode`, whose tokens are learned as they were written.

  Args:
    files: {split: paths that `text_files.read` takes, or None}.
    split: the split's name.

  Raises:
    FileNotFoundError: a file does not exist.
    ValueError: the split has no files, or a file is wrong.
  """
  if not (paths := files.get(split)):
    raise ValueError(
      f"there are no files of split {split!r}: set {split.upper()}_FILES, or"
      " NUM_EVAL_EXAMPLES = 0 to evaluate nothing"
    )
  for example in text_files.read(paths, chats=True, records=True):
    where = f"{paths} line {example.line}"
    yield Completion(where, example.inputs, example.references[0])


def tokenize(
  examples: Iterable[Completion],
  prompting: Prompting,
  lengths: Mapping[str, int],
) -> TokenArrays:
  """Returns the tokens of examples.

  EOS follows an output that is a text. Token ids are taken as they are.

  Args:
    examples: one example or more.
    prompting: makes the prompts, in the same way as for decoding.
    lengths: {feature: the most tokens}. A longer prompt is truncated as
      `Prompting.tokens` does. A longer output is truncated at its end, and has
      no EOS then.

  Raises:
    ValueError: a chat is too long, or there are no examples.
  """
  vocabulary = prompting.vocabulary
  columns = {name: [] for name in FEATURES}
  num_cut = dict.fromkeys(FEATURES, 0)
  for name, prompt, output in examples:
    try:
      ids, is_cut = prompting.tokens(
        prompt, lengths["inputs"], "TASK_FEATURE_LENGTHS", True
      )
    except ValueError as error:
      raise ValueError(f"{name} {error}") from error
    if isinstance(output, str):
      output = [*prompting.output(prompt, output), vocabulary.eos_id]
    num_cut["inputs"] += is_cut
    num_cut["targets"] += len(output) > lengths["targets"]
    columns["inputs"].append(ids)
    columns["targets"].append(output[: lengths["targets"]])
  if not columns["inputs"]:
    raise ValueError("there are no examples to learn from")
  return TokenArrays.join(
    {
      name: np.concatenate(rows).astype(np.int32)
      for name, rows in columns.items()
    },
    {name: [len(row) for row in rows] for name, rows in columns.items()},
    num_cut,
  )
