"""A conversation with a pair of models: what `api.Pair.chat` returns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import itertools

from speccascade.generate.turns.text_stream import TextStream
from speccascade.text import continuations
from speccascade.text.chat import check_messages
from speccascade.text.prompting import Prompting


class Chat:
  """A conversation. `Pair.chat` makes one.

    chat = pair.chat(system="Be brief.")
    for piece in chat.send("Why is the sky blue?"):
      print(piece, end="", flush=True)

  The models read only the new part of the conversation, and hold the turns
  before in their caches. They read the whole conversation again where the
  caches are full, where the template now renders an earlier turn in other
  words, or where the new part changes how the part before is split into tokens.

  Attributes:
    messages: the messages {"role", "content"} of all complete turns.
    num_begun: how often the models read the whole conversation.
    answer: the `TextStream` of the answer to the last message, with its text,
      its tokens and, if they are recorded, its log-probabilities so far. None
      before the first message.
  """

  def __init__(
    self,
    start: Callable[[Sequence[Mapping], int], TextStream],
    prompting: Prompting,
    widths: Sequence[int],
    messages: Sequence[Mapping] = (),
    numbers: Iterator[int] | None = None,
  ):
    """Begins a conversation; the models read nothing yet.

    Args:
      start: takes messages and the number of a turn, and returns a stream whose
        models have read all of the messages.
      prompting: the `Prompting` that renders messages.
      widths: the lengths that the tokens of a turn are padded to, in ascending
        order. Each length is another program to compile.
      messages: the messages before the first turn.
      numbers: the numbers of the turns, from which their random keys are made;
        None counts from 0.
    """
    self._start, self._prompting, self._widths = start, prompting, widths
    self.messages = check_messages(messages) if messages else []
    self.num_begun = 0
    self.answer = None
    self._numbers = itertools.count() if numbers is None else numbers
    # The stream whose caches hold all complete turns, and the text that they
    # hold. None where there is no such stream.
    self._stream = None
    self._cached_text = ""

  def send(self, message: str | Mapping) -> Iterator[str]:
    """Yields the answer to a message in pieces.

    The turn counts as complete, and `messages` grows, when the last piece was
    taken.

    Args:
      message: the text of a user's message, or {"role", "content"} of anybody.

    Raises:
      ValueError: the template refuses the message, or the conversation is
        longer than the models can read.
    """
    if isinstance(message, str):
      message = {"role": "user", "content": message}
    messages = check_messages([*self.messages, message])
    rendered = self._prompting.render(messages)
    # A caller may stop in the middle of an answer. The caches then hold half of
    # it, so the stream is given up until the turn is complete.
    stream, self._stream = self._stream, None
    number = next(self._numbers)
    if stream is None or not self._extend_caches(stream, rendered, number):
      stream = self._start(messages, number)
      self.num_begun += 1
    self.answer = stream
    yield from stream
    # The answer is complete.
    self.messages = [*messages, {"role": "assistant", "content": stream.text}]
    # The caches hold the tokens as they were sampled, control tokens included,
    # and not the text of the answer.
    answer = continuations.text_inside(
      self._prompting.vocabulary, stream.tokens.tolist()
    )
    self._stream, self._cached_text = stream, rendered + answer

  def _extend_caches(
    self, stream: TextStream, rendered: str, number: int
  ) -> bool:
    """Feeds what is new to the caches of a stream; False where it cannot."""
    # The caches are unchanged where the conversation does not continue the
    # text that they hold, where the new text changes the ids of that text, or
    # where it does not fit.
    if not rendered.startswith(self._cached_text):
      return False
    new_text = rendered[len(self._cached_text) :]
    tokens = continuations.ids_after(
      self._prompting.vocabulary, self._cached_text, new_text
    )
    if tokens is None:
      return False
    padded = stream.pad_turn(tokens, self._widths)
    if padded is None:
      return False
    stream.turn(padded, number)
    return True
