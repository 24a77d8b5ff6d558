"""What a TPU's compiler makes of rounds and of a training step: CASE ROWS...

libtpu compiles without a TPU. For each number of rows a line of JSON describes
the compiled program.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.compiled import rounds
from speccascade.models import T5Config, parameters
from speccascade.models.sharding import meshes, partitioning
from speccascade.models.sharding.partitioning import DATA, MODEL, Layout
from speccascade.tools.planning import chips, hlo
from speccascade.training import optimizers, states, training_step
from tests import tpu_programs
from tests.tpu_programs import SIZES, TOPOLOGY


def decode(case: str, rows: int) -> dict:
  """Describes the rounds of a whole decode."""
  text = tpu_programs.decode(case, rows).compile().as_text()
  program = rounds.Program(text)
  # A cache has room for the longest output and a block.
  caches = {
    tuple(sorted((rows, heads, SIZES["head_dim"], slots)))
    for heads in (1, SIZES["num_heads"])
    for slots in range(12, 40)
  }
  return {
    "loops": tpu_programs.loops(text),
    "cache_copies": program.copies(caches),
    "launches": program.count().get("all", 0),
  }


def training(case: str, rows: int) -> dict:
  """Describes a training step on a mesh of all four devices."""
  config = T5Config(**SIZES, num_encoder_layers=1)
  mesh = meshes.Mesh({DATA: 2, MODEL: 2}).abstract().mesh
  layout = Layout(
    jax.sharding.Mesh(
      np.reshape(chips.devices(TOPOLOGY), (2, 2)),
      mesh.axis_names,
      axis_types=mesh.axis_types,
    )
  )
  module, optimizer = parameters.network(config), optimizers.adafactor()

  def start():
    return states.TrainState.create(
      module.initial(jax.random.key(0)), optimizer
    )

  state = jax.eval_shape(start)
  places = parameters.shardings(config, layout)
  places = partitioning.state_shardings(state, state.params, places)
  placed = lambda x, place: jax.ShapeDtypeStruct(
    x.shape, x.dtype, sharding=place
  )
  tokens = placed(
    jax.ShapeDtypeStruct((rows, 8), jnp.int32), layout.rows_sharding(rows)
  )
  step = training_step.make_step(
    module, optimizer, states.Objective(microbatches=2), layout
  )
  lowered = step.lower(
    jax.tree.map(placed, state, places), dict.fromkeys(states.INPUTS, tokens)
  )
  text = lowered.compile().as_text()
  sent = hlo.Program(text).sent[hlo.ONCE]
  return {
    "loops": tpu_programs.loops(text),
    "sent": sorted({each.kind for each in sent}),
    "groups": sorted({each.num_devices for each in sent}),
    "callbacks": "callback" in text,
  }


def main():
  case, *numbers = sys.argv[1:]
  describe = training if case == "training" else decode
  for rows in map(int, numbers):
    print(json.dumps(describe(case, rows)), flush=True)


if __name__ == "__main__":
  main()
