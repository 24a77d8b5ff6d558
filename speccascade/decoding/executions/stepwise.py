"""The loop of every method that writes one token at a time."""

from collections.abc import Callable

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding import emission, tracing
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.emission import Carry
from speccascade.decoding.execution import LoopSettings
from speccascade.decoding.types import Decoded

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


def stepwise(
  advance: Callable,
  models,
  rngs: Array,
  settings: LoopSettings,
  *,
  vocab_size: int,
  done: Array | None = None,
) -> tuple[Decoded, object]:
  """Writes token after token until EOS or the length limit.

  Args:
    advance: `(models, prefix, u, stats) -> (models, Step, stats)` with u [B]
      uniforms; it must leave the counters of inactive rows alone.
    models: the method's own state, a pytree.
    rngs: [B] typed keys.
    settings: `LoopSettings`.
    vocab_size: static.
    done: [B] bool, rows that are not decoded at all; None means none.

  Returns:
    The result, and the method's state at the end.
  """
  rows = rngs.shape[0]
  size = emission.buffer_size(settings.max_decode_len, 0)
  if done is None:
    done = jnp.zeros((rows,), bool)

  def step_(carry: Carry) -> Carry:
    keys = sampling_lib.fold_in(rngs, carry.length - 1)
    u = sampling_lib.uniforms(sampling_lib.fold_in(keys, DRAW_TAG), 1)[:, 0]
    prefix = Prefix(carry.tokens, carry.length, ~carry.done)
    models, step, stats = advance(carry.models, prefix, u, carry.stats)
    one = jnp.ones_like(carry.length)
    fault = jnp.where(step.bad, 0, one)
    after, emitted = emission.commit(
      carry, step.token[:, None], one, fault, settings
    )
    deferred = step.deferred & (emitted > 0)
    trace = carry.trace
    if settings.trace:
      trace = _record(trace, carry.length, step, deferred)
    count = stats.deferred + deferred.astype(jnp.int32)
    return after.replace(
      models=models, stats=stats.replace(deferred=count), trace=trace
    )

  carry = emission.start(
    rows,
    size,
    models,
    emission.zero_stats(rows, 0),
    tracing.empty(rows, size, vocab_size) if settings.trace else None,
    done | (settings.max_decode_len < 1),
  )
  carry = jax.lax.while_loop(lambda c: ~jnp.all(c.done), step_, carry)
  return emission.finish(carry, settings.max_decode_len), carry.models


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
