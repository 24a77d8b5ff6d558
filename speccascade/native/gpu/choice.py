"""Whether blocks of few tokens go through kernels written for a GPU.

The kernels are in `block_attention_triton` and `row_products_triton`, imported
only where a program is traced for a GPU. A layer is 8 launches with them, 22
with XLA's own. They are compiled for an H100 and computed on a CPU by tests;
how fast they are on a GPU is not known yet, so that they have to be asked for:
`SPECCASCADE_GPU_KERNELS=1` in the environment, or `gpu_kernels` around what is
traced.
"""

from collections.abc import Iterator
import contextlib
import contextvars
import os
from typing import Literal

from speccascade.native.lowering import platform

Mode = Literal["on", "off", "interpreted"]
_mode: contextvars.ContextVar[Mode | None] = contextvars.ContextVar(
  "gpu_kernels", default=None
)


@contextlib.contextmanager
def gpu_kernels(mode: Mode) -> Iterator[None]:
  """Says in a context whether programs traced there have the kernels.

  A program that was traced before keeps what it has.

  Args:
    mode: "on" takes the kernels where a program is for a GPU; "off" takes none;
      "interpreted" computes what the kernels say on any platform, slowly.
  """
  token = _mode.set(mode)
  try:
    yield
  finally:
    _mode.reset(token)


def _current() -> Mode:
  asked = os.environ.get("SPECCASCADE_GPU_KERNELS") == "1"
  return _mode.get() or ("on" if asked else "off")


def has_gpu_kernels() -> bool:
  """Whether a program that is traced now has the kernels."""
  mode = _current()
  return mode == "interpreted" or (mode == "on" and platform() == "gpu")


def is_interpreted() -> bool:
  """Whether the kernels are computed with JAX's operations."""
  return _current() == "interpreted"
