"""The platform for which a program is traced: a CPU, a GPU or a TPU.

JAX traces a program before it knows where the program will run. What has the
same shapes on all platforms branches by `jax.lax.platform_dependent`, which is
resolved when the program is lowered. What changes shapes, or what is called at
all, has to be known earlier: `platform` answers while the program is traced.
"""

import contextlib
from typing import Any

import jax

_GPUS = ("cuda", "rocm")  # what compilers without a device call a GPU


def platform() -> str:
  """Returns "cpu", "gpu" or "tpu", for which a program is traced.

  `jax.default_device` says so where it is set, to a device or to a name. A
  device may be one that only compiles, of `jax.experimental.topologies`. Else
  programs are for the devices that JAX found.

  >>> with jax.default_device("tpu"):
  ...   platform()
  'tpu'
  """
  config: Any = jax.config  # (its types leave the name out)
  device = config.jax_default_device
  if device is None:
    return jax.default_backend()
  name = device if isinstance(device, str) else device.platform
  return "gpu" if name in _GPUS else name


def device_kind() -> str:
  """Returns the kind of the device for which a program is traced.

  Such as "NVIDIA H100 80GB HBM3"; "" where a platform alone is named.
  """
  config: Any = jax.config
  device = config.jax_default_device
  if isinstance(device, str):
    return ""
  return (jax.devices()[0] if device is None else device).device_kind


def capability() -> float | None:
  """Returns the compute capability of NVIDIA's GPU, such as 9.0.

  None where a platform alone is named, or the device has none.
  """
  found = getattr(_default_device(), "compute_capability", None)
  return None if found is None else float(found)


def multiprocessors() -> int | None:
  """Returns the multiprocessors of NVIDIA's GPU; None as of `capability`."""
  if capability() is None:
    return None
  return getattr(_default_device(), "core_count", None)


def _default_device() -> Any:
  """Returns the device that programs run on, or the name of its platform."""
  config: Any = jax.config
  device = config.jax_default_device
  return jax.devices()[0] if device is None else device


def tracing_for(tree: Any) -> contextlib.AbstractContextManager[Any]:
  """Returns a context in which `platform` is that of a program's arguments.

  Args:
    tree: arguments, whose leaves may be `jax.ShapeDtypeStruct`s with a sharding
      on devices that only compile. Arrays that may still move, and leaves
      without a sharding, say nothing.
  """
  for leaf in jax.tree.leaves(tree):
    sharding = getattr(leaf, "sharding", None)
    # (An abstract mesh has no devices.)
    is_abstract = isinstance(
      getattr(sharding, "mesh", None), jax.sharding.AbstractMesh
    )
    if sharding is None or is_abstract or not getattr(leaf, "committed", True):
      continue
    device = min(sharding.device_set, key=lambda device: device.id)
    with jax.default_device(device):
      name = platform()
    if name == platform():
      break
    return jax.default_device(device)
  return contextlib.nullcontext()
