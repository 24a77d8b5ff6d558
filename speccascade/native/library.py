"""Compiles the native handlers on first use, and makes them known to XLA.

The compiled file is in a folder that only the user can enter. Its name is
made from all that it depends on, and it ends with the SHA-256 of the bytes
before, so that a file cut short is noticed. (`speccascade.runtime.files` could
do the same, but the core imports jax, flax and numpy only.)
"""

from concurrent import futures
import ctypes
import functools
import hashlib
import logging
import os
import pathlib
import platform
import shutil
import stat
import subprocess
import sys
import tempfile

import jax

from speccascade.native import lowering

PREFIX = "speccascade"  # of the handlers' names in XLA
HANDLERS = (
  "RowsTimesPanels",
  "Attend",
  "DecoderPass",
  "EncoderPass",
  "LawsOfLogits",
  "Draw",
  "Overlap",
  "Replacement",
  "Copies",
  "Nucleus",
  "PlainLaws",
  "TreeWalk",
  "TreeChildren",
  "KeepPath",
  "DraftChain",
)
SWITCH = "SPECCASCADE_NATIVE"
# Parameters of glibc's mallopt, from malloc.h.
_M_TOP_PAD, _M_MMAP_THRESHOLD = -2, -3
_THRESHOLD_BYTES = 32 << 20  # the largest threshold that glibc takes
_HERE = pathlib.Path(__file__).parent
# All of them are part of the compiled file's name; only the .cc are compiled.
SOURCES = (*sorted(_HERE.glob("*.cc")), *sorted(_HERE.glob("*.h")))
COMPILERS = ("c++", "g++", "clang++")
# The source has a portable path for other CPUs, which is not tested there.
CPU_FLAGS = {"x86_64": "-march=native", "aarch64": "-mcpu=native"}
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=off", "-fPIC")
# How many compilers run side by side. Each reads XLA's headers once, which
# takes a fifth as long as all sources.
NUM_UNITS = 2


class NativeError(Exception):
  """Says in one line why there is no native code here."""


def cache_folder() -> pathlib.Path:
  """Returns the folder of compiled files, and makes it with mode 0700.

  Raises:
    NativeError: other users can write to the folder, or another user owns it.
  """
  cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  folder = pathlib.Path(cache).expanduser() / "speccascade" / "native"
  folder.parent.mkdir(parents=True, exist_ok=True)
  folder.mkdir(mode=0o700, exist_ok=True)
  # (lstat: a link to a folder of another user's must not pass.)
  status = folder.lstat()
  is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
  if not is_private or status.st_uid != os.getuid():
    raise NativeError(f"{folder} is not a folder of yours alone: remove it")
  return folder


def compile_source(compiler: str, flags: tuple[str, ...]) -> bytes:
  """Returns the shared library that a compiler makes from the sources.

  Args:
    compiler: path of the compiler.
    flags: arguments of the compiler, before the files.

  Raises:
    NativeError: the compiler fails.
  """
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    commands, objects = [], []
    for number, unit in enumerate(_units()):
      # One file that includes the rest, so that headers are read once.
      source = folder / f"unit_{number}.cc"
      lines = [f'#include "{path}"\n' for path in unit]
      source.write_text("".join(lines), encoding="utf-8")
      objects.append(str(source.with_suffix(".o")))
      include = f"-I{jax.ffi.include_dir()}"
      commands.append(
        [compiler, *flags, include, "-c", str(source), "-o", objects[-1]]
      )
    with futures.ThreadPoolExecutor(NUM_UNITS) as pool:
      list(pool.map(run_compiler, commands))
    out = folder / "rows.so"
    run_compiler([compiler, *flags, "-shared", *objects, "-o", str(out)])
    return out.read_bytes()


def _units() -> list[list[pathlib.Path]]:
  """Returns the compiled sources in `NUM_UNITS` parts of nearly one size."""
  units: list[list[pathlib.Path]] = [[] for _ in range(NUM_UNITS)]

  def size(unit: list[pathlib.Path]) -> int:
    return sum(path.stat().st_size for path in unit)

  compiled = [path for path in SOURCES if path.suffix == ".cc"]
  for path in sorted(compiled, key=lambda path: -path.stat().st_size):
    min(units, key=size).append(path)
  return units


