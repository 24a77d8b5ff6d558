"""Compiles the native handlers on first use, and makes them known to XLA.

The compiled file is kept in a folder that only the user can enter, under a name
made of all that it depends on, and ends with the SHA-256 of what goes before.
Not by `speccascade.runtime.files`: the core imports jax, flax and numpy only.
"""

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
import tempfile

import jax

PREFIX = "speccascade"  # of the handlers' names in XLA
HANDLERS = (
  *("RowsTimesPanels", "Attend", "DecoderPass", "EncoderPass"),
  *("LawsOfLogits", "Draw", "Overlap", "Replacement", "Copies", "Nucleus"),
)
SWITCH = "SPECCASCADE_NATIVE"
_M_TOP_PAD, _M_MMAP_THRESHOLD = -2, -3  # of malloc.h
KEPT_BYTES = 32 << 20  # the most that glibc takes
_HERE = pathlib.Path(__file__).parent
SOURCES = (*sorted(_HERE.glob("*.cc")), *sorted(_HERE.glob("*.h")))
COMPILERS = ("c++", "g++", "clang++")
# Other CPUs than these two are served by the source's portable path, untested.
CPU_FLAGS = {"x86_64": "-march=native", "aarch64": "-mcpu=native"}
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC")


class NativeError(Exception):
  """Why there is no native code here, in one line."""


def cache_folder() -> pathlib.Path:
  """Returns the folder of compiled files, made with mode 0700 if need be.

  Raises:
    NativeError: others can write to it, or it is not the user's.
  """
  cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  folder = pathlib.Path(cache).expanduser() / "speccascade" / "native"
  folder.parent.mkdir(parents=True, exist_ok=True)
  folder.mkdir(mode=0o700, exist_ok=True)
  about = folder.lstat()
  is_private = stat.S_ISDIR(about.st_mode) and not about.st_mode & 0o077
  if not is_private or about.st_uid != os.getuid():
    raise NativeError(f"{folder} is not a folder of yours alone: remove it")
  return folder


def compile_source(compiler: str, flags: tuple[str, ...]) -> bytes:
  """Returns the shared library that a compiler makes of the sources.

  Raises:
    NativeError: it fails.
  """
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder) / "rows.so"
    include = f"-I{jax.ffi.include_dir()}"
    sources = [str(path) for path in SOURCES if path.suffix == ".cc"]
    command = [compiler, *flags, include, *sources, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not out.is_file():
      said = [x for x in done.stderr.splitlines() if "error" in x] or [""]
      raise NativeError(f"{compiler} failed: {said[0].strip()[:200]}")
    return out.read_bytes()


def _cpu() -> str:
  """Returns what the CPU is and can do."""
  try:
    about = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
  except OSError:
    return platform.processor()
  kinds = ("model name", "flags", "Features")
  return "\n".join(
    sorted({x for x in about.splitlines() if x.startswith(kinds)})
  )


def library_file(extra_flags: tuple[str, ...] = ()) -> pathlib.Path:
  """Returns the compiled file, compiled where it is not there or not whole.

  Two programs may do so at once: each puts a whole file in the same place.

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
  cpu_flag = CPU_FLAGS.get(platform.machine())
  flags = (*FLAGS, *([cpu_flag] if cpu_flag else []), *extra_flags)
  about = os.stat(compiler)
  parts = [path.read_text(encoding="utf-8") for path in SOURCES]
  parts += [jax.__version__, _cpu(), *flags]
  parts += [os.path.realpath(compiler), about.st_size, about.st_mtime_ns]
  key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
  path = cache_folder() / f"rows-{key}.so"
  if not _is_whole(path):
    library = compile_source(compiler, flags)
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
  """Returns XLA's name of a handler."""
  return f"{PREFIX}_{handler}"


def register(path: pathlib.Path) -> None:
  """Loads a compiled file, and makes its handlers known to XLA."""
  loaded = ctypes.CDLL(str(path))
  for name in HANDLERS:
    handler = jax.ffi.pycapsule(getattr(loaded, name))
    jax.ffi.register_ffi_target(target(name), handler, platform="cpu")


@functools.cache
def keep_freed_memory() -> None:
  """Has glibc keep what is freed for the next call, up to some size.

  By default it gives a larger array back to the system at once, which clears
  every page of the next one: a fifth of the time that a short sentence takes.
  For when models are loaded: to load them takes less memory without.
  """
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
  if mallopt is not None:
    mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
    mallopt(_M_TOP_PAD, KEPT_BYTES // 2)


@functools.cache
def is_available() -> bool:
  """Whether there are native handlers; loads them, and says once why not.

  There are on a CPU, as one device, with a C++ compiler, unless the
  environment variable SPECCASCADE_NATIVE is 0.
  """
  if os.environ.get(SWITCH) == "0":
    return False
  if jax.default_backend() != "cpu" or jax.device_count() > 1:
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
