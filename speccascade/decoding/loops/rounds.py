"""The loop of every execution: rounds write tokens until all rows ended."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import numerics
from speccascade.decoding.loops import tracing
from speccascade.decoding.loops.carry import (
  Carry,
  counted_shapes,
  pack,
  unpack,
)
from speccascade.decoding.loops.execution import LoopSettings
from speccascade.decoding.loops.observers import Observer, merged
from speccascade.decoding.records import prompts, token_buffers
from speccascade.decoding.records.automaton import START
from speccascade.decoding.records.block_records import Decoded, Stats
from speccascade.decoding.records.drafter import is_drafter
from speccascade.decoding.records.readers import catch_up_parts, prefill_parts

Array = jax.Array

# Tokens added between turns (the user's message) are read in passes of this
# many. A wider pass would compile to a program that most turns do not fill.
TURN_WIDTH = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
  """An execution while it is traced: its round, and what the round runs on.

  Attributes:
    round_: (Carry) -> Carry. Writes one or more tokens of every row that is
      not done, and leaves the other rows as they are.
    parts: the models and drafters. `Carry.models` begins with their states, in
      this order. The last part is the model that says where rows start.
    inputs: [B, S] int32; None for a loop that continues from a `Carry`.
    settings: `LoopSettings`.
    prefill: () -> `Carry.models` before any round; None takes the states that
      the parts' own `prefill` returns.
    width: static, gamma: drafts that a block may write; 0 for methods without
      blocks.
    num_drafts: static, the drafts of a block, for which caches need space. A
      tree has more of them than a block may write; None is `width`.
    observers: what counts and records more than every loop does.
    done: [B] bool, rows that are not decoded at all; None decodes every row.
  """

  round_: Callable[[Carry], Carry]
  parts: tuple[Any, ...]
  inputs: Array | None
  settings: LoopSettings
  prefill: Callable[[], tuple[Any, ...]] | None = None
  width: int = 0
  num_drafts: int | None = None
  observers: tuple[Observer, ...] = ()
  done: Array | None = None

  def begin(self) -> Carry:
    """Returns the state before the first round.

    Raises:
      ValueError: the loop has no inputs.
    """
    settings, inputs = self.settings, self.inputs
    if inputs is None:
      raise ValueError("a loop without inputs continues a `Carry`: `advance`")
    rows, size = inputs.shape[0], settings.buffer_size(self.width)
    start = prompts.start(self.parts[-1], inputs)
    done = jnp.zeros((rows,), bool) if self.done is None else self.done
    num_drafts = self.width if self.num_drafts is None else self.num_drafts
    if self.prefill is None:
      room = settings.buffer_size(num_drafts)
      states = prefill_parts(self.parts, inputs, room)
    else:
      states = self.prefill()
    trace = log_probs = None
    if settings.trace:
      columns = merged(x.begin_columns(rows, size) for x in self.observers)
      trace = tracing.empty_trace(rows, size, self.parts[-1].vocab_size)
      trace = trace.replace(extra=columns)
    if settings.log_probs:
      log_probs = tracing.empty_log_probs(rows, size)
    first = self.parts[0]
    return Carry(
      tokens=token_buffers.start_tokens(start, size),
      length=jnp.ones((rows,), jnp.int32),
      begun=jnp.ones((rows,), jnp.int32),
      done=done | (settings.max_decode_len < 1),
      bad_step=jnp.full((rows,), -1, jnp.int32),
      models=states,
      stats=Stats.zeros(
        rows,
        self.width,
        len(first.models) if is_drafter(first) else 1,
        **merged(x.begin_counts(rows) for x in self.observers),
      ),
      trace=trace,
      log_probs=log_probs,
      extra=merged(x.begin_buffers(rows) for x in self.observers),
      stop=self._stop_states(rows),
      phase_state=self._phase_states(rows),
    )

  def _phase_states(self, rows: int) -> Array | None:
    """Returns the states [B] of alpha's phases before a text."""
    phased = self.settings.phased
    return None if phased is None else phased.begin(rows)

  def _stop_states(self, rows: int) -> Array | None:
    """Returns the states [B] of the stops before a text; None without stops."""
    if self.settings.stops is None:
      return None
    if self.settings.begins is not None:
      return self.settings.begins
    return jnp.full((rows,), START, jnp.int32)

  def advance(
    self, carry: Carry, rounds: Array | None = None, going: Array | int = 0
  ) -> Carry:
    """Runs rounds until few enough rows are still going.

    Args:
      carry: the state before the first of these rounds.
      rounds: int32 [], the largest number of rounds; None sets no limit.
      going: int32 [], the loop stops once no more than this many rows are still
        going. 0 decodes every row to its end.
    """
    shapes = counted_shapes(carry)

    def is_on(packed: tuple[Array, Carry]) -> Array:
      return jnp.sum(~unpack(packed, shapes).done) > going

    def step(packed: tuple[Array, Carry]) -> tuple[Array, Carry]:
      return pack(self.round_(unpack(packed, shapes)))

    if rounds is None:
      packed = jax.lax.while_loop(is_on, step, pack(carry))
    else:
      _, packed = jax.lax.while_loop(
        lambda counted: (counted[0] < rounds) & is_on(counted[1]),
        lambda counted: (counted[0] + 1, step(counted[1])),
        (jnp.int32(0), pack(carry)),
      )
    return unpack(packed, shapes)

  def turn(self, carry: Carry, new: Array) -> Carry:
    """Returns the state before the first round of the next turn.

    Appends external tokens, e.g. the user's message, as if they ended the
    prompt. Every model reads them except for the last one, which the first pass
    of the turn feeds.

    Args:
      carry: the state after the turn before; rows that are still going stop
        where they are.
      new: [B, N] int32 external tokens, `prompts.PAD` at either end. A
        row without any such token has no turn and stays done, and so does a row
        that met a fault.
    """
    count = jnp.where(carry.bad_step < 0, prompts.lengths(new), 0)
    length, has_turn = carry.length + count, count > 0
    new = jnp.maximum(prompts.align(new), 0)
    tokens = token_buffers.write_block(carry.tokens, new, carry.length)
    upto = jnp.where(has_turn, length - 1, 0)
    wide = min(new.shape[1], TURN_WIDTH)
    states = catch_up_parts(self.parts, carry.models, tokens, upto, wide=wide)
    return carry.replace(
      tokens=tokens,
      length=length,
      begun=length,
      done=~has_turn,
      models=(*states, *carry.models[len(states) :]),
      stats=jax.tree.map(jnp.zeros_like, carry.stats),
      stop=self._stop_states(len(length)),
      phase_state=self._phase_states(len(length)),
    )

  def decoded(self, carry: Carry) -> Decoded:
    """Returns the tokens that this turn wrote so far, and 0 after them."""
    limit = self.settings.max_decode_len
    emitted = carry.length - carry.begun

    def take_turn(buffer: Array) -> Array:
      # Row b of the turn begins at begun[b]: 1 in the first turn, since index 0
      # holds the start token.
      def take_row(row: Array, at: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(row, at, limit)

      return jax.vmap(take_row)(buffer, carry.begun)

    tokens, trace, log_probs = jax.tree.map(
      take_turn, (carry.tokens, carry.trace, carry.log_probs)
    )
    # A block is written whole, also past its EOS and past the limit.
    inside = jnp.arange(limit)[None] < emitted[:, None]
    if log_probs is not None:
      log_probs = tracing.mask_log_probs(
        log_probs, inside, self.settings.has_target
      )
    stops = self.settings.stops
    return Decoded(
      tokens=jnp.where(inside, tokens, 0),
      lengths=emitted,
      stats=carry.stats,
      trace=trace,
      bad_step=carry.bad_step,
      log_probs=log_probs,
      extra=carry.extra,
      stopped=None if stops is None else stops.ends[carry.stop],
    )


@jax.named_scope("commit")
def commit(
  carry: Carry, new: Array, num: Array, fault: Array, settings: LoopSettings
) -> tuple[Carry, Array]:
  """Writes a block, truncated where its row ends, or before its first fault.

  A row ends at an EOS, where a stop is complete, and at the length limit.

  Args:
    carry: the state before this round; rows that are done stay as they are.
    new: [B, N] int32 tokens.
    num: [B] int32, how many of the N tokens row b writes.
    fault: [B] int32, index of the first token whose distribution was none (NaN,
      +inf or no finite logit). The row ends before that token unless it ended
      earlier. N or more where there is no such token.
    settings: `LoopSettings`.

  Returns:
    The carry after the block, and [B] int32 tokens emitted.
  """
  active = ~carry.done
  room = settings.max_decode_len + carry.begun - carry.length
  stops, before = settings.stops, carry.stop
  states = is_stop = None
  if stops is not None and before is not None:
    states = stops.follow(before, new)
    is_stop = stops.ends[states]
  emitted, ended = token_buffers.cut(
    new, jnp.minimum(num, fault), room, settings.eos_id, is_stop
  )
  emitted = jnp.where(active, emitted, 0)
  if states is not None and before is not None:
    carry = carry.replace(stop=_last(states, before, emitted))
  if settings.phased is not None and carry.phase_state is not None:
    states = settings.phased.marker.follow(carry.phase_state, new)
    carry = carry.replace(phase_state=_last(states, carry.phase_state, emitted))
  # An EOS or the limit before the faulty token ends the row in order: that
  # token would not have been decoded.
  bad = active & ~ended & (fault < num)
  length = carry.length + emitted
  carry = carry.replace(
    # The whole block is written; what is after `length` is undefined, and
    # the next block overwrites it.
    tokens=token_buffers.write_block(carry.tokens, new, carry.length),
    length=length,
    done=carry.done | ended | bad,
    bad_step=jnp.where(bad, length - carry.begun, carry.bad_step),
  )
  return carry, emitted


def _last(states: Array, before: Array, emitted: Array) -> Array:
  """Returns the state [B] after the emitted tokens of a block.

  Args:
    states: [B, N] int32, the states after each token.
    before: [B] int32, the state before the block.
    emitted: [B] int32, how many tokens were written.
  """
  last = numerics.of_token(states, jnp.maximum(emitted - 1, 0))
  return jnp.where(emitted > 0, last, before)
