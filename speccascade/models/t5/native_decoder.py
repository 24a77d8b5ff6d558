"""A T5's decoder as one native call, from its parameters."""

from speccascade import native
from speccascade.models.t5.config import T5Config


def is_native(config: T5Config, params: dict) -> bool:
  """Whether all that a decoder multiplies is packed, and its MLPs are known."""
  attention = params["decoder"]["layers_0"]["self_attention"]
  is_packed = isinstance(attention["query"]["kernel"], native.Panels)
  return is_packed and set(config.mlp_activations) <= set(native.ACTIVATIONS)


def _sublayers(config, layer, cache, source, source_bias, by_offset):
  """Returns one layer's three sublayers."""
  kernels = lambda part, *names: tuple(layer[part][n]["kernel"] for n in names)
  scale = lambda part: layer[f"pre_{part}_layer_norm"]["scale"]
  own, other = "self_attention", "encoder_decoder_attention"
  inner = ["wi"]
  if len(config.mlp_activations) > 1:
    inner = [f"wi_{i}" for i in range(len(config.mlp_activations))]
  return (
    native.Sublayer(
      "cached",
      scale(own),
      kernels(own, "query", "key", "value", "out"),
      (*cache, by_offset),
    ),
    native.Sublayer(
      "source",
      scale("cross_attention"),
      kernels(other, "query", "out"),
      (*source, source_bias),
    ),
    native.Sublayer("mlp", scale("mlp"), kernels("mlp", *inner, "wo")),
  )


def extend(config, params, x, by_offset, state, read=None):
  """Returns (caches, logits, hidden) of a fed block; see `Transformer.extend`.

  Args:
    config: the architecture.
    params: its parameters, packed.
    x: [B, N, E] float32, the tokens' vectors.
    by_offset: [H, 2 L - 1], of `cache.block_bias`.
    state: `T5State`.
    read: [B, R] int32, or None.
  """
  decoder, sublayers = params["decoder"], []
  for i, (cache, source) in enumerate(zip(state.caches, state.sources)):
    layer = decoder[f"layers_{i}"]
    sublayers += _sublayers(
      config, layer, cache, source, state.source_bias, by_offset
    )
  head, factor = params["token_embedder"]["embedding"], config.emb_dim**-0.5
  if not config.logits_via_embedding:
    head, factor = decoder["logits_dense"]["kernel"], 1.0
  return native.decoder_pass(
    x,
    state.length,
    sublayers,
    decoder["decoder_norm"]["scale"],
    head,
    activations=config.mlp_activations,
    read=read,
    factor=factor,
  )
