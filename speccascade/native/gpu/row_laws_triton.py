"""Distributions of rows of logits as two kernels for a GPU, in Pallas.

Programs of the first one have a part of a row each, which stays in their
registers: its largest logit, and the sums of its blocks below that, at both
temperatures. A program of the second one has a row: it joins the parts, and
reads the one block again in which the token is. XLA launches nine kernels for
that, or more.

Axes: R rows, V vocabulary, P parts.
"""

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from speccascade.native.gpu import early_launch
from speccascade.native.gpu.row_draws_triton import (
  BLOCK,
  Configuration,
  draw,
  places,
)
from speccascade.native.gpu.row_laws import RowLaw

_NONE = 1 << 30  # above every index
_MOST = 1 << 10  # tokens of a part: a vocabulary is 32 programs


def configuration(logits: jax.Array, *_: Any, **__: Any) -> Configuration:
  """Returns the configuration of some logits."""
  tokens = min(max(pl.next_power_of_2(logits.shape[1]), 2 * BLOCK), _MOST)
  return Configuration(tokens, warps=4)


def _parts_kernel(
  logits_ref: Any,
  temperature_ref: Any,
  top_ref: Any,
  plain_ref: Any,
  sums_ref: Any,
  *,
  tokens: int,
  greedy: bool,
  interpret: bool,
) -> None:
  """Writes what is known of one part of one row."""
  row, part = jnp.max(early_launch.program_id(0, interpret)), pl.program_id(1)
  index = part * tokens + places(0, tokens)
  x = _load(logits_ref, row, index)
  top = jnp.max(x)
  # Without a finite logit there is nothing to add.
  base = jnp.where(top > -jnp.inf, top, 0.0)
  top_ref[row, part] = top
  plain_ref[row, part] = jnp.sum(jnp.exp(x - base))
  if greedy:
    sums_ref[row, part] = jnp.min(jnp.where(x == top, index, _NONE))
    return
  temperature = temperature_ref[0]
  weights = jnp.exp(x / temperature - base / temperature)
  num = tokens // BLOCK
  sums_ref[row, part * num + jnp.arange(num)] = jnp.sum(weights, axis=1)


def _load(logits_ref: Any, row: jax.Array, index: jax.Array) -> jax.Array:
  """Returns logits of a row; NaN is +inf, and -inf what is not there."""
  x = triton.load(
    logits_ref.at[row, index],
    mask=index < logits_ref.shape[1],
    other=-jnp.inf,
  )
  return jnp.where(x != x, jnp.inf, x)


def _kernel(
  logits_ref: Any,
  temperature_ref: Any,
  tops_ref: Any,
  plain_ref: Any,
  sums_ref: Any,
  *refs: Any,
  tokens: int,
  draws: bool,
  column: int,
  greedy: bool,
  interpret: bool,
) -> None:
  """Writes what is known of one row, by its parts."""
  u_ref = refs[0] if draws and not greedy else None
  top_ref, total_ref, plain_total_ref, *token_refs = refs[u_ref is not None :]
  row = jnp.max(early_launch.program_id(0, interpret))
  size, num = logits_ref.shape[1], tops_ref.shape[1]
  part = jnp.arange(pl.next_power_of_2(num))
  is_part = part < num

  def of_part(ref: Any, index: jax.Array, other: float) -> jax.Array:
    mask = index < ref.shape[1]
    return triton.load(ref.at[row, index], mask=mask, other=other)

  def below(tops: jax.Array, temperature: jax.Array | float) -> jax.Array:
    # A part without a finite logit has sums of nothing.
    shrinks = jnp.exp(tops / temperature - base / temperature)
    return jnp.where(tops > -jnp.inf, shrinks, 0.0)

  tops = of_part(tops_ref, part, -jnp.inf)
  plain = of_part(plain_ref, part, 0.0)
  top = jnp.max(tops)
  top_ref[row] = top
  base = jnp.where(top > -jnp.inf, top, 0.0)
  plain_total_ref[row] = jnp.sum(plain * below(tops, 1.0))
  if greedy:
    total_ref[row] = jnp.float32(1)
    if draws:
      best = of_part(sums_ref, part, _NONE)
      first = jnp.min(jnp.where(is_part & (tops == top), best, _NONE))
      token_refs[0][row] = jnp.where(first < _NONE, first, size - 1)
    return
  temperature = temperature_ref[0]
  blocks = tokens // BLOCK
  block = jnp.arange(part.shape[0] * blocks)
  sums = of_part(sums_ref, block, 0.0)
  tops = of_part(tops_ref, block // blocks, -jnp.inf)
  sums = sums * below(tops, temperature)
  if u_ref is None:
    total_ref[row] = jnp.sum(sums)
    return

  def weights_at(index: jax.Array) -> jax.Array:
    x = _load(logits_ref, row, index)
    return jnp.exp(x / temperature - base / temperature)

  token_refs[0][row], total_ref[row] = draw(
    [sums], u_ref[row, column], weights_at
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
  draws, rows = u is not None, logits.shape[0]
  tokens = configuration.tokens
  num = pl.cdiv(logits.shape[1], tokens)

  def of(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)

  call: Any = functools.partial(
    pl.pallas_call,
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=1
    ),
  )
  arrays = [logits, temperature.reshape(1)]
  options: dict[str, Any] = {
    "tokens": tokens,
    "greedy": greedy,
    "interpret": interpret,
  }
  sums = of(rows, num * tokens // BLOCK)
  if greedy:
    sums = of(rows, num, dtype=jnp.int32)
  arrays += call(
    functools.partial(_parts_kernel, **options),
    out_shape=[of(rows, num), of(rows, num), sums],
    grid=(rows, num),
    name="row_laws_parts",
  )(*arrays)
  if u is not None and not greedy:
    arrays.append(u)
  top, total, plain_total, *tokens_drawn = call(
    functools.partial(_kernel, draws=draws, column=column, **options),
    out_shape=[of(rows)] * 3 + [of(rows, dtype=jnp.int32)] * draws,
    grid=(rows,),
    name="row_laws",
  )(*arrays)
  return RowLaw(top, total, plain_total, tokens_drawn[0] if draws else None)
