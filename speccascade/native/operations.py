"""Products, attention, and distributions of logits with draws from them.

Attention reads a cache in place. `speccascade.decoding` defines the
distributions and the draws; its functions call these where they can.

Axes: B rows, N queries, G drafted tokens, L slots of a cache, H heads, D head
width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native import library
from speccascade.native.panels import Panels, Shared


def call(
  handler: str,
  results: Any,
  *operands: jax.Array,
  aliases: dict[int, int] | None = None,
  **static: Any,
) -> Any:
  """Returns what a handler computes from the operands; see `jax.ffi.ffi_call`.

  Args:
    handler: its name in `library.HANDLERS`.
    results: a `jax.ShapeDtypeStruct`, or a sequence of them.
    *operands: arrays.
    aliases: by the number of an operand, the number of the result that takes
      its place in memory.
    **static: the handler's attributes.
  """
  library.keep_freed_memory()
  run: Any = jax.ffi.ffi_call(
    library.target(handler),
    results,
    vmap_method="sequential",
    input_output_aliases=aliases,
  )
  return run(*operands, **static)


def products(x: jax.Array, kernels: Sequence[Panels]) -> list[jax.Array]:
  """Returns x times each kernel, [..., out], computed and returned in float32.

  A row's result is the same to the bit whatever other rows there are.

  Args:
    x: [..., in] float32.
    kernels: panels of kernels [in, out], all of one dtype and rounding.

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
    numbers=shared.numbers,
    firsts=shared.firsts,
    rounds=kernels[0].rounds,
  )


