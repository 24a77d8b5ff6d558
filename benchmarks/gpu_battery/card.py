"""Names the card, and measures how fast its memory is read."""

import importlib.metadata
import os
import platform
import subprocess

import jax
import jax.numpy as jnp

from benchmarks.gpu_battery import programs


def about() -> dict:
  """Returns the names of the card, of its driver and of what runs on it."""
  device = jax.devices()[0]
  stats = device.memory_stats() or {}
  return {
    "device": device.device_kind,
    "platform": device.platform,
    "driver": _driver(),
    "jax": jax.__version__,
    "jaxlib": importlib.metadata.version("jaxlib"),
    "flax": importlib.metadata.version("flax"),
    "backend": device.client.platform_version.replace("\n", "; "),
    "python": platform.python_version(),
    "processor": platform.processor() or platform.machine(),
    "cores": os.cpu_count(),
    "memory_bytes": stats.get("bytes_limit", 0),
    "xla_flags": os.environ.get("XLA_FLAGS", ""),
  }


def _driver() -> str:
  """Returns the version of the card's driver, "" where there is none."""
  command = ["nvidia-smi", "--query-gpu=driver_version,name,memory.total"]
  try:
    done = subprocess.run(
      [*command, "--format=csv,noheader"],
      capture_output=True,
      text=True,
      timeout=20,
    )
  except (OSError, subprocess.TimeoutExpired):
    return ""
  return done.stdout.strip().replace("\n", "; ")


def bandwidth(num_bytes: int, rounds: int) -> list[float]:
  """Returns the bytes a second of a sum: [median, least, most].

  The numbers are float32, and not all the same.
  """
  shape = (num_bytes // 4 // 1024, 1024)
  fill = lambda: jax.lax.broadcasted_iota(jnp.float32, shape, 1)
  numbers, total = jax.jit(fill)(), jax.jit(jnp.sum)
  times = programs.in_turn({"sum": lambda: total(numbers)}, rounds)["sum"]
  size = numbers.nbytes
  middle = sorted(times)[len(times) // 2]
  return [size / middle, size / max(times), size / min(times)]


def peak_bytes() -> int:
  """Returns the most bytes that the device has held so far; 0 if unknown."""
  return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
