"""Arithmetic on distributions: safe at zeros, at least float32.

Every function broadcasts over leading axes and works on the last axis, V. The
same code runs in float32 inside the decoder and in float64 in the tests of the
output's distribution.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import entr, kl_div
import numpy as np

from speccascade import native

Array = jax.Array

# A factor whose product with a probability is finite.
LARGEST_FACTOR = 1e30


def at_least_float32(x: Array) -> Array:
  """Returns x in its own float type, or in float32 if its type is narrower.

  A bfloat16 probability has 8 bits: a distribution over a vocabulary would not
  sum to 1, and rules would compare rounding errors.
  """
  return x if jnp.finfo(x.dtype).bits >= 32 else x.astype(jnp.float32)


def as_float32(x: float) -> float:
  """Returns a number rounded to float32, as compiled programs will see it.

  A number that is too large for float32 becomes infinite.
  """
  with np.errstate(over="ignore"):
    return float(np.float32(x))


def max_prob(p: Array) -> Array:
  """Returns the largest probability, [...]."""
  return jnp.max(p, axis=-1)


def first_argmax(x: Array, largest: Array | None = None) -> Array:
  """Returns the lowest index of the largest entry, [...] int32.

  A row with NaN gives V - 1; callers check for NaN on their own.

  Args:
    x: [..., V].
    largest: [...], the largest entries; None computes them.
  """
  # A maximum, and then the least index that equals it. XLA vectorises both on a
  # CPU, where `jnp.argmax` carries (value, index) pairs through one slow
  # reduction. It also makes the choice at ties explicit.
  size = x.shape[-1]
  index = jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
  if largest is None:
    largest = jnp.max(x, axis=-1)
  is_max = x == largest[..., None]
  return jnp.min(jnp.where(is_max, index, size - 1), axis=-1)


def total_variation(q: Array, p: Array) -> Array:
  """Returns TV(p, q) = sum_v max(0, p - q), half the L1 distance; [...]."""
  return jnp.sum(jnp.maximum(p - q, 0), axis=-1)


def overlap(q: Array, p: Array) -> Array:
  """Returns sum_v min(q, p), [...]: the chance that a draw of q is accepted.

  It is 1 - TV(p, q).
  """
  if q.shape == p.shape and native.takes(q, p):
    return native.overlap(q, p)
  return jnp.sum(jnp.minimum(q, p), axis=-1)


def entropy(p: Array) -> Array:
  """Returns the entropy in nats, with 0 log 0 = 0; [...]."""
  return jnp.sum(entr(p), axis=-1)


def kl(p: Array, q: Array) -> Array:
  """Returns KL(p || q) in nats, [...]; inf where q lacks mass that p has."""
  return jnp.sum(kl_terms(p, q), axis=-1)


def kl_terms(p: Array, q: Array) -> Array:
  """Returns p log(p/q) - p + q, [..., V], of which each entry is 0 or more.

  Of two distributions these terms have the sum KL(p || q).
  """
  # The sum of p log(p/q) over nearly equal distributions cancels to a number
  # like -1e-8. Between the terms with - p + q nothing cancels. Inside one term
  # p log(p/q) and q - p cancel where q is near p: there the term is written as
  # p (d - log(1 + d)) with d = q/p - 1, which log1p computes to full precision.
  d = (q - p) / jnp.where(p > 0, p, 1)
  is_near = (p > 0) & (jnp.abs(d) < 0.5)
  near = p * _kl_of_excess(jnp.where(is_near, d, 0))
  return jnp.where(is_near, near, kl_div(p, q))


def kl_of_factor(factor: Array) -> Array:
  """Returns factor - 1 - log(factor): `kl_terms` of 1 and a factor above 0."""
  # log1p where the difference cancels; log where 1 + d has lost a small factor.
  is_near = jnp.abs(factor - 1) < 0.5
  near = _kl_of_excess(jnp.where(is_near, factor - 1, 0))
  return jnp.where(is_near, near, factor - 1 - jnp.log(factor))


def _kl_of_excess(d: Array) -> Array:
  """Returns d - log(1 + d), with d above -1."""
  return jnp.maximum(d - jnp.log1p(d), 0)


def jensen_shannon(p: Array, q: Array) -> Array:
  """Returns the Jensen-Shannon divergence in nats, in [0, ln 2]; [...]."""
  middle = (p + q) / 2
  return (kl(p, middle) + kl(q, middle)) / 2


def of_token(values: Array, token: Array) -> Array:
  """Returns the entry of `values` [..., V] at each token [...]; [...]."""
  return jnp.take_along_axis(values, token[..., None], axis=-1)[..., 0]


def ratio(x: Array, y: Array, otherwise: Array | float = 0) -> Array:
  """Returns x / y, or `otherwise` where y is not above 0."""
  # The division itself sees 1 in place of 0: an infinity or NaN that `where`
  # drops would still raise under `jax_debug_nans`, and spoil gradients.
  return jnp.where(y > 0, x / jnp.where(y > 0, y, 1), otherwise)


def normalise(weights: Array, otherwise: Array) -> Array:
  """Returns weights / sum(weights), or `otherwise` where the sum is 0.

  Args:
    weights: [..., V], none negative.
    otherwise: [..., V], a distribution.
  """
  return ratio(weights, jnp.sum(weights, axis=-1, keepdims=True), otherwise)


def residual(pi: Array, q: Array) -> Array:
  """Returns norm(max(0, pi - q)), the distribution of the token after a
  rejection.

  Where pi equals q the residual has no mass. A rejection has probability 0
  there, but rounding can lead to one: the residual is pi then.

  >>> residual(jnp.array([0.2, 0.8]), jnp.array([0.5, 0.5])).tolist()
  [0.0, 1.0]

  Source: Narasimhan et al. (arXiv 2405.19261), Algorithm 4.
  """
  return normalise(jnp.maximum(pi - q, 0), pi)


def bits_of(p: Array) -> tuple[Array, int]:
  """Returns probabilities as integers that order as they do, and a bound.

  The bound is an integer that is above all of them, those of the numbers up to
  2.
  """
  size = jnp.finfo(p.dtype).bits
  dtype = jnp.int64 if size == 64 else jnp.int32
  return jax.lax.bitcast_convert_type(p, dtype), 1 << (size - 2)


def bisect(
  holds: Callable[[Array], Array], low: Array, high: Array, most: int
) -> Array:
  """Returns the largest integer in [low, high) at which `holds` is true.

  Args:
    holds: true up to some integer and false after it. It must be true at `low`.
    low: int, any shape.
    high: int, the shape of `low`.
    most: static, no less than high - low. The number of halvings follows from
      it: a loop whose end is not known before makes a GPU wait for its host at
      each turn.
  """

  def narrow(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
    low, high = bounds
    middle = low + (high - low) // 2
    yes = holds(middle)
    return jnp.where(yes, middle, low), jnp.where(yes, high, middle)

  return jax.lax.fori_loop(0, most.bit_length(), narrow, (low, high))[0]


def check_shape(name: str, array: Array, wanted: tuple[int, ...]) -> None:
  """Checks the shape of an array while a program is traced.

  Args:
    name: what the array is, for the message.
    array: any array.
    wanted: the shape that it must have.

  Raises:
    ValueError: the array has another shape; the message names both shapes.
  """
  if tuple(array.shape) != tuple(wanted):
    raise ValueError(
      f"{name} has shape {list(array.shape)}; wanted {list(wanted)}"
    )