def attend(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  bias: jax.Array,
  reach: jax.Array | None = None,
) -> jax.Array:
  """Returns softmax(query key + bias) value, [B, N, H, D] float32.

  A query's result is the same to the bit whatever the other queries and rows,
  and however far past the last slot that it sees `reach` is.

  Args:
    query: [B, N, H, D] float32, scaled.
    key: [B, H, D, L] float32.
    value: [B, H, L, D] float32.
    bias: [B, H, N, L] float32; its first three axes may be 1 long. A slot whose
      bias is 1e10 below another's has weight 0.
    reach: [B] int32, how many slots of a row need be looked at; the bias must
      mask those after them. None means all.

  Raises:
    ValueError: shapes or dtypes do not fit.
  """
  num_rows, num_queries, num_heads, head_dim = query.shape
  num_slots = key.shape[-1]
  if reach is None:
    reach = jnp.full((num_rows,), num_slots, jnp.int32)
  # An axis of the bias is whole, or it is broadcast.
  axes = zip(bias.shape, (num_rows, num_heads, num_queries))
  bias_shape = (*(n if size == n else 1 for size, n in axes), num_slots)
  wanted = (
    (num_rows, num_heads, head_dim, num_slots),
    (num_rows, num_heads, num_slots, head_dim),
    bias_shape,
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


def takes(*arrays: jax.Array) -> bool:
  """Whether there are native handlers, and all arrays are float32."""
  is_float32 = all(x.dtype == jnp.float32 for x in arrays)
  return is_float32 and library.is_available()


def laws(
  logits: jax.Array,
  temperature: jax.Array,
  u: jax.Array | None,
  *,
  column: int,
  greedy: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns each row's distribution, a token drawn from it, and its validity.

  Args:
    logits: [..., V] float32. A row with NaN or +inf, or with nothing but -inf,
      has no distribution.
    temperature: [] float32; not used where greedy.
    u: [..., N] float32 uniforms in [0, 1). None draws no token, and returns 0
      in its place. Not used where greedy.
    column: static, which of the N uniforms to use.
    greedy: static; the distribution is one-hot at the first of the largest
      logits.

  Returns:
    (`law` [..., V] float32, token [...] int32, `is_law` [...] bool).
  """
  if u is None:
    u = jnp.zeros((*logits.shape[:-1], 0), jnp.float32)
  results = (
    jax.ShapeDtypeStruct(logits.shape, jnp.float32),
    jax.ShapeDtypeStruct(u.shape[:-1], jnp.int32),
    jax.ShapeDtypeStruct(u.shape[:-1], jnp.bool_),
  )
  return call(
    "LawsOfLogits",
    results,
    logits,
    temperature,
    u,
    column=np.int64(column),
    greedy=greedy,
  )


def plain_laws(
  logits: jax.Array, law: jax.Array, temperature: jax.Array
) -> jax.Array:
  """Returns each row's distribution at temperature 1, [..., V] float32.

  It is `law` itself where that is the distribution at temperature 1 already.

  Args:
    logits: [..., V] float32, as in `laws`.
    law: [..., V] float32, the distribution of these logits at `temperature`.
    temperature: [] float32.
  """
  result = jax.ShapeDtypeStruct(logits.shape, jnp.float32)
  return call("PlainLaws", result, logits, law, temperature)


def nucleus(law: jax.Array, top_p: jax.Array) -> jax.Array:
  """Returns `law` over the smallest set of likeliest tokens with mass `top_p`.

  Args:
    law: [..., V] float32.
    top_p: [] float32 in (0, 1]. Of equal probabilities the lower ids are taken.

  Returns:
    [..., V] float32, 0 outside the set.
  """
  result = jax.ShapeDtypeStruct(law.shape, jnp.float32)
  return call("Nucleus", result, law, top_p)


def draw(weights: jax.Array, u: jax.Array) -> jax.Array:
  """Returns a token [...] int32, drawn by inverting a cumulative sum.

  Args:
    weights: [..., V] float32, none negative.
    u: [...] float32 uniforms in [0, 1).
  """
  result = jax.ShapeDtypeStruct(u.shape, jnp.int32)
  return call("Draw", result, weights, u)


def overlap(q: jax.Array, p: jax.Array) -> jax.Array:
  """Returns sum_v min(q, p), [...] float32, of q and p [..., V] float32."""
  result = jax.ShapeDtypeStruct(q.shape[:-1], jnp.float32)
  return call("Overlap", result, q, p)


def replacement(
  num_accepted: jax.Array,
  count: jax.Array,
  q: jax.Array,
  pi: jax.Array,
  scale: jax.Array,
  u: jax.Array,
) -> jax.Array:
  """Returns the token after the accepted drafts, [B] int32.

  With n drafts accepted, it is drawn from pi at position n where all drafts
  were accepted. Elsewhere it is drawn with weights max(0, scale pi - q) at
  position n, or from pi where those weights are all 0.

  Args:
    num_accepted: [B] int32, n.
    count: [B] int32, drafts of each row.
    q: [B, G+1, V] float32.
    pi: [B, G+1, V] float32.
    scale: [B] float32.
    u: [B] float32 uniforms in [0, 1).
  """
  result = jax.ShapeDtypeStruct(u.shape, jnp.int32)
  return call("Replacement", result, num_accepted, count, q, pi, scale, u)


def copies(
  source: jax.Array,
  tokens: jax.Array,
  length: jax.Array,
  next_token: jax.Array,
  *,
  num: int,
  prompted: bool,
) -> tuple[jax.Array, jax.Array]:
  """Returns what Max-Gram proposes after each row's prefix.

  Args:
    source: [B, S] int32, a text and its padding; see `MaxGramDrafter`.
    tokens: [B, L] int32.
    length: [B] int32, 1 or more, how many of the tokens count.
    next_token: [V] int32, the likeliest token after each.
    num: static, tokens to return.
    prompted: static, whether sources are prompts.

  Returns:
    ([B, num] int32, copied tokens first, then each the likeliest after the one
    before; [B] int32, how many were copied).
  """
  results = (
    jax.ShapeDtypeStruct((*length.shape, num), jnp.int32),
    jax.ShapeDtypeStruct(length.shape, jnp.int32),
  )
  return call(
    "Copies", results, source, tokens, length, next_token, prompted=prompted
  )
