"""Token buffers: how blocks are written to them, and truncated.

A buffer holds the start token (or the last token of a prompt), `max_decode_len`
tokens, and space for one block beyond them. The space matters: XLA's
`dynamic_update_slice` silently moves a block that would not fit towards the
start of the buffer, where it would overwrite good tokens.
"""

from typing import TypeVar

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Tree = TypeVar("Tree")


class Prefix(struct.PyTreeNode):
  """The tokens so far. B = rows, L = buffer size.

  Attributes:
    tokens: [B, L] int32, the start token first.
    length: [B] int32, tokens written.
    active: [B] bool, rows that are still going; the others are fed nothing.
    phase_state: [B] int32, the state of a `PhasedAlpha` after the tokens; None
      where alpha is not by phase.
  """

  tokens: Array
  length: Array
  active: Array
  phase_state: Array | None = None

  @property
  def last(self) -> Array:
    """[B, 1] int32, the last token of each row."""
    return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, axis=1)


def buffer_size(max_decode_len: int, width: int) -> int:
  """Returns the slots of a token buffer for blocks of `width` drafts.

  These are the start token, the decoded tokens, and a block of `width` drafts
  with one more token that begins at the very end.
  """
  return 1 + max_decode_len + width + 1


def start_tokens(start: Array, size: int) -> Array:
  """Returns [B, size] int32 with `start` [B] at index 0, and 0 after it."""
  return jnp.pad(start[:, None], ((0, 0), (0, size - 1)))


def read_block(tokens: Array, start: Array, width: int) -> Array:
  """Returns `width` tokens of each row, [B, width], from `start` [B] on.

  Args:
    tokens: [B, L] int32. Past its end the last token is read.
    start: [B] int32.
    width: static.
  """
  index = start[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
  index = jnp.minimum(index, tokens.shape[1] - 1)
  return jnp.take_along_axis(tokens, index, axis=1)


def write_block(buffers: Tree, blocks: Tree, start: Array) -> Tree:
  """Writes a block into the buffer of each row, at a place of the row's own.

  Args:
    buffers: [B, L, ...], or a tree of such arrays.
    blocks: [B, N, ...], or a tree of the same structure.
    start: [B] int32; `blocks[b, i]` is written at index `start[b] + i`.

  Returns:
    The buffers with the blocks written.
  """

  def write_row(row: Array, values: Array, index: Array) -> Array:
    zeros = (np.int32(0),) * (row.ndim - 1)
    return jax.lax.dynamic_update_slice(row, values, (index, *zeros))

  def mapped(buffer: Array, block: Array, start: Array) -> Array:
    return jax.vmap(write_row)(buffer, block, start)

  def rewritten(buffer: Array, block: Array, start: Array) -> Array:
    # With start 3 and a block of 2 the offsets of slots 2 to 5 are -1, 0, 1, 2.
    offset = jnp.arange(buffer.shape[1])[None] - start[:, None]
    last = block.shape[1] - 1
    others = range(2, buffer.ndim)
    index = jnp.expand_dims(jnp.clip(offset, 0, last), others)
    is_new = jnp.expand_dims((offset >= 0) & (offset <= last), others)
    new = jnp.take_along_axis(block, index, axis=1)
    return jnp.where(is_new, new, buffer)

  def write(buffer: Array, block: Array) -> Array:
    block = block.astype(buffer.dtype)
    # XLA on a CPU, and on a TPU, turns a scatter at per-row offsets into a loop
    # over rows. A buffer of numbers is small, so all of it is computed again
    # instead: each slot takes its token of the block, or keeps what it has.
    if buffer.ndim == 2:
      return rewritten(buffer, block, start)
    return jax.lax.platform_dependent(
      buffer, block, start, tpu=rewritten, default=mapped
    )

  return jax.tree.map(write, buffers, blocks)


def cut(
  new: Array,
  num: Array,
  room: Array,
  eos_id: int | tuple[int, ...],
  is_end: Array | None = None,
) -> tuple[Array, Array]:
  """Truncates a block at its first EOS or other end, and at the length limit.

  Args:
    new: [B, N] int32 tokens, of which row b emits at most `num[b]`.
    num: [B] int32.
    room: [B] int32, tokens that row b may still emit.
    eos_id: the id that ends a row, or several ids; that token is emitted too.
    is_end: [B, N] bool, other tokens that end a row; None for none.

  Returns:
    ([B] int32 tokens emitted, [B] bool whether the row has ended).
  """
  num = jnp.minimum(num, room)
  position = jnp.arange(new.shape[1], dtype=jnp.int32)[None]
  ends = jnp.asarray(eos_id, jnp.int32).reshape(1, 1, -1)
  is_eos = jnp.any(new[..., None] == ends, axis=2)
  is_end = is_eos if is_end is None else is_end | is_eos
  is_end &= position < num[:, None]
  # N where nothing ends in the block.
  first = jnp.min(jnp.where(is_end, position, new.shape[1]), axis=1)
  has_end = first < new.shape[1]
  return jnp.where(has_end, first + 1, num), has_end | (num >= room)
