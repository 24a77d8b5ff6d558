"""Prints what devices send each other for a token, before there are devices.

  python -m speccascade.planning.communication \\
    --gin_file=configs/experiments/wmt_ende/decode.gin \\
    --gin.MESH='{"data": 2, "model": 4}' --gin.OUTPUT_DIR=None \\
    --gin.DRAFTER_CHECKPOINT=None --gin.VERIFIER_CHECKPOINT=None \\
    --gin.METHOD='"spec_cascade_opt"'

Takes the config of a decode, and compiles its program for a mesh of pretended
CPU devices. No weight is made or read. The counts are what the mesh has to
send; the compiler of an accelerator may join several collectives into one.
"""

import dataclasses

import jax

from speccascade import cli
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import DATA
from speccascade.tasks.inputs import Inputs
from speccascade.tools.planning import (
  decoding_plan,
  few_layers,
  hlo,
  model_bytes,
)


@dataclasses.dataclass(frozen=True)
class Communication:
  """What the devices of a mesh send each other in a decode.

  Attributes:
    mesh: the mesh.
    sent: {"once": counts, "round": counts}, as `hlo.Program.sent` gives them.
    rows: rows of a batch on one device.
    width: most tokens that a round writes in a row.
  """

  mesh: meshes.Mesh
  sent: dict[str, hlo.CollectiveCounts]
  rows: int
  width: int

  def __str__(self) -> str:
    lines = [str(self.mesh)]
    for when, counts in self.sent.items():
      total = hlo.sent_bytes(counts)
      lines.append(f"{when}: {counts.total()} collectives, {total:,} bytes")
      lines += [
        f"  {num} {each.kind} of {each.arrays} among {each.num_devices}"
        for each, num in counts.items()
      ]
    round_bytes = hlo.sent_bytes(self.sent[hlo.ROUND])
    row_bytes = round_bytes / self.rows
    line = (
      f"for each token: {row_bytes:,.0f} bytes where a round writes one token"
      " of a row"
    )
    if self.width > 1:
      line += f", {row_bytes / self.width:,.0f} where it writes {self.width}"
    return "\n".join([*lines, line])


def communication(
  pair: PairSpec, inputs: Inputs, point: Point, run: Run, **_
) -> Communication:
  """Compiles a decode for its mesh, and returns what devices send each other.

  The arguments are settings of `infer.infer`.

  Raises:
    ValueError: a setting does not fit the mesh, or there are fewer devices.
  """
  layout = pair.mesh.layout()
  if layout is None or pair.cascade is not None:
    raise ValueError("it takes a MESH of several devices, and no CASCADE")
  layout.check_rows(BATCH_SIZE=run.batch_size)
  models = decoding_plan.architectures(pair, point)
  for config in models.values():
    model_bytes.check_layout(config, layout)

  def count(models):
    program = few_layers.compile_decode(
      models, layout, pair, inputs, point, run
    )
    return hlo.Program(program.as_text()).sent

  # A model that every device holds whole sends nothing.
  is_cut = lambda role: role == "verifier" or pair.mesh.drafter != "whole"
  sent = few_layers.extrapolate(models, filter(is_cut, models), count)
  rows_of_device = run.batch_size // layout.sizes[DATA]
  # A round writes one path of a tree, and a token more.
  most = point.gamma + 1 if point.is_tree else point.verify_width
  return Communication(pair.mesh, sent, rows_of_device, most)


def main():
  """Compiles as gin files configure `infer.infer`, and prints what is sent."""
  from speccascade.study.measuring import infer

  layout = cli.configure(meshes.Mesh)().abstract()
  # JAX reads these two when it first asks for devices, which comes below.
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", layout.mesh.size)
  print(communication(**cli.bindings_of(infer.infer)))


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/decode.gin")
