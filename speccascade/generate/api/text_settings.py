"""How a call of the API reads its texts: `TextSettings`."""

from collections.abc import Mapping, Sequence
import dataclasses

from speccascade.generate.batches.sources import Sources, sources_of_texts
from speccascade.settings import fields
from speccascade.text.prompting import Prompting


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TextSettings:
  """How texts become sources, or prompts; checked when the record is made.

  Attributes:
    max_input_len: the most tokens of a source, EOS counted.
    truncate: whether longer sources are truncated, and their number printed,
      instead of refused.
    prompt: how decoder-only models read a text: "chat", "text", or None, which
      takes "chat" where the tokenizer has a template. Encoder-decoders read
      "source", or "source_text" and "source_chat"; see `Prompting`.
    chat_variables: what the chat template reads besides the messages.
  """

  max_input_len: fields.Positive = 512
  truncate: bool = False
  prompt: str | None = None
  chat_variables: Mapping = dataclasses.field(default_factory=dict)

  def read(
    self, texts: str | Sequence, vocabulary, *, prompted: bool
  ) -> Sources:
    """Returns texts as sources; prints how many were truncated or not spelled.

    Args:
      texts: a text, or several.
      vocabulary: the vocabulary of the models.
      prompted: whether the models are decoder-only.

    Raises:
      InputError: there are no texts, or one is not valid or too long.
      ValueError: the prompt is unknown, or the vocabulary has no template.
    """
    prompt = self.prompt
    if prompt is None and not prompted:
      prompt = "source"
    elif prompt is None and not hasattr(vocabulary, "prompted"):
      prompt = "text"
    prompting = Prompting(vocabulary, prompt, self.chat_variables)
    sources = sources_of_texts(
      texts, prompting, max_len=self.max_input_len, truncate=self.truncate
    )
    if sources.num_cut:
      num = f"{sources.num_cut} of {len(sources.examples)}"
      print(f"{num} texts truncated to {self.max_input_len} tokens")
    if line := sources.describe_unknown():
      print(line)
    return sources
