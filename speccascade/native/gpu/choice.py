"""Which implementation of an operation a program has.

Every operation of this package has a reference in plain JAX, "xla", and kernels
for a GPU, which are compiled for an H100 and computed on a CPU by tests. Where
nothing is asked for, `defaults.json` decides: it names the kernels that should
gain at least a tenth, and the number that says so. All else is XLA's, and with
`SPECCASCADE_GPU_KERNELS=0` in the environment, everything.
"""

import contextlib
import os
from typing import Any

import jax

from speccascade.native.gpu import kernel_tables
from speccascade.native.lowering import device_kind, platform

SWITCH = "SPECCASCADE_GPU_KERNELS"  # 0 leaves all to XLA where nothing is asked
# By the name that is asked for, what is tried in turn where it cannot run.
FALLBACKS = {
  "xla": ("xla",),
  "triton": ("triton", "xla"),
  "cuda": ("cuda", "triton", "xla"),
  "interpreted": ("interpreted", "xla"),
  "emulated": ("emulated", "xla"),
}
# Kernels that are computed on any platform, slowly, and their language.
ANYWHERE = {"interpreted": "triton", "emulated": "cuda"}
_asked = jax.make_user_context(None)


def check(implementation: str) -> None:
  """Checks the name of an implementation.

  Raises:
    ValueError: there is none of this name.
  """
  if implementation not in FALLBACKS:
    raise ValueError(
      f"implementation={implementation!r} is unknown: give one of"
      f" {', '.join(FALLBACKS)}"
    )


def gpu_kernels(
  implementation: str | None,
) -> contextlib.AbstractContextManager[Any]:
  """Returns a context that says which kernels programs for a GPU have.

  A jitted function is traced again in a context of another name. What cannot
  run is replaced by the next best, and the log says why. To be given an error
  instead, name the implementation in the call of an operation.

  Args:
    implementation: "xla" takes no kernel of this package; "triton" and "cuda"
      take those of that language where a program is for a GPU; "interpreted"
      and "emulated" compute what "triton" and "cuda" say on any platform,
      slowly; None leaves the choice to `defaults.json`.

  Raises:
    ValueError: the name is unknown.
  """
  if implementation is not None:
    check(implementation)
  return _asked(implementation)


def preferred(operation: str, key: str) -> str:
  """Returns the implementation that a program traced now should have.

  Args:
    operation: the name of an `Operation`, or "decoder_pass".
    key: its sizes, as `defaults.json` writes them.
  """
  if _asked.value is not None:
    return _asked.value
  if platform() != "gpu" or os.environ.get(SWITCH) == "0":
    return "xla"
  return kernel_tables.default(device_kind(), operation, key)
