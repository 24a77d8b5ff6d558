"""How texts become what a model is given: sources, or prompts to go on from.

Prompts with what follows them are what is learned from files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from speccascade.data import text_files
from speccascade.data.arrays import FEATURES, TokenArrays
from speccascade.settings import fields

FORMATS = ("source", "text", "chat")


@dataclasses.dataclass(frozen=True)
class Prompting:
  """Makes tokens of texts, and of conversations.

  Attributes:
    vocabulary: as in `sources.Sources`.
    format: "source" puts EOS after a text, for encoders; "text" is what the
      tokenizer makes of it, with BOS where it has one and without EOS, for
      models that go on; "chat" makes it a user's message in the tokenizer's
      chat template, up to where the assistant speaks. None takes "source" for
      SentencePiece, which T5 has, "chat" where there is a template, for such a
      model was trained on nothing else last, and "text" otherwise.
    variables: of the chat template; see `ChatTemplate.render`.

  Raises:
    ValueError: the format is unknown, or the vocabulary has no template.
  """

  vocabulary: object
  format: str | None = None
  variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    template = getattr(self.vocabulary, "chat_template", None)
    if self.format is None:
      is_prompted = getattr(self.vocabulary, "prompted", False)
      chosen = ("chat" if template else "text") if is_prompted else "source"
      object.__setattr__(self, "format", chosen)
    fields.one_of(FORMATS, PROMPT=self.format)
    if self.format == "chat" and template is None:
      name = getattr(self.vocabulary, "path", "the vocabulary")
      raise ValueError(
        f"PROMPT is 'chat', and {name} has no chat template; set PROMPT ="
        " 'text'"
      )
    if self.variables and self.format != "chat":
      raise ValueError(
        f"CHAT_VARIABLES are of a chat template, and PROMPT is {self.format!r}"
      )

  @property
  def prompted(self) -> bool:
    """Whether a model goes on from what is made, as decoder-only ones do."""
    return self.format != "source"

  def check_fits(self, *, prompted: bool):
    """Raises ValueError where MODEL, prompted or not, takes no such texts."""
    if self.prompted != prompted:
      kind, wanted = "an encoder-decoder", "'source'"
      if prompted:
        kind, wanted = "decoder-only", "'text' or 'chat'"
      raise ValueError(
        f"PROMPT is {self.format!r}, and MODEL is {kind}: set PROMPT = {wanted}"
      )

  def render(self, messages: Sequence[Mapping]) -> str:
    """Returns the text of a conversation.

    Raises:
      ValueError: it is none, or PROMPT is not "chat".
    """
    if self.format != "chat":
      raise ValueError(
        f"has messages, which want PROMPT = 'chat', and it is {self.format!r}"
      )
    return self.vocabulary.chat_template.render(messages, **self.variables)

  def tokens(
    self, text: str | Sequence[Mapping], max_len: int, limit: str, cut: bool
  ) -> tuple[list[int], bool]:
    """Returns the ids of a text or conversation, and whether they were cut.

    Args:
      text: or messages.
      max_len: most ids, EOS counted.
      limit: the name of `max_len`.
      cut: shorten what is longer: a source at its end, which EOS still
        follows; a text, which goes on at its end, at its start.

    Raises:
      ValueError: there are none, or too many and `cut` is False, or it is a
        chat, of which a part is none; or UTF-8 cannot hold the text.
    """
    vocabulary = self.vocabulary
    if isinstance(text, str) and not fields.is_utf8(text):
      raise ValueError(
        f"is {text!r:.60}, with half of a surrogate pair; wanted whole"
        " characters, as UTF-8 has them"
      )
    if self.format == "chat":
      message = [{"role": "user", "content": text}]
      messages = message if isinstance(text, str) else text
      ids = list(vocabulary.encode(self.render(messages)))
    elif not isinstance(text, str):
      self.render(text)  # refuses it
    elif self.format == "source":
      ids = [*vocabulary.encode(text), vocabulary.eos_id]
    else:
      ids = list(getattr(vocabulary, "prompt", vocabulary.encode)(text))
    if not ids:
      raise ValueError(
        "is an empty prompt, and a decoder-only model goes on from one token or"
        " more; give a text"
      )
    if len(ids) <= max_len:
      return ids, False
    if not cut or self.format == "chat":
      hint = " (no chat is cut)" if cut else ", or set truncate=True"
      raise ValueError(
        f"has {len(ids)} tokens, {limit} allows {max_len}: raise it,"
        f" shorten the text{hint}"
      )
    if self.format == "source":
      return [*ids[: max_len - 1], vocabulary.eos_id], True
    first = ids[: ids[0] == getattr(vocabulary, "bos_id", None)]
    return [*first, *ids[len(ids) - max_len + len(first) :]], True


def eos_ids(vocabulary) -> int | tuple[int, ...]:
  """Returns the id that ends an output, or all of them."""
  several = getattr(vocabulary, "eos_ids", ())
  return several if len(several) > 1 else vocabulary.eos_id


def identity(vocabulary) -> dict[str, str] | None:
  """Returns {"path", "sha256"} of a vocabulary's file, None if it has none."""
  known = getattr(vocabulary, "identity", None)
  if not known:
    return None
  return {"path": vocabulary.path, "sha256": known["sha256"]}


