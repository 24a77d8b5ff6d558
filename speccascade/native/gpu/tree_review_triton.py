"""The review of a tree of drafts as one kernel for a GPU, in Pallas.

One program reviews one node: it holds the target and the drafter's distribution
in its registers, tries the node's children one after another, and draws the
token that ends the path there. Where the path really goes is decided from these
few numbers.

Axes: B rows, N nodes, V vocabulary, K trials at a node, C certain children.
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
from speccascade.native.gpu.tree_review import NodeReviews, Trials

Parts = list[jax.Array]


def configuration(pi: jax.Array, *_: Any, **__: Any) -> Configuration:
  """Returns the configuration of some nodes."""
  return row_configuration(pi.shape[2])


def _total(parts: Parts) -> jax.Array:
  return functools.reduce(jnp.add, [jnp.sum(each) for each in parts])


def _normalised(weights: Parts, otherwise: Parts) -> Parts:
  """Returns weights over their sum, or `otherwise` where the sum is 0."""
  total = _total(weights)
  divisor = jnp.where(total > 0, total, 1.0)
  return [
    jnp.where(total > 0, x / divisor, y) for x, y in zip(weights, otherwise)
  ]


def _kernel(
  pi_ref: Any,
  q_ref: Any,
  trial_ref: Any,
  u_accept_ref: Any,
  certain_ref: Any,
  u_ref: Any,
  accepted_ref: Any,
  token_ref: Any,
  *,
  tokens: int,
  drops_drawn: bool,
  num_certain: int,
) -> None:
  """Reviews one node of one row."""
  row, node, size = pl.program_id(0), pl.program_id(1), pi_ref.shape[2]
  index = [places(part, tokens) for part in range(pl.cdiv(size, tokens))]

  def load(ref: Any) -> Parts:
    return [
      triton.load(ref.at[row, node, each], mask=each < size, other=0.0)
      for each in index
    ]

  def without(law: Parts, token: jax.Array) -> Parts:
    return [jnp.where(i == token, 0.0, x) for i, x in zip(index, law)]

  def at(law: Parts, token: jax.Array) -> jax.Array:
    return _total([jnp.where(i == token, x, 0.0) for i, x in zip(index, law)])

  left, q = load(pi_ref), load(q_ref)
  law = q
  for k in range(num_certain):
    law = without(law, certain_ref[row, node, k])
  if num_certain:
    law = _normalised(law, q)
  num = trial_ref.shape[2]
  accepted = jnp.int32(num)
  for k in range(num):
    token = trial_ref[row, node, k]
    is_there = token >= 0
    passes = u_accept_ref[row, node, k] * at(law, token) < at(left, token)
    is_first = passes & is_there & (accepted == num)
    accepted = jnp.where(is_first, k, accepted)
    missed = [jnp.maximum(x - y, 0.0) for x, y in zip(left, law)]
    missed = _normalised(missed, left)
    left = [jnp.where(is_there, x, y) for x, y in zip(missed, left)]
    if drops_drawn and k + 1 < num:
      law = _normalised(without(law, token), law)
  sums = [jnp.sum(each, axis=1) for each in left]

  def weights_at(place: jax.Array) -> jax.Array:
    # The block is held already: each lane has one of its tokens.
    inside = [
      jnp.sum(jnp.where(i == place[None, :], x, 0.0), axis=0)
      for i, x in zip(index, left)
    ]
    return functools.reduce(jnp.add, inside)

  accepted_ref[row, node] = accepted
  token_ref[row, node], _ = draw(sums, u_ref[row, node], weights_at)


@functools.partial(
  jax.jit, static_argnames=("configuration", "interpret", "drops_drawn")
)
def run(
  pi: jax.Array,
  q: jax.Array,
  trials: Trials,
  u: jax.Array,
  *,
  configuration: Configuration,
  interpret: bool,
  drops_drawn: bool,
) -> NodeReviews:
  """Returns what `TreeReview.reference` does."""
  found = jax.ShapeDtypeStruct(u.shape, jnp.int32)
  num_certain = trials.certain.shape[2]
  certain = trials.certain
  if not num_certain:  # A kernel has no empty arrays.
    certain = jnp.zeros((*u.shape, 1), jnp.int32)
  results = pl.pallas_call(
    functools.partial(
      _kernel,
      tokens=configuration.tokens,
      drops_drawn=drops_drawn,
      num_certain=num_certain,
    ),
    out_shape=[found, found],
    grid=u.shape,
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=1
    ),
    name="tree_review",
  )(pi, q, trials.tokens, trials.u, certain, u)
  return NodeReviews(*results)
