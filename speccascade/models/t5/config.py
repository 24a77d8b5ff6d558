"""The hyperparameters of a T5."""

import dataclasses


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
    dropout_rate: where T5X applies it, in training only.
    logits_via_embedding: tie the output projection to the embedding, and scale
      the decoder output by emb_dim ** -0.5.
    dtype: name of the activations' dtype; parameters are always float32.
    float32_attention_logits: compute attention scores in float32.
  """

  vocab_size: int = 32128
  emb_dim: int = 512
  num_heads: int = 6
  num_encoder_layers: int = 8
  num_decoder_layers: int = 8
  head_dim: int = 64
  mlp_dim: int = 1024
  mlp_activations: tuple[str, ...] = ("gelu", "linear")
  dropout_rate: float = 0.1
  logits_via_embedding: bool = False
  dtype: str = "float32"
  float32_attention_logits: bool = False

  def __post_init__(self):
    object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
