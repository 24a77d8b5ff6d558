"""Draws from rows of weights as one kernel for a GPU, in Pallas.

One program goes over a row. It adds the weights of each block of 128 tokens,
inverts the cumulative sum of the blocks, and reads the one block again in which
the token is. XLA launches six kernels for that.

Axes: R rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

BLOCK = 128  # tokens whose weights are added before one sum is chosen
# A program holds so many tokens at a time; a thread has 32 of them.
_MOST_TOKENS, _TOKENS_OF_WARP = 1 << 15, 1 << 10
_NONE = 1 << 30  # above every index


@dataclasses.dataclass(frozen=True)
class Configuration:
  """How a program goes over a row.

  Attributes:
    tokens: that are held at a time, a power of two.
    warps: of a program.
  """

  tokens: int
  warps: int


def row_configuration(size: int) -> Configuration:
  """Returns the configuration of rows of `size` tokens."""
  tokens = min(max(pl.next_power_of_2(size), 2 * BLOCK), _MOST_TOKENS)
  return Configuration(tokens, warps=max(4, tokens // _TOKENS_OF_WARP))


def configuration(weights: jax.Array, *_: Any, **__: Any) -> Configuration:
  """Returns the configuration of some weights."""
  return row_configuration(weights.shape[1])


def places(part: int, tokens: int) -> jax.Array:
  """Returns the tokens of a part of a row, [tokens / BLOCK, BLOCK] int32."""
  line = jnp.arange(tokens // BLOCK)[:, None] * BLOCK
  return part * tokens + line + jnp.arange(BLOCK)[None, :]


def draw(
  sums: Sequence[jax.Array],
  u: jax.Array,
  weights_at: Callable[[jax.Array], jax.Array],
) -> tuple[jax.Array, jax.Array]:
  """Returns the token that a uniform draws, and the sum of the weights.

  Args:
    sums: of the blocks of each part, [blocks of a part] each.
    u: scalar in [0, 1).
    weights_at: a function from the tokens [BLOCK] of a block to their weights,
      those that were added.
  """
  # No cumulative sum is below the one before it, over the parts as well.
  totals, before = [], jnp.float32(0)
  for part in sums:
    totals.append(before + jnp.cumsum(part))
    before = jnp.max(totals[-1])
  goal = u * before
  num = sums[0].shape[0]
  blocks = [number * num + jnp.arange(num) for number in range(len(sums))]
  block = _first_above(sums, totals, blocks, goal)
  before_block = functools.reduce(
    jnp.maximum,
    [
      jnp.max(jnp.where(index < block, total, 0.0))
      for index, total in zip(blocks, totals)
    ],
  )
  token = block * BLOCK + jnp.arange(BLOCK)
  inside = weights_at(token)
  left = goal - before_block
  drawn = _first_above([inside], [jnp.cumsum(inside)], [token], left)
  return drawn, before


def _first_above(
  weights: Sequence[jax.Array],
  totals: Sequence[jax.Array],
  index: Sequence[jax.Array],
  goal: jax.Array,
) -> jax.Array:
  """Returns the first index with weight whose total exceeds a goal."""
  first, last = jnp.int32(_NONE), jnp.int32(0)
  for weight, total, number in zip(weights, totals, index):
    above = (weight > 0) & (total > goal)
    first = jnp.minimum(first, jnp.min(jnp.where(above, number, _NONE)))
    last = jnp.maximum(last, jnp.max(jnp.where(weight > 0, number, 0)))
  return jnp.where(first < _NONE, first, last)


def _kernel(u_ref: Any, *refs: Any, tokens: int) -> None:
  """Draws the token of one row."""
  *weight_refs, token_ref = refs
  row, size = pl.program_id(0), weight_refs[0].shape[1]

  def load(ref: Any, index: jax.Array) -> jax.Array:
    return triton.load(ref.at[row, index], mask=index < size, other=0.0)

  parts = range(pl.cdiv(size, tokens))
  sums = [
    [jnp.sum(load(ref, places(part, tokens)), axis=1) for part in parts]
    for ref in weight_refs
  ]
  has_mass = jnp.bool_(True)
  own = sums[0]
  if len(weight_refs) > 1:
    most = functools.reduce(jnp.maximum, [jnp.max(part) for part in own])
    has_mass = most > 0
    own = [jnp.where(has_mass, x, y) for x, y in zip(*sums)]

  def weights_at(index: jax.Array) -> jax.Array:
    inside = [load(ref, index) for ref in weight_refs]
    return jnp.where(has_mass, inside[0], inside[-1])

  token_ref[row], _ = draw(own, u_ref[row], weights_at)


@functools.partial(jax.jit, static_argnames=("configuration", "interpret"))
def run(
  weights: jax.Array,
  u: jax.Array,
  *,
  configuration: Configuration,
  interpret: bool,
  otherwise: jax.Array | None = None,
) -> jax.Array:
  """Returns what `RowDraws.reference` does."""
  arrays = (weights,) if otherwise is None else (weights, otherwise)
  return pl.pallas_call(
    functools.partial(_kernel, tokens=configuration.tokens),
    out_shape=jax.ShapeDtypeStruct(u.shape, jnp.int32),
    grid=u.shape,
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=1
    ),
    name="row_draws",
  )(u, *arrays)
