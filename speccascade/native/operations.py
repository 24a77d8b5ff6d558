"""Products, attention, laws of logits and draws from them, in one call each.

Attention reads a cache in place. `speccascade.decoding` defines the laws; its
functions call these where they can.
"""

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native import library
from speccascade.native.panels import Shared


def call(handler: str, results, *operands, aliases=None, **static):
  """Returns what a handler makes of the operands; see `jax.ffi.ffi_call`."""
  library.keep_freed_memory()
  run = jax.ffi.ffi_call(
    library.target(handler),
    results,
    vmap_method="sequential",
    input_output_aliases=aliases,
  )
  return run(*operands, **static)


def products(x, kernels) -> list:
  """Returns x times each kernel, [..., out], computed and returned in float32.

  A row's result is the same to the bit whatever rows stand beside it.

  Args:
    x: [..., in] float32.
    kernels: `Panels` of one kind, all with these inputs.

  Raises:
    ValueError: shapes or dtypes do not fit.
  """
  for kernel in kernels:
    fits = kernel.fits((x.shape[-1], kernel.num_out), kernels[0])
    if not fits or x.dtype != jnp.float32:
      raise ValueError(f"rows {x.dtype}{x.shape} do not fit {kernel}")
  results = [
    jax.ShapeDtypeStruct((*x.shape[:-1], kernel.num_out), jnp.float32)
    for kernel in kernels
  ]
  shared = Shared()
  for kernel in kernels:
    shared.add(kernel)
  return call(
    "RowsTimesPanels",
    results,
    x,
    *shared.arrays,
    rounds=kernels[0].rounds,
    **shared.places(),
  )


def attend(query, key, value, bias, reach=None):
  """Returns softmax(query key + bias) value, [B, N, H, D], all in float32.

  A query's result is the same to the bit whatever queries and rows stand beside
  it, and however far past the last slot that it sees `reach` is.

  Args:
    query: [B, N, H, D] float32, as what follows.
    key: [B, H, D, L].
    value: [B, H, L, D].
    bias: [B, H, N, L]; its first three axes may be 1 long. A slot at -1e10
      below another has weight 0.
    reach: [B] int32, how many slots of a row need be looked at: those after
      must be masked. None means all.

  Raises:
    ValueError: shapes or dtypes do not fit.
  """
  num_rows, num_queries, num_heads, head_dim = query.shape
  num_slots = key.shape[-1]
  if reach is None:
    reach = jnp.full((num_rows,), num_slots, jnp.int32)
  axes = zip(bias.shape, (num_rows, num_heads, num_queries))
  wanted = (
    (num_rows, num_heads, head_dim, num_slots),
    (num_rows, num_heads, num_slots, head_dim),
    (*(n if size == n else 1 for size, n in axes), num_slots),
    (num_rows,),
  )
  operands = (query, key, value, bias, reach)
  dtypes = [x.dtype for x in operands]
  fits = tuple(x.shape for x in operands[1:]) == wanted
  if not fits or dtypes != [jnp.float32] * 4 + [jnp.int32]:
    shapes = ", ".join(f"{x.dtype}{x.shape}" for x in operands)
    raise ValueError(
      f"query, key, value, bias and reach do not fit each other: {shapes}"
    )
  result = jax.ShapeDtypeStruct(query.shape, jnp.float32)
  return call("Attend", result, *operands)


def takes(*arrays) -> bool:
  """Whether there are native handlers, and all arrays are float32."""
  is_float32 = all(x.dtype == jnp.float32 for x in arrays)
  return is_float32 and library.is_available()


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
  static = {"column": np.int64(column), "greedy": greedy}
  return call("LawsOfLogits", results, logits, temperature, u, **static)


def nucleus(law, top_p):
  """Returns the smallest set of likeliest tokens that holds `top_p`, as a law.

  Args:
    law: [..., V] float32.
    top_p: [] float32 in (0, 1]; of equal probabilities the lower ids are taken.
  """
  result = jax.ShapeDtypeStruct(law.shape, jnp.float32)
  return call("Nucleus", result, law, top_p)


def draw(weights, u):
  """Returns a token [...] int32 of weights [..., V] by inverse cumulative sum.

  Args:
    weights: [..., V] float32, none negative.
    u: [...] float32 uniforms in [0, 1).
  """
  result = jax.ShapeDtypeStruct(u.shape, jnp.int32)
  return call("Draw", result, weights, u)


def overlap(q, p):
  """Returns sum_v min(q, p), [...] float32, of two laws [..., V] float32."""
  result = jax.ShapeDtypeStruct(q.shape[:-1], jnp.float32)
  return call("Overlap", result, q, p)


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
  return call("Replacement", result, num_accepted, count, q, pi, scale, u)


def copies(source, tokens, length, next_token, *, num: int, prompted: bool):
  """Returns what Max-Gram copies, and then chains, after each row's prefix.

  Args:
    source: [B, S] int32, a text and its padding; see `MaxGramDrafter`.
    tokens: [B, L] int32.
    length: [B] int32, 1 or more, how many of them count.
    next_token: [V] int32.
    num: static, tokens to return.
    prompted: static, whether sources are prompts.

  Returns:
    ([B, num] int32, [B] int32 how many of them were copied).
  """
  results = (
    jax.ShapeDtypeStruct((*length.shape, num), jnp.int32),
    jax.ShapeDtypeStruct(length.shape, jnp.int32),
  )
  texts = (source, tokens, length, next_token)
  return call("Copies", results, *texts, prompted=prompted)
