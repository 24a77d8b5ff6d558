"""Makes several processes one job: who writes, and how they agree on values.

JAX's processes run one program side by side, and each has devices of its own.
Some facts only one process can know, for example what a folder held when the
run began. The first process sends the others such facts.
"""

from collections.abc import Callable
import itertools
import json
import time
from typing import Any

from speccascade.runtime import jax_job

# Every call of `agree` and of `meet` has a number, which makes its key in the
# job's key-value store. All processes make the same calls in the same order,
# so that the n-th call of one process meets the n-th call of the others.
_CALL_NUMBERS = itertools.count()
_SLEEP_S = 0.01  # between two looks into the key-value store
_limit_s = 300.0


class ProcessError(ValueError):
  """Another process of the job ended, or does not answer."""


def index() -> int:
  """Returns the number of this process in the job, from 0."""
  return jax_job.index()


def count() -> int:
  """Returns how many processes the job has; 1 without a job."""
  return jax_job.count()


def is_first() -> bool:
  """Returns whether this process is the one that writes files."""
  return index() == 0


def set_time_limit(seconds: float) -> None:
  """Sets how many seconds a process waits for another one."""
  global _limit_s
  _limit_s = seconds


def agree(make: Callable[[], Any]) -> Any:
  """Returns, in every process, the value that the first process makes.

  Every process must call this function, and in the same order as the others.

  Args:
    make: makes the value, which JSON must be able to hold. Only the first
      process calls it.

  Raises:
    ProcessError: the value does not arrive within the time limit.
  """
  if count() == 1:
    return make()
  key = f"agreed/{next(_CALL_NUMBERS)}"
  if is_first():
    set_value(key, json.dumps(make()))
  return json.loads(wait_for_values(key, 1)[0])


def meet() -> None:
  """Waits until every process of the job has called this function.

  Raises:
    ProcessError: a process does not call it within the time limit.
  """
  if count() > 1:
    key = f"meet/{next(_CALL_NUMBERS)}"
    set_value(key, "")
    wait_for_values(key, count())


def set_value(key: str, value: str) -> None:
  """Sets the value that this process has for a key."""
  # Six digits keep the values of `read_values` in the order of the processes.
  jax_job.set_value(f"speccascade/{key}/{index():06d}", value)


def read_values(key: str) -> list[str]:
  """Returns the values that processes have set for a key, in their order.

  Processes that have set no value yet are left out.
  """
  values = jax_job.read_values(f"speccascade/{key}")
  return [value for _, value in sorted(values)]


def wait_for_values(
  key: str, num: int, limit_s: float | None = None
) -> list[str]:
  """Waits until processes have set values for a key, and returns the values.

  Args:
    key: the key.
    num: how many values to wait for.
    limit_s: seconds to wait; None takes the limit of `set_time_limit`.

  Raises:
    ProcessError: there are fewer values when the time is over.
  """
  limit_s = _limit_s if limit_s is None else limit_s
  end = time.monotonic() + limit_s
  while len(values := read_values(key)) < num:
    if time.monotonic() > end:
      raise ProcessError(
        f"another process of this job did not answer in {limit_s:g} seconds;"
        " --distributed_timeout sets how long to wait"
      )
    time.sleep(_SLEEP_S)
  return values