class Completion(NamedTuple):
  """An example.

  Attributes:
    name: what a message calls it.
    prompt: a text, or the messages of a conversation.
    output: a text, or token ids as a model wrote them.
  """

  name: str
  prompt: str | Sequence[Mapping]
  output: str | Sequence[int]


def read_files(files: Mapping, split: str) -> Iterator[Completion]:
  """Yields the examples of a split's files.

  Those of a JSONL file have `inputs` or `messages`, and `targets`; or are
  records of `decode`, of which the tokens are learned as they were written.

  Args:
    files: split -> what `text_files.read` takes, or None.
    split: its name.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the split has none, or see `text_files.read`.
  """
  if not (paths := files.get(split)):
    raise ValueError(
      f"there are no files of split {split!r}: set {split.upper()}_FILES, or"
      " NUM_EVAL_EXAMPLES = 0 to evaluate nothing"
    )
  for line, prompt, references in text_files.read(
    paths, chats=True, records=True
  ):
    yield Completion(f"{paths} line {line}", prompt, references[0])


def read_task(task, split: str) -> Iterator[Completion]:
  """Yields the texts of a seqio task's split."""
  from speccascade.data import reading

  dataset = reading.open_split(task, split, None).as_numpy_iterator()
  for index, example in enumerate(reading.guard(dataset, task)):
    texts = (example[f"{name}_pretokenized"].decode() for name in FEATURES)
    yield Completion(f"{task.name} {index}", *texts)


def tokenize(
  examples: Iterable[Completion],
  prompting: Prompting,
  lengths: Mapping[str, int],
) -> TokenArrays:
  """Returns the tokens of examples, EOS after the outputs that are texts.

  Args:
    examples: one or more.
    prompting: makes the prompts, as it does where they are decoded.
    lengths: feature -> most tokens. A longer text is cut as `Prompting` cuts
      it; a longer output at its end, which EOS does not follow.

  Raises:
    ValueError: a chat is too long, which is not cut, or there are no examples.
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
      output = [*vocabulary.encode(output), vocabulary.eos_id]
    num_cut["inputs"] += is_cut
    num_cut["targets"] += len(output) > lengths["targets"]
    columns["inputs"].append(ids)
    columns["targets"].append(output[: lengths["targets"]])
  if not columns["inputs"]:
    raise ValueError("there are no examples to learn from")
  return TokenArrays.join(
    {k: np.concatenate(rows).astype(np.int32) for k, rows in columns.items()},
    {k: list(map(len, rows)) for k, rows in columns.items()},
    num_cut,
  )
