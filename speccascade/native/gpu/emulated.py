"""Runs the kernels of `cuda/layers.cu` on a CPU, thread by thread.

The same source is compiled by a C++ compiler, with `cuda/emulated.h` in place
of `cuda/device.h`: numbers, barriers and copies under way are those of the
source, and what a GPU would hang on is an error. It is for tests, and for
programs that ask for "emulated" kernels: a thousand times slower than XLA.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import shutil
import tempfile
import threading

import numpy as np

from speccascade.native import library
from speccascade.native.gpu.cuda_launches import FOLDER, Launch, text

FLAGS = ("-O2", "-std=c++17", "-fPIC", "-Wno-unknown-pragmas", "-DON_CPU")
_LOCK = threading.Lock()


class EmulationError(Exception):
  """Says in one line what a GPU would refuse, or hang on."""


@functools.cache
def _library() -> ctypes.CDLL:
  """Returns the kernels for a CPU, and compiles them if need be.

  Raises:
    NativeError: there is no compiler, it fails, or see `cache_folder`.
  """
  compiler = next(filter(None, map(shutil.which, library.COMPILERS)), None)
  if compiler is None:
    raise library.NativeError("no C++ compiler: install g++ or clang++")
  parts: list[object] = [text("layers.cu"), text("emulated.h"), *FLAGS]
  parts += [os.path.realpath(compiler), os.stat(compiler).st_mtime_ns]
  key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
  path = library.cache_folder() / f"layers-{key}.so"
  if not path.is_file():
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
      made = pathlib.Path(name) / path.name
      source = str(FOLDER / "layers.cu")
      library.run_compiler(
        [compiler, *FLAGS, "-shared", "-x", "c++", source, "-o", str(made)]
      )
      # Renamed, so that readers see no partial file.
      os.replace(made, path)
  return ctypes.CDLL(str(path))


def run(
  launch: Launch,
  operands: tuple[np.ndarray, ...],
  order: int = 0,
) -> tuple[np.ndarray, ...]:
  """Returns the results of a launch.

  Args:
    launch: the kernel and its sizes.
    operands: as of the custom call. None of them is changed.
    order: in which threads take turns (`turns_of` of `cuda/emulated.h`). Copies
      to shared memory land as late as they may in even orders, and at once in
      odd ones.

  Raises:
    EmulationError: a GPU would refuse the launch, or hang.
  """
  kernels = _library()
  arrays = [_aligned(each) for each in operands]
  results = []
  aliases = dict(launch.aliases)
  for number, (shape, dtype) in enumerate(launch.results):
    if number in aliases:
      results.append(arrays[aliases[number]])
    else:
      results.append(_aligned(np.zeros(shape, dtype)))
  pointers = [each.ctypes.data for each in (*arrays, *results)]
  function = getattr(kernels, f"run_{launch.entry}")
  function.restype = ctypes.c_char_p
  packed = (ctypes.c_void_p * len(pointers))(*pointers)
  # XLA may call from several threads, and the sizes are of one launch.
  with _LOCK:
    for name, value in launch.sizes:
      ctypes.c_int.in_dll(kernels, f"SIZE_OF_{name}").value = value
    fault = function(packed, launch.clusters, order).decode()
  if fault:
    raise EmulationError(f"{launch.entry}: {fault}")
  return tuple(results)


def _aligned(array: np.ndarray) -> np.ndarray:
  """Returns a copy that starts where XLA lets arrays start."""
  array = np.asarray(array)
  buffer = np.empty(array.nbytes + 256, np.uint8)
  first = -buffer.ctypes.data % 256
  place = buffer[first : first + array.nbytes].view(array.dtype)
  place = place.reshape(array.shape)
  place[...] = array
  return place
