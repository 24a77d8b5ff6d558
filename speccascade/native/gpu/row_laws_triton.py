"""Distributions of rows of logits as one kernel for a GPU, in Pallas.

One program goes over a row, in parts that stay in its registers: the largest
logit, the sums at both temperatures, and the token. XLA launches nine kernels
for that, or more.

Axes: R rows, V vocabulary.
"""

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from speccascade.native.gpu.row_draws_triton import (
  Configuration,
  draw,
  places,
  row_configuration,
)
from speccascade.native.gpu.row_laws import RowLaw

_NONE = 1 << 30  # above every index


def configuration(logits: jax.Array, *_: Any, **__: Any) -> Configuration:
  """Returns the configuration of some logits."""
  return row_configuration(logits.shape[1])


def _kernel(
  logits_ref: Any,
  temperature_ref: Any,
  *refs: Any,
  tokens: int,
  draws: bool,
  column: int,
  greedy: bool,
) -> None:
  """Writes what is known of one row."""
  u_ref = refs[0] if draws and not greedy else None
  top_ref, total_ref, plain_ref, *token_refs = refs[u_ref is not None :]
  row, size = pl.program_id(0), logits_ref.shape[1]
  temperature = temperature_ref[0]

  def load(index: jax.Array) -> jax.Array:
    x = triton.load(
      logits_ref.at[row, index], mask=index < size, other=-jnp.inf
    )
    return jnp.where(x != x, jnp.inf, x)

  # Each part is summed below its own largest logit.
  tops, sums, plain, best = [], [], [], []
  for part in range(pl.cdiv(size, tokens)):
    index = places(part, tokens)
    x = load(index)
    top = jnp.max(x)
    # Without a finite logit there is nothing to add.
    base = jnp.where(top > -jnp.inf, top, 0.0)
    tops.append(top)
    plain.append(jnp.sum(jnp.exp(x - base)))
    if greedy:
      best.append(jnp.min(jnp.where(x == top, index, _NONE)))
    else:
      weights = jnp.exp(x / temperature - base / temperature)
      sums.append(jnp.sum(weights, axis=1))
  top = functools.reduce(jnp.maximum, tops)
  top_ref[row] = top
  base = jnp.where(top > -jnp.inf, top, 0.0)
  shrinks = [jnp.where(x > -jnp.inf, x - base, -jnp.inf) for x in tops]
  plain_ref[row] = sum(x * jnp.exp(y) for x, y in zip(plain, shrinks))
  if greedy:
    total_ref[row] = jnp.float32(1)
    if draws:
      is_top = [jnp.where(x == top, y, _NONE) for x, y in zip(tops, best)]
      first = functools.reduce(jnp.minimum, is_top)
      token_refs[0][row] = jnp.where(first < _NONE, first, size - 1)
    return
  if len(sums) > 1:
    sums = [
      x
      * jnp.where(
        y > -jnp.inf, jnp.exp(y / temperature - base / temperature), 0.0
      )
      for x, y in zip(sums, tops)
    ]
  if u_ref is None:
    total_ref[row] = sum(jnp.sum(x) for x in sums)
    return

  def weights_at(index: jax.Array) -> jax.Array:
    return jnp.exp(load(index) / temperature - base / temperature)

  token_refs[0][row], total_ref[row] = draw(
    sums, u_ref[row, column], weights_at
  )


@functools.partial(
  jax.jit, static_argnames=("configuration", "interpret", "column", "greedy")
)
def run(
  logits: jax.Array,
  temperature: jax.Array,
  u: jax.Array | None = None,
  *,
  configuration: Configuration,
  interpret: bool,
  column: int = 0,
  greedy: bool = False,
) -> RowLaw:
  """Returns what `RowLaws.reference` does."""
  draws, rows = u is not None, logits.shape[:1]
  number = jax.ShapeDtypeStruct(rows, jnp.float32)
  token = jax.ShapeDtypeStruct(rows, jnp.int32)
  arrays = [logits, temperature.reshape(1)]
  if u is not None and not greedy:
    arrays.append(u)
  results = pl.pallas_call(
    functools.partial(
      _kernel,
      tokens=configuration.tokens,
      draws=draws,
      column=column,
      greedy=greedy,
    ),
    out_shape=[number] * 3 + [token] * draws,
    grid=rows,
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=1
    ),
    name="row_laws",
  )(*arrays)
  top, total, plain_total, *tokens = results
  return RowLaw(top, total, plain_total, tokens[0] if draws else None)
