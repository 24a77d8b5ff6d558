"""Who wrote each token, and why: the records behind `Trace`."""

import jax
import jax.numpy as jnp

from speccascade.decoding import emission, numerics
from speccascade.decoding.types import Trace

Array = jax.Array

TOP = 5


def empty(rows: int, size: int, vocab_size: int) -> Trace:
  """Returns buffers for `size` tokens of each row."""
  top = min(TOP, vocab_size)

  def full(value, dtype, *more):
    return jnp.full((rows, size, *more), value, dtype)

  return Trace(
    source=full(0, jnp.int32),
    deferred=full(False, bool),
    left=full(jnp.nan, jnp.float32),
    right=full(jnp.nan, jnp.float32),
    tv=full(jnp.nan, jnp.float32),
    block=full(0, jnp.int32),
    q_top=full(0, jnp.int32, top),
    q_prob=full(jnp.nan, jnp.float32, top),
    p_top=full(0, jnp.int32, top),
    p_prob=full(jnp.nan, jnp.float32, top),
  )


def record(
  trace: Trace,
  start,
  *,
  source,
  deferred,
  left,
  right,
  block,
  q1,
  p1,
  q,
  p,
  known_q=True,
  known_q1=True,
  known_p=True,
) -> Trace:
  """Writes the record of N tokens of each row at `start`; unknown laws None.

  Args:
    trace: buffers.
    start: [B] int32 slot of the first token.
    source: [B, N] int32.
    deferred: [B, N] bool.
    left: [B, N] float.
    right: [B, N] float.
    block: [B] int32.
    q1: [B, N, V] drafter at temperature 1, or None.
    p1: [B, N, V] verifier at temperature 1, or None.
    q: [B, N, V] sampled law, or None.
    p: [B, N, V] sampled law, or None.
    known_q: [B, N] bool, where the drafter's law means something.
    known_q1: [B, N] bool, where its confidence does.
    known_p: [B, N] bool, where the verifier's does.
  """
  top = trace.q_top.shape[-1]
  unknown = jnp.full((*source.shape, top), jnp.nan, jnp.float32)

  def likeliest(law):
    if law is None:
      return jnp.zeros(unknown.shape, jnp.int32), unknown
    prob, index = jax.lax.top_k(law, top)
    return index, prob

  known_q, known_q1, known_p = map(jnp.asarray, (known_q, known_q1, known_p))
  tv = unknown[..., 0]
  if q is not None and p is not None:
    tv = jnp.where(known_q & known_p, numerics.total_variation(q, p), tv)
  (q_top, q_prob), (p_top, p_prob) = likeliest(q1), likeliest(p1)
  new = Trace(
    source=source,
    deferred=deferred,
    left=left,
    right=right,
    tv=tv,
    block=jnp.broadcast_to(block[:, None], source.shape),
    q_top=q_top,
    q_prob=jnp.where(known_q1[..., None], q_prob, jnp.nan),
    p_top=p_top,
    p_prob=jnp.where(known_p[..., None], p_prob, jnp.nan),
  )
  return jax.tree.map(
    lambda buffer, values: emission.write_block(buffer, values, start),
    trace,
    new,
  )
