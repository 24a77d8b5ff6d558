"""The loop of every method that writes one token at a time."""

from collections.abc import Callable

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding import emission, tracing
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.types import Decoded, Stats, Trace

Array = jax.Array

DRAW_TAG = 2  # as the last draw of a block in speculative execution


@struct.dataclass
class Prefix:
  """What a step may look at. L = buffer size.

  Attributes:
    tokens: [B, L] int32, start token first.
    length: [B] int32, tokens written.
    active: [B] bool, rows that are still going.
  """

  tokens: Array
  length: Array
  active: Array

  @property
  def last(self) -> Array:
    """[B, 1] int32, the last token."""
    return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, axis=1)


@struct.dataclass
class Step:
  """The next token of each row, and what is recorded of it.

  Attributes:
    token: [B] int32.
    bad: [B] bool, where a law was no distribution.
    source: [B] int32, as in `Trace`.
    deferred: [B] bool.
    left: [B] float, NaN where there is no rule; likewise the rest.
    right: [B] float.
    q1: [B, V] or None; likewise p1, q and p.
    known_p: [B] bool, where p1 and p mean something.
  """

  token: Array
  bad: Array
  source: Array
  deferred: Array
  left: Array | None = None
  right: Array | None = None
  q1: Array | None = None
  p1: Array | None = None
  q: Array | None = None
  p: Array | None = None
  known_p: Array | None = None


@struct.dataclass
class Carry:
  """State of the loop; fields as in `speculative.Carry`, `models` being the
  method's own."""

  tokens: Array
  length: Array
  done: Array
  bad_step: Array
  models: object
  stats: Stats
  trace: Trace | None


def stepwise(
  advance: Callable,
  models,
  rngs: Array,
  *,
  max_decode_len: int,
  eos_id: int,
  vocab_size: int,
  trace: bool,
  done: Array | None = None,
) -> tuple[Decoded, object]:
  """Writes token after token until EOS or the length limit.

  Args:
    advance: `(models, prefix, u, stats) -> (models, Step, stats)` with u [B]
      uniforms; it must leave the counters of inactive rows alone.
    models: the method's own state, a pytree.
    rngs: [B] typed keys.
    max_decode_len: static, most tokens of a row, EOS counted.
    eos_id: static.
    vocab_size: static.
    trace: static.
    done: [B] bool, rows that are not decoded at all; None means none.

  Returns:
    The result, and the method's state at the end.
  """
  rows = rngs.shape[0]
  size = emission.buffer_size(max_decode_len, 0)
  if done is None:
    done = jnp.zeros((rows,), bool)

  def going(carry: Carry):
    return ~jnp.all(carry.done)

  def step_(carry: Carry) -> Carry:
    active = ~carry.done
    keys = sampling_lib.fold_in(rngs, carry.length - 1)
    u = sampling_lib.uniforms(sampling_lib.fold_in(keys, DRAW_TAG), 1)[:, 0]
    prefix = Prefix(carry.tokens, carry.length, active)
    models, step, stats = advance(carry.models, prefix, u, carry.stats)
    bad = active & step.bad
    new = step.token[:, None]
    room = max_decode_len + 1 - carry.length
    emitted, ended = emission.cut(new, jnp.ones_like(room), room, eos_id)
    emitted = jnp.where(active & ~bad, emitted, 0)
    deferred = step.deferred & (emitted > 0)
    records = carry.trace
    if trace:
      records = _record(records, carry.length, step, deferred)
    return Carry(
      tokens=emission.write_block(carry.tokens, new, carry.length),
      length=carry.length + emitted,
      done=carry.done | ended | bad,
      bad_step=jnp.where(bad, carry.length - 1, carry.bad_step),
      models=models,
      stats=stats.replace(deferred=stats.deferred + deferred.astype(jnp.int32)),
      trace=records,
    )

  carry = Carry(
    tokens=emission.start_tokens(rows, size),
    length=jnp.ones((rows,), jnp.int32),
    done=done | (max_decode_len < 1),
    bad_step=jnp.full((rows,), -1, jnp.int32),
    models=models,
    stats=emission.zero_stats(rows, 0),
    trace=tracing.empty(rows, size, vocab_size) if trace else None,
  )
  carry = jax.lax.while_loop(going, step_, carry)
  decoded = emission.finish(
    carry.tokens,
    carry.length,
    carry.stats,
    carry.trace,
    carry.bad_step,
    max_decode_len,
  )
  return decoded, carry.models


def _record(records, start, step: Step, deferred):
  """Writes the record of one token of each row."""
  nothing = jnp.full(step.token.shape, jnp.nan, jnp.float32)

  def column(x):
    return None if x is None else x[:, None]

  return tracing.record(
    records,
    start,
    source=step.source[:, None],
    deferred=deferred[:, None],
    left=column(nothing if step.left is None else step.left),
    right=column(nothing if step.right is None else step.right),
    block=start - 1,
    q1=column(step.q1),
    p1=column(step.p1),
    q=column(step.q),
    p=column(step.p),
    known_p=True if step.known_p is None else step.known_p[:, None],
  )
