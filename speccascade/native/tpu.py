"""Whether one row's blocks go through the kernels written for a TPU.

The kernels are in `tpu_attention`, which is imported only where a program is
traced that has them. They are compiled for TPUs and computed on a CPU by tests;
they were not run on a TPU. `SPECCASCADE_TPU_KERNELS=0` in the environment, or
`tpu_kernels("xla")` around what is traced, leaves them out.
"""

import contextlib
import os
from typing import Any

import jax

from speccascade.native.lowering import platform

_NAMES = ("xla", "pallas", "interpreted")
_asked = jax.make_user_context(None)


def tpu_kernels(
  implementation: str | None,
) -> contextlib.AbstractContextManager[Any]:
  """Returns a context that says which kernels programs for a TPU have.

  A jitted function is traced again in a context of another name.

  Args:
    implementation: "xla" takes no kernel of this package; "pallas" takes them
      where a program is for a TPU; "interpreted" computes what they say on any
      platform, slowly; None leaves the choice to the environment.

  Raises:
    ValueError: the name is unknown.
  """
  if implementation is not None and implementation not in _NAMES:
    raise ValueError(
      f"implementation={implementation!r} is unknown: give one of"
      f" {', '.join(_NAMES)}"
    )
  return _asked(implementation)


def preferred_on_tpu() -> str:
  """Returns "xla", "pallas" or "interpreted", for a program traced now."""
  is_off = os.environ.get("SPECCASCADE_TPU_KERNELS") == "0"
  name = _asked.value or ("xla" if is_off else "pallas")
  return "xla" if name == "pallas" and platform() != "tpu" else name
