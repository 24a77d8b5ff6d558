"""A T5 in float64 NumPy, written from the paper; slow, and without a cache."""

import numpy as np

from speccascade.models.t5.multi_head import relative_position_bucket

ACTIVATIONS = {
  "relu": lambda x: np.maximum(x, 0),
  "linear": lambda x: x,
  "gelu": lambda x: (
    x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
  ),
}


def _norm(x, scale):
  return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * scale


def _attention(params, config, x, memory, bias):
  """One row: x [N, E], memory [L, E], bias [H, N, L]."""
  split = lambda name, a: (
    (a @ params[name]["kernel"])
    .reshape(len(a), config.num_heads, config.head_dim)
    .swapaxes(0, 1)
  )
  query = split("query", x)
  key, value = split("key", memory), split("value", memory)
  scores = query @ key.swapaxes(1, 2) + bias
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  context = (weights @ value).swapaxes(0, 1).reshape(len(x), -1)
  return context @ params["out"]["kernel"]


def _mlp(params, config, x):
  names = ["wi_0", "wi_1"] if len(config.mlp_activations) == 2 else ["wi"]
  inner = 1.0
  for name, activation in zip(names, config.mlp_activations):
    inner = inner * ACTIVATIONS[activation](x @ params[name]["kernel"])
  return inner @ params["wo"]["kernel"]


def logits(params, config, source, decoder_input):
  """Returns [T, V] of one unpadded row: source [S], decoder_input [T]."""
  table = params["token_embedder"]["embedding"]
  enc, dec = params["encoder"], params["decoder"]
  position = np.arange(len(source))
  buckets = relative_position_bucket(
    position[None] - position[:, None], bidirectional=True
  )
  bias = enc["relpos_bias"]["rel_embedding"][:, buckets]
  x = table[source]
  for i in range(config.num_encoder_layers):
    layer = enc[f"layers_{i}"]
    y = _norm(x, layer["pre_attention_layer_norm"]["scale"])
    x = x + _attention(layer["attention"], config, y, y, bias)
    y = _norm(x, layer["pre_mlp_layer_norm"]["scale"])
    x = x + _mlp(layer["mlp"], config, y)
  encoded = _norm(x, enc["encoder_norm"]["scale"])

  position = np.arange(len(decoder_input))
  offset = position[None] - position[:, None]
  buckets = relative_position_bucket(offset, bidirectional=False)
  bias = dec["relpos_bias"]["rel_embedding"][:, buckets]
  bias = np.where(offset > 0, -np.inf, bias)
  x = table[decoder_input]
  for i in range(config.num_decoder_layers):
    layer = dec[f"layers_{i}"]
    y = _norm(x, layer["pre_self_attention_layer_norm"]["scale"])
    x = x + _attention(layer["self_attention"], config, y, y, bias)
    y = _norm(x, layer["pre_cross_attention_layer_norm"]["scale"])
    cross = layer["encoder_decoder_attention"]
    x = x + _attention(cross, config, y, encoded, 0.0)
    y = _norm(x, layer["pre_mlp_layer_norm"]["scale"])
    x = x + _mlp(layer["mlp"], config, y)
  x = _norm(x, dec["decoder_norm"]["scale"])
  if config.logits_via_embedding:
    return x @ table.T / np.sqrt(config.emb_dim)
  return x @ dec["logits_dense"]["kernel"]
