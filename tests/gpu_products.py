"""What an H100's compiler makes of products: python -m tests.gpu_products DIR.

Runs in the environment of launch/gpu_compiler.sh. Compiles some products of
T5-large, and prints a line of JSON for each. XLA writes their PTX to DIR.
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp

from benchmarks.compiled import in_flight
from speccascade.native.gpu import row_products, row_products_triton
from speccascade.tools.planning import chips

# Rows, inputs, outputs, kernels, and what is around them.
CASES = (
  (1, 1024, 1024, 3, "norm"),
  (1, 1024, 1024, 1, "norm"),
  (6, 2816, 1024, 1, "residual"),
  (6, 1024, 2816, 2, "gate"),
)


def compiled(folder: pathlib.Path, case: tuple, place) -> dict:
  """Returns what is asked for, and what PTX and its assembler have."""
  rows, num_in, num_out, num_kernels, around = case

  def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.bfloat16, sharding=place)

  x, kernels = shape(rows, num_in), (shape(num_in, num_out),) * num_kernels
  activations = ("gelu", "linear") if around == "gate" else ()
  arrays = {"residual": shape(rows, num_out)}
  if around != "residual":
    arrays = {"norm": shape(num_in)}

  def run(x, kernels, arrays):
    return row_products(
      x, kernels, **arrays, activations=activations, implementation="triton"
    )

  before = set(folder.glob("*.ptx"))
  lowered = jax.jit(run).trace(x, kernels, arrays)
  lowered.lower(lowering_platforms=("cuda",)).compile()
  [path] = (
    path
    for path in set(folder.glob("*.ptx")) - before
    if ".entry few_rows" in path.read_text()
  )
  found = next(
    kernel
    for name, kernel in in_flight.kernels(path.read_text()).items()
    if name.startswith("few_rows")
  )
  # The weights are parameters behind the rows and the norm's scale.
  first = 1 if around == "residual" else 2
  weights = set(range(first, first + num_kernels))
  site = pathlib.Path(sys.prefix, "lib").glob("python*/site-packages/nvidia")
  assembler = next(site) / "cuda_nvcc/bin/ptxas"
  said = subprocess.run(
    [assembler, "-v", "-arch=sm_90a", path, "-o", os.devnull],
    capture_output=True,
    text=True,
    check=True,
  ).stderr
  how = row_products_triton.configuration(x, kernels, **arrays)
  return {
    "asked": dataclasses.asdict(how),
    "kernels": num_kernels,
    "bytes": sum(found.asked.get(number, 0) for number in weights),
    "waits_beside": sum(
      phase.turns for phase in found.phases if phase.beside & weights
    ),
    "waits": found.waits,
    "triggers": found.triggers,
    "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", said))),
  }


def main() -> None:
  folder = pathlib.Path(sys.argv[1])
  os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder}"
  chips.prepare("h100")
  [device] = chips.devices("h100")
  place = jax.sharding.SingleDeviceSharding(device)
  with jax.default_device(device):
    for case in CASES:
      print(json.dumps(compiled(folder, case, place)), flush=True)


if __name__ == "__main__":
  main()