def run_compiler(command: list[str]) -> None:
  """Runs a compiler, whose last argument is the file that it writes.

  Raises:
    NativeError: the compiler fails, or writes no file.
  """
  process = subprocess.run(command, capture_output=True, text=True)
  if process.returncode or not os.path.isfile(command[-1]):
    errors = [x for x in process.stderr.splitlines() if "error" in x]
    first = errors[0].strip() if errors else ""
    raise NativeError(f"{command[0]} failed: {first[:200]}")


def _cpu() -> str:
  """Returns the CPU's model, and the names of its instructions."""
  try:
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
  except OSError:
    return platform.processor()
  kinds = ("model name", "flags", "Features")
  # Every core has the lines; a set holds each once.
  return "\n".join(
    sorted({line for line in text.splitlines() if line.startswith(kinds)})
  )


def library_file(extra_flags: tuple[str, ...] = ()) -> pathlib.Path:
  """Returns the compiled file, and compiles it if it is missing or not whole.

  Two programs may compile at once: each puts a whole file in the same place.

  Args:
    extra_flags: for the compiler, after the usual ones.

  Raises:
    NativeError: there is no compiler, it fails, or see `cache_folder`.
    OSError: the folder cannot be made or written.
  """
  compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
  if compiler is None:
    raise NativeError(
      "no C++ compiler: install one (Debian and Ubuntu: apt install g++; macOS:"
      " xcode-select --install)"
    )
  flags = [*FLAGS]
  if platform.machine() in CPU_FLAGS:
    flags.append(CPU_FLAGS[platform.machine()])
  flags += extra_flags
  status = os.stat(compiler)
  parts: list[object] = [path.read_text(encoding="utf-8") for path in SOURCES]
  parts += [jax.__version__, _cpu(), NUM_UNITS, *flags]
  parts += [os.path.realpath(compiler), status.st_size, status.st_mtime_ns]
  key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
  path = cache_folder() / f"rows-{key}.so"
  if not _is_whole(path):
    # A line for a wait of ten seconds and more. (Warnings are for trouble.)
    print(
      "compiling native code, once on this machine (ten seconds and more)",
      file=sys.stderr,
      flush=True,
    )
    library = compile_source(compiler, tuple(flags))
    # Written to a temporary file and renamed, so readers see no partial file.
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
      file.write(library + hashlib.sha256(library).digest())
      file.flush()
      os.fsync(file.fileno())
    os.replace(file.name, path)
  return path


def _is_whole(path: pathlib.Path) -> bool:
  """Whether a file is the user's own, and ends with the sum of the rest."""
  if path.is_symlink() or not path.is_file():
    return False
  content = path.read_bytes()
  is_own = path.stat().st_uid == os.getuid()
  return is_own and hashlib.sha256(content[:-32]).digest() == content[-32:]


def target(handler: str) -> str:
  """Returns the name by which XLA knows a handler."""
  return f"{PREFIX}_{handler}"


def register(path: pathlib.Path) -> None:
  """Loads a compiled file, and makes its handlers known to XLA."""
  library = ctypes.CDLL(str(path))
  for name in HANDLERS:
    handler = jax.ffi.pycapsule(getattr(library, name))
    jax.ffi.register_ffi_target(target(name), handler, platform="cpu")


@functools.cache
def keep_freed_memory() -> None:
  """Makes glibc keep freed memory, up to some size, for the next call.

  By default glibc gives larger arrays back to the system at once. The system
  clears every page of the next array, which took a fifth of the time of a short
  sentence. This is called when a model runs, not before: loading a model takes
  less memory without it.
  """
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
  if mallopt is not None:
    mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
    mallopt(_M_TOP_PAD, _THRESHOLD_BYTES // 2)


def is_available() -> bool:
  """Whether there are native handlers; loads them, and warns once if not.

  There are native handlers for programs of a CPU that JAX sees as one device,
  with a C++ compiler, unless the environment variable SPECCASCADE_NATIVE is 0.
  """
  return lowering.platform() == "cpu" and is_loaded()


@functools.cache
def is_loaded() -> bool:
  """Whether this process has native handlers; as `is_available`, on a CPU."""
  if os.environ.get(SWITCH) == "0" or jax.device_count("cpu") > 1:
    return False
  try:
    register(library_file())
  except (NativeError, OSError) as error:
    logging.getLogger("speccascade").warning(
      "blocks will be slower, by XLA's products: %s (%s=0 silences this)",
      error,
      SWITCH,
    )
    return False
  return True
