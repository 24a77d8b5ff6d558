"""An output while it is decoded: its tokens, and its text.

`TextStream` is what `api.Pair.stream` returns.
"""

from collections.abc import Iterator, Sequence
import itertools
import time

from absl import logging
import jax
import numpy as np

from speccascade.decoding import row_keys
from speccascade.decoding.programs.streaming import Stream
from speccascade.decoding.records import prompts
from speccascade.decoding.records.block_records import Decoded
from speccascade.generate import records
from speccascade.generate.batches import batching
from speccascade.generate.batches.batching import Batches
from speccascade.generate.batches.sources import Source
from speccascade.generate.pair.pair_checks import check_rows

# The decoded form of a character of which only some bytes are there.
_HALF = "\N{REPLACEMENT CHARACTER}"


class TokenStream:
  """One output after another, each decoded some rounds at a time.

  Args:
    batches: the pair, the method and its settings; batches of one row.
    source: what the first output follows.
    rounds: the number of rounds of a call. A round is a block, or a token of a
      method without blocks.
    room: the most tokens of all turns; see `streaming.Stream`. None has room
      for one turn.
    number: the number of the turn. Turns of other numbers have other random
      keys.

  Attributes:
    tokens: [T] int32 NumPy array, the tokens of this turn so far, EOS included.
    log_probs: the log-probabilities of these tokens, a `LogProbs` of NumPy
      arrays [T]; None if the run does not record them.
    decoded: the `Decoded` of this turn so far, of one row.
    calls: the calls of compiled programs that this turn took, of which the
      first one reads the prompt, or the external tokens since the last turn. Of
      each call, the tokens that the turn has after it, and its seconds.
    width: the tokens that the first of these calls reads, padded. Each width is
      a program of its own.

  Raises:
    ValueError: the method cannot be streamed, or the models do not fit it; see
      `Batches.check`.
  """

  def __init__(
    self,
    batches: Batches,
    source: Source,
    rounds: int,
    room: int | None = None,
    number: int = 0,
  ):
    batches.check()
    self._source, self._rounds, self._run = [source], rounds, batches.run
    self._limits = batches.run.also(source.stop)
    self._pair, self._prompt_len = batches.pair, len(source.tokens)
    # Whether the verifier needs no drafter, or continues alone past its window.
    is_alone = not batches.point.spec.execution.needs_drafter
    self._is_alone = is_alone or batches.decoder.drafter_window is not None
    prepared = batches.prepare(self._source, number)
    *call, constraints = batches.call(prepared)
    start_s = time.perf_counter()
    self._stream = Stream(
      batches.decoder, *call, room=room, constraints=constraints
    )
    self._begin(prepared.inputs.shape[1], start_s)

  def _begin(self, width: int, start_s: float):
    """Begins the output of a turn whose `width` tokens were read."""
    self.calls, self.width, self._blocks = [], width, []
    self._store(self._stream.decoded, start_s)

  @property
  def ended(self) -> bool:
    """Whether the output is complete."""
    return bool(self._stream.ended[0])

  def fits(self, num: int) -> bool:
    """Returns whether caches and models have space for another turn.

    Args:
      num: the number of tokens that the turn begins with. The caches must also
        hold an answer of `max_decode_len` tokens after them.
    """
    # A pass writes `num` slots, even if fewer of them are the turn's own.
    least = max(num, self._run.max_decode_len)
    end = self._stream.used[0] + num + least
    models = self._pair.models
    if self._is_alone:
      models = models[-1:]
    window = min(model.window for model in models)
    return end <= self._stream.room and self._prompt_len + end <= window

  def pad_turn(
    self, tokens: Sequence[int], widths: Sequence[int]
  ) -> list[int] | None:
    """Returns the tokens of a turn, padded; None where they do not fit.

    Args:
      tokens: the tokens that the turn begins with.
      widths: the lengths to choose from, in ascending order.
    """
    width = min((x for x in widths if x >= len(tokens)), default=None)
    if not tokens or width is None or not self.fits(width):
      return None
    return [*tokens, *[prompts.PAD] * (width - len(tokens))]

  def turn(self, tokens: Sequence[int], number: int):
    """Begins another turn, in the caches of the turns before.

    Args:
      tokens: the external tokens after the last output, perhaps with
        `prompts.PAD` at the end.
      number: the number of the turn, from which its random keys are made.

    Raises:
      PairError: a model has no row for a token.
    """
    check_rows(self._pair, tokens, "the message")
    indices = np.array([self._source[0].index], np.int32)
    keys = row_keys(self._run.seed, number, indices)
    start_s = time.perf_counter()
    self._stream.turn(np.asarray([tokens], np.int32), keys)
    self._begin(len(tokens), start_s)

  def advance(self):
    """Decodes the next rounds of an output that has not ended.

    Raises:
      NoDistributionError: a model gave no distribution.
    """
    start_s = time.perf_counter()
    decoded = self._stream.advance(self._rounds)
    batching.check_finite(decoded, self._source)
    self._store(decoded, start_s)

  def steps(self) -> list[tuple[int, float]]:
    """Returns the tokens after each step, and its seconds; of a round a call.

    Rounds that draft nothing may follow each other in one call. Each of them
    wrote a token, and has its share of the seconds.
    """
    steps = []
    calls = zip(self.calls[1:], itertools.pairwise(self._blocks))
    for (length, seconds), (before, after) in calls:
      num = max(after - before, 1)
      steps += [
        (length - num + place, seconds / num) for place in range(1, num + 1)
      ]
    return steps

  def _store(self, decoded: Decoded, start_s: float):
    """Stores the tokens that the turn has after a call begun at `start_s`."""
    length = int(decoded.lengths[0])  # waits for the call
    self.calls.append((length, time.perf_counter() - start_s))
    self._blocks.append(int(decoded.stats.num_blocks[0]))
    self.decoded = decoded

    def first_row(array):
      return np.asarray(array)[0, :length]

    self.tokens = first_row(decoded.tokens)
    self.log_probs = jax.tree.map(first_row, decoded.log_probs)


class TextStream(TokenStream, Iterator[str]):
  """Yields an output in pieces, as it is decoded.

  The pieces joined are the whole output. A warning names the output where its
  tokenizer lets the last tokens change the text of the first ones. A piece
  never ends in half a character: the bytes of a character wait until all of
  them are there. Nor does it end in letters that may begin a stop.

  Args:
    vocabulary: the vocabulary of the tokens.
    *stream: the arguments of `TokenStream`.

  Attributes:
    text: the text of this turn that was yielded so far.
  """

  def __init__(self, vocabulary, *stream):
    self._vocabulary = vocabulary
    super().__init__(*stream)

  def _begin(self, width: int, start_s: float):
    super()._begin(width, start_s)
    self.text = ""

  def __next__(self) -> str:
    """Returns the next piece of text.

    Raises:
      NoDistributionError: a model gave no distribution.
    """
    while not self.ended:
      self.advance()
      # New tokens may not be text yet: half a character, or a control token.
      if piece := self._next_piece():
        return piece
    raise StopIteration

  def _next_piece(self) -> str:
    """Returns the text that was not yielded yet, and counts it as yielded."""
    ids = self.tokens.tolist()
    if self.ended:
      text = records.text_of(self._vocabulary, ids, self._limits)
    else:
      # A later byte token may change the text of the byte tokens before it.
      num_final = getattr(self._vocabulary, "whole", len)(ids)
      text = records.text_of(self._vocabulary, ids[:num_final], self._limits)
      text = text.rstrip(_HALF)
      # What may begin a stop waits until it is known whether it does.
      text = text[: len(text) - self._limits.held_back(text)]
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
