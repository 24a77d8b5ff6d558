"""The hyperparameters of a state reader: `StateReaderConfig`."""

from collections.abc import Mapping
import dataclasses
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np

from speccascade.models import fused_states
from speccascade.models.draft_heads import fingerprint
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.eagle import PLAIN, Eagle, EagleConfig
from speccascade.models.t5.config import T5Config
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.settings import fields

EAGLE, EAGLE3 = "eagle", "eagle3"
LayerConfig = T5Config | T5GemmaConfig | LlamaConfig
_NO_VERIFIER = LlamaConfig(
  vocab_size=1,
  emb_dim=1,
  num_heads=1,
  num_kv_heads=1,
  num_decoder_layers=1,
  head_dim=2,
  mlp_dim=1,
)


@fields.checked
@dataclasses.dataclass(frozen=True)
class StateReaderConfig:
  """Hyperparameters of a state reader over a verifier.

  A user sets the first five. The others say which verifier the reader was
  trained for, which `of_verifier` fills in, or come from a public drafter.

  Attributes:
    own_head: whether the reader has an output projection of its own; else it
      has the verifier's.
    num_steps: how many drafts in a row training looks at: the first reads the
      verifier's state, and the later ones the reader's own. Blocks may be
      longer.
    fused: whether the reader reads the states after several layers, of which a
      product makes one; else the verifier's last state.
    fused_layers: the layers whose inputs these states are, counted from 0; None
      is `fused_states.default_layers`.
    layout: the public layout whose layer the reader has, for a Llama, Mistral
      or Qwen; None is a layer of the verifier's kind.
    t5: the architecture of the layer where the verifier is a T5: that of the
      verifier with one layer.
    t5gemma: the same where it is a T5Gemma.
    llama: the same where it is a Llama.
    verifier_sha256: what `fingerprint` says of the verifier's parameters.
    eagle: the options of the layout.
    own_table: whether the reader has a table of tokens of its own; else it has
      the verifier's.
    draft_vocab_size: N tokens that a head of its own keeps; None keeps all.
  """

  own_head: bool = False
  num_steps: Annotated[int, fields.Bounds(1, 16)] = 3
  fused: bool = False
  fused_layers: tuple[fields.NonNegative, ...] | None = None
  layout: Literal["eagle", "eagle3"] | None = None
  t5: T5Config | None = None
  t5gemma: T5GemmaConfig | None = None
  llama: LlamaConfig | None = None
  verifier_sha256: str = ""
  eagle: Eagle = PLAIN
  own_table: bool = False
  draft_vocab_size: fields.Positive | None = None

  def __post_init__(self):
    if self.fused_layers is not None and not (self.fused and self.fused_layers):
      raise ValueError(
        f"fused_layers is {list(self.fused_layers)} and fused is {self.fused};"
        " give one layer or more, and set fused; or leave fused_layers out"
      )
    is_third = self.layout == EAGLE3
    if (
      self.layout is not None and (self.fused, self.own_head) != (is_third,) * 2
    ):
      raise ValueError(
        f"layout is {self.layout!r}, fused {self.fused} and own_head"
        f" {self.own_head}; 'eagle3' wants both True, 'eagle' both False"
      )
    if self.draft_vocab_size is not None and not self.own_head:
      raise ValueError(
        f"draft_vocab_size is {self.draft_vocab_size}, of a head of the"
        " reader's own: set own_head, or leave it out"
      )
    if sum(x is not None for x in (self.t5, self.t5gemma, self.llama)) > 1:
      raise ValueError(
        "a state reader has the layer of one verifier; give one of t5, t5gemma"
        " and llama"
      )

  @property
  def layer(self) -> LayerConfig:
    """The architecture of the layer; before `of_verifier` the least one."""
    return self.t5 or self.t5gemma or self.llama or _NO_VERIFIER

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.layer.vocab_size

  @property
  def emb_dim(self) -> int:
    """E, the width of a state."""
    return self.layer.emb_dim

  @property
  def num_states(self) -> int:
    """How many states of the verifier the reader reads at a token."""
    if not self.fused:
      return 1
    return 3 if self.fused_layers is None else len(self.fused_layers)

  @property
  def skips_first(self) -> bool:
    """Whether the reader never sees the first token, without a state before."""
    return self.layout is not None

  def layers_read(self, num_layers: int) -> tuple[int, ...]:
    """Returns the layers whose inputs are read; () for the last state.

    Args:
      num_layers: layers of the verifier's decoder.
    """
    if not self.fused:
      return ()
    if self.fused_layers is not None:
      return self.fused_layers
    return fused_states.default_layers(num_layers)

  @property
  def network_layer(self) -> LayerConfig:
    """The architecture of the layer, with what the layout changes."""
    if self.layout is None or self.llama is None:
      return self.layer
    return EagleConfig.of(self.llama, self.layout == EAGLE3, self.eagle)

  @property
  def prompted(self) -> bool:
    """Whether the verifier is decoder-only."""
    return self.llama is not None

  @property
  def dtype(self) -> str:
    """Name of the activations' dtype."""
    return self.layer.dtype

  @property
  def longest_text(self) -> float:
    """The most tokens of a text, as of the verifier.

    A public drafter may name fewer. That is no limit here: in longer texts its
    drafts may only be accepted less often.
    """
    if self.layout is not None:
      return np.inf
    return getattr(self.layer, "longest_text", np.inf)

  def of_verifier(self, config: Any, params: Mapping) -> "StateReaderConfig":
    """Returns the reader of a verifier.

    Args:
      config: the verifier's architecture.
      params: the verifier's parameters, in T5X's names.
    """
    return dataclasses.replace(
      self.shaped_like(config), verifier_sha256=fingerprint(params)
    )

  def shaped_like(self, config: Any) -> "StateReaderConfig":
    """Returns the reader with the shape of a verifier.

    The layer sees the whole text, unless all layers of the verifier have a
    window.

    Args:
      config: the verifier's architecture.
    """
    changes: dict[str, Any] = {"num_decoder_layers": 1}
    if hasattr(config, "num_encoder_layers"):
      changes["num_encoder_layers"] = 1
    if self.own_head:
      changes["logits_via_embedding"] = False
    if isinstance(config, LlamaConfig):
      has_window = None not in config.windows
      changes["windowed_layers"] = None if has_window else ()
    if isinstance(config, T5GemmaConfig):
      changes["encoder_windowed_layers"] = None
    layer = dataclasses.replace(config, **changes)
    kinds = {T5Config: "t5", T5GemmaConfig: "t5gemma", LlamaConfig: "llama"}
    if type(config) not in kinds:
      raise ValueError(
        f"a state reader reads the states of a T5, a T5Gemma or a Llama; the"
        f" verifier is a {type(config).__name__}"
      )
    if self.layout is not None:
      _check_has_layout(config, self.layout)
    no_layers: dict[str, Any] = dict.fromkeys(kinds.values())
    return dataclasses.replace(self, **no_layers | {kinds[type(config)]: layer})

  def with_dtype(self, dtype: str) -> "StateReaderConfig":
    """Returns the reader with activations of a dtype."""
    for name in ("t5", "t5gemma", "llama"):
      layer = getattr(self, name)
      if layer is not None:
        layer = dataclasses.replace(layer, dtype=jnp.dtype(dtype).name)
        return dataclasses.replace(self, **{name: layer})
    return self


def _check_has_layout(config: LayerConfig, layout: str) -> None:
  """Raises ValueError where public drafters have no such layer."""
  gemmas = ("norm_offset", "post_norms", "scaled_embedding")
  is_plain = isinstance(config, LlamaConfig)
  if not is_plain or any(getattr(config, name) for name in gemmas):
    raise ValueError(
      f"a reader of layout {layout!r} is made for a Llama, a Mistral or a Qwen;"
      " leave layout out, and the reader has the verifier's kind of layer"
    )
