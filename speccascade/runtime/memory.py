"""Checks whether a run can fit the device's memory, before it is built."""

import os

import jax


def machine() -> int:
  """Returns the bytes of the machine's memory."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def total() -> int:
  """Returns the bytes of the device's memory.

  A CPU has no memory of its own; its bytes are the machine's.
  """
  stats = jax.local_devices()[0].memory_stats() or {}
  return stats["bytes_limit"] if "bytes_limit" in stats else machine()


def check(num_bytes: float, **settings):
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
