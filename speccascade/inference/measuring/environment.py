"""Where and with what a row was measured, and what a run took."""

from collections.abc import Iterator
import contextlib
import ctypes
import dataclasses
import functools
from importlib import metadata
import os
import pathlib
import platform
import re
import resource
import subprocess

import jax
from jax import monitoring

from speccascade.models.sharding.partitioning import Layout

_PACKAGES = ("speccascade", "jax", "jaxlib", "flax", "numpy", "sacrebleu")
MOST_MAPS = 40_000


def environment(layout: Layout | None = None) -> dict:
  """Returns where a row was measured: device or mesh, versions, git commit."""
  return {
    "device": device_name(layout),
    "versions": {name: _version(name) for name in _PACKAGES},
    "git_commit": git_commit(),
  }


@functools.cache
def _version(package: str) -> str | None:
  try:
    return metadata.version(package)
  except metadata.PackageNotFoundError:
    return None


@functools.cache
def git_commit() -> str | None:
  """Returns the commit of this package's checkout, "+" after it if changed."""
  run = functools.partial(
    subprocess.check_output, cwd=pathlib.Path(__file__).parent, text=True
  )
  try:
    commit = run(["git", "rev-parse", "HEAD"], stderr=subprocess.DEVNULL)
    changed = run(["git", "status", "--porcelain", "-uno"])
  except (OSError, subprocess.CalledProcessError):
    return None
  return commit.strip() + ("+" if changed.strip() else "")


@dataclasses.dataclass
class Compiled:
  """The programs of this process since `compile_counter` was first called.

  Attributes:
    programs: how many, those of a single operation among them.
    seconds: that they took, summed over threads.
    cache_hits: how many were in the persistent cache.
  """

  programs: int = 0
  seconds: float = 0.0
  cache_hits: int = 0

  def count_duration(self, event: str, seconds: float, **_):
    """Counts an event that lasted."""
    if event == "/jax/core/compile/backend_compile_duration":
      self.programs += 1
      self.seconds += seconds

  def count_event(self, event: str, **_):
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
def compile_counter() -> Compiled:
  """Returns the count of this process, which goes on."""
  compiled = Compiled()
  monitoring.register_event_duration_secs_listener(compiled.count_duration)
  monitoring.register_event_listener(compiled.count_event)
  return compiled


@contextlib.contextmanager
def report_run(layout: Layout | None = None) -> Iterator[None]:
  """Prints what computes, and at the end what the run took besides its time."""
  print(computing_on(layout))
  before = dataclasses.replace(compile_counter())
  yield
  compiled = compile_counter().since(before)
  print(f"{compiled}; {most_memory() / 1e9:.1f} GB of memory at most")


def computing_on(layout: Layout | None = None) -> str:
  """Returns in a line what computes, and what stands idle."""
  idle = jax.device_count() - (layout.mesh.size if layout else 1)
  others = f"; the other {idle} stay idle" if idle else ""
  return f"computing on {device_name(layout)}{others}"


def device_name(layout: Layout | None = None) -> str:
  """Returns the device that computes, in words; of a CPU its cores too.

  Args:
    layout: of models on several devices; else the rest is idle.
  """
  if layout is not None:
    sizes = " x ".join(f"{name} {n}" for name, n in layout.sizes.items())
    return f"{layout.mesh.devices.flat[0].device_kind}, {sizes}"
  device = jax.local_devices()[0]
  if device.platform != "cpu":
    num = jax.device_count()
    return device.device_kind + (f", 1 of {num}" if num > 1 else "")
  is_told = hasattr(os, "sched_getaffinity")
  cores = len(os.sched_getaffinity(0)) if is_told else os.cpu_count() or 1
  processor = platform.processor() or platform.machine()
  with contextlib.suppress(OSError):
    told = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    if name := re.search(r"(?im)^model name\s*:(.*)$", told):
      processor = name[1].strip()
  return f"{processor}, {cores} cores"


def holds_many_programs() -> bool:
  """Returns whether compiled programs take most memory maps of this process.

  Linux gives it 65,530, and XLA's compiler dies at the limit.
  """
  maps = pathlib.Path("/proc/self/maps")
  return maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS


def give_back_memory():
  """Returns to the system what the C library keeps of freed memory.

  The arrays of a checkpoint that was just packed would else stay, as large as
  the model itself. Where the library is not glibc it does nothing.
  """
  with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def held_memory() -> int | None:
  """Returns the bytes of memory that this process holds, where it is told."""
  told = pathlib.Path("/proc/self/statm")
  if not told.exists():
    return None
  return int(told.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most_memory() -> int:
  """Returns the most bytes of memory that this process ever held."""
  status = pathlib.Path("/proc/self/status")
  if status.exists():  # what is below counts the process that started this one
    line = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.M)
    if line:
      return 1024 * int(line[1])
  unit = 1 if platform.system() == "Darwin" else 1024
  return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
