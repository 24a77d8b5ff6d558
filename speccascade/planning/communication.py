"""Says what devices send each other for a decoded token, before there are any.

  python -m speccascade.planning.communication \\
    --gin_file=configs/experiments/wmt_ende/decode.gin \\
    --gin.MESH='{"data": 2, "model": 4}' --gin.OUTPUT_DIR=None \\
    --gin.DRAFTER_CHECKPOINT=None --gin.VERIFIER_CHECKPOINT=None \\
    --gin.METHOD='"spec_cascade_opt"'

Takes the config of a decode, and compiles its program for a mesh of CPU devices
that are only pretended; no weight is made, or read. Only what a mesh has to
send counts: an accelerator's compiler may join several into one.
"""

from speccascade import cli


def main():
  """Compiles as gin configured it, and prints what is sent."""
  import jax

  from speccascade.inference.measuring import infer
  from speccascade.models.sharding import meshes
  from speccascade.planning import decoding_plan

  layout = cli.configure(meshes.Mesh)().abstract()
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", layout.mesh.size)
  print(decoding_plan.communication(**cli.bindings_of(infer.infer)))


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/decode.gin")
