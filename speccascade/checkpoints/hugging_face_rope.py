"""Translates the settings of rotary positions in a config.json.

They are `rope_theta` and `rope_scaling`; transformers 5 writes them as one
`rope_parameters`. A Gemma 3 has them for each of two kinds of layers.
"""

from speccascade.models.llama.config import RopeScaling
from speccascade.models.llama.rotary import yarn_factor
from speccascade.settings import fields

# Kinds of layers.
WINDOWED, FULL = "sliding_attention", "full_attention"
# Names in config.json, by the fields of RopeScaling. All but one are the same.
_SCALING = {
  name: name for name in RopeScaling.__dataclass_fields__ if name != "kind"
} | {"original_max_positions": "original_max_position_embeddings"}
# Fields of RopeScaling that each kind of scaling has.
SCALINGS = {
  "linear": ("factor",),
  "dynamic": ("factor",),
  "llama3": (
    "factor",
    "original_max_positions",
    "low_freq_factor",
    "high_freq_factor",
  ),
  "yarn": (
    "factor",
    "original_max_positions",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "truncate",
  ),
}


def split(settings: dict) -> tuple[dict, float]:
  """Returns the settings of a Gemma 3's full layers, and the windowed base.

  Args:
    settings: the settings of a config.json.

  Raises:
    ValueError: a setting is wrong, or the network here does not have it.
  """
  rope = settings.get("rope_parameters") or {}
  fields.fit("rope_parameters", rope, dict)
  for name, value in rope.items():
    fields.one_of([FULL, WINDOWED], rope_parameters=name)
    fields.fit(name, value, dict | None)
  full, local = rope.get(FULL) or {}, rope.get(WINDOWED) or {}
  fields.one_of(["default"], rope_type=local.get("rope_type", "default"))
  scaling = settings.get("rope_scaling") or {}
  fields.fit("rope_scaling", scaling, dict)
  scaling = full | scaling
  theta = local.get("rope_theta", settings["rope_local_base_freq"])
  return settings | {"rope_parameters": None, "rope_scaling": scaling}, theta


def read(settings: dict) -> tuple:
  """Returns (base, scaling) of the rotary frequencies.

  The scaling is a dict of the fields of `RopeScaling`, or None.

  Args:
    settings: the settings of a config.json.

  Raises:
    ValueError: a setting is wrong, or the network here does not have it.
  """
  rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
  fields.fit("rope_parameters", rope, dict)
  theta = rope.get("rope_theta", settings.get("rope_theta", 10000.0))
  kind = rope.get("rope_type", rope.get("type", "default"))
  fields.one_of(["default", *SCALINGS], rope_type=kind)
  # A dict inside means other positions for some layers, which no network here
  # has.
  for name, value in rope.items():
    if name == "partial_rotary_factor" or isinstance(value, dict):
      fields.one_of([1.0], **{name: value})
  if kind == "default":
    return theta, None
  values = {
    field: rope[_SCALING[field]]
    for field in SCALINGS[kind]
    if rope.get(_SCALING[field]) is not None
  }
  length = settings.get("original_max_position_embeddings")
  if length is not None and kind in ("llama3", "yarn"):
    values["original_max_positions"] = length
  # YaRN's attention factor may be given by two coefficients of a logarithm.
  mscale, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
  has_factor = "attention_factor" in values
  if kind == "yarn" and not has_factor and mscale and all_dim:
    scale, mscale, all_dim = fields.fit(
      "mscale", (rope.get("factor"), mscale, all_dim), tuple[float, ...]
    )
    numerator = yarn_factor(scale, mscale)
    values["attention_factor"] = numerator / yarn_factor(scale, all_dim)
  return theta, {"kind": kind, **values}


def settings_of(scaling: RopeScaling) -> dict:
  """Returns `rope_scaling` as config.json has it."""
  values = {
    _SCALING[field]: getattr(scaling, field) for field in SCALINGS[scaling.kind]
  }
  values = {name: value for name, value in values.items() if value is not None}
  return {"rope_type": scaling.kind} | values
