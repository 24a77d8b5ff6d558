"""Attention of a block of queries, in one call that reads a cache in place."""

import jax
import jax.numpy as jnp

from speccascade.native import library


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
  call = jax.ffi.ffi_call(
    library.target("Attend"), result, vmap_method="sequential"
  )
  return call(*operands)
