"""What every execution shares: buffers, and where a block is cut.

Token buffers hold the start token, `max_decode_len` tokens, and room for a
block that is written past the end: `dynamic_update_slice` clamps its start
silently and would overwrite good tokens.
"""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.types import Decoded, Stats, Trace

Array = jax.Array

START_ID = 0


def buffer_size(max_decode_len: int, width: int) -> int:
  """Returns the slots of a token buffer for blocks of `width` drafts."""
  return 1 + max_decode_len + width + 1


def start_tokens(rows: int, size: int) -> Array:
  """Returns [B, size] int32, the start token (and everything else) 0."""
  return jnp.full((rows, size), START_ID, jnp.int32)


def write_block(buffer: Array, block: Array, start: Array) -> Array:
  """Writes block[b] at start[b]; [B, L, ...], [B, N, ...], [B]."""

  def write(row, values, at):
    zeros = (0,) * (row.ndim - 1)
    return jax.lax.dynamic_update_slice(row, values, (at, *zeros))

  return jax.vmap(write)(buffer, block.astype(buffer.dtype), start)


def cut(
  new: Array, num: Array, room: Array, eos_id: int
) -> tuple[Array, Array]:
  """Cuts a block at its first EOS and at the length limit.

  Args:
    new: [B, N] int32 tokens, of which row b emits at most `num[b]`.
    num: [B] int32.
    room: [B] int32 tokens that may still be emitted.
    eos_id: id that ends a row; it is emitted itself.

  Returns:
    ([B] int32 tokens emitted, [B] bool whether the row has ended).
  """
  num = jnp.minimum(num, room)
  position = jnp.arange(new.shape[1], dtype=jnp.int32)[None]
  is_eos = (new == eos_id) & (position < num[:, None])
  first = jnp.min(jnp.where(is_eos, position, new.shape[1]), axis=1)
  has_eos = first < new.shape[1]
  return jnp.where(has_eos, first + 1, num), has_eos | (num >= room)


def zero_stats(rows: int, width: int, num_models: int = 1) -> Stats:
  """Returns counters at 0.

  Args:
    rows: B.
    width: gamma, 0 for methods without blocks.
    num_models: language models inside the drafter.
  """
  zero = jnp.zeros((rows,), jnp.int32)
  return Stats(
    num_blocks=zero,
    drafted=zero,
    examined=zero,
    accepted=zero,
    deferred=zero,
    drafter_calls=zero,
    calls_by_model=jnp.zeros((rows, num_models), jnp.int32),
    verifier_calls=zero,
    verifier_extends=zero,
    expected_acceptance=jnp.zeros((rows,), jnp.float32),
    accepted_at=jnp.zeros((rows, width + 1), jnp.int32),
    examined_by_position=jnp.zeros((rows, width), jnp.int32),
    accepted_by_position=jnp.zeros((rows, width), jnp.int32),
  )


@struct.dataclass
class Carry:
  """State of every loop. L = buffer size.

  Attributes:
    tokens: [B, L] int32, start token first.
    length: [B] int32, tokens written; finished rows keep it.
    done: [B] bool.
    bad_step: [B] int32, -1 where all is well.
    models: the states of the models, a pytree. Of a speculative loop those of
      drafter and verifier; the verifier's holds `length - 1` tokens.
    stats: counters.
    trace: buffers aligned with `tokens`, or None.
  """

  tokens: Array
  length: Array
  done: Array
  bad_step: Array
  models: object
  stats: Stats
  trace: Trace | None


def start(rows: int, size: int, models, stats: Stats, trace, done) -> Carry:
  """Returns the carry of a loop that has written nothing but start tokens.

  Args:
    rows: B.
    size: slots of the token buffer.
    models: states of the models.
    stats: counters at 0.
    trace: empty buffers, or None.
    done: [B] bool, rows that are not decoded at all.
  """
  return Carry(
    tokens=start_tokens(rows, size),
    length=jnp.ones((rows,), jnp.int32),
    done=done,
    bad_step=jnp.full((rows,), -1, jnp.int32),
    models=models,
    stats=stats,
    trace=trace,
  )


def commit(
  carry: Carry, new: Array, num: Array, fault: Array, settings
) -> tuple[Carry, Array]:
  """Writes a block, cut at its EOS, the length limit and the first fault.

  Args:
    carry: rows that are done stay as they are.
    new: [B, N] int32 tokens.
    num: [B] int32 of them to write.
    fault: [B] int32, the first that rests on a law that is no distribution; the
      row ends there unless it ended before. N or more where none does.
    settings: `LoopSettings`.

  Returns:
    The carry, and [B] int32 tokens emitted.
  """
  active = ~carry.done
  room = settings.max_decode_len + 1 - carry.length
  emitted, ended = cut(new, jnp.minimum(num, fault), room, settings.eos_id)
  emitted = jnp.where(active, emitted, 0)
  bad = active & ~ended & (fault < num)
  length = carry.length + emitted
  carry = carry.replace(
    tokens=write_block(carry.tokens, new, carry.length),
    length=length,
    done=carry.done | ended | bad,
    bad_step=jnp.where(bad, length - 1, carry.bad_step),
  )
  return carry, emitted


def finish(carry: Carry, max_decode_len: int) -> Decoded:
  """Returns the result: buffers without start token and slack, 0 after EOS."""
  emitted = carry.length - 1
  inside = jnp.arange(max_decode_len)[None] < emitted[:, None]
  tokens, trace = (
    jax.tree.map(lambda x: x[:, 1 : max_decode_len + 1], buffers)
    for buffers in (carry.tokens, carry.trace)
  )
  tokens = jnp.where(inside, tokens, 0)
  return Decoded(tokens, emitted, carry.stats, trace, carry.bad_step)
