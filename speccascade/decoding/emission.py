"""What every execution shares: buffers, and where a block is cut.

Token buffers hold the start token, `max_decode_len` tokens, and room for a
block that is written past the end: `dynamic_update_slice` clamps its start
silently and would overwrite good tokens.
"""

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


def finish(
  tokens: Array,
  length: Array,
  stats: Stats,
  trace: Trace | None,
  bad_step: Array,
  max_decode_len: int,
) -> Decoded:
  """Returns the result: buffers without start token and slack, 0 behind EOS.

  Args:
    tokens: [B, L] int32, start token first.
    length: [B] int32, start token counted.
    stats: counters.
    trace: buffers [B, L, ...] aligned with `tokens`, or None.
    bad_step: [B] int32.
    max_decode_len: T.
  """
  emitted = length - 1
  inside = jnp.arange(max_decode_len)[None] < emitted[:, None]
  tokens = jnp.where(inside, tokens[:, 1 : max_decode_len + 1], 0)
  if trace is not None:
    trace = jax.tree.map(lambda x: x[:, 1 : max_decode_len + 1], trace)
  return Decoded(tokens, emitted, stats, trace, bad_step)
