"""Laws of logits and draws from them, in one call each.

`speccascade.decoding` defines them; its functions call these where they can.
"""

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native import library


def takes(*arrays) -> bool:
  """Whether there are native handlers, and all arrays are float32."""
  is_float32 = all(x.dtype == jnp.float32 for x in arrays)
  return is_float32 and library.is_available()


def _call(handler: str, results, *operands, **static):
  """Returns what a handler makes of the operands."""
  name = library.target(handler)
  call = jax.ffi.ffi_call(name, results, vmap_method="sequential")
  return call(*operands, **static)


def laws(logits, temperature, u, *, column: int, greedy: bool):
  """Returns (law [..., V], token [...] drawn from it, is it a law [...]).

  Args:
    logits: [..., V] float32; a row with NaN, +inf, or nothing but -inf gives no
      law.
    temperature: [] float32; not used where greedy.
    u: [..., N] float32 uniforms in [0, 1); None where no token is wanted, which
      is then 0. Not used where greedy.
    column: static, which of the N to use.
    greedy: static; the law is one-hot at the first of the largest logits.
  """
  if u is None:
    u = jnp.zeros((*logits.shape[:-1], 0), jnp.float32)
  results = (
    jax.ShapeDtypeStruct(logits.shape, jnp.float32),
    jax.ShapeDtypeStruct(u.shape[:-1], jnp.int32),
    jax.ShapeDtypeStruct(u.shape[:-1], jnp.bool_),
  )
  return _call(
    "LawsOfLogits",
    results,
    logits,
    temperature,
    u,
    column=np.int64(column),
    greedy=greedy,
  )


def draw(weights, u):
  """Returns a token [...] int32 of weights [..., V] by inverse cumulative sum.

  Args:
    weights: [..., V] float32, none negative.
    u: [...] float32 uniforms in [0, 1).
  """
  result = jax.ShapeDtypeStruct(u.shape, jnp.int32)
  return _call("Draw", result, weights, u)


def overlap(q, p):
  """Returns sum_v min(q, p), [...] float32, of two laws [..., V] float32."""
  result = jax.ShapeDtypeStruct(q.shape[:-1], jnp.float32)
  return _call("Overlap", result, q, p)


def replacement(num_accepted, count, q, pi, scale, u):
  """Returns the token after the accepted drafts, [B] int32.

  Args:
    num_accepted: [B] int32, n.
    count: [B] int32; where it is n the token is drawn from pi.
    q: [B, G+1, V] float32.
    pi: [B, G+1, V] float32.
    scale: [B] float32; elsewhere the weights are max(0, scale pi_n - q_n), or
      pi_n where they are all 0.
    u: [B] float32 uniforms in [0, 1).
  """
  result = jax.ShapeDtypeStruct(u.shape, jnp.int32)
  return _call("Replacement", result, num_accepted, count, q, pi, scale, u)
