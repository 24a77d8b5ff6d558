"""How tokens are written: buffers, and where a block is cut.

Token buffers hold the start token (or the last one of a prompt),
`max_decode_len` tokens, and room for a block that is written past the end:
`dynamic_update_slice` clamps its start silently and would overwrite good
tokens.
"""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


@struct.dataclass
class Prefix:
  """What stands so far. L = buffer size.

  Attributes:
    tokens: [B, L] int32, start token first.
    length: [B] int32, tokens written.
    active: [B] bool, rows that are still going; the others are fed nothing.
  """

  tokens: Array
  length: Array
  active: Array

  @property
  def last(self) -> Array:
    """[B, 1] int32, the last token."""
    return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, axis=1)


def buffer_size(max_decode_len: int, width: int) -> int:
  """Returns the slots of a token buffer for blocks of `width` drafts."""
  return 1 + max_decode_len + width + 1


def start_tokens(start: Array, size: int) -> Array:
  """Returns [B, size] int32, `start` [B] at index 0, and 0 after it."""
  return jnp.pad(start[:, None], ((0, 0), (0, size - 1)))


def write_block(buffers, blocks, start: Array):
  """Writes block[b] at start[b]; [B, L, ...], [B, N, ...], [B]; or in trees."""

  def write_row(row, values, at):
    zeros = (np.int32(0),) * (row.ndim - 1)
    return jax.lax.dynamic_update_slice(row, values, (at, *zeros))

  def write(buffer, block):
    block = block.astype(buffer.dtype)
    if buffer.ndim > 2:
      return jax.vmap(write_row)(buffer, block, start)
    # Of rows that differ in place XLA makes a loop; numbers are written anew.
    place = jnp.arange(buffer.shape[1])[None] - start[:, None]
    last = block.shape[1] - 1
    new = jnp.take_along_axis(block, jnp.clip(place, 0, last), axis=1)
    return jnp.where((place >= 0) & (place <= last), new, buffer)

  return jax.tree.map(write, buffers, blocks)


def cut(
  new: Array, num: Array, room: Array, eos_id: int | tuple[int, ...]
) -> tuple[Array, Array]:
  """Cuts a block at its first EOS and at the length limit.

  Args:
    new: [B, N] int32 tokens, of which row b emits at most `num[b]`.
    num: [B] int32.
    room: [B] int32 tokens that may still be emitted.
    eos_id: id, or ids, that end a row; such a token is emitted itself.

  Returns:
    ([B] int32 tokens emitted, [B] bool whether the row has ended).
  """
  num = jnp.minimum(num, room)
  position = jnp.arange(new.shape[1], dtype=jnp.int32)[None]
  ends = jnp.asarray(eos_id, jnp.int32).reshape(1, 1, -1)
  is_eos = jnp.any(new[..., None] == ends, axis=2) & (position < num[:, None])
  first = jnp.min(jnp.where(is_eos, position, new.shape[1]), axis=1)
  has_eos = first < new.shape[1]
  return jnp.where(has_eos, first + 1, num), has_eos | (num >= room)
