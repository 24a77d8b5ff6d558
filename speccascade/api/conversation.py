"""Text as it is made: what `api.Pair.stream` and `chat` return."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np

from speccascade.data.chat import check_messages
from speccascade.data.prompting import Prompting
from speccascade.decoding import row_keys
from speccascade.decoding.loops import prompts
from speccascade.decoding.programs.streaming import Stream
from speccascade.decoding.types import Decoded
from speccascade.inference.batches import batching
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows import records

_HALF = "\N{REPLACEMENT CHARACTER}"  # what half a character decodes to


class TextStream(Iterator[str]):
  """Yields an output in pieces, as it is decoded; joined they are the whole.

  No piece ends in half a character: bytes wait for those that follow.

  Args:
    study: the pair, and the one source.
    point: method and settings.
    rounds: of blocks, or tokens, between two pieces.
    room: see `decoding.streaming.Stream`.
    number: of its turn; other ones have other keys.

  Attributes:
    text: what was yielded so far.
    tokens: [T] of this turn so far, EOS included.
    log_probs: how likely the laws found each, a `LogProbs` of [T]; None where
      the run does not ask for it.
    ended: whether nothing follows.

  Raises:
    ValueError: the method cannot be streamed, or see `Batches.check`.
  """

  def __init__(
    self,
    study: Study,
    point: Point,
    rounds: int,
    room: int | None = None,
    number: int = 0,
  ):
    batches = study.batches(point, timed=True, shared=False)
    batches.check()
    self._vocabulary, self._rounds = study.vocabulary, rounds
    self._source, self._run = study.examples[:1], study.run
    self._stream = Stream(
      batches.decoder,
      *batches.prepare(self._source, number),
      *(point.alpha, point.sampling),
      room=room,
    )
    self._begin()

  def _begin(self):
    self.text = ""
    self._take(self._stream.decoded)

  @property
  def ended(self) -> bool:
    return bool(self._stream.ended[0])

  def fits(self, num: int) -> bool:
    """Whether a turn of so many tokens and its answer fit the caches."""
    least = max(num, self._run.max_decode_len)
    return self._stream.used[0] + num + least <= self._stream.room

  def turn(self, tokens: Sequence[int], number: int):
    """Goes on after another's tokens; the caches are kept."""
    keys = row_keys(self._run.seed, number, np.zeros(1, np.int32))
    self._stream.turn(np.asarray([tokens], np.int32), keys)
    self._begin()

  def __next__(self) -> str:
    """Returns the next piece of text.

    Raises:
      NoDistributionError: a model gave none.
    """
    while not self.ended:
      decoded = self._stream.advance(self._rounds)
      batching.check_finite(decoded, self._source)
      self._take(decoded)
      if piece := self._grown():
        return piece
    raise StopIteration

  def _take(self, decoded: Decoded):
    of_turn = lambda x: np.asarray(x)[0, : int(decoded.lengths[0])]
    self.tokens = of_turn(decoded.tokens)
    self.log_probs = jax.tree.map(of_turn, decoded.log_probs)

  def _grown(self) -> str:
    ids = self.tokens.tolist()
    if self.ended:
      text = records.text_of(self._vocabulary, ids)
    else:
      whole = getattr(self._vocabulary, "whole", len)(ids)
      text = records.text_of(self._vocabulary, ids[:whole]).rstrip(_HALF)
      if not text.startswith(self.text):
        return ""  # the decoder took something back: wait
    piece, self.text = text[len(self.text) :], text
    return piece


class Chat:
  """A conversation; make one with `Pair.chat`.

    chat = pair.chat(system="Be brief.")
    for piece in chat.send("Why is the sky blue?"):
      print(piece, end="", flush=True)

  Models read only what is new, in the caches of the turns before; they begin
  anew where these are full, or the template tells what was said in other words.

  Attributes:
    messages: {"role", "content"} of all turns that were had to their end.
    num_begun: how often the whole conversation was read.
    answer: the `TextStream` of the last message sent, with what it wrote so
      far: its text, tokens and, where asked for, their log-probabilities.
  """

  def __init__(
    self,
    start: Callable[[Sequence[Mapping], int], TextStream],
    prompting: Prompting,
    widths: Sequence[int],
    messages: Sequence[Mapping] = (),
  ):
    """Args:
    start: makes a stream of some messages, of the turn of a number.
    prompting: of chats.
    widths: that the tokens of a turn are padded to, ascending.
    messages: what was said before.
    """
    self._start, self._prompting, self._widths = start, prompting, widths
    self.messages = check_messages(messages) if messages else []
    self.num_begun = self._turns = 0
    self.answer = self._stream = None
    self._said = ""

  def send(self, message: str | Mapping) -> Iterator[str]:
    """Yields the answer to a message in pieces.

    Args:
      message: the user's, or {"role", "content"} of anybody.

    Raises:
      ValueError: the template refuses it, or the conversation does not fit.
    """
    if isinstance(message, str):
      message = {"role": "user", "content": message}
    messages = check_messages([*self.messages, message])
    rendered = self._prompting.render(messages)
    # Where a caller leaves in the middle, the caches hold half an answer.
    stream, self._stream = self._stream, None
    if stream is None or not self._goes_on(stream, rendered):
      stream = self._start(messages, self._turns)
      self.num_begun += 1
    self._turns += 1
    self.answer = stream
    yield from stream
    self.messages = [*messages, {"role": "assistant", "content": stream.text}]
    written = self._prompting.vocabulary.decode(stream.tokens.tolist())
    self._stream, self._said = stream, rendered + written

  def _goes_on(self, stream: TextStream, rendered: str) -> bool:
    """Feeds what is new to the caches, if it follows what they hold."""
    if not rendered.startswith(self._said):
      return False
    new = self._prompting.vocabulary.encode(rendered[len(self._said) :])
    widths = [width for width in self._widths if width >= len(new) > 0]
    if not widths or not stream.fits(widths[0]):
      return False
    padding = [prompts.PAD] * (widths[0] - len(new))
    stream.turn([*new, *padding], self._turns)
    return True
