"""One-line errors for arguments outside their range."""

import numpy as np


def probability(name: str, value) -> np.ndarray:
  """Returns `value` as float64.

  Raises:
    ValueError: an entry is outside [0, 1] or not a number.
  """
  return _between(name, value, 1, "a probability in [0, 1]")


def nonnegative(name: str, value) -> np.ndarray:
  """Returns `value` as float64.

  Raises:
    ValueError: an entry is negative or not finite.
  """
  most = np.finfo(np.float64).max
  return _between(name, value, most, "finite and not negative")


def count(name: str, value, low: int) -> int:
  """Returns `value` as an int.

  Raises:
    ValueError: it is not a whole number, or less than `low`.
  """
  if not np.isfinite(value) or value % 1 or value < low:
    raise ValueError(f"{name} is {value}; it must be a whole number >= {low}")
  return int(value)


def _between(name, value, most, wanted):
  value = np.asarray(value, np.float64)
  if not np.all((value >= 0) & (value <= most)):
    raise ValueError(f"{name} is {value}; it must be {wanted}")
  return value
