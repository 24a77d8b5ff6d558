"""Tables of the GPU's kernels by device: what is on, and how it is laid out.

`defaults.json` has the operations whose kernels are taken unasked, by device,
operation and sizes: {"implementation": NAME, "gain": times as fast as XLA,
"because": where the number is from}. A gain below 1.1 is not taken.

`configurations.json` has the configurations that replace those of a kernel's
own arithmetic, by device, operation and implementation, and sizes. `python -m
benchmarks.gpu_battery --only kernels` times them on a device and writes them.
"""

import functools
import json
import pathlib
from typing import Any

FOLDER = pathlib.Path(__file__).parent
DEFAULTS, CONFIGURATIONS = "defaults.json", "configurations.json"
LEAST_GAIN = 1.1


@functools.cache
def read(name: str) -> dict[str, Any]:
  """Returns a table: `DEFAULTS` or `CONFIGURATIONS`."""
  return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def default(device: str, operation: str, key: str) -> str:
  """Returns the implementation that an operation has unasked.

  Args:
    device: the kind of the device, such as "NVIDIA H100 80GB HBM3".
    operation: the operation's name.
    key: its sizes.
  """
  row = read(DEFAULTS).get(device, {}).get(operation, {}).get(key)
  if row is None or row["gain"] < LEAST_GAIN:
    return "xla"
  return row["implementation"]


def configuration(
  device: str, operation: str, implementation: str, key: str
) -> dict[str, int]:
  """Returns the fields of a configuration that were timed; {} where none were.

  Args:
    device: the kind of the device.
    operation: the operation's name.
    implementation: the kernel's language, "triton" or "cuda".
    key: its sizes.
  """
  kernel = f"{operation} {implementation}"
  return read(CONFIGURATIONS).get(device, {}).get(kernel, {}).get(key, {})
