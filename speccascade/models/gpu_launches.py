"""A pass of a T5's decoder in one to three launches a layer, for a GPU.

See `native.gpu.layer_launches`: the GPU needs clusters. A layer is one launch
where all of it fits, else one of both attentions and one of the MLP, else
three; its numbers are the same. The residual is handed from launch to launch
with parts that are still to be added; the last ones are added here. Each launch
is given what later ones read, and asks for it on the way: memory is read while
blocks wait for one another, and between launches. The MLP has more than half of
a layer's weights, so both launches of attention before it ask for some of them.
A cache is asked for before the launch that writes to it.

Axes: B rows, N fed tokens, L slots, H heads, D head width, E model width.
"""

from typing import Any

import jax
import jax.numpy as jnp

from speccascade.models import cache
from speccascade.models.block import Block
from speccascade.models.t5.config import T5Config
from speccascade.native.gpu import (
  attention_launch,
  cuda_launches,
  layer_launch,
  mlp_launch,
)
from speccascade.native.gpu.row_products import Gathered, whole

OPERATIONS = (attention_launch, mlp_launch, layer_launch)


def reason_against(
  implementation: str,
  config: Any,
  params: dict,
  state: Any,
  tokens: jax.Array,
) -> str | None:
  """Returns why a pass is not made of these launches, or None if it can be.

  Args:
    implementation: "cuda" or "emulated".
    config: the architecture.
    params: its parameters.
    state: `T5State`.
    tokens: [B, N] int32, the block.
  """
  if type(config) is not T5Config:
    return "the model is not a T5"
  for operation in OPERATIONS:
    if reason := operation.missing(implementation):
      return reason
  of_self, of_source, of_mlp = _weights(params["decoder"]["layers_0"])
  of: Any = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.dtype(config.dtype))
  x, norm = of(*tokens.shape, config.emb_dim), of(config.emb_dim)
  bias = of(1, 1, 1, 1)
  return (
    attention_launch.unfit(x, None, norm, of_self, bias, *state.caches[0])
    or attention_launch.unfit(x, None, norm, of_source, bias, *state.sources[0])
    or mlp_launch.unfit(
      x, None, norm, of_mlp, activations=config.mlp_activations
    )
  )


def t5_layers(
  config: T5Config,
  decoder: dict,
  vectors: jax.Array | Gathered,
  block: Block,
  state: Any,
  context: tuple,
) -> tuple[jax.Array, tuple[cache.LayerCache, ...], list[jax.Array]]:
  """Returns (x after the layers [B, N, E], caches, what each layer read).

  Args:
    config: the architecture.
    decoder: its decoder's parameters, in bfloat16.
    vectors: [B, N, E], of the fed tokens.
    block: the fed tokens, without spare ones.
    state: `T5State`.
    context: (sources, their bias, bias by offset), as of `DecoderStack.extend`.
  """
  sources, source_bias, by_offset = context
  bias = block.bias(by_offset)
  number = len(state.caches)
  weights = [_weights(decoder[f"layers_{i}"]) for i in range(number)]
  activations = tuple(config.mlp_activations)
  x, parts = whole(vectors), None
  caches, inputs = [], []
  for i, (keys, values) in enumerate(state.caches):
    norms = [
      decoder[f"layers_{i}"][f"pre_{name}_layer_norm"]["scale"].astype(x.dtype)
      for name in ("self_attention", "cross_attention", "mlp")
    ]
    of_self, of_source, of_mlp = weights[i]
    following: tuple = ()
    if i + 1 < number:
      following = (*weights[i + 1][0], *state.caches[i + 1], *weights[i + 1][1])
    biases = bias, source_bias
    others = biases, (keys, values), sources[i]
    at_once = (norms, of_self, of_source, of_mlp, *others)
    joined = (norms, of_self, of_source, (), *others)
    if layer_launch.unfit(x, parts, *at_once, activations=activations) is None:
      x, parts, given, *written = layer_launch(
        x,
        parts,
        *at_once,
        start=block.start,
        activations=activations,
        upcoming=following,
      )
    else:
      if layer_launch.unfit(x, parts, *joined) is None:
        x, parts, given, *written = layer_launch(
          x, parts, *joined, start=block.start, upcoming=of_mlp
        )
      else:
        given, parts, *written = attention_launch(
          x,
          parts,
          norms[0],
          of_self,
          bias,
          keys,
          values,
          start=block.start,
          upcoming=(*of_source, *sources[i], of_mlp[0]),
        )
        x, parts = attention_launch(
          given,
          parts,
          norms[1],
          of_source,
          source_bias,
          *sources[i],
          upcoming=of_mlp[1:],
        )
      x, parts = mlp_launch(
        x,
        parts,
        norms[2],
        of_mlp,
        activations=activations,
        upcoming=following,
      )
    caches.append(tuple(written))
    inputs.append(given)
  return cuda_launches.total(x, parts), tuple(caches), inputs


def _weights(layer: dict) -> tuple[tuple, tuple, tuple]:
  """Returns the kernels of each launch of a layer."""
  of_self, of_source, mlp = (
    layer[name]
    for name in ("self_attention", "encoder_decoder_attention", "mlp")
  )
  names = [*sorted(name for name in mlp if name != "wo"), "wo"]
  return (
    tuple(of_self[name]["kernel"] for name in ("query", "key", "value", "out")),
    tuple(of_source[name]["kernel"] for name in ("query", "out")),
    tuple(mlp[name]["kernel"] for name in names),
  )
