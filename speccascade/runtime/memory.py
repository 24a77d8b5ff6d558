"""Whether what is asked for can fit the device, before anything is built."""

import os

import jax


def machine() -> int:
  """Returns the bytes of the machine's memory."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def total() -> int:
  """Returns the bytes of the device's memory; on a CPU, of the machine's."""
  stats = jax.local_devices()[0].memory_stats() or {}
  return stats["bytes_limit"] if "bytes_limit" in stats else machine()


def check(num_bytes: float, **settings):
  """Raises ValueError where there is less memory than settings ask for.

  Args:
    num_bytes: what they take at least.
    **settings: by the names that the message gives them.
  """
  if num_bytes > total():
    named = ", ".join(f"{name} {value}" for name, value in settings.items())
    raise ValueError(
      f"{named} need {num_bytes / 1e9:.0f} GB or more, the device has"
      f" {total() / 1e9:.0f} GB; lower one of them"
    )
