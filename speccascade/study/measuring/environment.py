"""The environment of a run: device, versions and compiling."""

from collections.abc import Iterator
import contextlib
import dataclasses
import functools
from importlib import metadata
import os
import pathlib
import platform
import re
import subprocess

import jax
from jax import monitoring

from speccascade.models.sharding.partitioning import Layout
from speccascade.runtime import memory

# The packages whose versions a row records.
_PACKAGES = ("speccascade", "jax", "jaxlib", "flax", "numpy", "sacrebleu")
# What compilers read: the same versions are faster or slower by these.
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def environment(layout: Layout | None = None) -> dict:
  """Returns the environment that a row records.

  Args:
    layout: the devices that hold the models, or None for one device.

  Returns:
    "device": the device or the mesh, in words.
    "versions": the version of each package, None where it is not installed.
    "flags": the flags of compilers, by the name of the environment variable.
    "git_commit": see `git_commit`.
  """
  on_tpu = jax.default_backend() == "tpu"
  packages = (*_PACKAGES, "libtpu") if on_tpu else _PACKAGES
  return {
    "device": device_name(layout),
    "versions": {name: _version(name) for name in packages},
    "flags": {name: os.environ[name] for name in _FLAGS if name in os.environ},
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
  """Returns the commit of this package's checkout.

  A "+" after the commit says that a tracked file has changed since. None means
  that the package is not in a checkout, or that git is not installed.
  """
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
  """Counts the programs that this process compiled.

  Attributes:
    programs: the number of programs. A single operation outside of `jax.jit` is
      a program, too.
    seconds: the seconds of compiling, summed over threads.
    cache_hits: the number of programs that were in the persistent cache.
  """

  programs: int = 0
  seconds: float = 0.0
  cache_hits: int = 0

  def count_duration(self, event: str, seconds: float, **_):
    """Counts a compilation; a listener of JAX's events that last."""
    if event == "/jax/core/compile/backend_compile_duration":
      self.programs += 1
      self.seconds += seconds

  def count_event(self, event: str, **_):
    """Counts a cache hit; a listener of JAX's events that do not last."""
    self.cache_hits += event == "/jax/compilation_cache/cache_hits"

  def since(self, before: "Compiled") -> "Compiled":
    """Returns the difference between this count and an earlier one."""
    return Compiled(
      programs=self.programs - before.programs,
      seconds=self.seconds - before.seconds,
      cache_hits=self.cache_hits - before.cache_hits,
    )

  def __str__(self) -> str:
    return (
      f"compiled {self.programs} programs in {self.seconds:.1f} s,"
      f" {self.cache_hits} of them found in the cache"
    )


@functools.cache
def compile_counter() -> Compiled:
  """Returns the counter of this process, which continues to count.

  It counts from the first call on. JAX has no way to remove a listener, so
  there is one counter for the whole process.
  """
  compiled = Compiled()
  monitoring.register_event_duration_secs_listener(compiled.count_duration)
  monitoring.register_event_listener(compiled.count_event)
  return compiled


@contextlib.contextmanager
def report_run(layout: Layout | None = None) -> Iterator[None]:
  """Prints the device at the start of a run, and its costs at the end.

  The costs are the compiled programs and the most memory that was in use.

  Args:
    layout: the devices that hold the models, or None for one device.
  """
  print(computing_on(layout))
  before = dataclasses.replace(compile_counter())  # a copy
  yield
  compiled = compile_counter().since(before)
  print(f"{compiled}; {memory.most_held() / 1e9:.1f} GB of memory at most")


def computing_on(layout: Layout | None = None) -> str:
  """Returns a line that names the device in use and counts the idle ones."""
  idle = jax.device_count() - (layout.mesh.size if layout else 1)
  others = f"; the other {idle} stay idle" if idle else ""
  return f"computing on {device_name(layout)}{others}"


def device_name(layout: Layout | None = None) -> str:
  """Returns the device in use, in words; for a CPU also its number of cores.

  Args:
    layout: the devices that hold the models. None means the first device of
      this process; all others are idle.
  """
  if layout is not None:
    sizes = " x ".join(f"{name} {n}" for name, n in layout.sizes.items())
    return f"{layout.mesh.devices.flat[0].device_kind}, {sizes}"
  device = jax.local_devices()[0]
  if device.platform == "cpu":
    return f"{_processor()}, {_num_cores()} cores"
  num_devices = jax.device_count()
  if num_devices > 1:
    return f"{device.device_kind}, 1 of {num_devices}"
  return device.device_kind


def _processor() -> str:
  """Returns the name of the processor."""
  # Linux knows the model; Python knows the architecture only.
  with contextlib.suppress(OSError):
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    if name := re.search(r"(?im)^model name\s*:(.*)$", text):
      return name[1].strip()
  return platform.processor() or platform.machine()


def _num_cores() -> int:
  """Returns the number of cores that this process may use."""
  # A container or taskset may allow fewer cores than the machine has.
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
