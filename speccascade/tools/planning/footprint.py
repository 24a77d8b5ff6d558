"""Works out the memory of a run on each device, before anything is allocated.

The arrays whose sizes are known are counted: parameters, the state of an
optimizer, gradients, caches, the logits and distributions of a step, and the
activations that a step stores for its gradient. XLA's own buffers are not
counted. A tenth of the memory is left for them.
"""

from collections.abc import Callable, Iterable, Mapping
import contextlib
import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models import parameters
from speccascade.models.draft_heads import MEDUSA, HeadsConfig
from speccascade.models.parameters import Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import (
  DATA,
  MODEL,
  Layout,
  state_shardings,
)
from speccascade.settings import fields

MARGIN = 0.9  # the share of a device's memory that may be planned
MOST_DEVICES = 4096


@dataclasses.dataclass(frozen=True)
class Footprint:
  """The memory that a run needs on a mesh, and on other meshes.

  Attributes:
    models: the architecture of each model, by the model's role.
    bytes_on: a function from a mesh to {name: bytes on each device}. It raises
      ValueError if the mesh does not divide the models or the batch.
    mesh: the mesh that the settings ask for.
    advise: a function from a device's bytes to other settings, in words, with
      which the run fits on `mesh`; None if there are none.
    dtypes: by role, the dtypes of a model in words; of the others those of the
      activations.
  """

  models: dict[str, Config]
  bytes_on: Callable[[meshes.Mesh], dict[str, float]]
  mesh: meshes.Mesh
  advise: Callable[[float], str | None] = lambda num_bytes: None
  dtypes: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def smallest(self) -> meshes.Mesh | None:
    """Returns the mesh of fewest devices that holds the run; None if none does.

    Meshes of 1, 2, 4, ... devices are tried. Among meshes of as many devices,
    the one that splits the models least is taken.
    """
    powers = [1 << i for i in range(MOST_DEVICES.bit_length())]
    for num, model in itertools.product(powers, powers):
      shape = {DATA: num // model, MODEL: model}
      # A mesh may not divide the models. With model > num, DATA is 0, which no
      # mesh allows.
      with contextlib.suppress(ValueError):
        mesh = dataclasses.replace(self.mesh, shape=shape)
        if sum(self.bytes_on(mesh).values()) <= MARGIN * mesh.device_bytes:
          return mesh
    return None

  def __str__(self) -> str:
    lines = [
      f"{role}: {parameters.num_parameters(config):,} parameters,"
      f" {self.dtypes.get(role, config.dtype)}"
      for role, config in self.models.items()
    ]
    bytes_of = self.bytes_on(self.mesh)
    total, device_bytes = sum(bytes_of.values()), self.mesh.device_bytes
    is_fitting = total <= MARGIN * device_bytes
    verdict = "fits" if is_fitting else "does not fit"
    parts = ", ".join(f"{name} {_gb(size)}" for name, size in bytes_of.items())
    lines.append(
      f"{self.mesh}: each device holds {parts}; {_gb(total)} of"
      f" {_gb(device_bytes)} GB, {verdict} (a tenth is left)"
    )
    if not is_fitting and (advice := self.advise(MARGIN * device_bytes)):
      lines.append(f"it fits with {advice}")
    smallest = self.smallest()
    if smallest is None:
      return "\n".join([*lines, f"no mesh of up to {MOST_DEVICES} holds it"])
    total = sum(self.bytes_on(smallest).values())
    lines.append(f"smallest mesh that fits: {smallest}, {_gb(total)} GB each")
    return "\n".join(lines)


def _gb(size: float) -> str:
  """Returns bytes as a number of GB with three digits."""
  return f"{size / 1e9:.3g}"


def _part(shape: tuple, spec, layout: Layout) -> float:
  """Returns how many numbers of an array one device holds."""
  parts = [1 if axis is None else layout.sizes[axis] for axis in spec]
  return math.prod(shape) / math.prod(parts)


def numbers(config: Config, layout: Layout, names: Iterable[str]) -> float:
  """Returns how many numbers of some parameters each device holds.

  Args:
    config: the architecture.
    layout: where the parameters lie.
    names: names of the parameters that are counted.
  """
  descriptions, total = parameters.describe(config), 0.0
  for name in names:
    spec = layout.sharding(*descriptions[name].axes).spec
    total += _part(descriptions[name].shape, spec, layout)
  return total


def weights(
  config: Config,
  layout: Layout,
  kernel_dtype: str | None,
  names: Iterable[str] | None = None,
) -> float:
  """Returns the bytes of a model's parameters on each device.

  Args:
    config: the architecture, with the dtype of the activations.
    layout: where the parameters lie.
    kernel_dtype: dtype of the kernels, as in `T5LM.create`. None means float32
      for all parameters, as in training.
    names: names of the parameters that are counted; None counts all.
  """
  total = 0.0
  for name in parameters.param_shapes(config) if names is None else names:
    if kernel_dtype is None:
      total += 4 * numbers(config, layout, [name])
      continue
    stored = parameters.storage(config, name, kernel_dtype)
    itemsize = jnp.dtype(stored.dtype).itemsize
    total += numbers(config, layout, [name]) * itemsize
    if stored.is_scaled:  # which no mesh has
      total += 4 * stored.num_out(name, parameters.param_shapes(config)[name])
  return total


def cut_head(
  config: Config,
  kernel_dtype: str,
  num: int,
  layout: Layout,
  verifier: Config | None = None,
  *,
  is_shared: bool = False,
) -> float:
  """Returns how many bytes more a drafter takes whose head keeps some tokens.

  An untied head is left out then, and so are columns of Medusa heads: the bytes
  are fewer. Other draft heads keep columns of the verifier's head, which stays
  whole; see `models.cut_head`.

  Args:
    config: the architecture of the drafter.
    kernel_dtype: dtype of the kernels, as in `T5LM.create`.
    num: how many tokens are kept.
    layout: where the parameters lie.
    verifier: the architecture of the verifier of draft heads.
    is_shared: whether another model keeps the whole head, as an exit's does.
  """
  ids_bytes = 4 * num
  if isinstance(config, HeadsConfig):
    if config.kind == MEDUSA:
      row_bytes = 4 * config.num_heads * config.emb_dim
      return (num - config.vocab_size) * row_bytes + ids_bytes
    assert verifier is not None
    config, is_left_out = verifier, False
  else:
    is_left_out = not config.logits_via_embedding
  is_tied = config.logits_via_embedding
  table, dense = "token_embedder/embedding", "decoder/logits_dense/kernel"
  name = table if is_tied else dense
  stored = parameters.storage(config, name, kernel_dtype)
  row_bytes = config.emb_dim * jnp.dtype(stored.dtype).itemsize
  if stored.is_scaled:
    row_bytes += 4
  mesh_axis = dict(layout.rules)["vocab"]
  num_parts = layout.sizes[mesh_axis] if mesh_axis else 1
  total = num * row_bytes / (num_parts if num % num_parts == 0 else 1)
  if is_left_out and not is_shared:
    total -= config.vocab_size * row_bytes / num_parts
  return total + ids_bytes


def caches(
  kind: type, config: Config, layout: Layout, inputs: tuple, capacity: int
) -> float:
  """Returns the bytes of a model's caches and other state, on each device.

  Args:
    kind: class of the language model.
    config: the architecture.
    layout: where the model lies.
    inputs: (rows, source or prompt tokens of a row).
    capacity: slots of a cache after the prompt.
  """
  # All layers are alike. The state of a model with one layer is traced, and
  # the parts that each layer has are multiplied.
  counts = parameters.layer_counts(config)
  shallow = dataclasses.replace(config, **dict.fromkeys(counts, 1))
  state = _state_shapes(kind, shallow, inputs, capacity)
  rows, total = layout.of_rows(inputs[0]), 0.0
  for name, part in vars(state).items():
    # Keys and values of each layer, [B, H, ...]; all else is [B, ...].
    is_of_layer = name in ("caches", "sources")
    axes = ("batch", "heads") if is_of_layer else ("batch",)
    times = counts["num_decoder_layers"] if is_of_layer else 1
    for leaf in jax.tree.leaves(part):
      size = _part(leaf.shape, rows.sharding(*axes).spec, layout)
      total += times * size * leaf.dtype.itemsize
  return total


def _shapes(config: Config) -> dict:
  """Returns the shapes of a model's float32 parameters."""
  leaves = {
    name: jax.ShapeDtypeStruct(shape, np.float32)
    for name, shape in parameters.param_shapes(config).items()
  }
  return parameters.tree(leaves)


@functools.lru_cache(maxsize=64)
def _state_shapes(kind, config, inputs, capacity):
  """Returns the shapes of a model's state after its inputs, traced once."""
  lm = kind(_shapes(config), parameters.network(config))
  tokens = jax.ShapeDtypeStruct(inputs, np.int32)
  return jax.eval_shape(
    lambda lm, tokens: lm.prefill(tokens, capacity=capacity), lm, tokens
  )


def training(config: Config, layout: Layout, init: Callable) -> dict:
  """Returns the bytes of the state of training, and of gradients, by name.

  The bytes are those on each device.

  Args:
    config: the architecture.
    layout: where the model lies.
    init: the optimizer's function from parameters to its state.
  """
  shardings, shapes = parameters.shardings(config, layout), _shapes(config)
  state = jax.eval_shape(init, shapes)
  places = state_shardings(state, shapes, shardings)
  optimizer = 0.0
  for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(places)):
    size = _part(leaf.shape, sharding.spec, layout)
    optimizer += size * leaf.dtype.itemsize
  num_bytes = weights(config, layout, None)
  return {
    "weights": num_bytes,
    "gradients": num_bytes,
    "optimizer": optimizer,
  }


