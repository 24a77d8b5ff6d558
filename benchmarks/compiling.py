"""Seconds that a speculative decode takes to trace and to compile.

  python -m benchmarks.compiling --shape t5-xl

T5-small drafts. The models are of shapes alone: no weight is made, so that a
model may be larger than the memory. "native" is the float32 path of a CPU,
with bfloat16 kernels; the others are XLA's.
"""

import dataclasses
import time

import jax
import numpy as np

from benchmarks import shapes
from speccascade import cli, native
from speccascade.decoding import Sampling, row_keys
from speccascade.decoding.programs import decoders
from speccascade.models import T5LM, T5Config, parameters

_DTYPES = {"native": "float32", "float32": "float32", "bfloat16": "bfloat16"}


def shaped(shape: str, path: str) -> T5LM:
  """Returns a model of shapes, as it is made for one path."""
  config = dataclasses.replace(shapes.config(shape), dtype=_DTYPES[path])
  kernel_dtype = "bfloat16" if path == "native" else "float32"
  return T5LM(
    parameters.tree(
      {
        name: _leaf(name, each.shape, config, kernel_dtype, path == "native")
        for name, each in parameters.describe(config).items()
      }
    ),
    parameters.network(config),
  )


def _leaf(name, shape, config: T5Config, kernel_dtype, has_panels):
  dtype, is_packed, _ = parameters.storage(config, name, kernel_dtype)
  if not (is_packed and has_panels):
    return jax.ShapeDtypeStruct(shape, dtype)
  shape = shape if name.endswith("/kernel") else shape[::-1]
  packed = jax.ShapeDtypeStruct(native.packed_shape(shape, dtype), dtype)
  return native.Panels(packed, shape)


def main():
  parser = cli.Parser("compiling", __doc__, "benchmarks")
  parser.add_argument("--shape", choices=shapes.SHAPES, default="t5-xl")
  parser.add_argument("--rows", type=int, default=8)
  args = parser.parse_args()
  decoder = decoders.decoder(
    "spec_cascade_opt", gamma=5, max_decode_len=128, eos_id=1
  )
  rows = (
    np.ones((args.rows, 128), np.int32),
    row_keys(0, 0, np.arange(args.rows)),
  )
  print("| path | traced, s | compiled, s |")
  print("| --- | ---: | ---: |")
  for path in _DTYPES:
    pair = shaped("t5-small", path), shaped(args.shape, path)
    began = time.monotonic()
    lowered = decoder.lower(*pair, *rows, 0.3, Sampling.create(1.0))
    traced = time.monotonic()
    lowered.compile()
    seconds = traced - began, time.monotonic() - traced
    print(f"| {path} | {seconds[0]:.1f} | {seconds[1]:.1f} |", flush=True)


if __name__ == "__main__":
  main()
