"""Memory that a model takes, once read for decoding and while it is read.

  python -m benchmarks.memory --shape t5-small

Writes a checkpoint of random parameters, and reads it in a process of its own
as `decode` does. Printed are the bytes of the parameters as float32, and by how
much the process grew: what stays, and the most that it ever was. With --write
it only writes, which takes little memory, for other commands to read:

  python -m benchmarks.memory --shape t5-xl --dtype bfloat16 --write /tmp/xl
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

from flax import traverse_util
import jax
import numpy as np

from benchmarks import shapes
from speccascade import cli
from speccascade.checkpoints import stored_arrays, t5x_native
from speccascade.generate.pair import model_loading
from speccascade.models import parameters
from speccascade.runtime import memory


def write(folder: pathlib.Path, shape: str, dtype: str = "float32") -> str:
  """Writes T5X's checkpoint of random parameters, one by one; returns where."""

  def drawn(number: int, shape: tuple):
    rng = np.random.default_rng(number)
    draw = lambda part: rng.standard_normal(shape, np.float32)[part] / 16
    return stored_arrays.Unread(shape, draw)

  named = parameters.param_shapes(shapes.config(shape))
  arrays = traverse_util.unflatten_dict(
    {
      name: drawn(number, shape)
      for number, (name, shape) in enumerate(named.items())
    },
    sep="/",
  )
  path = folder / "checkpoint_0"
  t5x_native.save(path, arrays, step=0, dtype=dtype)
  return str(path)


def measure(folder: str, kernel_dtype: str):
  """Prints the bytes of the parameters, what stays of them, and the most."""
  with tempfile.TemporaryDirectory() as other:  # what reading itself imports
    write(pathlib.Path(other), "64/1")
    model_loading.load_model("drafter", other)
  before = memory.held()
  lm = model_loading.load_model(
    "verifier", folder, kernel_dtype=kernel_dtype
  ).lm
  jax.block_until_ready(lm)
  size = 4 * parameters.num_parameters(lm.module.config)
  print(size, memory.held() - before, memory.most_held() - before)


def main():
  parser = cli.Parser("memory", __doc__, "benchmarks")
  parser.add_argument("--shape", choices=shapes.SHAPES, default="t5-small")
  dtypes = ("float32", "bfloat16")
  parser.add_argument("--dtype", choices=dtypes, default="float32")
  parser.add_argument("--write", type=pathlib.Path, metavar="FOLDER")
  parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.measure:
    return measure(*args.measure)
  if args.write:
    print("wrote", write(args.write, args.shape, args.dtype))
    return None
  print("| kernels | parameters in float32, MB | held | the most |")
  print("| --- | ---: | ---: | ---: |")
  with tempfile.TemporaryDirectory() as folder:
    write(pathlib.Path(folder), args.shape, args.dtype)
    for kernel_dtype in dtypes:
      command = [sys.executable, "-m", "benchmarks.memory", "--measure"]
      done = subprocess.run(
        [*command, folder, kernel_dtype],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
      )
      size, held, peak = map(int, done.stdout.split())
      print(
        f"| {kernel_dtype} | {size / 1e6:.1f} | {held / size:.2f} of them |"
        f" {peak / size:.2f} |"
      )


if __name__ == "__main__":
  main()
