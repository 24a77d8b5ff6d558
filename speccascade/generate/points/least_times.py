"""The least times of several calls, whatever else the machine does."""

from collections.abc import Callable, Mapping
import functools
import time
from typing import Any

import jax

from speccascade.runtime import processes

# How many turns there are at most, how many in a row have to find no less time,
# and which share of a time is none.
_MOST_TURNS, _SETTLED, _NEAR = 60, 5, 0.01


def least_seconds(
  calls: Mapping[Any, Callable[[], Any]], *, budget_s: float
) -> dict[Any, float]:
  """Returns the least seconds of each call: other work can only add to a time.

  The calls take turns, so that a minute of other work meets all of them. In a
  turn each is called twice, and the second time finds its code and weights in
  the processor's caches. Turns end once some in a row found no less time.

  Args:
    calls: functions whose outputs are waited for, by their names.
    budget_s: no turn but the first begins after these seconds.
  """
  for call in calls.values():
    jax.block_until_ready(call())  # compiles
  least = dict.fromkeys(calls, float("inf"))
  settled, start_s = 0, time.perf_counter()
  for _ in range(_MOST_TURNS):
    is_less = False
    for name, call in calls.items():
      for _ in range(2):
        begin_s = time.perf_counter()
        jax.block_until_ready(call())
        took_s = time.perf_counter() - begin_s
        is_less |= took_s < (1 - _NEAR) * least[name]
        least[name] = min(least[name], took_s)
    settled = 0 if is_less else settled + 1
    is_over = settled == _SETTLED or time.perf_counter() - start_s > budget_s
    # (All processes of a job run the same calls.)
    if processes.agree(functools.partial(bool, is_over)):
      break
  return least
