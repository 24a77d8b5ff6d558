"""Puts a `RandomSource` in the place of jax.random's functions; see `replaced`.

Compiled code cannot branch on the answers of a script, so that it runs without
compilation, op by op. A key is its own state: the same key gives the same
numbers, as it does in JAX.
"""

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.judge.replacements import Replacements
from speccascade.judge.scripted import (
  NotCoveredError,
  RandomSource,
  equal_weights,
)


def replace(source: RandomSource, replacements: Replacements, stack):
  """Replaces jax.random's functions that return numbers; keys stay real."""
  stack.enter_context(jax.disable_jit())

  def state(key):
    if isinstance(key, jax.core.Tracer):
      raise NotCoveredError(
        "jax.random is called under vmap, scan or grad; draw outside, or sample"
      )
    data = key
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
      data = jax.random.key_data(key)
    return "jax", np.asarray(data).tobytes()

  def below_one(values, dtype):
    return np.minimum(values, 1 - jnp.finfo(dtype).eps / 2)

  def uniform(key, shape=(), dtype=float, minval=0.0, maxval=1.0, **kwargs):
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    u = below_one(source.uniforms(state(key), shape), dtype)
    return jnp.asarray(u * (maxval - minval) + minval, dtype)

  def exponential(key, shape=(), dtype=float, **kwargs):
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jnp.asarray(source.exponentials(state(key), shape), dtype)

  def gumbel(key, shape=(), dtype=float, **kwargs):
    return -jnp.log(exponential(key, shape, dtype))

  def categorical(key, logits, axis=-1, shape=None, replace=True, **kwargs):
    logits = np.moveaxis(np.asarray(logits, np.float64), axis, -1)
    if shape is not None:
      logits = np.broadcast_to(logits, (*shape, logits.shape[-1]))
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return jnp.asarray(source.choices(state(key), weights)[..., 0], jnp.int32)

  def bernoulli(key, p=0.5, shape=None, **kwargs):
    shape = np.shape(p) if shape is None else shape
    return uniform(key, shape) < p

  def choice(key, a, shape=(), replace=True, p=None, axis=0, **kwargs):
    num_options = int(a) if np.ndim(a) == 0 else len(a)
    weights = equal_weights(num_options) if p is None else np.asarray(p)
    options = jnp.arange(a) if np.ndim(a) == 0 else jnp.asarray(a)
    num = int(np.prod(shape))
    index = source.choices(state(key), weights, num, replace)
    return options[index.reshape(shape)]

  def randint(key, shape, minval, maxval, dtype=int, **kwargs):
    num = int(np.prod(shape))
    weights = equal_weights(int(maxval) - int(minval))
    index = source.choices(state(key), weights, num)
    return jnp.asarray(int(minval) + index.reshape(shape))

  for function in (
    *(uniform, exponential, gumbel, categorical, bernoulli, choice, randint),
  ):
    replacements.set(jax.random, function.__name__, function)
  others = "normal truncated_normal permutation bits laplace beta gamma"
  others += " dirichlet binomial geometric poisson logistic"
  replacements.refuse(jax.random, others, "jax.random")
