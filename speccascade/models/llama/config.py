"""The hyperparameters of a Llama-family decoder."""

import dataclasses
from typing import Annotated, Literal

from speccascade.settings import fields

_Scale = Annotated[float, fields.Bounds(0, low_open=True)]
_Base = Annotated[float, fields.Bounds(1, 1e30, low_open=True)]


@fields.checked
@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How rotary frequencies are changed for texts longer than those trained on.

  "llama3" and "yarn" count the turns of each frequency within the length
  trained on. Frequencies with many turns stay, those with few turns are
  divided, and a ramp leads from one to the other.

  Attributes:
    kind: "linear" divides positions; "dynamic" (NTK) raises the base with the
      length; "llama3" and "yarn" divide the low frequencies only.
    factor: how many times longer the texts are.
    original_max_positions: the length trained on; None means the config's
      `max_positions`.
    low_freq_factor: llama3 divides frequencies with fewer turns than this.
    high_freq_factor: llama3 keeps frequencies with more turns than this.
    beta_fast: yarn keeps frequencies with more turns than this.
    beta_slow: yarn divides frequencies with fewer turns than this.
    attention_factor: yarn's factor of sines and cosines; None is the paper's.
    truncate: whether the ends of yarn's ramp are whole numbers.
  """

  kind: Literal["linear", "dynamic", "llama3", "yarn"]
  factor: _Scale
  original_max_positions: fields.Positive | None = None
  low_freq_factor: _Scale = 1.0
  high_freq_factor: _Scale = 4.0
  beta_fast: _Scale = 32.0
  beta_slow: _Scale = 1.0
  attention_factor: _Scale | None = None
  truncate: bool = True


@fields.checked
@dataclasses.dataclass(frozen=True)
class LlamaConfig:
  """Hyperparameters of a decoder-only model of Llama's kind.

  Llama has `num_kv_heads` groups of queries. Mistral also has a `window`, Qwen2
  `qkv_bias`, and Qwen3 `query_key_norm`. All Gemmas have `norm_offset` 1 and
  `scaled_embedding`; Gemma 2 and 3 `post_norms` and `query_pre_attn_scalar`;
  Gemma 2 both caps; Gemma 3 `query_key_norm` and `local_rope_theta`. The
  defaults are SmolLM2-135M's.

  Attributes:
    vocab_size: rows of the embedding table.
    emb_dim: model width.
    num_heads: query heads.
    num_kv_heads: key and value heads; divides `num_heads`.
    num_decoder_layers: layers.
    head_dim: width of one head, even.
    mlp_dim: inner width of the MLP.
    mlp_activations: names in `flax.linen`, or "linear"; two make a gated MLP.
    max_positions: length of the longest text that the model was trained for;
      with scaled rotary positions it may read longer ones, see `longest_text`.
    rope_theta: base of the rotary frequencies, which float32 has to hold.
    rope_scaling: how the frequencies are changed for longer texts; None changes
      nothing.
    local_rope_theta: base of the rotary frequencies of layers with the window,
      which are not scaled; None gives all layers the same frequencies.
    norm_epsilon: added to the mean square in a norm.
    norm_offset: added to the scale of every norm. With 1, a norm is computed in
      float32 up to its result.
    post_norms: whether the outputs of attention and of the MLP are normed
      before they are added to the layer's input.
    scaled_embedding: whether tokens' vectors are multiplied by sqrt(emb_dim),
      rounded to the activations' dtype.
    logits_via_embedding: tie the output projection to the embedding.
    qkv_bias: whether queries, keys and values have biases.
    out_bias: whether attention's output projection has a bias.
    query_key_norm: whether each head's queries and keys are normed.
    query_pre_attn_scalar: queries are divided by its root; None is head_dim.
    attention_cap: c of the cap c tanh(score / c) of attention's scores, which
      comes before the mask; None caps nothing.
    logit_cap: c of the same cap of logits.
    window: how many slots back a token sees, itself included; None is all.
    windowed_layers: the layers, from 0, that have the `window`; None is all.
    eos_ids: tokens that end a text.
    bos_id: token that begins a text, or None.
    dtype: name of the activations' dtype; parameters are always float32.
  """

  vocab_size: Annotated[int, fields.Bounds(1, 2**24)] = 49152
  emb_dim: fields.Size = 576
  num_heads: fields.Size = 9
  num_kv_heads: fields.Size = 3
  num_decoder_layers: Annotated[int, fields.Bounds(1, 1024)] = 30
  head_dim: fields.Size = 64
  mlp_dim: Annotated[int, fields.Bounds(1, 2**20)] = 1536
  mlp_activations: tuple[Literal["silu", "gelu", "linear"], ...] = (
    "silu",
    "linear",
  )
  max_positions: fields.Positive = 8192
  rope_theta: _Base = 100000.0
  rope_scaling: RopeScaling | None = None
  local_rope_theta: _Base | None = None
  norm_epsilon: Annotated[float, fields.Bounds(0, 1)] = 1e-5
  norm_offset: Annotated[int, fields.Bounds(0, 1)] = 0
  post_norms: bool = False
  scaled_embedding: bool = False
  logits_via_embedding: bool = True
  qkv_bias: bool = False
  out_bias: bool = False
  query_key_norm: bool = False
  query_pre_attn_scalar: _Scale | None = None
  attention_cap: _Scale | None = None
  logit_cap: _Scale | None = None
  window: fields.Positive | None = None
  windowed_layers: tuple[fields.NonNegative, ...] | None = None
  eos_ids: tuple[fields.NonNegative, ...] = ()
  bos_id: fields.NonNegative | None = None
  dtype: Literal["float32", "bfloat16"] = "float32"

  def __post_init__(self):
    for end in self.eos_ids:
      if end >= self.vocab_size:
        fault = (
          f" is {end}; wanted an id below vocab_size, {self.vocab_size}, or no"
          " text ends"
        )
        raise fields.SettingError("eos_ids", fault, type(self))
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_kv_heads is {self.num_kv_heads}, which does not divide num_heads,"
        f" {self.num_heads}"
      )
    scaling = self.rope_scaling
    least = 4 if scaling is not None and scaling.kind == "dynamic" else 2
    if self.head_dim % 2 or self.head_dim < least:
      raise ValueError(
        f"head_dim is {self.head_dim}; rotary positions want an even number of"
        f" {least} or more"
      )

  @property
  def longest_text(self) -> int:
    """The most tokens of a text that the rotary positions are made for.

    Configs name the length before or after it is scaled: Qwen2.5's YaRN has
    max_positions 32,768, a factor 4 and the same original length, and reads
    131,072 tokens; Llama 3.1 has max_positions 131,072, a factor 8 and the
    original length 8,192. Positions that are divided ("linear"), or whose base
    grows ("dynamic"), have the length before. Gemma 3, of which only the layers
    without window are scaled, has the length after.
    """
    scaling, is_local = self.rope_scaling, self.local_rope_theta is not None
    if scaling is None or scaling.kind == "llama3" or is_local:
      return self.max_positions
    length = scaling.original_max_positions or self.max_positions
    return max(self.max_positions, int(length * scaling.factor))

  @property
  def query_factor(self) -> float:
    """What queries are multiplied by."""
    return (self.query_pre_attn_scalar or self.head_dim) ** -0.5

  @property
  def embedding_factor(self) -> float | None:
    """What tokens' vectors are multiplied by; None is nothing."""
    return self.emb_dim**0.5 if self.scaled_embedding else None

  @property
  def windows(self) -> set[int | None]:
    """The windows of the layers, None for a layer without."""
    return {self.window_of(i) for i in range(self.num_decoder_layers)}

  def window_of(self, layer: int) -> int | None:
    """Returns how many slots back a layer sees, or None for all."""
    layers = self.windowed_layers
    return self.window if layers is None or layer in layers else None
