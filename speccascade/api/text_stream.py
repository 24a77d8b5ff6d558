"""Yields an output while it is decoded: what `api.Pair.stream` returns."""

from collections.abc import Iterator, Sequence

from absl import logging
import jax
import numpy as np

from speccascade.decoding import row_keys
from speccascade.decoding.programs.streaming import Stream
from speccascade.decoding.records.block_records import Decoded
from speccascade.inference.batches import batching
from speccascade.inference.measuring.study import Study
from speccascade.inference.pair.pair_checks import check_rows
from speccascade.inference.points.point import Point
from speccascade.inference.rows import records

# The decoded form of a character of which only some bytes are there.
_HALF = "\N{REPLACEMENT CHARACTER}"


class TextStream(Iterator[str]):
  """Yields an output in pieces, as it is decoded.

  The pieces joined are the whole output. A warning names the output where its
  tokenizer lets the last tokens change the text of the first ones. A piece
  never ends in half a character: the bytes of a character wait until all of
  them are there. Nor does it end in letters that may begin a stop.

  Args:
    study: the pair, and the one source.
    point: the method and its settings.
    rounds: the number of rounds between two pieces. A round is a block, or a
      token of a method without blocks.
    room: the most tokens of all turns; see `streaming.Stream`. None has room
      for one turn.
    number: the number of the turn. Turns of other numbers have other random
      keys.

  Attributes:
    text: the text of this turn that was yielded so far.
    tokens: [T] int32 NumPy array, the tokens of this turn so far, EOS included.
    log_probs: the log-probabilities of these tokens, a `LogProbs` of NumPy
      arrays [T]; None if the run does not record them.
    ended: whether the output is complete.

  Raises:
    ValueError: the method cannot be streamed, or the models do not fit it; see
      `Batches.check`.
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
    self._pair = study.pair
    prepared = batches.prepare(self._source, number)
    self._stream = Stream(
      batches.decoder,
      *prepared,
      point.decoder_alpha,
      point.sampling,
      room=room,
      constraints=batches.constraints,
    )
    self._begin()

  def _begin(self):
    """Begins the output of a turn."""
    self.text = ""
    self._store(self._stream.decoded)

  @property
  def ended(self) -> bool:
    """Whether the output is complete."""
    return bool(self._stream.ended[0])

  def fits(self, num: int) -> bool:
    """Returns whether the caches have room for another turn.

    Args:
      num: the number of tokens that the turn begins with. The caches must also
        hold an answer of `max_decode_len` tokens after them.
    """
    # A pass writes `num` slots, even if fewer of them are the turn's own.
    least = max(num, self._run.max_decode_len)
    return self._stream.used[0] + num + least <= self._stream.room

  def turn(self, tokens: Sequence[int], number: int):
    """Begins another turn, in the caches of the turns before.

    Args:
      tokens: the tokens that others wrote after the last output, perhaps with
        `prompts.PAD` at the end.
      number: the number of the turn, from which its random keys are made.

    Raises:
      PairError: a model has no row for a token.
    """
    check_rows(self._pair, tokens, "the message")
    keys = row_keys(self._run.seed, number, np.zeros(1, np.int32))
    self._stream.turn(np.asarray([tokens], np.int32), keys)
    self._begin()

  def __next__(self) -> str:
    """Returns the next piece of text.

    Raises:
      NoDistributionError: a model gave no distribution.
    """
    while not self.ended:
      decoded = self._stream.advance(self._rounds)
      batching.check_finite(decoded, self._source)
      self._store(decoded)
      # New tokens may be no text yet: half a character, or a control token.
      if piece := self._next_piece():
        return piece
    raise StopIteration

  def _store(self, decoded: Decoded):
    """Stores the tokens that the turn has so far."""
    length = int(decoded.lengths[0])

    def first_row(array):
      return np.asarray(array)[0, :length]

    self.tokens = first_row(decoded.tokens)
    self.log_probs = jax.tree.map(first_row, decoded.log_probs)

  def _next_piece(self) -> str:
    """Returns the text that was not yielded yet, and counts it as yielded."""
    ids = self.tokens.tolist()
    if self.ended:
      text = records.text_of(self._vocabulary, ids, self._run)
    else:
      # A later byte token may change the text of the byte tokens before it.
      num_final = getattr(self._vocabulary, "whole", len)(ids)
      text = records.text_of(self._vocabulary, ids[:num_final], self._run)
      text = text.rstrip(_HALF)
      # What may begin a stop waits until it is known whether it does.
      text = text[: len(text) - self._run.held_back(text)]
      # Some tokenizers change earlier text once more tokens follow. What was
      # yielded cannot be taken back: wait until the text agrees with it again.
      if not text.startswith(self.text):
        return ""
    if not text.startswith(self.text):
      # The last tokens changed it, so that the pieces are not the output.
      logging.warning(
        "the output's last tokens changed text that was yielded before: take"
        " the attribute `text`, which is %r",
        text,
      )
      self.text = text
      return ""
    piece, self.text = text[len(self.text) :], text
    return piece
