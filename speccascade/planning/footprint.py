"""What a run takes of each device's memory, before anything is allocated.

Counted are arrays whose size is known: parameters, an optimizer's state and
gradients, caches, the logits and laws of a step, and the activations that it
keeps for its gradient. XLA's own buffers are not: a tenth of the memory is left
for them.
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
from speccascade.models.parameters import Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import (
  DATA,
  MODEL,
  Layout,
  like_params,
)
from speccascade.settings import fields

MARGIN = 0.9  # of a device's memory may be planned
MOST_DEVICES = 4096


@dataclasses.dataclass(frozen=True)
class Footprint:
  """What a run takes on a mesh, and on others.

  Attributes:
    models: the architecture of each, by its role.
    bytes_on: from a mesh to bytes on each device, by what they are of; raises
      ValueError where the mesh does not divide the models or the batch.
    mesh: the one asked for.
    advise: from bytes for each device to other settings that take no more on
      this mesh, in words; None where there are none.
  """

  models: dict[str, Config]
  bytes_on: Callable[[meshes.Mesh], dict[str, float]]
  mesh: meshes.Mesh
  advise: Callable[[float], str | None] = lambda most: None

  def smallest(self) -> meshes.Mesh | None:
    """Returns the mesh of fewest devices that holds the run, None if none.

    Of 1, 2, 4, ... devices; of as many the least cut is taken.
    """
    powers = [1 << i for i in range(MOST_DEVICES.bit_length())]
    for num, model in itertools.product(powers, powers):
      shape = {DATA: num // model, MODEL: model}
      with contextlib.suppress(ValueError):  # among others where model > num
        mesh = dataclasses.replace(self.mesh, shape=shape)
        if sum(self.bytes_on(mesh).values()) <= MARGIN * mesh.device_bytes:
          return mesh
    return None

  def __str__(self) -> str:
    lines = [
      f"{role}: {parameters.num_parameters(config):,} parameters,"
      f" {config.dtype}"
      for role, config in self.models.items()
    ]
    held = self.bytes_on(self.mesh)
    total, there = sum(held.values()), self.mesh.device_bytes
    fits = "fits" if total <= MARGIN * there else "does not fit"
    parts = ", ".join(f"{name} {_gb(size)}" for name, size in held.items())
    lines.append(
      f"{self.mesh}: each device holds {parts}; {_gb(total)} of"
      f" {_gb(there)} GB, {fits} (a tenth is left)"
    )
    if total > MARGIN * there and (advice := self.advise(MARGIN * there)):
      lines.append(f"it fits with {advice}")
    smallest = self.smallest()
    if smallest is None:
      return "\n".join([*lines, f"no mesh of up to {MOST_DEVICES} holds it"])
    total = sum(self.bytes_on(smallest).values())
    lines.append(f"smallest mesh that fits: {smallest}, {_gb(total)} GB each")
    return "\n".join(lines)


def _gb(size: float) -> str:
  return f"{size / 1e9:.3g}"


def _part(shape: tuple, spec, layout: Layout) -> float:
  """Returns how many numbers of an array one device holds."""
  cut = [1 if axis is None else layout.sizes[axis] for axis in spec]
  return math.prod(shape) / math.prod(cut)


def numbers(config: Config, layout: Layout, names: Iterable[str]) -> float:
  """Returns how many of some parameters' numbers each device holds."""
  each = parameters.described(config)
  specs = {name: layout.sharding(*each[name].axes).spec for name in names}
  return sum(_part(each[x].shape, spec, layout) for x, spec in specs.items())


def weights(
  config: Config,
  layout: Layout,
  kernel_dtype: str | None,
  names: Iterable[str] | None = None,
) -> float:
  """Returns the bytes of a model's parameters on each device.

  Args:
    config: the architecture, with the activations' dtype.
    layout: where they lie.
    kernel_dtype: as in `T5LM.create`; None is float32 throughout, as training
      keeps them.
    names: of those counted; None is all.
  """
  total = 0.0
  for name in parameters.param_shapes(config) if names is None else names:
    dtype = "float32"
    if kernel_dtype is not None:
      dtype, _ = parameters.kept(config, name, kernel_dtype)
    total += numbers(config, layout, [name]) * jnp.dtype(dtype).itemsize
  return total


def caches(
  kind: type, config: Config, layout: Layout, inputs: tuple, capacity: int
) -> float:
  """Returns the bytes of what a model remembers, on each device.

  Args:
    kind: its language model's class.
    config: its architecture.
    layout: where it lies.
    inputs: (rows, source or prompt tokens).
    capacity: slots after these.
  """
  # All layers are alike: those of one are made, and multiplied.
  counts = parameters.layer_counts(config)
  shallow = dataclasses.replace(config, **dict.fromkeys(counts, 1))
  state = _state_shapes(kind, shallow, inputs, capacity)
  rows, total = layout.of_rows(inputs[0]), 0.0
  for name, part in vars(state).items():
    is_cache = name in ("caches", "sources")
    axes = ("batch", "heads") if is_cache else ("batch",)
    times = counts["num_decoder_layers"] if is_cache else 1
    for leaf in jax.tree.leaves(part):
      size = _part(leaf.shape, rows.sharding(*axes).spec, layout)
      total += times * size * leaf.dtype.itemsize
  return total


