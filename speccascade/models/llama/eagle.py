"""The layer of EAGLE's public drafters, of which the verifier is a Llama.

A drafter of EAGLE-1 is a layer without a norm before its attention, and without
a last norm. In EAGLE-3 queries, keys and values are made of the token's vector
and of the state side by side, each after a norm of its own, and the layer adds
to the state. What is read in place of the verifier's states has no last norm.

Axes: B rows, N fed tokens, R read positions, E model width.

Source: Li et al., "EAGLE" (arXiv 2401.15077) and "EAGLE-3" (arXiv 2503.01840).
The options are those of vLLM's speculators.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.models import fused_states, layers
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.network import CausalStack, CausalTransformer
from speccascade.models.llama.self_attention import SelfAttentionLayer, norm
from speccascade.settings import fields


@fields.checked
@dataclasses.dataclass(frozen=True)
class Eagle:
  """What differs among drafters of one layout.

  Attributes:
    fuse_bias: EAGLE-1: whether the product of vector and state has a bias.
    norm_before_residual: EAGLE-3: whether the layer adds to the normed state.
    norm_output: EAGLE-3: whether what is read in place of a state of the
      verifier has the last norm.
    norms_of_states: EAGLE-3: how the verifier's states are normed before they
      are fused; see `FusedStates`.
  """

  fuse_bias: bool = False
  norm_before_residual: bool = False
  norm_output: bool = False
  norms_of_states: fused_states.Norms = "none"


PLAIN = Eagle()


@dataclasses.dataclass(frozen=True)
class EagleConfig(LlamaConfig):
  """A Llama of one layer, which is EAGLE's; make one with `of`.

  Attributes:
    is_third: whether the layer is that of EAGLE-3.
    eagle: the options of the layout.
  """

  is_third: bool = False
  eagle: Eagle = PLAIN

  @classmethod
  def of(cls, layer: LlamaConfig, is_third: bool, eagle: Eagle):
    """Returns the config of a layer with the sizes of a Llama's."""
    values = {
      field.name: getattr(layer, field.name)
      for field in dataclasses.fields(LlamaConfig)
    }
    return cls(**values, is_third=is_third, eagle=eagle)


class EagleLayer(SelfAttentionLayer):
  """The layer. In EAGLE-3 it reads [vector, state], [B, N, 2 E]."""

  config: EagleConfig

  def setup(self):
    super().setup()
    if self.config.is_third:
      self.state_layer_norm = norm(self.config)

  def _queries_keys_values(self, x, angles):
    if self.config.is_third:
      vector, state = jnp.split(x, 2, axis=-1)
      vector = self.pre_self_attention_layer_norm(vector)
      x = jnp.concatenate([vector, self.state_layer_norm(state)], axis=-1)
    return self.self_attention.queries_keys_values(x, angles)

  def _attend(self, x, *args, **options):
    if self.config.is_third:
      x = x[..., self.config.emb_dim :]
      if self.config.eagle.norm_before_residual:
        x = self.state_layer_norm(x)
    return super()._attend(x, *args, **options)

  def extend(self, x, *args, **options):
    """Feeds a block. See `CachedLayer`."""
    x, layer_cache = super().extend(x, *args, **options)
    # (Where no position is read, x is returned as it was given.)
    return x[..., : self.config.emb_dim], layer_cache


class EagleStack(CausalStack):
  """The layer, and EAGLE-3's last norm, which is before the head alone."""

  config: EagleConfig

  def setup(self):
    cfg = self.config
    self.layers = [EagleLayer(cfg)]
    if cfg.is_third:
      self.decoder_norm = norm(cfg)
    if not cfg.logits_via_embedding:
      self.logits_dense = layers.Dense(cfg.vocab_size, ("embed", "vocab"))

  def finished(self, x: jax.Array) -> jax.Array:
    """Returns what is read in place of the verifier's states."""
    return self.decoder_norm(x) if self.config.eagle.norm_output else x

  def before_head(self, x: jax.Array) -> jax.Array:
    """Returns what the head multiplies of `finished` states."""
    has_norm = self.config.is_third and not self.config.eagle.norm_output
    return self.decoder_norm(x) if has_norm else x


class EagleTransformer(CausalTransformer):
  """The layer as a network, with a table of tokens and a head."""

  config: Any

  def setup(self):
    self.token_embedder = layers.Embed(self.config, stddev=0.02)
    self.decoder = EagleStack(self.config, self.remat)

  def logits(self, x: jax.Array) -> jax.Array:
    """Returns logits [B, T, V]; see `TextNetwork`."""
    return super().logits(self.decoder.before_head(x))
