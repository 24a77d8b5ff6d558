"""Compiles the kernels of `cuda` by NVRTC, NVIDIA's compiler as a library.

jax[cuda12] and jax[cuda13] install it. What it makes is PTX, which the driver
assembles for its GPU; it is kept in the folder of compiled files.
"""

from collections.abc import Callable
import ctypes
import functools
import glob
import hashlib
import os
import re
import sys
import tempfile
from typing import Any

from speccascade.native import library
from speccascade.native.gpu.cuda_launches import CLUSTER, Launch, text

# The oldest version with all that the kernels use, for old drivers: NVRTC names
# its own version, whatever a kernel uses.
VERSION = "8.0"
FLAGS = ("--gpu-architecture=compute_90", "-std=c++17", "-default-device")
_PATTERNS = ("cuda_nvrtc/lib", "cu1[0-9]/lib", "cu[2-9][0-9]/lib")


class NvrtcError(Exception):
  """Says in one line why nothing is compiled."""


def _files() -> list[str]:
  """Returns the libraries that pip installed, and names of the system's."""
  found: list[str] = []
  for folder in sys.path:
    for pattern in _PATTERNS:
      found += glob.glob(f"{folder}/nvidia/{pattern}/libnvrtc.so.*[0-9]")
  return [*sorted({*found}, reverse=True), "libnvrtc.so.13", "libnvrtc.so.12"]


@functools.cache
def _library() -> ctypes.CDLL | None:
  """Returns NVRTC, or None where it is not installed."""
  for file in _files():
    try:
      return ctypes.CDLL(file)
    except OSError:
      continue
  return None


def is_available() -> bool:
  """Whether kernels can be compiled here."""
  return _library() is not None


def _options(launch: Launch) -> list[str]:
  return [
    *FLAGS,
    f"-DENTERED={launch.kind.upper()}",
    f"-DTILES={launch.tiles}",
    f"-DGRID={launch.clusters * CLUSTER}",
    *(f"-DSIZE_OF_{name}={value}" for name, value in launch.sizes),
  ]


@functools.cache
def ptx(launch: Launch) -> str:
  """Returns the text of a kernel for one shape.

  Raises:
    NvrtcError: NVRTC is not installed, or does not compile the source.
    NativeError: see `library.cache_folder`.
  """
  nvrtc = _library()
  if nvrtc is None:
    raise NvrtcError(
      "no NVRTC, which compiles the kernels: pip install 'jax[cuda12]', or"
      " nvidia-cuda-nvrtc-cu12"
    )
  options = _options(launch)
  numbers = (ctypes.c_int(), ctypes.c_int())
  nvrtc.nvrtcVersion(*map(ctypes.byref, numbers))
  parts: list[object] = [text("layers.cu"), text("device.h"), *options, VERSION]
  parts += [number.value for number in numbers]
  key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
  path = library.cache_folder() / f"{launch.entry}-{key}.ptx"
  if path.is_file():
    return path.read_text(encoding="utf-8")
  made = _short(_compile(nvrtc, options))
  # Renamed, so that readers see no partial file.
  with tempfile.NamedTemporaryFile(
    "w", dir=path.parent, delete=False, encoding="utf-8"
  ) as file:
    file.write(made)
  os.replace(file.name, path)
  return made


def _short(made: str) -> str:
  """Returns PTX of the oldest version, without comments and margins."""
  lines = [line.strip() for line in made.splitlines()]
  lines = [line for line in lines if line and not line.startswith("//")]
  return re.sub(r"(?m)^\.version .*$", f".version {VERSION}", "\n".join(lines))


def _compile(nvrtc: ctypes.CDLL, options: list[str]) -> str:
  """Returns what NVRTC makes of the source."""
  program = ctypes.c_void_p()
  nvrtc.nvrtcCreateProgram(
    ctypes.byref(program),
    text("layers.cu").encode(),
    b"layers.cu",
    1,
    _strings(text("device.h")),
    _strings("device.h"),
  )
  code = nvrtc.nvrtcCompileProgram(program, len(options), _strings(*options))
  if code:
    log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    errors = [line for line in log.splitlines() if "error" in line]
    raise NvrtcError(f"NVRTC fails: {(errors or [log])[0][:200]}")
  made = _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
  nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
  return made


def _strings(*texts: str) -> Any:
  return (ctypes.c_char_p * len(texts))(*(each.encode() for each in texts))


def _read(
  size_of: Callable[..., int],
  get: Callable[..., int],
  program: ctypes.c_void_p,
) -> str:
  """Returns a text that NVRTC holds."""
  size = ctypes.c_size_t()
  size_of(program, ctypes.byref(size))
  buffer = ctypes.create_string_buffer(size.value)
  get(program, buffer)
  return buffer.value.decode()
