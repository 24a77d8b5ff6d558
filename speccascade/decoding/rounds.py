"""The loop of every execution: rounds that write tokens until all ended."""

from collections.abc import Callable

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding import emission, tracing
from speccascade.decoding.emission import Prefix
from speccascade.decoding.execution import LoopSettings
from speccascade.decoding.types import Decoded, LogProbs, Stats, Trace

Array = jax.Array


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
    log_probs: likewise.
  """

  tokens: Array
  length: Array
  done: Array
  bad_step: Array
  models: object
  stats: Stats
  trace: Trace | None
  log_probs: LogProbs | None

  @property
  def prefix(self) -> Prefix:
    return Prefix(self.tokens, self.length, ~self.done)


def run(
  round_: Callable[[Carry], Carry],
  models,
  rows: int,
  settings: LoopSettings,
  *,
  vocab_size: int,
  width: int = 0,
  num_models: int = 1,
  done: Array | None = None,
) -> tuple[Decoded, object]:
  """Writes tokens until every row met EOS, a fault or the length limit.

  Args:
    round_: writes some tokens of every row that is not done.
    models: states of the models, a pytree.
    rows: B.
    settings: `LoopSettings`.
    vocab_size: V, as all that follow static.
    width: gamma, 0 for methods without blocks.
    num_models: language models inside the drafter.
    done: [B] bool, rows that are not decoded at all; None means none.

  Returns:
    The buffers without start token and slack, 0 after EOS; and the states of
    the models at the end.
  """
  limit = settings.max_decode_len
  size = emission.buffer_size(limit, width)
  done = jnp.zeros((rows,), bool) if done is None else done
  carry = Carry(
    tokens=emission.start_tokens(rows, size),
    length=jnp.ones((rows,), jnp.int32),
    done=done | (limit < 1),
    bad_step=jnp.full((rows,), -1, jnp.int32),
    models=models,
    stats=Stats.zeros(rows, width, num_models),
    trace=tracing.empty(rows, size, vocab_size) if settings.trace else None,
    log_probs=tracing.no_log_probs(rows, size) if settings.log_probs else None,
  )
  going = lambda carry: ~jnp.all(carry.done)
  shapes = jax.eval_shape(_counted, carry)
  packed = jax.lax.while_loop(
    lambda packed: going(_unpack(packed, shapes)),
    lambda packed: _pack(round_(_unpack(packed, shapes))),
    _pack(carry),
  )
  carry = _unpack(packed, shapes)
  emitted = carry.length - 1
  tokens, trace, log_probs = jax.tree.map(
    lambda x: x[:, 1 : limit + 1], (carry.tokens, carry.trace, carry.log_probs)
  )
  inside = jnp.arange(limit)[None] < emitted[:, None]
  tokens = jnp.where(inside, tokens, 0)
  log_probs = jax.tree.map(lambda x: jnp.where(inside, x, jnp.nan), log_probs)
  decoded = Decoded(
    tokens, emitted, carry.stats, trace, carry.bad_step, log_probs
  )
  return decoded, carry.models


# What is counted is some twenty small arrays. Between rounds they are one: to
# write each would be an operation of its own, as dear as to write all.


def _counted(carry: Carry) -> dict:
  names = ("length", "done", "bad_step", "stats")
  return {name: getattr(carry, name) for name in names}


@jax.named_scope("count")
def _pack(carry: Carry) -> tuple[Array, Carry]:
  """Returns all that is counted as [B, n] int32, bit by bit, and the rest."""
  columns = [
    x.astype(jnp.int32)
    if x.dtype == bool
    else jax.lax.bitcast_convert_type(x, jnp.int32)
    for x in jax.tree.leaves(_counted(carry))
  ]
  while len(columns) > 1:  # XLA's CPU backend fuses no more than eight
    columns = [
      jnp.concatenate([x.reshape(x.shape[0], -1) for x in some], axis=1)
      for some in (columns[i : i + 8] for i in range(0, len(columns), 8))
    ]
  return columns[0], carry.replace(**dict.fromkeys(_counted(carry)))


def _unpack(packed: tuple[Array, Carry], shapes: dict) -> Carry:
  """Returns what was packed; `shapes` are those of `_counted`."""
  leaves, tree = jax.tree.flatten(shapes)
  ends = np.cumsum([x.size // x.shape[0] for x in leaves])
  columns = jnp.split(packed[0], ends[:-1], axis=1)
  leaves = [
    x.reshape(like.shape) != 0
    if like.dtype == bool
    else jax.lax.bitcast_convert_type(x.reshape(like.shape), like.dtype)
    for x, like in zip(columns, leaves)
  ]
  return packed[1].replace(**tree.unflatten(leaves))


@jax.named_scope("commit")
def commit(
  carry: Carry, new: Array, num: Array, fault: Array, settings: LoopSettings
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
  emitted, ended = emission.cut(
    new, jnp.minimum(num, fault), room, settings.eos_id
  )
  emitted = jnp.where(active, emitted, 0)
  bad = active & ~ended & (fault < num)
  length = carry.length + emitted
  carry = carry.replace(
    tokens=emission.write_block(carry.tokens, new, carry.length),
    length=length,
    done=carry.done | ended | bad,
    bad_step=jnp.where(bad, length - 1, carry.bad_step),
  )
  return carry, emitted
