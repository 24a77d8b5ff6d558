"""The mesh of devices that a run is laid out on, as gin sets it.

`MESH = {"data": 2, "model": 4}` takes eight devices: rows are cut in two, what
layers compute in four. `{"model": 4}` takes all devices, as T5X's
`num_partitions = 4` does.
"""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Annotated, Literal

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np

from speccascade.models.sharding import partitioning
from speccascade.models.sharding.partitioning import DATA, MODEL, Layout
from speccascade.runtime import memory
from speccascade.settings import fields


def _axes(shape: Mapping):
  if odd := set(shape) - {DATA, MODEL}:
    raise ValueError(f"no mesh axis {min(odd)!r}; wanted 'data' and 'model'")


@functools.cache
def _connect(mesh: jax.sharding.Mesh):
  """Has the devices of several processes meet along each axis.

  On a CPU they must come within half a minute of each other when they first
  do, and later do not while one still compiles.
  """
  lie = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))
  ones = partitioning.place(np.ones(mesh.devices.shape), lie(*mesh.axis_names))
  sums = jax.jit(
    lambda x: (x.sum(0), x.sum(1), x.sum()),
    out_shardings=(lie(MODEL), lie(DATA), lie()),
  )
  jax.block_until_ready(sums(ones))


@fields.checked
@dataclasses.dataclass(frozen=True)
class Mesh:
  """Which devices, and what each of them holds.

  Attributes:
    shape: {"data": ..., "model": ...}, devices along each axis; None is one
      device, as a mesh of one is. Without "data" it is all devices.
    parameter_partitioning_dims: T5X's: 2 cuts kernels by `data` as well, with
      the optimizer's state, and gathers each where it is used.
    drafter: whether each device holds all of a drafter, or it is cut as the
      verifier is.
    device_memory_gb: of each, above 0, for plans; None asks the device that is
      there.
  """

  shape: Annotated[Mapping[str, fields.Size], _axes] | None = None
  parameter_partitioning_dims: int = 1
  drafter: Literal["whole", "cut"] = "whole"
  device_memory_gb: Annotated[float, fields.Bounds(0, low_open=True)] | None = (
    None
  )

  def __post_init__(self):
    fields.one_of(
      (1, 2), PARAMETER_PARTITIONING_DIMS=self.parameter_partitioning_dims
    )

  @property
  def device_bytes(self) -> float:
    """What each device has."""
    size_gb = self.device_memory_gb
    return memory.total() if size_gb is None else size_gb * 1e9

  def __str__(self) -> str:
    sizes = self.abstract().sizes.items()
    return "mesh of " + " x ".join(f"{axis} {num}" for axis, num in sizes)

  def sizes(self, num_devices: int) -> dict[str, int]:
    """Returns the devices along each axis, of so many that there are.

    Raises:
      ValueError: there are fewer than it wants, or they do not divide.
    """
    shape = self.shape or {DATA: 1}
    model = shape.get(MODEL, 1)
    data = shape.get(DATA) or num_devices // model
    if data * model > num_devices or (
      DATA not in shape and num_devices % model
    ):
      raise ValueError(
        f"MESH = {dict(shape)} wants {max(data, 1)} x {model} devices, there"
        f" are {num_devices}; take fewer"
      )
    return {DATA: data, MODEL: model}

  def layout(self) -> Layout | None:
    """Returns where a model's arrays lie; None on one device.

    Raises:
      ValueError: there are fewer devices than it wants; or of several processes
        it leaves some to stand idle.
    """
    devices = jax.devices()
    sizes = self.sizes(len(devices))
    num = sizes[DATA] * sizes[MODEL]
    if num < len(devices) and jax.process_count() > 1:
      raise ValueError(
        f"MESH = {self.shape and dict(self.shape)} takes {num} of the"
        f" {len(devices)} devices of {jax.process_count()} processes, and must"
        " take all, as MESH = {'model': 1} does, or a larger 'model'"
      )
    if num == 1:
      return None
    axes = (tuple(sizes.values()), tuple(sizes), (AxisType.Auto,) * 2)
    mesh = jax.make_mesh(*axes, devices=devices[:num])
    if jax.process_count() > 1:
      _connect(mesh)
    return Layout(mesh, self._rules)

  def abstract(self) -> Layout:
    """Returns the layout without devices, for plans; of a mesh of one too."""
    shape = self.shape or {}
    sizes = tuple(shape.get(axis, 1) for axis in (DATA, MODEL))
    axes = (sizes, (DATA, MODEL), (AxisType.Auto,) * 2)
    return Layout(jax.sharding.AbstractMesh(*axes), self._rules)

  @property
  def _rules(self) -> partitioning.Rules:
    is_2d = self.parameter_partitioning_dims == 2
    return partitioning.RULES_2D if is_2d else partitioning.RULES

  def layout_for(self, model, batch_size: int) -> Layout | None:
    """Returns `layout`, when MODEL and BATCH_SIZE have been held to it."""
    layout = self.layout()
    if layout is not None:
      layout.check(model, "MODEL")
      layout.check_rows(BATCH_SIZE=batch_size)
    return layout

  def drafter_layout(self) -> Layout | None:
    """Returns where a drafter's arrays lie."""
    layout = self.layout()
    is_whole = layout is not None and self.drafter == "whole"
    return layout.whole() if is_whole else layout


ONE = Mesh()  # device