def activations(
  config: Config,
  layout: Layout,
  rows: int,
  lengths: Mapping[str, int],
  remat: str | None = None,
) -> float:
  """Returns the bytes that a step stores for its gradient, on each device.

  In float32 on a CPU, XLA stores as much within 15% if nothing is computed
  again (`tests/tools/planning/test_footprint.py`).

  Args:
    config: the architecture.
    layout: where the model lies.
    rows: rows of a part of the batch that is fed at a time.
    lengths: {"inputs": ..., "targets": ...}, tokens of a row.
    remat: which activations are computed again, see `layers.REMAT`. While a
      layer is computed again, all its activations are stored.
  """
  num_layers = parameters.layer_counts(config)
  source, target = lengths["inputs"], lengths["targets"]
  if len(num_layers) == 1:  # decoder-only: prompt and output are one text
    source, target = 0, source + target
  # For each stack: its own tokens, and the tokens that it attends to besides.
  tokens = {
    "num_encoder_layers": (source, 0),
    "num_decoder_layers": (target, source),
  }
  # A T5Gemma's encoder may have other sizes than its decoder.
  configs = {"num_encoder_layers": getattr(config, "encoder", config)}
  parts = layout.sizes[MODEL]

  def stored(stack, remat):
    cfg = configs.get(stack, config)
    return _layer_activations(cfg, *tokens[stack], remat, parts)

  total = sum(num * stored(stack, remat) for stack, num in num_layers.items())
  if remat is not None:
    total += max(stored(stack, None) for stack in num_layers)
  itemsize = jnp.dtype(config.dtype).itemsize
  return itemsize * rows / layout.sizes[DATA] * total


