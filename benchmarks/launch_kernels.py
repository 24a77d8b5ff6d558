"""What the assembler makes of the kernels of one to three launches a layer.

  bash launch/gpu_compiler.sh
  .venv-gpu-compiler/bin/python -m benchmarks.launch_kernels

NVRTC compiles each kernel for a shape, and ptxas assembles it for an H100:
registers of a thread, bytes that are spilled to memory, bytes of shared memory.
No GPU is needed. `--json` prints a line for each kernel.
"""

import argparse
import dataclasses
import glob
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import shapes
from speccascade.native.gpu import (
  attention_launch_cuda,
  cuda_launches,
  layer_launch_cuda,
  mlp_launch_cuda,
  nvrtc,
)

MODELS = ("t5-small", "t5-base", "t5-large")
# Rows and tokens of a row: a token, a block, and a few rows of blocks.
BLOCKS = ((1, 1), (1, 6), (3, 6))
SLOTS, SOURCE = 135, 128


@dataclasses.dataclass(frozen=True)
class Assembled:
  """What one kernel is after it was assembled.

  Attributes:
    model: whose layer it is of.
    rows: B.
    fed: N.
    kernel: its name.
    blocks: of the launch.
    registers: of a thread.
    spilled: bytes of a thread that do not fit registers.
    shared: bytes of shared memory of a block.
    ptx: bytes of its text.
    seconds: NVRTC and ptxas took.
  """

  model: str
  rows: int
  fed: int
  kernel: str
  blocks: int
  registers: int
  spilled: int
  shared: int
  ptx: int
  seconds: float


def of_layer(config: Any, rows: int, fed: int) -> list[cuda_launches.Launch]:
  """Returns the launches of one layer, made of shapes alone."""

  def of(*shape: int, dtype: Any = jnp.bfloat16) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)

  emb, inner = config.emb_dim, config.mlp_dim
  heads, width = config.num_heads, config.head_dim
  x, norm = of(rows, fed, emb), of(emb)
  parts = of(heads, rows * fed, emb, dtype=jnp.float32)
  into, out = of(emb, heads * width), of(heads * width, emb)
  wide, down = of(emb, inner), of(inner, emb)
  cache = of(rows, heads, width, SLOTS), of(rows, heads, SLOTS, width)
  source = of(rows, heads, width, SOURCE), of(rows, heads, SOURCE, width)
  start = of(rows, dtype=jnp.int32)
  bias, mask = of(rows, heads, fed, SLOTS), of(rows, 1, 1, SOURCE)
  all_in = (into, into, into, out)
  gates = len(config.mlp_activations)
  slices = mlp_launch_cuda.num_slices(rows, fed, emb, inner, gates)
  assert slices is not None
  of_self = cuda_launches.AttentionArrays(x, parts, norm, all_in, bias, *cache)
  of_source = cuda_launches.AttentionArrays(
    x, parts, norm, (into, out), mask, *source
  )
  of_mlp = cuda_launches.MlpArrays(x, parts, norm, (*(wide,) * gates, down))
  activations = config.mlp_activations
  norms, biases = (norm,) * 3, (bias, mask)
  kernels = all_in, (into, out)
  of_mlps = (*(wide,) * gates, down)
  joined = []
  for each in (of_mlps, ()):
    arrays = cuda_launches.LayerArrays(
      x, parts, norms, *kernels, each, biases, cache, source
    )
    clusters = layer_launch_cuda.num_clusters(arrays)
    if clusters is not None:
      upcoming = (*all_in, *cache, into, out) if each else of_mlps
      joined.append(
        layer_launch_cuda.built(
          arrays, start, config.mlp_activations, clusters, upcoming
        )
      )
  built = [
    attention_launch_cuda.built(of_self, start, (into, out, *source, wide)),
    attention_launch_cuda.built(of_source, None, (wide, down)[2 - gates :]),
    mlp_launch_cuda.built(of_mlp, activations, slices, (*all_in, *cache)),
  ]
  return [launch for launch, _ in (*built, *joined)]


def assembler() -> str:
  """Returns the path of ptxas.

  Raises:
    SystemExit: it is not installed.
  """
  for folder in sys.path:
    found = glob.glob(f"{folder}/nvidia/cuda_nvcc/bin/ptxas")
    if found:
      return found[0]
  raise SystemExit("no ptxas: bash launch/gpu_compiler.sh installs it")


def assemble(launch: cuda_launches.Launch) -> dict[str, Any]:
  """Returns the fields of `Assembled` that a launch has."""
  began = time.monotonic()
  ptx = nvrtc.ptx(launch)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "kernel.ptx"
    path.write_text(ptx, encoding="utf-8")
    done = subprocess.run(
      [assembler(), "-v", "-arch=sm_90", str(path), "-o", "/dev/null"],
      capture_output=True,
      text=True,
      check=True,
    )
  said = done.stdout + done.stderr

  def number(pattern: str) -> int:
    return sum(int(each) for each in re.findall(pattern, said))

  return {
    "kernel": launch.entry,
    "blocks": launch.clusters * cuda_launches.CLUSTER,
    "registers": number(r"Used (\d+) registers"),
    "spilled": number(r"(\d+) bytes spill"),
    "shared": launch.shared_bytes,
    "ptx": len(ptx),
    "seconds": round(time.monotonic() - began, 2),
  }


def main():
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.launch_kernels",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
  parser.add_argument("--json", action="store_true")
  args = parser.parse_args()
  names = [field.name for field in dataclasses.fields(Assembled)]
  if not args.json:
    print("| " + " | ".join(names) + " |")
    print("| --- | ---: | ---: | --- |" + " ---: |" * 6)
  for model in args.models:
    for rows, fed in BLOCKS:
      for launch in of_layer(shapes.config(model), rows, fed):
        row = Assembled(model, rows, fed, **assemble(launch))
        values = dataclasses.asdict(row)
        if args.json:
          print(json.dumps(values), flush=True)
        else:
          print("| " + " | ".join(map(str, values.values())) + " |", flush=True)


if __name__ == "__main__":
  main()
