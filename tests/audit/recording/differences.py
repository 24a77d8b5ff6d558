"""Compares the records of two sides: what is exact, and what has a bound."""

from collections.abc import Iterator

import numpy as np

BOUND = 1e-5  # of floats, absolute and relative; others are equal


def differences(
  base: tuple, head: tuple, bound: float = BOUND
) -> Iterator[str]:
  """Yields a line for each difference, by name.

  Args:
    base: arrays and texts by name, as `record.read` returns them.
    head: the same of the other side.
    bound: how far floats may lie apart, absolutely and relatively.
  """
  for kind, before, after in zip(("array", "text"), base, head):
    for name in sorted(before.keys() | after.keys()):
      if name not in after:
        yield f"{name}: no such {kind} any more"
      elif name not in before:
        yield f"{name}: a new {kind}"
      elif kind == "text":
        if before[name] != after[name]:
          yield f"{name}:\n  - {before[name]}\n  + {after[name]}"
      elif line := _difference(before[name], after[name], bound):
        yield f"{name}: {line}"


def _difference(before: np.ndarray, after: np.ndarray, bound: float) -> str:
  """Returns how two arrays differ, or ""."""
  if (before.dtype, before.shape) != (after.dtype, after.shape):
    return (
      f"{before.dtype} {list(before.shape)} became {after.dtype}"
      f" {list(after.shape)}"
    )
  limit = bound if before.dtype.kind == "f" else 0
  is_equal = np.isclose(before, after, limit, limit, equal_nan=True)
  if is_equal.all():
    return ""
  place = np.unravel_index(np.argmin(is_equal), is_equal.shape)
  return (
    f"{np.sum(~is_equal)} of {is_equal.size} differ, the first at"
    f" {[int(i) for i in place]}: {before[place]} became {after[place]}"
  )


def largest_gap(base: dict, head: dict) -> tuple[float, str]:
  """Returns the largest distance of two finite floats, and where it is."""
  gaps = [(0.0, "nowhere")]
  for name in base.keys() & head.keys():
    before, after = base[name], head[name]
    if before.dtype.kind == "f" and before.shape == after.shape:
      is_finite = np.isfinite(before) & np.isfinite(after)
      gap = np.abs(before[is_finite] - after[is_finite])
      gaps.append((float(np.max(gap, initial=0.0)), name))
  return max(gaps)
