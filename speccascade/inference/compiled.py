"""What the programs of a run cost to compile, by JAX's own events."""

import dataclasses
import functools

from jax import monitoring


@dataclasses.dataclass
class Compiled:
  """The programs of this process since `watched` was first called.

  Attributes:
    programs: how many, those of a single operation among them.
    seconds: that they took, summed over threads.
    cache_hits: how many were in the persistent cache.
  """

  programs: int = 0
  seconds: float = 0.0
  cache_hits: int = 0

  def took(self, event: str, seconds: float, **_):
    """Counts an event that lasted."""
    if event == "/jax/core/compile/backend_compile_duration":
      self.programs += 1
      self.seconds += seconds

  def met(self, event: str, **_):
    """Counts an event that did not."""
    self.cache_hits += event == "/jax/compilation_cache/cache_hits"

  def since(self, before: "Compiled") -> "Compiled":
    """Returns what was counted after an earlier count."""
    now, then = dataclasses.astuple(self), dataclasses.astuple(before)
    return Compiled(*(b - a for a, b in zip(then, now)))

  def __str__(self) -> str:
    return (
      f"compiled {self.programs} programs in {self.seconds:.1f} s,"
      f" {self.cache_hits} of them found in the cache"
    )


@functools.cache
def watched() -> Compiled:
  """Returns the count of this process, which goes on."""
  compiled = Compiled()
  monitoring.register_event_duration_secs_listener(compiled.took)
  monitoring.register_event_listener(compiled.met)
  return compiled
