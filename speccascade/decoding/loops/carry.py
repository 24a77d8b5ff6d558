"""The state of a decoding loop; its counters are one array between rounds."""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.records.block_records import (
  LogProbs,
  Stats,
  Trace,
)
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class Carry(struct.PyTreeNode):
  """State of every loop. B = rows, L = buffer size.

  Attributes:
    tokens: [B, L] int32. Index 0 holds the start token, or the last token of a
      prompt; decoded tokens follow.
    length: [B] int32, tokens written, the one at index 0 included. A finished
      row keeps its length.
    begun: [B] int32, the length at which the current turn began: 1 in the
      first turn of a conversation.
    done: [B] bool, rows that have ended.
    bad_step: [B] int32, the step of this turn at which a model gave no
      distribution; -1 for rows without such a fault.
    models: tuple of the states of the models. In a speculative loop these are
      the drafter's state and the verifier's state. Between rounds the
      verifier's cache holds `length - 1` tokens: the last token is fed at the
      start of the next block.
    stats: counters of this turn.
    trace: buffers aligned with `tokens`, or None where nothing is traced.
    log_probs: buffers aligned with `tokens`, or None where no log-probabilities
      are recorded.
    extra: the buffers of the loop's observers, by name.
    stop: [B] int32, the state of the automaton of stops after the last token;
      None where nothing but an EOS and the limit ends a row.
    phase_state: [B] int32, the state of the `PhasedAlpha` after the last token;
      None where alpha is not by phase.
  """

  tokens: Array
  length: Array
  begun: Array
  done: Array
  bad_step: Array
  models: tuple[Any, ...]
  stats: Stats
  trace: Trace | None
  log_probs: LogProbs | None
  extra: dict[str, Any] = struct.field(default_factory=dict)
  stop: Array | None = None
  phase_state: Array | None = None

  @property
  def prefix(self) -> Prefix:
    """The tokens so far, as drafters and verifiers read them."""
    return Prefix(self.tokens, self.length, ~self.done, self.phase_state)


# A round updates some twenty arrays of a few numbers each. XLA writes each of
# them with an operation of its own, and on a CPU a small operation costs as
# much to start as a large one, so twenty writes cost as much as twenty large
# ones. Between rounds all these numbers are the columns of one array: one
# operation writes them, and slices that XLA fuses into their users read them.


def _counted(carry: Carry) -> dict[str, Any]:
  """Returns the fields that are packed, by name."""
  return {
    "length": carry.length,
    "done": carry.done,
    "bad_step": carry.bad_step,
    "stats": carry.stats,
    "stop": carry.stop,
    "phase_state": carry.phase_state,
  }


def counted_shapes(carry: Carry) -> dict[str, Any]:
  """Returns shapes and dtypes of the packed fields, which `unpack` needs."""
  return jax.eval_shape(_counted, carry)


@jax.named_scope("count")
def pack(carry: Carry) -> tuple[Array, Carry]:
  """Returns the packed fields as one array, and the carry without them.

  Returns:
    ([B, n] int32, the bits of each number unchanged; the `Carry`, whose packed
    fields are None).
  """
  columns = []
  for leaf in jax.tree.leaves(_counted(carry)):
    # Counters are int32 or float32: 32 bits either way.
    if leaf.dtype == bool:
      bits = leaf.astype(jnp.int32)
    else:
      bits = jax.lax.bitcast_convert_type(leaf, jnp.int32)
    columns.append(bits.reshape(bits.shape[0], -1))
  # XLA would compute each operand of a concatenation with an operation of its
  # own. Of columns that are padded to the whole width, and whose bits are then
  # combined, it computes all with one operation.
  ends = np.cumsum([bits.shape[1] for bits in columns])
  packed = jnp.zeros((), jnp.int32)
  for bits, end in zip(columns, ends):
    before = end - bits.shape[1]
    packed |= jnp.pad(bits, ((0, 0), (before, ends[-1] - end)))
  return packed, carry.replace(**dict.fromkeys(_counted(carry)))


def unpack(packed: tuple[Array, Carry], shapes: dict[str, Any]) -> Carry:
  """Returns the carry that `pack` took apart.

  Args:
    packed: what `pack` returned.
    shapes: what `counted_shapes` says of the carry.
  """
  counts, carry = packed
  leaves, tree = jax.tree.flatten(shapes)
  # With leaves [B], [B] and [B, 3] the columns end at 1, 2 and 5.
  ends = np.cumsum([leaf.size // leaf.shape[0] for leaf in leaves])
  values = []
  for bits, like in zip(jnp.split(counts, ends[:-1], axis=1), leaves):
    bits = bits.reshape(like.shape)
    if like.dtype == bool:
      values.append(bits != 0)
    else:
      values.append(jax.lax.bitcast_convert_type(bits, like.dtype))
  return carry.replace(**jax.tree.unflatten(tree, values))
