"""Translates the config.json of EAGLE's public drafters, see `eagle_files`."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from speccascade.checkpoints import hugging_face_llama
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.eagle import Eagle
from speccascade.models.reader_config import EAGLE, EAGLE3, StateReaderConfig
from speccascade.settings import fields

_KIND = "speculators_model_type"
_LAYER = "transformer_layer_config"
_STATE_LAYERS = "eagle_aux_hidden_state_layer_ids"
# The model types whose layer such drafters may have.
_LAYERS = ("llama", "mistral", "qwen2", "qwen3")
# Flags of EAGLE-3, and our options.
_FLAGS = {
  "norm_before_residual": {"norm_before_residual": True},
  "norm_output": {"norm_output": True},
  "norm_before_fc": {"norms_of_states": "whole"},
  "fc_norm": {"norms_of_states": "each"},
}
_VERSION = "0.9.0"  # of speculators, whose format this is


def is_named(settings: Mapping[str, Any]) -> bool:
  """Whether a config.json says itself that it is such a drafter's."""
  names = settings.get("architectures")
  names = names if isinstance(names, list) else []
  return (
    _KIND in settings
    or "draft_vocab_size" in settings
    or any("Eagle" in str(name) for name in names)
  )


def config_of(
  settings: Mapping[str, Any], shapes: Mapping[str, Any]
) -> StateReaderConfig:
  """Returns the architecture of a drafter.

  Args:
    settings: its config.json.
    shapes: (shape, dtype) of its arrays, by speculators' names of EAGLE-3.

  Raises:
    ValueError: it is a drafter of another kind, or has what is not read here.
  """
  layer = settings
  if _KIND in settings:
    fields.one_of([EAGLE, EAGLE3], **{_KIND: settings[_KIND]})
    fields.fit(_LAYER, settings.get(_LAYER), dict)
    layer = settings[_LAYER]
    _check_proposals(settings)
  is_third = "layers.0.hidden_norm.weight" in shapes
  if settings.get("layernorms"):
    raise ValueError(
      "layernorms is true, norms of a drafter of HASS's kind, which are not"
      " read; wanted a drafter without them"
    )
  config = _layer_of(layer, shapes)
  if settings.get("target_hidden_size") not in (None, config.emb_dim):
    raise ValueError(
      f"target_hidden_size is {settings['target_hidden_size']} and hidden_size"
      f" {config.emb_dim}; wanted a drafter of the verifier's width"
    )
  if not is_third:
    # (The head is the verifier's, and so is whether it is tied.)
    bias = {"fuse_bias": "fc.bias" in shapes}
    return StateReaderConfig(layout=EAGLE, llama=config, eagle=Eagle(**bias))
  config = dataclasses.replace(config, logits_via_embedding=False)
  options: dict[str, Any] = {}
  for flag, option in _FLAGS.items():
    if settings.get(flag):
      options |= option
  num_kept = settings.get("draft_vocab_size", config.vocab_size)
  fields.fit("draft_vocab_size", num_kept, fields.Positive)
  others = settings.get("eagle_config")
  state_layers = settings.get(_STATE_LAYERS)
  if state_layers is None and isinstance(others, dict):
    state_layers = others.get(_STATE_LAYERS)
  if state_layers is not None:
    fields.fit(_STATE_LAYERS, state_layers, list[fields.NonNegative])
  return StateReaderConfig(
    layout=EAGLE3,
    fused=True,
    own_head=True,
    fused_layers=tuple(state_layers) if state_layers else None,
    llama=config,
    eagle=Eagle(**options),
    own_table="embed_tokens.weight" in shapes,
    draft_vocab_size=num_kept if num_kept != config.vocab_size else None,
  )


def _check_proposals(settings: Mapping[str, Any]) -> None:
  """Raises ValueError where drafts are to be proposed in another way."""
  said = settings.get("speculators_config") or {}
  fields.fit("speculators_config", said, dict)
  proposals = said.get("proposal_methods") or []
  fields.fit("proposal_methods", proposals, list[dict])
  for proposal in proposals:
    kind = proposal.get("proposal_type")
    if kind != "greedy":
      raise ValueError(
        f"proposal_type is {kind!r:.60}; wanted 'greedy': trees and how drafts"
        " are drawn are settings of a decode here, such as TREE"
      )


