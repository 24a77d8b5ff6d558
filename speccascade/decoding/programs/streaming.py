"""Decoding some rounds at a time, and turn after turn: `Stream`.

The loop of a `Decoder` is compiled as a program that runs as many rounds as it
is asked for, so tokens can be shown as they come. They are the tokens that the
decoder writes at once. Another turn continues from the caches of the turns
before. The models read external tokens in between, and read nothing twice, and
the output is what a prompt that holds the whole conversation would give.
"""

import functools

import jax
import numpy as np

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.loops.carry import Carry
from speccascade.decoding.programs.decoders import CallArguments, Decoder
from speccascade.decoding.programs.draft_models import DraftModels
from speccascade.decoding.records import prompts
from speccascade.decoding.records.automaton import NONE, Constraints
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.language_model import Array, LanguageModel


class Stream:
  """A batch that is decoded some rounds at a time.

  A round is a block of a speculative method, and a token of another method.
  Shapes, the `Decoder` and `room` are static. Streams that are equal in these
  share compiled programs: two, and one more for each width of a turn.

    stream = Stream(decoder, drafter, verifier, inputs, rngs, alpha, sampling)
    while not stream.ended.all():
      show(stream.advance(rounds=4))  # `Decoded`: tokens, lengths, ...

  Attributes:
    decoded: the `Decoded` of what this turn wrote so far.
    room: the most tokens of a row in all turns; see `used`.
  """

  def __init__(
    self,
    decoder: Decoder,
    drafter: DraftModels | None,
    verifier: LanguageModel | None,
    inputs: Array | np.ndarray,
    rngs: Array,
    alpha: float,
    sampling: Sampling,
    *,
    room: int | None = None,
    constraints: Constraints = NONE,
  ) -> None:
    """Reads the inputs; no round is run yet. Arguments as in a call, and:

    Args:
      decoder: the decoder that a call would be made to. Its `max_decode_len`
        limits each turn.
      room: the most tokens of a row in all turns, as `used` counts them; None
        is the length of one turn.
      constraints: as in a call of the decoder; each turn is a text.

    Raises:
      ValueError: as a call does; or the method is not one loop; or `room` is
        less than one turn may take.
    """
    method, limit = decoder.method, decoder.max_decode_len
    if not method.execution.is_one_loop:
      raise ValueError(
        f"{method.label} may write a sequence again from its start, and cannot"
        " be streamed; call the decoder"
      )
    self.room = limit if room is None else room
    if self.room < limit:
      raise ValueError(
        f"room is {room} tokens; wanted max_decode_len, {limit}, or more"
      )
    self._decoder = decoder
    self._program, arguments = decoder.call(
      drafter, verifier, inputs, rngs, alpha, sampling, constraints
    )
    self._carry = _begin(self._program, arguments, self.room)
    # The loop continues without its inputs.
    self._arguments = arguments._replace(inputs=None)
    self._run_rounds(0)

  def advance(self, rounds: int = 1) -> Decoded:
    """Runs some rounds, fewer if all rows end; returns `decoded`.

    Raises:
      ValueError: `rounds` is less than 1.
    """
    if rounds < 1:
      raise ValueError(f"rounds is {rounds}; wanted 1 or more")
    return self._run_rounds(rounds)

  def turn(self, tokens: Array | np.ndarray, rngs: Array) -> Decoded:
    """Begins another turn of the conversation; returns `decoded`, empty yet.

    All models read the tokens after their own tokens, in the caches that they
    have. Rows that are still going stop where they are. A row that met a fault
    has no further turn.

    Args:
      tokens: [B, N] int32, the external tokens after the last turn, with
        `prompts.PAD` at either end. The EOS of the last turn, if it has one, is
        in the text already. A row without any token has no turn. Every N is a
        program of its own: pad to few widths.
      rngs: [B] typed keys, which differ from the keys of the turns before.

    Raises:
      ValueError: the models do not continue from prompts, the tokens are not
        valid, or a row has no space for them and `max_decode_len` more.
    """
    model = self._arguments.verifier or self._arguments.drafter
    name, tokens = type(model).__name__, np.asarray(tokens, np.int32)
    if not model.prompted:
      raise ValueError(
        f"a {name} continues a source; turns need models that continue"
        " prompts (decoder-only)"
      )
    prompts.check(tokens, model.vocab_size, may_be_empty=True)
    self._check_room(tokens)
    self._arguments = self._arguments._replace(rngs=rngs)
    self._carry = _turn(self._program, self._arguments, self._carry, tokens)
    return self._run_rounds(0)

  def _check_room(self, tokens: np.ndarray) -> None:
    """Raises ValueError where a row has no space for a turn of `tokens`."""
    more = np.sum(tokens != prompts.PAD, axis=1)
    # A pass over the turn writes N slots of every row, however few tokens the
    # row has; the slots after these tokens are free for the row's own output.
    least = max(tokens.shape[1], self._decoder.max_decode_len)
    used = self.used
    for row in np.flatnonzero(used + more + least > self.room)[:1]:
      raise ValueError(
        f"row {row} has {used[row]} tokens, and {more[row]} new ones; with"
        f" {least} more (max_decode_len, or the width of the turn) they do not"
        f" fit a room of {self.room}"
      )

  @property
  def ended(self) -> np.ndarray:
    """[B] bool, rows that met EOS, a fault or the length limit."""
    return np.asarray(self._carry.done)

  @property
  def used(self) -> np.ndarray:
    """[B] int32, tokens after the first prompt, whoever wrote them."""
    return np.asarray(self._carry.length) - 1

  def _run_rounds(self, rounds: int) -> Decoded:
    """Runs some rounds, maybe none, and returns `decoded` after them."""
    self._carry, self.decoded = _advance(
      self._program, self._arguments, self._carry, np.asarray(rounds, np.int32)
    )
    return self.decoded


# Caches are large, so a carry is donated to the call that makes the next carry.


@functools.partial(jax.jit, static_argnums=(0, 2))
def _begin(program: Decoder, arguments: CallArguments, room: int) -> Carry:
  return program.loop(arguments, room).begin()


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _advance(
  program: Decoder, arguments: CallArguments, carry: Carry, rounds: Array
) -> tuple[Carry, Decoded]:
  loop = program.loop(arguments)
  carry = loop.advance(carry, rounds)
  return carry, loop.decoded(carry)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _turn(
  program: Decoder, arguments: CallArguments, carry: Carry, tokens: Array
) -> Carry:
  return program.loop(arguments).turn(carry, tokens)
