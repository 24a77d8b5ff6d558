"""Long rows of a batch, split into parts whose losses are computed one by one.

Each row has its places with weight first, in their order, and is filled up with
places without weight. So the last parts have no weight, and nothing is computed
of them. The gradient of a part is computed with its loss, so that what a loss
needs of one part, logits above all, is in memory at a time.

Axes: B rows, T target length, P parts of `PART` places.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.training.states import Sums

Array = jax.Array

# A row of more places is split into parts of so many.
PART = 64


def order(weights: Array) -> Array:
  """Returns [B, T] int32, the places of each row, those with weight first."""
  return jnp.argsort(weights <= 0, axis=1)  # a stable sort


def cut(values: Array, places: Array) -> Array:
  """Returns [P, B, PART, ...] of [B, T, ...], filled up with zeros.

  Args:
    values: [B, T, ...].
    places: [B, T], what `order` returns.
  """
  at = places.reshape(places.shape + (1,) * (values.ndim - 2))
  values = jnp.take_along_axis(values, at, axis=1)
  pad = [(0, 0), (0, -values.shape[1] % PART)]
  values = jnp.pad(values, pad + [(0, 0)] * (values.ndim - 2))
  values = values.reshape(values.shape[0], -1, PART, *values.shape[2:])
  return jnp.moveaxis(values, 1, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def summed(
  of_part: Callable[[Any, Any, Any], Sums],
  params: Any,
  fixed: Any,
  parts: tuple[Array, Any],
) -> Sums:
  """Returns a loss, summed part by part, with a gradient for the parameters.

  Of the sums the loss alone has a gradient: the z-loss and the number of
  correct targets are for the log.

  Args:
    of_part: returns the sums of (params, fixed, part), where `part` is
      `parts[1]` of one part.
    params: gets the gradient.
    fixed: what else the loss reads; it gets no gradient.
    parts: (weights [P, B, PART], a tree of arrays [P, ...]). A part in which
      all weights are 0 is left out.
  """
  return _over_parts(of_part, params, fixed, parts)


def _over_parts(of_part, params, fixed, parts):
  """Returns the sum of what `of_part` returns over parts with weight."""
  first = jax.tree.map(lambda x: x[0], parts[1])
  shapes = jax.eval_shape(of_part, params, fixed, first)
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  def step(total, weights_and_part):
    weights, part = weights_and_part

    def add(total):
      return jax.tree.map(jnp.add, total, of_part(params, fixed, part))

    has_weight = jnp.any(weights > 0)
    return jax.lax.cond(has_weight, add, lambda total: total, total), None

  return jax.lax.scan(step, zeros, parts)[0]


def _forward(of_part, params, fixed, parts):
  """Returns the sums, and the gradient of the loss, which `_backward` gives."""

  def gradient_of_part(params, fixed, part):
    def loss(params):
      sums = of_part(params, fixed, part)
      return sums.loss, sums

    return jax.grad(loss, has_aux=True)(params)

  gradient, sums = _over_parts(gradient_of_part, params, fixed, parts)
  return sums, gradient


def _backward(of_part, gradient, cotangent: Sums):
  """Returns the gradients of the parameters, of what is fixed, of the parts."""
  del of_part
  return jax.tree.map(lambda x: x * cotangent.loss, gradient), None, None


summed.defvjp(_forward, _backward)
