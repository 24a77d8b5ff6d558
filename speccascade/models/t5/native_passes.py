"""A T5's passes as native calls, from its parameters."""

from speccascade import native
from speccascade.models.t5.config import T5Config


def is_native(config: T5Config, params: dict) -> bool:
  """Whether all that is multiplied is packed, and the MLPs are known."""
  attention = params["decoder"]["layers_0"]["self_attention"]
  is_packed = isinstance(attention["query"]["kernel"], native.Panels)
  return is_packed and set(config.mlp_activations) <= set(native.ACTIVATIONS)


def _kernels(part, *names):
  return tuple(part[name]["kernel"] for name in names)


def _mlp(config, layer):
  inner = ["wi"]
  if len(config.mlp_activations) > 1:
    inner = [f"wi_{i}" for i in range(len(config.mlp_activations))]
  scale = layer["pre_mlp_layer_norm"]["scale"]
  return native.Sublayer("mlp", scale, _kernels(layer["mlp"], *inner, "wo"))


def _decoder_layer(config, layer, cache, source, state):
  """Returns one layer's three sublayers."""
  own, other = layer["self_attention"], layer["encoder_decoder_attention"]
  return (
    native.Sublayer(
      "cached",
      layer["pre_self_attention_layer_norm"]["scale"],
      _kernels(own, "query", "key", "value", "out"),
      (*cache, state.by_offset),
    ),
    native.Sublayer(
      "source",
      layer["pre_cross_attention_layer_norm"]["scale"],
      _kernels(other, "query", "out"),
      (*source, state.source_bias),
    ),
    _mlp(config, layer),
  )


def extend(config, params, tokens, count, state, read=None):
  """Returns (caches, logits, hidden) of a fed block; see `Transformer.extend`.

  Args:
    config: the architecture.
    params: its parameters, packed.
    tokens: [B, N] int32.
    count: [B] int32, tokens fed to each row.
    state: `T5State`.
    read: [B, R] int32, or None.
  """
  decoder, sublayers = params["decoder"], []
  for i, (cache, source) in enumerate(zip(state.caches, state.sources)):
    layer = decoder[f"layers_{i}"]
    sublayers += _decoder_layer(config, layer, cache, source, state)
  table = params["token_embedder"]["embedding"]
  head, factor = table, config.emb_dim**-0.5
  if not config.logits_via_embedding:
    head, factor = decoder["logits_dense"]["kernel"], 1.0
  return native.decoder_pass(
    tokens,
    table,
    state.length,
    count,
    sublayers,
    decoder["decoder_norm"]["scale"],
    head,
    activations=config.mlp_activations,
    read=read,
    factor=factor,
  )


def encode(config, params, inputs, mask, by_offset):
  """Returns (keys, values) of the source for each decoder layer.

  Args:
    config: the architecture.
    params: its parameters, packed.
    inputs: [B, S] int32.
    mask: [B, 1, 1, S], hides the padding.
    by_offset: [H, 2 S - 1], the encoder's bias by distance.
  """
  encoder, sublayers = params["encoder"], []
  for i in range(config.num_encoder_layers):
    layer = encoder[f"layers_{i}"]
    kernels = _kernels(layer["attention"], "query", "key", "value", "out")
    scale = layer["pre_attention_layer_norm"]["scale"]
    sublayers.append(native.Sublayer("own", scale, kernels, (by_offset,)))
    sublayers.append(_mlp(config, layer))
  kept = [
    _kernels(
      params["decoder"][f"layers_{i}"]["encoder_decoder_attention"],
      "key",
      "value",
    )
    for i in range(config.num_decoder_layers)
  ]
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