def _layer_activations(
  config: Config, tokens: int, others: int, remat: str | None, parts: int
) -> float:
  """Returns how many numbers a layer stores for its gradient, of one row."""
  # `tokens` are the layer's own, which attend to each other and to `others` of
  # the source. `parts` is how often the axis MODEL splits heads and MLPs.
  heads, num_gates = config.num_heads, len(config.mlp_activations)
  width = heads * config.head_dim
  kv_width = getattr(config, "num_kv_heads", heads) * config.head_dim
  is_merged = getattr(config, "merged_attention", False)
  num_attentions = 2 if others and not is_merged else 1
  # Queries of each attention, keys and values of its own tokens and the source.
  projected = tokens * (width * num_attentions + kv_width * 2)
  projected += 2 * others * kv_width
  if remat == "full":
    # The input of the layer.
    whole, cut = tokens * config.emb_dim, 0
  elif remat == "minimal":
    # The input of each sublayer, and the products with kernels.
    whole = tokens * config.emb_dim * (1 + num_attentions)
    cut = projected + tokens * num_gates * config.mlp_dim
  else:
    # The input of each sublayer and its norm; each attention's context; scores,
    # their exponentials and shares; the MLP's products, gates, and gated ones.
    whole = tokens * config.emb_dim * 2 * (1 + num_attentions)
    cut = projected + tokens * width * num_attentions
    cut += 3 * tokens * (tokens + others) * heads
    cut += tokens * (3 * num_gates - 1) * config.mlp_dim
  return whole + cut / parts


def laws(config: Config, layout: Layout, positions: int, *, cut: bool) -> float:
  """Returns the bytes of float32 logits and distributions, on each device.

  Args:
    config: the architecture.
    layout: where the model lies.
    positions: rows times tokens of a row.
    cut: whether the vocabulary is split along MODEL too, as in training.
  """
  parts = layout.sizes[DATA] * (layout.sizes[MODEL] if cut else 1)
  return 2 * 4 * positions * config.vocab_size / parts


def describe_plan(make: Callable[[], Any]) -> str:
  """Returns a plan in words, or the reason why there is none.

  Args:
    make: makes the plan.

  Raises:
    SettingError: a setting is wrong, whatever files and devices there are.
  """
  try:
    return str(make())
  except fields.SettingError:
    raise
  except ValueError as error:
    return f"no plan: {error}"
