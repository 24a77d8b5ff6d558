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

from speccascade import cli


def main():
  """Compiles as gin files configure `infer.infer`, and prints what is sent."""
  import jax

  from speccascade.inference.measuring import infer
  from speccascade.models.sharding import meshes
  from speccascade.planning import decoding_plan

  layout = cli.configure(meshes.Mesh)().abstract()
  # JAX reads these two when it first asks for devices, which comes below.
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", layout.mesh.size)
  print(decoding_plan.communication(**cli.bindings_of(infer.infer)))


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/decode.gin")
