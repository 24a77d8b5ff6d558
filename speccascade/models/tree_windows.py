"""Trees of drafted tokens, as the calls that feed them describe them.

A call of `LanguageModel.extend` describes a tree by a window: the last W slots
of a row, once the N tokens of the call are written. The last N columns of the
window are the tokens of the call. The columns before them are tokens of the
tree that earlier calls fed, so that a tree can be fed level by level.

A row holds 10 tokens and is fed a root, its two children, and a child of each.
The call with the root has a window of 1 column, slot 10. The call with the two
children has 3 columns, slots 10 to 12, whose depths are 0, 1, 1. The last call
has 5 columns, slots 10 to 14, whose depths are 0, 1, 1, 2, 2.

Axes: B rows, N fed tokens, W columns of the window, L slots, K nodes of a path.
"""

import jax
import jax.numpy as jnp

from speccascade.decoding.laws.numerics import check_shape


def check(
  tokens: jax.Array, depth: jax.Array | None, ancestors: jax.Array | None
) -> None:
  """Checks what a call says of a tree; see `LanguageModel.extend`.

  Args:
    tokens: [B, N] int32.
    depth: [B, W] int32, or None.
    ancestors: [B, N, W] bool, or None.

  Raises:
    ValueError: only one of `depth` and `ancestors` is given, the window is
      narrower than the block of tokens, or a shape is wrong.
  """
  if depth is None and ancestors is None:
    return
  if depth is None or ancestors is None:
    given, missing = "depth", "ancestors"
    if depth is None:
      given, missing = missing, given
    raise ValueError(
      f"a block has {given} and no {missing}; give both for a tree, or neither"
      " for tokens in a row"
    )
  rows, num_fed = tokens.shape
  if depth.ndim != 2 or depth.shape[1] < num_fed:
    raise ValueError(
      f"depth has shape {list(depth.shape)}; wanted [{rows}, {num_fed} or more]"
    )
  window = depth.shape[1]
  check_shape("depth", depth, (rows, window))
  check_shape("ancestors", ancestors, (rows, num_fed, window))


def depth_of_fed(depth: jax.Array, num_fed: int) -> jax.Array:
  """Returns [B, N] int32, the depths of the tokens of this call.

  Args:
    depth: [B, W] int32, the depths of the window.
    num_fed: N.
  """
  return depth[:, depth.shape[1] - num_fed :]


def first_slot(length: jax.Array, num_fed: int, depth: jax.Array) -> jax.Array:
  """Returns [B] int32, the first slot of each row's window.

  With 12 tokens held, 2 fed and a window of 5, the window has slots 9 to 13.

  Args:
    length: [B] int32, the slots that each row held before the call.
    num_fed: N.
    depth: [B, W] int32, the depths of the window.
  """
  return length - (depth.shape[1] - num_fed)


def kept_slots(
  num_slots: int, start: jax.Array, path: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns which slots a kept path is read from, and where it is written.

  Where a tree was fed from slot 10 on, the path 0, 2, 5 is read from slots 10,
  12, 15, and written to slots 10, 11, 12.

  All rows write K slots, and no slot may change but those of the kept tokens. A
  row that keeps fewer than K nodes reads the slots after them from where they
  are. So does a row of which fewer than K slots are left: with 12 slots and two
  nodes of K = 3 kept from slot 10 on, slots 9 to 11 are written, and slot 9 is
  read from slot 9.

  Args:
    num_slots: L.
    start: [B] int32, the slot of each row's first node.
    path: [B, K] int32 nodes in order of depth; K is in 1..L.
    count: [B] int32, how many of the K nodes are kept.

  Returns:
    ([B, K] int32 slots that are read, [B] int32 the first slot written).
  """
  num_nodes = path.shape[1]
  first = jnp.clip(start, 0, num_slots - num_nodes)
  written = first[:, None] + jnp.arange(num_nodes, dtype=jnp.int32)[None]
  index = written - start[:, None]  # of the node of the path that goes there
  is_kept = (index >= 0) & (index < count[:, None])
  index = jnp.clip(index, 0, num_nodes - 1)
  read = start[:, None] + jnp.take_along_axis(path, index, axis=1)
  return jnp.where(is_kept, read, written), first