def _layer_of(layer: Mapping[str, Any], shapes: Mapping) -> LlamaConfig:
  """Returns the architecture of the layer."""
  kind = layer.get("model_type", "llama")
  if kind not in _LAYERS:
    raise ValueError(
      f"the layer's model_type is {kind!r:.60}; the layers read are those of"
      f" {', '.join(_LAYERS)}, of texts alone"
    )
  config = hugging_face_llama.build_config({**layer, "model_type": kind})
  if config.num_decoder_layers != 1:
    raise ValueError(
      f"num_hidden_layers is {config.num_decoder_layers}; wanted a drafter of"
      " one layer"
    )
  attention = "layers.0.self_attn."
  return dataclasses.replace(
    config,
    qkv_bias=f"{attention}q_proj.bias" in shapes,
    out_bias=f"{attention}o_proj.bias" in shapes,
    query_key_norm=f"{attention}q_norm.weight" in shapes,
    eos_ids=(),
    bos_id=None,
  )


def settings_of(
  config: StateReaderConfig, format: str, verifier: str | None
) -> dict[str, Any]:
  """Returns the config.json of a reader.

  Args:
    config: the architecture.
    format: "eagle" or "speculators".
    verifier: see `eagle_files.save`.

  Raises:
    CheckpointError: the format has no such reader.
  """
  if config.layout is None or config.llama is None:
    raise CheckpointError(
      "the state reader has a layer of its verifier's kind, and public drafters"
      " have another: train one with READER_LAYOUT='eagle' or 'eagle3'"
    )
  layer, is_third = _settings_of(config.llama), config.layout == EAGLE3
  flags = {
    name: all(getattr(config.eagle, key) == x for key, x in option.items())
    for name, option in _FLAGS.items()
  }
  if format == "eagle":
    has_norms = any(flags.values()) or config.llama.query_key_norm
    if has_norms or (config.fused_layers and len(config.fused_layers) != 3):
      raise CheckpointError(
        "the state reader has norms, or a number of states, that EAGLE's own"
        " code does not have: write it with --format=speculators"
      )
    architecture = "LlamaForCausalLMEagle3" if is_third else "LlamaForCausalLM"
    more: dict[str, Any] = {"bias": config.eagle.fuse_bias}
    if is_third:
      num_kept = config.draft_vocab_size or config.vocab_size
      more = {"draft_vocab_size": num_kept}
      if config.fused_layers:
        more["eagle_config"] = {_STATE_LAYERS: list(config.fused_layers)}
    return layer | more | {"architectures": [architecture]}
  name = "Eagle3DraftModel" if is_third else "EagleSpeculator"
  common = {
    "architectures": [name],
    _KIND: config.layout,
    "speculators_version": _VERSION if is_third else "0.3.0",
    _LAYER: layer,
    "speculators_config": {
      "algorithm": config.layout,
      "default_proposal_method": "greedy",
      "proposal_methods": [
        {"proposal_type": "greedy", "speculative_tokens": config.num_steps}
      ],
      "verifier": {"name_or_path": verifier, "architectures": []},
    },
  }
  if not is_third:
    bias = config.eagle.fuse_bias
    return common | {"layernorms": False, "fusion_bias": bias}
  layers = config.fused_layers
  return (
    common
    | flags
    | {
      "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
      "target_hidden_size": None,
      "tie_word_embeddings": False,
      "embed_requires_grad": config.own_table,
      _STATE_LAYERS: list(layers) if layers else None,
    }
  )


def _settings_of(layer: LlamaConfig) -> dict[str, Any]:
  """Returns the settings of the layer."""
  if layer.windows == {None}:
    # Where no layer has a window, a type says so in one of two ways.
    layer = dataclasses.replace(layer, window=None)
    for layers in (None, ()):
      same = dataclasses.replace(layer, windowed_layers=layers)
      try:
        return hugging_face_llama.settings_of(same)
      except CheckpointError:
        continue
  return hugging_face_llama.settings_of(layer)
