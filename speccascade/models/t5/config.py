"""The hyperparameters of a T5."""

import dataclasses
from typing import Annotated, Literal

from flax import linen as nn

from speccascade.settings import fields

_Layers = Annotated[int, fields.Bounds(1, 1024)]


def _activation(name: str) -> None:
  """Raises ValueError where flax.linen has no activation of this name."""
  if name != "linear" and not callable(getattr(nn, name, None)):
    raise ValueError(
      f"no activation {name!r} in flax.linen; take 'gelu', 'relu' or another"
      " of its functions, or 'linear'"
    )


@fields.checked
@dataclasses.dataclass(frozen=True)
class T5Config:
  """Hyperparameters of a T5, under T5X's names.

  The defaults are those of T5 v1.1 small; T5 v1.0 has
  `mlp_activations=("relu",)` and `logits_via_embedding=True`.

  Attributes:
    vocab_size: rows of the embedding table (padded: 32128 for public models).
    emb_dim: model width.
    num_heads: attention heads.
    num_encoder_layers: layers of the encoder.
    num_decoder_layers: layers of the decoder.
    head_dim: width of one head; `num_heads * head_dim` need not be `emb_dim`.
    mlp_dim: inner width of the MLP.
    mlp_activations: names in `flax.linen`, or "linear"; two make a gated MLP.
    dropout_rate: share of activations that training drops, where T5X does.
    logits_via_embedding: tie the output projection to the embedding, and scale
      the decoder output by emb_dim ** -0.5.
    dtype: name of the activations' dtype; parameters are always float32.
    float32_attention_logits: compute attention scores in float32.
  """

  vocab_size: Annotated[int, fields.Bounds(1, 2**24)] = 32128
  emb_dim: fields.Size = 512
  num_heads: fields.Size = 6
  num_encoder_layers: _Layers = 8
  num_decoder_layers: _Layers = 8
  head_dim: fields.Size = 64
  mlp_dim: Annotated[int, fields.Bounds(1, 2**20)] = 1024
  mlp_activations: Annotated[
    tuple[Annotated[str, _activation], ...], fields.NOT_EMPTY
  ] = ("gelu", "linear")
  dropout_rate: Annotated[float, fields.Bounds(0, 1, high_open=True)] = 0.1
  logits_via_embedding: bool = False
  dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
  float32_attention_logits: bool = False
