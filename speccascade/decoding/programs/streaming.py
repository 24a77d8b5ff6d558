"""Decoding some rounds at a time, and turn after turn: `Stream`.

A `Decoder`'s loop is compiled as one program that runs as many rounds as it is
told, so tokens can be shown as they come. They are those of the whole. Another
turn goes on from the caches that are there: what others wrote is read, nothing
is read again, and the output is that of a prompt that holds it all.
"""

import functools

import jax
import numpy as np

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.loops import prompts
from speccascade.decoding.programs.decoders import Decoder
from speccascade.decoding.types import Decoded


class Stream:
  """A batch that is decoded some rounds at a time.

  A round is a block of a speculative method, a token of the others. Shapes, the
  `Decoder` and `room` are static; equal ones share compiled programs, as many
  as there are widths of turns, and two.

    stream = Stream(decoder, drafter, verifier, inputs, rngs, alpha, sampling)
    while not stream.ended.all():
      show(stream.advance(rounds=4))  # `Decoded`: tokens, lengths, ...

  Attributes:
    decoded: `Decoded`, what this turn wrote so far.
    room: most tokens of a row in all turns; see `used`.
  """

  def __init__(
    self,
    decoder: Decoder,
    drafter,
    verifier,
    inputs,
    rngs,
    alpha: float,
    sampling: Sampling,
    *,
    room: int | None = None,
  ):
    """Reads the inputs; no round is run yet. Arguments as in a call, and:

    Args:
      decoder: what a call would be made to; `max_decode_len` is for each turn.
      room: most tokens of a row in all turns, as `used` counts them; None is
        one turn.

    Raises:
      ValueError: as a call does; or the method is no single loop; or `room` is
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
    self._program, *arguments = decoder.call(
      drafter, verifier, inputs, rngs, alpha, sampling
    )
    self._arguments = arguments
    self._carry = _begin(self._program, tuple(arguments), self.room)
    arguments[2] = None  # the loop goes on without its inputs
    self._take(_advance(self._program, *self._going_on(0)))

  def advance(self, rounds: int = 1) -> Decoded:
    """Runs so many rounds, fewer if all rows end; returns `decoded`.

    Raises:
      ValueError: no round is asked for.
    """
    if rounds < 1:
      raise ValueError(f"rounds is {rounds}; wanted 1 or more")
    return self._take(_advance(self._program, *self._going_on(rounds)))

  def turn(self, tokens, rngs) -> Decoded:
    """Begins another turn of the conversation; returns `decoded`, empty yet.

    All models read the tokens, after their own and in the same caches. Rows
    that are still going stop where they are; a row that met a fault has no
    further turn.

    Args:
      tokens: [B, N] int32 that others wrote after the last turn (whose EOS, if
        it has one, is in the text), `prompts.PAD` at either end; a row without
        any has no turn. Every N is a program of its own: pad to few widths.
      rngs: [B] typed keys, other ones than those of the turns before.

    Raises:
      ValueError: the models do not go on from prompts, the tokens are none, or
        a row has no room for them and `max_decode_len` more.
    """
    model = self._arguments[1] or self._arguments[0]
    name, tokens = type(model).__name__, np.asarray(tokens, np.int32)
    if not model.prompted:
      raise ValueError(
        f"a {name} goes on from a source; turns need models that go on from"
        " prompts (decoder-only)"
      )
    prompts.check(tokens, model.vocab_size, may_be_empty=True)
    more = np.sum(tokens != prompts.PAD, axis=1)
    # A pass writes N slots of every row, whatever the row's own tokens.
    least = max(tokens.shape[1], self._decoder.max_decode_len)
    used = self.used
    for row in np.flatnonzero(used + more + least > self.room)[:1]:
      raise ValueError(
        f"row {row} has {used[row]} tokens, and {more[row]} new ones; with"
        f" {least} more (max_decode_len, or the width of the turn) they do not"
        f" fit a room of {self.room}"
      )
    self._arguments[3] = rngs
    self._carry = _turn(self._program, *self._going_on(tokens))
    return self._take(_advance(self._program, *self._going_on(0)))

  @property
  def ended(self) -> np.ndarray:
    """[B] bool, rows that met EOS, a fault or the length limit."""
    return np.asarray(self._carry.done)

  @property
  def used(self) -> np.ndarray:
    """[B] int32, tokens written, and those of others after the first prompt."""
    return np.asarray(self._carry.length) - 1

  def _going_on(self, what) -> tuple:
    return tuple(self._arguments), self._carry, np.asarray(what, np.int32)

  def _take(self, state) -> Decoded:
    self._carry, self.decoded = state
    return self.decoded


# Caches are large: a state is given up for the next one.


@functools.partial(jax.jit, static_argnums=(0, 2))
def _begin(program, arguments, room):
  return program.start(*arguments, room=room).begin()


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _advance(program, arguments, carry, rounds):
  loop = program.start(*arguments)
  carry = loop.advance(carry, rounds)
  return carry, loop.decoded(carry)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _turn(program, arguments, carry, tokens):
  return program.start(*arguments).turn(carry, tokens)
