"""A pass of a T5's decoder over a few tokens of one row, for a TPU.

Heads stay joined from the products on, so that every product is of two plain
matrices, and attention is one kernel: see `native.tpu_attention`. XLA makes one
operation of each product, with the residual and the sum of squares after it.

Axes: N fed tokens, R read positions, L slots, H heads, D head width, E model
width, V vocabulary.
"""

from collections.abc import Callable, Sequence
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.models import cache, layers
from speccascade.models.block import Block
from speccascade.models.sharding import partitioning
from speccascade.models.t5.config import T5Config

# What fits the 16 MB of small memory that a TPU v4, v5e or v5p gives a kernel:
# lines of all queries and heads, and numbers of a cache whose slots are filled
# up to whole registers. T5-large has 16 lines a query, and 896 slots.
MOST_LINES = 256
MOST_NUMBERS = 1 << 20
_REGISTER = 128
_EPSILON = 1e-6


def takes(config: Any, params: dict, state: Any, tokens: jax.Array) -> bool:
  """Whether `extend` feeds a block, while its program is traced.

  Args:
    config: the architecture.
    params: its parameters.
    state: `T5State`, or the state of another model.
    tokens: [B, N] int32, the block.
  """
  name = native.preferred_on_tpu()
  if name == "xla" or type(config) is not T5Config or partitioning.is_cut():
    return False
  rows, num_tokens = tokens.shape
  if rows > 1 or _kernels() is None:
    return False
  kernel = params["decoder"]["layers_0"]["self_attention"]["query"]["kernel"]
  width = config.num_heads * config.head_dim
  slots = state.caches[0][0].shape[3], state.sources[0][0].shape[3]
  num_lines = max(num_tokens, 2) * _kernels().padded_heads(config.num_heads)
  return (
    getattr(kernel, "dtype", None) == jnp.dtype(config.dtype)
    # In float32 a TPU multiplies bfloat16, and these kernels do not.
    and (config.dtype == "bfloat16" or name == "interpreted")
    and num_lines <= MOST_LINES
    and width * (max(slots) + _REGISTER) <= MOST_NUMBERS
  )


@functools.cache
def _kernels():
  """Returns the kernels' module, or None where this jax lacks Pallas."""
  try:
    from speccascade.native import tpu_attention
  except ImportError:
    return None
  return tpu_attention


def extend(
  config: T5Config,
  params: dict,
  state: Any,
  block: Block,
  context: tuple,
  project: Callable[[jax.Array], jax.Array],
  state_layers: Sequence[int] = (),
) -> tuple[tuple[cache.LayerCache, ...], jax.Array, jax.Array]:
  """Returns (caches, logits, hidden) of a fed block; see `CachedLM.extend`.

  Args:
    config: the architecture.
    params: its parameters, in the dtype of the activations.
    state: `T5State` of one row.
    block: the fed tokens, without spare ones.
    context: what the network's `extend` takes after the caches.
    project: the output projection, see `CachedLM.project`.
    state_layers: whose inputs are the hidden states; see `CachedLM`.
  """
  block = block.with_spare(config.dtype)
  embedder, decoder = params["token_embedder"], params["decoder"]
  x = block.vectors
  if x is None:
    x = layers.vectors_of(embedder, block.tokens, config.dtype)
  x, caches, inputs = _layers(config, decoder, x[0], block, state, context)
  if block.read is not None and block.reads_fewer:
    x = x[block.read[0]]
  x = layers.norm(x, decoder["decoder_norm"]["scale"], _EPSILON, config.dtype)
  logits, hidden = block.outputs(x[None], project, config.vocab_size)
  if state_layers:
    hidden = block.states([inputs[layer][None] for layer in state_layers])
  return caches, logits, hidden


def _layers(config, decoder, x, block, state, context):
  """Returns (x [N, E] after the layers, caches, what each layer read)."""
  kernels = _kernels()
  sources, source_bias, by_offset = context
  bias = kernels.lines(block.bias(by_offset)[0])
  source_bias = source_bias[0, 0].astype(jnp.float32)  # [1, S]
  options: dict[str, Any] = {
    "num_heads": config.num_heads,
    "epsilon": _EPSILON,
    "interpret": native.preferred_on_tpu() == "interpreted",
  }
  caches, inputs = [], []
  for number, layer_cache in enumerate(state.caches):
    inputs.append(x)
    layer = decoder[f"layers_{number}"]
    with jax.named_scope(f"layers_{number}"):
      mixed, layer_cache = _self_attention(
        layer, x, block, layer_cache, bias, options
      )
      caches.append(layer_cache)
      x = x + _times(mixed, layer["self_attention"]["out"])
      attention = layer["encoder_decoder_attention"]
      keys, values = sources[number]
      mixed = kernels.source_attention(
        x,
        _times(_scaled(layer, "cross_attention", x), attention["query"]),
        source_bias,
        _joined(keys),
        _joined(values.swapaxes(2, 3)),
        **options,
      )
      x = x + _times(mixed, attention["out"])
      x = x + _mlp(config, layer, x)
  return x, tuple(caches), inputs


def _self_attention(layer, x, block, layer_cache, bias, options):
  """Returns (mixed values [N, H D], the cache with the block)."""
  attention = layer["self_attention"]
  keys, values = layer_cache
  scaled = _scaled(layer, "self_attention", x)
  mixed, *written = _kernels().cached_attention(
    x,
    *(_times(scaled, attention[name]) for name in ("query", "key", "value")),
    bias,
    _joined(keys),
    _joined(values.swapaxes(2, 3)),
    block.start,
    num_new=block.num_fed,
    **options,
  )
  keys, turned = (y.reshape(keys.shape) for y in written)
  return mixed, (keys, turned.swapaxes(2, 3))


def _joined(slots: jax.Array) -> jax.Array:
  """Returns [H D, L] of slots [1, H, D, L]."""
  return slots.reshape(-1, slots.shape[3])


def _scaled(layer: dict, name: str, x: jax.Array) -> jax.Array:
  """Returns x [N, E] as its norm scales it, all but the norm's factor."""
  scale = layer[f"pre_{name}_layer_norm"]["scale"]
  return x * jnp.broadcast_to(scale.astype(x.dtype), x.shape)


def _times(x: jax.Array, dense: dict) -> jax.Array:
  """Returns x [N, in] times the kernel of a dense layer."""
  return jnp.dot(x, dense["kernel"].astype(x.dtype))


def _mlp(config: T5Config, layer: dict, x: jax.Array) -> jax.Array:
  """Returns the MLP of x [N, E], with its norm."""
  mlp = layer["mlp"]
  x = layers.norm(x, layer["pre_mlp_layer_norm"]["scale"], _EPSILON)
  names = [name for name in sorted(mlp) if name != "wo"]
  gates = [
    layers.activation(kind)(_times(x, mlp[name]))
    for kind, name in zip(config.mlp_activations, names)
  ]
  return _times(functools.reduce(operator.mul, gates), mlp["wo"])
