"""Whether one row's blocks go through the kernels written for a TPU.

The kernels are in `tpu_attention`, which is imported only where a program is
traced for a TPU. They were compiled for TPUs and computed on a CPU by tests;
they were not run on a TPU. `SPECCASCADE_TPU_KERNELS=0` in the environment, or
`tpu_kernels` around what is traced, leaves them out.
"""

from collections.abc import Iterator
import contextlib
import contextvars
import os
from typing import Literal

from speccascade.native.lowering import platform

Mode = Literal["on", "off", "interpreted"]
_mode: contextvars.ContextVar[Mode | None] = contextvars.ContextVar(
  "tpu_kernels", default=None
)


@contextlib.contextmanager
def tpu_kernels(mode: Mode) -> Iterator[None]:
  """Says in a context whether programs traced there have the kernels.

  A program that was traced before keeps what it has.

  Args:
    mode: "on" takes the kernels where a program is for a TPU; "off" takes none;
      "interpreted" computes what the kernels say on any platform, slowly.
  """
  token = _mode.set(mode)
  try:
    yield
  finally:
    _mode.reset(token)


def mode_of_tpu_kernels() -> Mode:
  """Returns how a program that is traced now has the kernels."""
  is_off = os.environ.get("SPECCASCADE_TPU_KERNELS") == "0"
  mode = _mode.get() or ("off" if is_off else "on")
  return "off" if mode == "on" and platform() != "tpu" else mode
