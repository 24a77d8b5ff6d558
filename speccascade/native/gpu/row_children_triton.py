"""The children of a node as one kernel for a GPU, in Pallas.

One program holds the distribution at a node in its registers, and takes one
child after another out of it. XLA launches some eight kernels for each child.

Axes: R rows, each a node, V vocabulary, K children.
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

_NONE = 1 << 30  # above every index


def configuration(q: jax.Array, *_: Any, **__: Any) -> Configuration:
  """Returns the configuration of some rows."""
  return row_configuration(q.shape[1])


def _kernel(
  u_ref: Any,
  q_ref: Any,
  confidence_ref: Any,
  token_ref: Any,
  certain_ref: Any,
  *,
  tokens: int,
  num_certain: int,
  drops: bool,
  greedy: bool,
) -> None:
  """Writes the children of one node."""
  row, size = pl.program_id(0), q_ref.shape[1]
  index = [places(part, tokens) for part in range(pl.cdiv(size, tokens))]

  def load(ref: Any, index: jax.Array, other: float) -> jax.Array:
    return triton.load(ref.at[row, index], mask=index < size, other=other)

  q = [load(q_ref, each, 0.0) for each in index]
  order: list[jax.Array] = []
  if drops or num_certain:
    for each, law in zip(index, q):
      confidence = load(confidence_ref, each, -jnp.inf)
      likely = jnp.where(law > 0, law, confidence - 2)
      order.append(confidence if greedy else likely)

  def likeliest() -> jax.Array:
    most = functools.reduce(jnp.maximum, [jnp.max(each) for each in order])
    first = [
      jnp.min(jnp.where(each == most, place, _NONE))
      for each, place in zip(order, index)
    ]
    return jnp.minimum(functools.reduce(jnp.minimum, first), size - 1)

  taken: list[jax.Array] = []

  def weights_at(index: jax.Array) -> jax.Array:
    weights = load(q_ref, index, 0.0)
    for token in taken:
      weights = jnp.where(index == token, 0.0, weights)
    return weights

  for k in range(u_ref.shape[1]):
    is_certain = jnp.bool_(k < num_certain)
    if k < num_certain:
      token = likeliest()
    else:
      sums = [jnp.sum(each, axis=1) for each in q]
      token, total = draw(sums, u_ref[row, k], weights_at)
      if drops:
        is_certain = total <= 0
        token = jnp.where(is_certain, likeliest(), token)
    token_ref[row, k] = token
    certain_ref[row, k] = is_certain.astype(jnp.int32)
    if k + 1 < u_ref.shape[1] and (drops or k < num_certain):
      taken.append(token)
      is_taken = [each == token for each in index]
      q = [jnp.where(x, 0.0, each) for x, each in zip(is_taken, q)]
      order = [jnp.where(x, -jnp.inf, each) for x, each in zip(is_taken, order)]


@functools.partial(
  jax.jit,
  static_argnames=(
    "configuration",
    "interpret",
    "num_certain",
    "drops",
    "greedy",
  ),
)
def run(
  q: jax.Array,
  confidence: jax.Array,
  u: jax.Array,
  *,
  configuration: Configuration,
  interpret: bool,
  num_certain: int,
  drops: bool,
  greedy: bool,
) -> tuple[jax.Array, jax.Array]:
  """Returns what `RowChildren.reference` does."""
  found = jax.ShapeDtypeStruct(u.shape, jnp.int32)
  token, certain = pl.pallas_call(
    functools.partial(
      _kernel,
      tokens=configuration.tokens,
      num_certain=num_certain,
      drops=drops,
      greedy=greedy,
    ),
    out_shape=[found, found],
    grid=u.shape[:1],
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=1
    ),
    name="row_children",
  )(u, q, confidence)
  return token, certain > 0
