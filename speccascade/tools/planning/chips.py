"""The figures of chips, and devices of theirs that only compile."""

import dataclasses
import os

import jax
from jax.experimental import topologies

# Facts of an H100 SXM, as XLA's compiler for GPUs reads them.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  driver_version: "13.0.0"
  runtime_version: "12.9.0"
  compile_time_toolkit_version: "12.9.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
# libtpu asks Google's cloud for these where they are not set.
TPU_ENVIRONMENT = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
  "TPU_WORKER_ID": "0",
  "TPU_WORKER_HOSTNAMES": "localhost",
  # Several processes may compile at once.
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Chip:
  """The figures of one device, as its maker publishes them.

  Attributes:
    memory: bytes of its memory.
    bandwidth: bytes that it reads in a second.
    flops: operations of bfloat16 in a second.
    clock: cycles in a second; None where nothing is estimated in cycles.
    link_bandwidth: bytes in a second to a neighbour, in one direction; None
      where no slice of such chips is priced.
  """

  memory: float
  bandwidth: float
  flops: float
  clock: float | None = None
  link_bandwidth: float | None = None


# Sources: docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e, /tpu7x; NVIDIA's
# data sheet of the H100 SXM. Clocks of TPUs follow from operations in a second
# and the size of their products (four of 128 x 128 a core; of v6e, of 256 x 256
# in all): they are not published. Links: jax-ml.github.io/scaling-book/tpus.
# A chip of TPU7x is two devices, each with half of its 192 GiB, 7,380 GB/s and
# 2,307 TFLOP/s; the size of its products is not published.
CHIPS = {
  "h100": Chip(80e9, 3.35e12, 989e12),
  "v4": Chip(32e9, 1.2e12, 275e12, 1.05e9, 4.5e10),
  "v5e": Chip(16e9, 0.819e12, 197e12, 1.5e9),
  "v5p": Chip(95e9, 2.765e12, 459e12, 1.75e9),
  "v6e": Chip(32e9, 1.6e12, 918e12, 1.75e9),
  "tpu7x": Chip(96e9, 3.69e12, 1153e12),
}
TARGETS = ("h100", "v4:2x2x1", "v5e:1x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")


def chip(target: str) -> Chip:
  """Returns the figures of one device of a target, such as "v5e:2x2"."""
  return CHIPS[target.partition(":")[0]]


def is_gpu(target: str) -> bool:
  """Whether a target is a GPU, which its plugin compiles for."""
  return target == "h100"


def prepare(target: str):
  """Sets what compilers read from the environment, before jax is used."""
  # Programs are lowered for a platform of their own; nothing runs but on a CPU.
  os.environ |= {"JAX_PLATFORMS": "cpu", "SPECCASCADE_NATIVE": "0"}
  if is_gpu(target):
    # Products are not timed to choose among them: there is no device.
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0"
  else:
    os.environ |= TPU_ENVIRONMENT
  jax.config.update("jax_platforms", "cpu")


def devices(target: str) -> list[jax.Device]:
  """Returns the devices of a target.

  Raises:
    RuntimeError: the compiler is not installed.
  """
  if is_gpu(target):
    return topologies.get_topology_desc(
      platform="cuda",
      topology_name=target,
      target_config=_H100,
      topology="1x1x1",
    ).devices
  how = {}
  if target.startswith("v4:"):
    how["chip_config_name"] = "megacore"  # a chip's two cores are one device
  if target == "v5e:1x1":
    how["chips_per_host_bounds"] = (1, 1, 1)
  return topologies.get_topology_desc(
    platform="tpu", topology_name=target, **how
  ).devices
