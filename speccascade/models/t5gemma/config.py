"""The hyperparameters of a T5Gemma."""

import dataclasses
from typing import Annotated, Literal

from speccascade.models.llama.config import LlamaConfig
from speccascade.settings import fields

_Layers = Annotated[int, fields.Bounds(1, 1024)]
# Fields of a `LlamaConfig` that the encoder may have of its own, under the
# names "encoder_emb_dim" and so on.
OF_ENCODER = (
  "emb_dim",
  "num_heads",
  "num_kv_heads",
  "head_dim",
  "mlp_dim",
  "windowed_layers",
)


@fields.checked
@dataclasses.dataclass(frozen=True)
class T5GemmaConfig(LlamaConfig):
  """Hyperparameters of a T5Gemma: two stacks of the layers of a Gemma.

  The fields of a `LlamaConfig` are those of the decoder. They are those of the
  encoder as well, but for its own fields. The layers of T5Gemma are those of
  Gemma 2. Those of T5Gemma 2 are those of Gemma 3, and it has
  `merged_attention`, `shared_embedding`, `split_window` and
  `end_of_image_id`. The defaults are T5Gemma S's.

  Attributes:
    num_encoder_layers: layers of the encoder.
    encoder_emb_dim: width of the encoder, which the decoder's attention to the
      source reads; None is the decoder's.
    encoder_num_heads: query heads of the encoder; None is the decoder's.
    encoder_num_kv_heads: its key and value heads; None is the decoder's.
    encoder_head_dim: width of one of its heads; None is the decoder's.
    encoder_mlp_dim: inner width of its MLP; None is the decoder's.
    encoder_windowed_layers: its layers, from 0, that have the `window`; None is
      the decoder's. There a token sees as many slots as the window on either
      side: one more than a decoder's token, which counts itself.
    split_window: whether the encoder's token sees as many slots as the window
      in all, itself included; of an even window one more after it than before.
    merged_attention: whether the decoder attends to its text and to the source
      at once, with the same queries, kernels and softmax, and not one after the
      other.
    shared_embedding: whether the encoder has the decoder's table of tokens.
    end_of_image_id: a token that is read as a vector of its own, which is not
      scaled, by a shared table; None is none.
    start_id: the token that the decoder begins with.
  """

  vocab_size: Annotated[int, fields.Bounds(1, 2**24)] = 256000
  emb_dim: fields.Size = 512
  num_heads: fields.Size = 8
  num_kv_heads: fields.Size = 8
  num_decoder_layers: _Layers = 8
  mlp_dim: Annotated[int, fields.Bounds(1, 2**20)] = 1024
  mlp_activations: tuple[Literal["silu", "gelu", "linear"], ...] = (
    "gelu",
    "linear",
  )
  rope_theta: Annotated[float, fields.Bounds(1, 1e30, low_open=True)] = 10000.0
  norm_epsilon: Annotated[float, fields.Bounds(0, 1)] = 1e-6
  norm_offset: Annotated[int, fields.Bounds(0, 1)] = 1
  post_norms: bool = True
  scaled_embedding: bool = True
  query_pre_attn_scalar: (
    Annotated[float, fields.Bounds(0, low_open=True)] | None
  ) = 64.0
  attention_cap: Annotated[float, fields.Bounds(0, low_open=True)] | None = 50.0
  logit_cap: Annotated[float, fields.Bounds(0, low_open=True)] | None = 30.0
  window: fields.Positive | None = 4096
  windowed_layers: tuple[fields.NonNegative, ...] | None = (0, 2, 4, 6)
  eos_ids: tuple[fields.NonNegative, ...] = (1,)
  bos_id: fields.NonNegative | None = 2
  num_encoder_layers: _Layers = 8
  encoder_emb_dim: fields.Size | None = None
  encoder_num_heads: fields.Size | None = None
  encoder_num_kv_heads: fields.Size | None = None
  encoder_head_dim: fields.Size | None = None
  encoder_mlp_dim: Annotated[int, fields.Bounds(1, 2**20)] | None = None
  encoder_windowed_layers: tuple[fields.NonNegative, ...] | None = None
  split_window: bool = False
  merged_attention: bool = False
  shared_embedding: bool = False
  end_of_image_id: fields.NonNegative | None = None
  start_id: fields.NonNegative = 2

  def __post_init__(self):
    # Equal architectures have equal configs.
    for name in OF_ENCODER:
      if getattr(self, f"encoder_{name}") == getattr(self, name):
        object.__setattr__(self, f"encoder_{name}", None)
    # Heads of one width have one scale, whether it is spelled out or not.
    if self.query_pre_attn_scalar is None and self.encoder_head_dim is None:
      scale = float(self.head_dim)
      object.__setattr__(self, "query_pre_attn_scalar", scale)
    super().__post_init__()
    if self.start_id >= self.vocab_size:
      fault = (
        f" is {self.start_id}; wanted an id below vocab_size, {self.vocab_size}"
      )
      raise fields.SettingError("start_id", fault, type(self))
    try:
      self.encoder  # noqa: B018  its heads are checked
    except ValueError as error:
      raise ValueError(f"the encoder's {error}") from error
    is_shared = self.merged_attention or self.shared_embedding
    if is_shared and self.encoder_emb_dim is not None:
      raise ValueError(
        f"encoder_emb_dim is {self.encoder_emb_dim}; kernels and tables that"
        f" are shared want the decoder's emb_dim, {self.emb_dim}"
      )
    if self.end_of_image_id is not None and not self.shared_embedding:
      raise ValueError("end_of_image_id wants shared_embedding: set it too")

  def encoder_sides(self, window: int) -> tuple[int, int]:
    """Returns how many tokens before and after itself the encoder's sees."""
    if self.split_window:
      return (window - 1) // 2, window // 2
    return window, window

  @property
  def decoder(self) -> LlamaConfig:
    """The decoder's own hyperparameters, as of a decoder-only model."""
    names = [field.name for field in dataclasses.fields(LlamaConfig)]
    return LlamaConfig(**{name: getattr(self, name) for name in names})

  @property
  def encoder(self) -> LlamaConfig:
    """The encoder's hyperparameters, with its layers as those of a decoder."""
    own = {name: getattr(self, f"encoder_{name}") for name in OF_ENCODER}
    own = {name: value for name, value in own.items() if value is not None}
    return dataclasses.replace(
      self.decoder, num_decoder_layers=self.num_encoder_layers, **own
    )
