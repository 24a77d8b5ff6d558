"""The memory of the device, and what this process holds of the machine's."""

import contextlib
import ctypes
import os
import pathlib
import platform
import re
import resource
from typing import Any

import jax

# Linux gives a process 65,530 memory maps. Every compiled program takes some.
MOST_MAPS = 40_000


def machine() -> int:
  """Returns the bytes of the machine's memory."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def total() -> int:
  """Returns the bytes of the device's memory.

  A CPU has no memory of its own; its bytes are the machine's.
  """
  stats = jax.local_devices()[0].memory_stats() or {}
  return stats["bytes_limit"] if "bytes_limit" in stats else machine()


def check(num_bytes: float, **settings: Any) -> None:
  """Raises ValueError if the device has less memory than a run needs.

  Args:
    num_bytes: a lower bound of the bytes that the run needs.
    **settings: the settings that decide `num_bytes`, by the names that the
      message calls them.
  """
  if num_bytes > total():
    values = ", ".join(f"{name} {value}" for name, value in settings.items())
    raise ValueError(
      f"{values} need {num_bytes / 1e9:.0f} GB or more, the device has"
      f" {total() / 1e9:.0f} GB; lower one of them"
    )


def holds_many_programs() -> bool:
  """Returns whether compiled programs take most memory maps of this process.

  XLA's compiler dies where Linux refuses it another map.
  """
  maps = pathlib.Path("/proc/self/maps")
  return maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS


def give_back() -> None:
  """Returns freed memory from the C library to the system.

  The C library keeps freed memory for later allocations. After a checkpoint was
  packed, that is as much memory as the model itself takes. The function does
  nothing if the C library is not glibc.
  """
  with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def held() -> int | None:
  """Returns the bytes of memory that this process holds.

  None means that the system, which is not Linux, does not say it.
  """
  statistics = pathlib.Path("/proc/self/statm")
  if not statistics.exists():
    return None
  num_pages = int(statistics.read_text().split()[1])
  return num_pages * os.sysconf("SC_PAGE_SIZE")


def most_held() -> int:
  """Returns the most bytes of memory that this process held at any time."""
  # On Linux `ru_maxrss` may be the memory of the process that started this one.
  status = pathlib.Path("/proc/self/status")
  if status.exists():
    line = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.M)
    if line:
      return 1024 * int(line[1])
  # macOS counts bytes, other systems kilobytes.
  unit = 1 if platform.system() == "Darwin" else 1024
  return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
