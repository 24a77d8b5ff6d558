"""Models of random weights, made on the device in the dtypes that they use."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from speccascade.models import T5LM, LlamaConfig, LlamaLM, T5Config, parameters
from speccascade.models.sharding.partitioning import Layout

DTYPE = "bfloat16"  # of activations and kernels


def described(
  config: T5Config | LlamaConfig,
  layout: Layout | None = None,
  place: jax.sharding.Sharding | None = None,
) -> T5LM | LlamaLM:
  """Returns a model of shapes alone, whose programs can be compiled.

  Args:
    config: the architecture.
    layout: where the arrays lie on a mesh; None without one.
    place: where they lie without a mesh; None says nothing.
  """
  config = dataclasses.replace(config, dtype=DTYPE)
  flat = {
    name: jax.ShapeDtypeStruct(
      each.shape,
      parameters.storage(config, name, DTYPE).dtype,
      sharding=layout.sharding(*each.axes) if layout else place,
    )
    for name, each in parameters.describe(config).items()
  }
  kind = T5LM if isinstance(config, T5Config) else LlamaLM
  return kind(parameters.tree(flat), parameters.network(config), layout)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _fill(seed, shape: tuple[int, ...], dtype) -> jax.Array:
  """Returns uniform numbers whose products with a row keep its size."""
  if len(shape) < 2:  # the scale of a norm
    return jnp.ones(shape, dtype)
  key = jax.random.key(seed, impl="rbg")
  numbers = jax.random.bits(key, shape, jnp.uint16).astype(jnp.float32)
  scale = math.sqrt(3 / shape[0])
  return ((numbers / 32768 - 1) * scale).astype(dtype)


def filled(lm: T5LM | LlamaLM) -> T5LM | LlamaLM:
  """Returns a model of shapes with random weights.

  A weight is written once, in its own dtype: no float32 copy of an array has to
  fit, and XLA fuses the float32 numbers of `_fill` away.
  """
  leaves, structure = jax.tree.flatten(lm)
  seeds = range(len(leaves))
  return jax.tree.unflatten(
    structure,
    [_fill(i, leaf.shape, leaf.dtype) for i, leaf in zip(seeds, leaves)],
  )


def of_params(config: T5Config, params: dict) -> T5LM:
  """Returns the model of trained parameters, as `described` describes it.

  Nothing is packed for native products, which a compiled program of shapes
  would not take.
  """
  lm = described(config)
  cast = lambda like, leaf: jnp.asarray(leaf, like.dtype)
  return lm.replace(params=jax.tree.map(cast, lm.params, params))


def pass_bytes(lm: T5LM | LlamaLM) -> int:
  """Returns the bytes of weights that one decoder pass reads.

  These are the decoder's weights and the output projection. Keys and values of
  a source are computed once, and of a table a few rows are read, unless it is
  the output projection, too.
  """
  config, total = lm.module.config, 0
  for path, leaf in jax.tree_util.tree_leaves_with_path(lm.params):
    names = [key.key for key in path]
    of_source = names[-3:-1] in (
      ["encoder_decoder_attention", "key"],
      ["encoder_decoder_attention", "value"],
    )
    is_table = names[0] == "token_embedder"
    is_read = names[0] == "decoder" and not of_source
    if is_read or (is_table and config.logits_via_embedding):
      total += math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize
  return total
