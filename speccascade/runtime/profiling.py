"""A profile of a few steps of a run, after a warm-up, for xprof."""

import atexit
from collections.abc import Callable
import functools
import os
import shlex
from typing import Any

import jax

from speccascade.runtime import processes

# Steps of a training, of which the first ones wait for compilers, and decoded
# batches, of which there may be few.
TRAINING, DECODING = 10, 3
STEPS = 5


class Profile:
  """Records some steps of a run: `call` makes each of them.

  A recorded step ends when its result is there, so it takes longer than others.

  Attributes:
    folder: where the profile is written.
    warm_up: the number of steps before it.
  """

  def __init__(self, folder: str, warm_up: int) -> None:
    self.folder, self.warm_up = folder, warm_up
    self._end = warm_up + STEPS
    self._num_calls = 0
    self._is_recording = False
    atexit.register(self._finish)

  def call(self, step: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a step returns."""
    number = self._num_calls
    self._num_calls += 1
    if number == self.warm_up - 1:
      # What the device still does then does not belong to the profile.
      return jax.block_until_ready(step(*arguments))
    if not self.warm_up <= number < self._end:
      return step(*arguments)
    if not self._is_recording:
      jax.profiler.start_trace(self.folder)
      self._is_recording = True
    with jax.profiler.StepTraceAnnotation("step", step_num=number):
      result = jax.block_until_ready(step(*arguments))
    if self._num_calls == self._end:
      self._stop()
    return result

  def _stop(self) -> None:
    """Writes the profile, and says how to look at it."""
    jax.profiler.stop_trace()
    self._is_recording = False
    num = min(self._num_calls, self._end) - self.warm_up
    print(
      f"profile of {num} steps after {self.warm_up}: pip install xprof &&"
      f" xprof --logdir={shlex.quote(self.folder)} --port=8791",
      flush=True,
    )

  def _finish(self) -> None:
    """Ends a profile of a run that ends before it has enough steps."""
    if self._is_recording:
      self._stop()
    elif self._num_calls <= self.warm_up:
      print(
        f"no profile in {self.folder}: the run had {self._num_calls} steps, and"
        f" the first {self.warm_up} are left out",
        flush=True,
      )


_profile = functools.cache(Profile)  # one for each folder


def recorded(
  step: Callable[..., Any],
  folder: str | os.PathLike[str] | None,
  warm_up: int,
) -> Callable[..., Any]:
  """Returns a step that is recorded when it is one of those in a profile.

  All steps of a process with one folder are counted together.

  Args:
    step: makes a step, and returns its arrays.
    folder: a folder on this machine, or on gs://; None records nothing, and so
      does a process that is not the first one of its job.
    warm_up: the number of steps before the profile: `TRAINING` or `DECODING`.
  """
  if folder is None or not processes.is_first():
    return step
  return functools.partial(_profile(os.fspath(folder), warm_up).call, step)
