"""A Llama's pass over a block as one native call, from its parameters."""

import jax.numpy as jnp

from speccascade import native
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig


def is_native(config: LlamaConfig, params: dict) -> bool:
  """Whether all that is multiplied is packed, and the native code knows it."""
  attention = params["decoder"]["layers_0"]["self_attention"]
  return (
    isinstance(attention["query"]["kernel"], native.Panels)
    and set(config.mlp_activations) <= set(native.ACTIVATIONS)
    and not config.out_bias
  )


def extend(config, params, tokens, count, caches, start, read=None):
  """Returns (caches, logits, hidden); see `CausalTransformer.extend`.

  Args:
    config: the architecture.
    params: its parameters, packed.
    tokens: [B, N] int32.
    count: [B] int32, tokens fed to each row.
    caches: (keys, values) of each layer.
    start: [B] int32, the slot of each row's first token.
    read: [B, R] int32, or None.
  """
  decoder, sublayers = params["decoder"], []
  angles = rotary.angles(config, rotary.positions(start, tokens.shape))
  inner = [f"wi_{i}" for i in range(len(config.mlp_activations))]
  for i, cache in enumerate(caches):
    layer = decoder[f"layers_{i}"]
    attention, mlp = layer["self_attention"], layer["mlp"]
    parts = [attention[name] for name in ("query", "key", "value", "out")]
    kept = (*cache, *angles)
    if config.qkv_bias:
      kept += tuple(part["bias"] for part in parts[:3])
    if config.query_key_norm:
      norms = ("query_norm", "key_norm")
      kept += tuple(attention[name]["scale"] for name in norms)
    scale = layer["pre_self_attention_layer_norm"]["scale"]
    kernels = tuple(part["kernel"] for part in parts)
    window = config.window_of(i)
    sublayers.append(native.Sublayer("rotary", scale, kernels, kept, window))
    scale = layer["pre_mlp_layer_norm"]["scale"]
    kernels = tuple(mlp[name]["kernel"] for name in (*inner, "wo"))
    sublayers.append(native.Sublayer("mlp", scale, kernels))
  table = head = params["token_embedder"]["embedding"]
  if not config.logits_via_embedding:
    head = decoder["logits_dense"]["kernel"]
  is_silent = read is not None and not read.shape[1]
  caches, logits, hidden = native.decoder_pass(
    tokens,
    table,
    start,
    count,
    sublayers,
    decoder["decoder_norm"]["scale"],
    None if is_silent else head,
    activations=config.mlp_activations,
    read=read,
    epsilon=config.norm_epsilon,
  )
  if is_silent:
    rows = len(tokens)
    logits = jnp.zeros((rows, 0, config.vocab_size), jnp.float32)
    hidden = jnp.zeros((rows, 0, config.emb_dim), jnp.float32)
  return caches, logits, hidden