def _shapes(config: Config) -> dict:
  """Returns the shapes of a model's float32 parameters."""
  shape = lambda each: jax.ShapeDtypeStruct(each, np.float32)
  shapes = parameters.param_shapes(config).items()
  return parameters.tree({name: shape(each) for name, each in shapes})


@functools.lru_cache(maxsize=64)
def _state_shapes(kind, config, inputs, capacity):
  lm = kind(_shapes(config), parameters.network(config))
  tokens = jax.ShapeDtypeStruct(inputs, np.int32)
  return jax.eval_shape(
    lambda lm, tokens: lm.prefill(tokens, capacity=capacity), lm, tokens
  )


def training(config: Config, layout: Layout, init: Callable) -> dict:
  """Returns the bytes of a training state and a step on each device.

  Args:
    config: the architecture.
    layout: where it lies.
    init: makes the optimizer's state of parameters.
  """
  lying, shapes = parameters.shardings(config, layout), _shapes(config)
  state = jax.eval_shape(init, shapes)
  places = like_params(state, shapes, lying)
  moments = [
    _part(leaf.shape, place.spec, layout) * leaf.dtype.itemsize
    for leaf, place in zip(jax.tree.leaves(state), jax.tree.leaves(places))
  ]
  kept = weights(config, layout, None)
  return {"weights": kept, "gradients": kept, "optimizer": sum(moments)}


def activations(
  config: Config,
  layout: Layout,
  rows: int,
  lengths: Mapping[str, int],
  remat: str | None = None,
) -> float:
  """Returns the bytes that a step keeps for its gradient, on each device.

  In float32 on a CPU XLA keeps as much, within 15%, where nothing is computed
  again (`tests/planning/test_footprint.py`).

  Args:
    config: the architecture.
    layout: where it lies.
    rows: fed at a time.
    lengths: {"inputs": ..., "targets": ...} tokens of each.
    remat: see `layers.REMAT`; while a layer is computed again, all of it is
      there.
  """
  sizes = parameters.layer_counts(config)
  heads, num_gates = config.num_heads, len(config.mlp_activations)
  width = heads * config.head_dim
  kept_heads = getattr(config, "num_kv_heads", heads) * config.head_dim
  source, target = lengths["inputs"], lengths["targets"]
  if len(sizes) == 1:
    source, target = 0, source + target

  def layer(tokens: int, others: int, remat: str | None) -> float:
    """Bytes of a layer whose tokens attend to themselves, and to others."""
    attends = 1 + bool(others)
    projected = tokens * (width * attends + kept_heads * 2)
    projected += 2 * others * width
    if remat == "full":
      whole, cut = tokens * config.emb_dim, 0
    elif remat == "minimal":
      whole = tokens * config.emb_dim * (1 + attends)
      cut = projected + tokens * num_gates * config.mlp_dim
    else:
      # A sublayer's input and its norm; contexts; scores, their exponentials
      # and shares; an MLP's products, what gates them, and both.
      whole = tokens * config.emb_dim * 2 * (1 + attends)
      cut = projected + tokens * width * attends
      cut += 3 * tokens * (tokens + others) * heads
      cut += tokens * (3 * num_gates - 1) * config.mlp_dim
    return whole + cut / layout.sizes[MODEL]

  shapes = {"num_encoder_layers": (source, 0)}
  shapes["num_decoder_layers"] = (target, source)
  total = sum(num * layer(*shapes[x], remat) for x, num in sizes.items())
  if remat is not None:
    total += max(layer(*shapes[x], None) for x in sizes)
  itemsize = jnp.dtype(config.dtype).itemsize
  return itemsize * rows / layout.sizes[DATA] * total


def laws(config: Config, layout: Layout, positions: int, *, cut: bool) -> float:
  """Returns the bytes of float32 logits and of what is made of them.

  Args:
    config: the architecture.
    layout: where it lies.
    positions: rows times tokens.
    cut: whether the vocabulary is cut too, as in training.
  """
  parts = layout.sizes[DATA] * (layout.sizes[MODEL] if cut else 1)
  return 2 * 4 * positions * config.vocab_size / parts


def describe_plan(make: Callable[[], Any]) -> str:
  """Returns a plan in words, or why there is none.

  Raises:
    SettingError: a setting is wrong, whatever files and devices there are.
  """
  try:
    return str(make())
  except fields.SettingError:
    raise
  except ValueError as error:
    return f"no plan: {error}"
