"""Passes of a T5 and of a Llama as native calls, from their parameters."""

import jax.numpy as jnp

from speccascade import native
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.t5.config import T5Config

_ALL = ("query", "key", "value", "out")


def is_native(config: T5Config | LlamaConfig, params: dict) -> bool:
  """Whether all that is multiplied is packed, and the native code knows it."""
  attention = params["decoder"]["layers_0"]["self_attention"]
  return (
    isinstance(attention["query"]["kernel"], native.Panels)
    and set(config.mlp_activations) <= set(native.ACTIVATIONS)
    and not getattr(config, "out_bias", False)
  )


def _kernels(part, names):
  return tuple(part[name]["kernel"] for name in names)


def _attention(kind, layer, name, norm, kept, names=_ALL, window=None):
  scale = layer[f"pre_{norm}_layer_norm"]["scale"]
  kernels = _kernels(layer[name], names)
  return native.Sublayer(kind, scale, kernels, kept, window)


def _mlp(layer):
  scale, mlp = layer["pre_mlp_layer_norm"]["scale"], layer["mlp"]
  return native.Sublayer("mlp", scale, _kernels(mlp, sorted(mlp)))


def _t5_attention(i, layer, state):
  name, other = "self_attention", "encoder_decoder_attention"
  cached = (*state.caches[i], state.by_offset)
  source = (*state.sources[i], state.source_bias)
  return [
    _attention("cached", layer, name, name, cached),
    _attention(
      *("source", layer, other, "cross_attention", source), ("query", "out")
    ),
  ]


def _llama_attention(config, i, layer, kept):
  name, parts = "self_attention", layer["self_attention"]
  if config.qkv_bias:
    kept += tuple(parts[each]["bias"] for each in _ALL[:3])
  if config.query_key_norm:
    kept += tuple(parts[each]["scale"] for each in ("query_norm", "key_norm"))
  window = config.window_of(i)
  return [_attention("rotary", layer, name, name, kept, window=window)]


def extend(config, params, tokens, count, state, read=None):
  """Returns (caches, logits, hidden) of a fed block; see `CachedLM.extend`.

  Args:
    config: the architecture.
    params: its parameters, packed.
    tokens: [B, N] int32.
    count: [B] int32, tokens fed to each row.
    state: `T5State` or `LlamaState`.
    read: [B, R] int32, or None.
  """
  decoder, sublayers = params["decoder"], []
  table = head = params["token_embedder"]["embedding"]
  if isinstance(config, T5Config):
    options = {"factor": config.emb_dim**-0.5}
    attention = lambda i, layer: _t5_attention(i, layer, state)
  else:
    options = {"epsilon": config.norm_epsilon}
    angles = rotary.angles(config, rotary.positions(state.end, tokens.shape))
    attention = lambda i, layer: _llama_attention(
      config, i, layer, (*state.caches[i], *angles)
    )
  for i in range(config.num_decoder_layers):
    layer = decoder[f"layers_{i}"]
    sublayers += [*attention(i, layer), _mlp(layer)]
  if not config.logits_via_embedding:
    head = decoder["logits_dense"]["kernel"]
    options.pop("factor", None)
  is_silent = read is not None and not read.shape[1]
  caches, logits, hidden = native.decoder_pass(
    tokens,
    table,
    state.end,
    count,
    sublayers,
    decoder["decoder_norm"]["scale"],
    None if is_silent else head,
    activations=config.mlp_activations,
    read=read,
    **options,
  )
  if is_silent:
    sizes = (config.vocab_size, config.emb_dim)
    empty = lambda n: jnp.zeros((len(tokens), 0, n), jnp.float32)
    logits, hidden = map(empty, sizes)
  return caches, logits, hidden


def encode(config, params, inputs, mask, by_offset):
  """Returns (keys, values) of a T5's source for each decoder layer.

  Args:
    config: the architecture.
    params: its parameters, packed.
    inputs: [B, S] int32.
    mask: [B, 1, 1, S], hides the padding.
    by_offset: [H, 2 S - 1], the encoder's bias by distance.
  """
  encoder, decoder = params["encoder"], params["decoder"]
  sublayers, kept = [], []
  for i in range(config.num_encoder_layers):
    layer, name = encoder[f"layers_{i}"], "attention"
    sublayers.append(_attention("own", layer, name, name, (by_offset,)))
    sublayers.append(_mlp(layer))
  for i in range(config.num_decoder_layers):
    part = decoder[f"layers_{i}"]["encoder_decoder_attention"]
    kept.append(_kernels(part, ("key", "value")))
  return native.encoder_pass(
    inputs,
    params["token_embedder"]["embedding"],
    mask,
    sublayers,
    encoder["encoder_norm"]["scale"],
    kept,
    num_heads=config.num_heads,
    activations=config.mlp_activations,
  )
