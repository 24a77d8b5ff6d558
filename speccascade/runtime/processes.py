"""Several processes as one job: who writes, and what all of them know.

JAX's processes run one program side by side, each on devices of its own. What
only one can tell, such as what a folder holds, the first tells the others.
"""

from collections.abc import Callable
import itertools
import json
import time
from typing import Any

from speccascade.runtime import jax_job

_NUMBERS = itertools.count()
_SLICE_S = 0.01  # between two looks
_limit_s = 300.0


class ProcessError(ValueError):
  """Another process of the job ended, or does not answer."""


def index() -> int:
  """Returns which process of the job this is."""
  return jax_job.index()


def count() -> int:
  """Returns how many processes the job has."""
  return jax_job.count()


def is_first() -> bool:
  """Says whether this process is the one that writes."""
  return index() == 0


def set_time_limit(seconds: float):
  """Sets how long a process waits for another."""
  global _limit_s
  _limit_s = seconds


def agree(make: Callable[[], Any]) -> Any:
  """Returns what the first process makes of JSON's values, in each process.

  All must call it, in the same order.

  Raises:
    ProcessError: it does not come in time.
  """
  if count() == 1:
    return make()
  key = f"agreed/{next(_NUMBERS)}"
  if is_first():
    set_value(key, json.dumps(make()))
  return json.loads(wait_for_values(key, 1)[0])


def meet():
  """Waits until all processes are here; ProcessError if one does not come."""
  if count() > 1:
    key = f"meet/{next(_NUMBERS)}"
    set_value(key, "")
    wait_for_values(key, count())


def set_value(key: str, value: str):
  """Sets this process's value for a key."""
  jax_job.set_value(f"speccascade/{key}/{index():06d}", value)


def read_values(key: str) -> list[str]:
  """Returns the values that processes set for a key, in their order."""
  values = jax_job.read_values(f"speccascade/{key}")
  return [value for _, value in sorted(values)]


def wait_for_values(
  key: str, num: int, limit_s: float | None = None
) -> list[str]:
  """Waits until `num` processes set a value; returns the values."""
  limit_s = _limit_s if limit_s is None else limit_s
  end = time.monotonic() + limit_s
  while len(values := read_values(key)) < num:
    if time.monotonic() > end:
      raise ProcessError(
        f"another process of this job did not answer in {limit_s:g} seconds;"
        " --distributed_timeout sets how long to wait"
      )
    time.sleep(_SLICE_S)
  return values
