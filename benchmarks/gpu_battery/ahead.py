"""Compiles programs side by side, ahead of the parts that run them."""

from collections.abc import Callable
import concurrent.futures
import os
import threading
import time
from typing import Any

import jax

from speccascade import native

# Seconds that a part waits for a program that still compiles at its turn.
LATE_S = 20.0
# How a program may be lowered: the implementation of its operations. The passes
# are timed in each variant in turn; the other parts take the last one.
VARIANTS = ("xla", "triton", "cuda")


class Ahead:
  """Programs by name, being compiled in threads.

  Programs are traced in the order in which they are added, one at a time,
  since Python traces one at a time whatever the threads. Each is compiled in a
  thread of its own as soon as it is traced.

  Args:
    variant: how programs are lowered where nothing else is asked for.

  Attributes:
    variant: as given.
    rows: what is known of each compiled program: seconds and bytes.
  """

  def __init__(self, variant: str = "xla"):
    self.variant = variant
    self._tracing = concurrent.futures.ThreadPoolExecutor(1)
    self._compiling = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    self._programs: dict[str, concurrent.futures.Future] = {}
    self._lock = threading.Lock()
    self.rows: list[dict] = []

  def add(
    self,
    name: str,
    function: Callable,
    *arguments: Any,
    variant: str | None = None,
    donate: tuple[int, ...] = (),
  ):
    """Adds a program, unless one of this name is there.

    Args:
      name: the name by which `get` returns it.
      function: what is traced.
      *arguments: pytrees of arrays or of shapes.
      variant: how it is lowered, of `VARIANTS`; None takes the default.
      donate: numbers of arguments whose memory the program may write over.
    """
    if name in self._programs:
      return

    implementation = variant or self.variant

    def lower():
      began = time.monotonic()
      with native.gpu_kernels(implementation):
        lowered = jax.jit(function, donate_argnums=donate).lower(*arguments)
      traced = time.monotonic() - began
      return self._compiling.submit(compile_, lowered, traced).result

    def compile_(lowered, traced):
      began = time.monotonic()
      compiled = lowered.compile()
      seconds = time.monotonic() - began
      with self._lock:
        self.rows.append(
          {
            "program": name,
            "traced_s": traced,
            "compiled_s": seconds,
            **_memory(compiled),
          }
        )
      return compiled

    self._programs[name] = self._tracing.submit(lower)

  def get(self, name: str, timeout: float | None = None) -> Callable:
    """Returns a compiled program; raises what its compilation raised.

    Raises:
      TimeoutError: it is not compiled within `timeout` seconds.
    """
    end = None if timeout is None else time.monotonic() + timeout
    result = self._programs[name].result(timeout)
    left = None if end is None else max(0.0, end - time.monotonic())
    return result(left)

  def ready(self, *names: str) -> dict[str, Callable]:
    """Returns the programs by name, without those that cannot be run.

    Why a program cannot be run is printed.
    """
    programs = {}
    for name in names:
      try:
        programs[name] = self.get(name, LATE_S)
      except TimeoutError:
        print(f"left out: {name} still compiles", flush=True)
      except Exception as error:
        first = str(error).partition("\n")[0]
        print(f"left out: {name}: {type(error).__name__}: {first}", flush=True)
    return programs

  def wait(self, timeout: float) -> list[str]:
    """Waits until all are compiled; returns the names of those that are not.

    Programs that failed to compile are not waited for.
    """
    end, late = time.monotonic() + timeout, []
    for name in self._programs:
      try:
        self.get(name, max(0.0, end - time.monotonic()))
      except TimeoutError:
        late.append(name)
      except Exception:  # who runs the program reports it
        continue
    return late


def _memory(compiled) -> dict[str, int]:
  """Returns the bytes that a compiled program takes, as its compiler says."""
  analysis = compiled.memory_analysis()
  if analysis is None:
    return {}
  return {
    f"{name}_bytes": int(getattr(analysis, f"{name}_size_in_bytes"))
    for name in ("argument", "output", "temp", "generated_code")
  }
