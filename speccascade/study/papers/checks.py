"""One-line errors for arguments outside their range."""

import numpy as np


def probability(name: str, value) -> np.ndarray:
  """Returns a probability, or an array of them, as float64.

  Raises:
    ValueError: an entry is outside [0, 1] or NaN; the message has `name`.
  """
  return _at_most(1, name, value, "a probability in [0, 1]")


def nonnegative(name: str, value) -> np.ndarray:
  """Returns a number, or an array of them, as float64.

  Raises:
    ValueError: an entry is negative or not finite; the message has `name`.
  """
  largest = np.finfo(np.float64).max
  return _at_most(largest, name, value, "finite and not negative")


def count(name: str, value, low: int) -> int:
  """Returns a number as an int.

  Raises:
    ValueError: the number is not whole, or less than `low`; the message has
      `name`.
  """
  if not np.isfinite(value) or value % 1 or value < low:
    raise ValueError(f"{name} is {value}; it must be a whole number >= {low}")
  return int(value)


def _at_most(largest, name, value, kind):
  """Returns float64 entries that are all from 0 to `largest`."""
  value = np.asarray(value, np.float64)
  # NaN fails every comparison, and so is refused.
  if not np.all((value >= 0) & (value <= largest)):
    raise ValueError(f"{name} is {value}; it must be {kind}")
  return value
