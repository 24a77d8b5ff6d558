"""The mesh of devices that a run uses, as gin sets it.

`MESH = {"data": 2, "model": 4}` takes eight devices: rows are split in two,
what layers compute in four. `{"model": 4}` takes all devices, as T5X's
`num_partitions = 4` does.
"""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Annotated, Any, Literal

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np

from speccascade.models.sharding import partitioning
from speccascade.models.sharding.partitioning import DATA, MODEL, Layout
from speccascade.runtime import memory
from speccascade.settings import fields


def _axes(shape: Mapping) -> None:
  """Raises ValueError where a mesh's shape names an axis that there is not."""
  unknown = set(shape) - {DATA, MODEL}
  if unknown:
    raise ValueError(
      f"no mesh axis {min(unknown)!r}; wanted 'data' and 'model'"
    )


@functools.cache
def _connect(mesh: jax.sharding.Mesh):
  """Makes the devices of several processes communicate along each axis."""
  # On a CPU, processes must come to their first communication along an axis
  # within half a minute of each other. Later they would not: one process may
  # still compile while another one waits.
  whole, by_data, by_model = (
    NamedSharding(mesh, PartitionSpec(*axes))
    for axes in ((), (DATA,), (MODEL,))
  )
  both = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
  ones = partitioning.place(np.ones(mesh.devices.shape), both)
  # A sum over the axis `data` leaves the axis `model`, and so on.
  sums = jax.jit(
    lambda x: (x.sum(0), x.sum(1), x.sum()),
    out_shardings=(by_model, by_data, whole),
  )
  jax.block_until_ready(sums(ones))


@fields.checked
@dataclasses.dataclass(frozen=True)
class Mesh:
  """Which devices a run uses, and what each of them holds.

  Attributes:
    shape: {"data": ..., "model": ...}, devices along each axis. None is one
      device, as a mesh of one is. Without "data", all devices are used.
    parameter_partitioning_dims: T5X's setting. 2 shards kernels and the
      optimizer's state by `data` as well, and gathers each kernel where it is
      used.
    drafter: "whole" puts all of a drafter on each device; "cut" shards it as
      the verifier.
    device_memory_gb: memory of each device, above 0, for plans; None asks the
      device.
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
    """The memory of each device."""
    size_gb = self.device_memory_gb
    return memory.total() if size_gb is None else size_gb * 1e9

  def __str__(self) -> str:
    sizes = self.abstract().sizes.items()
    return "mesh of " + " x ".join(f"{axis} {num}" for axis, num in sizes)

  def sizes(self, num_devices: int) -> dict[str, int]:
    """Returns the number of devices along each axis.

    Args:
      num_devices: devices that there are.

    Raises:
      ValueError: there are fewer devices than the mesh wants, or `model` does
        not divide all devices.
    """
    shape = self.shape or {DATA: 1}
    model = shape.get(MODEL, 1)
    data = shape.get(DATA) or num_devices // model
    is_uneven = DATA not in shape and num_devices % model != 0
    if data * model > num_devices or is_uneven:
      raise ValueError(
        f"MESH = {dict(shape)} wants {max(data, 1)} x {model} devices, there"
        f" are {num_devices}; take fewer"
      )
    return {DATA: data, MODEL: model}

  def layout(self) -> Layout | None:
    """Returns where a model's arrays lie; None on one device.

    Raises:
      ValueError: there are fewer devices than the mesh wants; or there are
        several processes, and some of their devices would stand idle.
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
    mesh = jax.make_mesh(
      tuple(sizes.values()),
      tuple(sizes),
      axis_types=(AxisType.Auto, AxisType.Auto),
      devices=devices[:num],
    )
    if jax.process_count() > 1:
      _connect(mesh)
    return Layout(mesh, self._rules)

  def abstract(self) -> Layout:
    """Returns the layout without devices, for plans.

    A mesh of one device has such a layout, too.
    """
    shape = self.shape or {}
    mesh = jax.sharding.AbstractMesh(
      (shape.get(DATA, 1), shape.get(MODEL, 1)),
      (DATA, MODEL),
      axis_types=(AxisType.Auto, AxisType.Auto),
    )
    return Layout(mesh, self._rules)

  @property
  def _rules(self) -> partitioning.Rules:
    is_2d = self.parameter_partitioning_dims == 2
    return partitioning.RULES_2D if is_2d else partitioning.RULES

  def layout_for(self, model: Any, batch_size: int) -> Layout | None:
    """Returns `layout`, after checking that it divides MODEL and BATCH_SIZE.

    Args:
      model: the architecture.
      batch_size: rows of a batch.

    Raises:
      ValueError: the mesh does not divide them, or see `layout`.
    """
    layout = self.layout()
    if layout is not None:
      layout.check(model, "MODEL")
      layout.check_rows(BATCH_SIZE=batch_size)
    return layout

  def drafter_layout(self) -> Layout | None:
    """Returns where a drafter's arrays lie; None on one device."""
    layout = self.layout()
    if layout is None or self.drafter != "whole":
      return layout
    return layout.whole()


ONE = Mesh()  # one device
