"""What would be slow on a TPU, of compiled programs: python -m ... CASE.

A line of JSON says what was found; libtpu compiles without a TPU.
"""

import json
import math
import os
import re
import sys

import jax
from jax.experimental import topologies
import jax.numpy as jnp
from jax.sharding import AxisType
import numpy as np

from benchmarks.gpu_battery import models
from speccascade.decoding import Sampling, decoder, row_keys
from speccascade.models import T5Config
from speccascade.models.sharding.partitioning import DATA, MODEL, Layout
from tests import tpu_programs

VOCAB = 32_128  # of fewer logits the compiler sorts all for top-k
CONFIG = T5Config(
  **(tpu_programs.SIZES | {"vocab_size": VOCAB}), num_encoder_layers=1
)
HEAD_DIM = CONFIG.head_dim
# The method of each case, its settings, its rows, and how tokens are drawn.
CASES = {
  "one row": ("spec_decode", {"gamma": 2}, 1, {}),
  "mesh": ("spec_decode", {"gamma": 2}, 32, {}),
  "lookup": ("cascade_drafting", {"gamma": 2}, 32, {}),
  "top-k": ("verifier", {"gamma": 1}, 32, {"top_k": 5, "top_p": 0.9}),
}


def layout() -> Layout:
  """Returns where a model lies on a mesh that cuts rows and heads in two."""
  found = topologies.get_topology_desc(
    platform="tpu", topology_name=tpu_programs.TOPOLOGY
  )
  mesh = jax.sharding.Mesh(
    np.reshape(found.devices, (2, 2)),
    (DATA, MODEL),
    axis_types=(AxisType.Auto, AxisType.Auto),
  )
  return Layout(mesh)


def compiled(case: str) -> str:
  """Returns the text of a compiled decode."""
  method, options, rows, sampling = CASES[case]
  if case == "mesh":
    where = layout()
    lm, place = models.described(CONFIG, where), where.sharding("batch")
  else:
    place = tpu_programs.place()
    lm = models.described(CONFIG, place=place)
  arrays = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
    jax.eval_shape(
      lambda: (jnp.ones((rows, 8), "int32"), row_keys(0, 0, jnp.arange(rows)))
    ),
  )
  run = decoder(method, max_decode_len=12, eos_id=1, **options)
  settings = Sampling.create(1.0, **sampling)
  lowered = run.lower(lm, lm, *arrays, 0.0, settings)
  return lowered.compile().as_text()


def shapes(line: str) -> list[tuple[int, ...]]:
  """Returns the sizes of the arrays that a line of a program names."""
  found = re.findall(r"\w+\[([\d,]+)\]", line)
  return [tuple(map(int, each.split(","))) for each in found]


def flags(text: str) -> dict[str, list[str]]:
  """Returns the lines of a compiled program that a TPU would be slow at.

  Args:
    text: as `jax.stages.Compiled.as_text` gives it.

  Returns:
    row_loops: names of loops in a round that the compiler made.
    sums: products on the vector unit.
    finiteness: tests of keys whose last axis in memory is that of the tokens.
    sorts: sorts and scatters of as many numbers as there are tokens.
  """
  found = {"row_loops": [], "sums": [], "finiteness": [], "sorts": []}
  for line in text.splitlines():
    name = re.search('op_name="([^"]*)"', line)
    path = name[1] if name else ""
    is_loop = " while(" in line and "while/body/" in path
    if is_loop and not path.endswith("/while"):
      found["row_loops"].append(path)
    if " reduce(" in line and path.endswith("dot_general"):
      found["sums"].append(path)
    tested = re.search(r"= \w+\[([\d,]+)\]\{(\d+).* is-finite\(", line)
    if tested:
      sizes = tuple(map(int, tested[1].split(",")))
      if len(sizes) == 4 and sizes[int(tested[2])] != HEAD_DIM:
        found["finiteness"].append(line.strip()[:200])
    is_sort = " sort(" in line or " scatter(" in line
    if is_sort and any(math.prod(shape) >= VOCAB for shape in shapes(line)):
      found["sorts"].append(line.strip()[:200])
  return found


def main():
  os.environ |= tpu_programs.ENVIRONMENT
  print(json.dumps(flags(compiled(sys.argv[1]))))


if __name__ == "__main__":
  main()
