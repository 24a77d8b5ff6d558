"""Lets T5X itself read checkpoints of this package, where T5X is installed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.checkpoints import architecture, orbax_io, t5x_native
from tests.checkpoints.conftest import same

pytestmark = pytest.mark.needs_tf
checkpoints = pytest.importorskip("t5x.checkpoints")


@pytest.fixture(scope="module")
def wanted(golden):
  """T5X's train state (shapes only) and partitioner for the golden model."""
  from t5x import adafactor, partitioning, train_state
  from t5x.examples.t5 import network

  values = json.loads((golden / "config.json").read_text())
  names = network.T5Config.__dataclass_fields__
  values["mlp_activations"] = tuple(values["mlp_activations"])
  model = network.Transformer(
    network.T5Config(**{k: v for k, v in values.items() if k in names})
  )
  optimizer = adafactor.Adafactor(1e-3, min_dim_size_to_factor=16)
  tokens = jnp.ones((1, 1), jnp.int32)

  def init():
    variables = model.init(
      jax.random.PRNGKey(0), tokens, tokens, tokens, enable_dropout=False
    )
    return train_state.FlaxOptimTrainState.create(optimizer, variables)

  return jax.eval_shape(init), partitioning.PjitPartitioner(num_partitions=1)


def check(restored, source):
  state = jax.tree.map(np.asarray, restored.state_dict())
  assert int(state["state"]["step"]) == 3000
  same(state["target"], source.params)
  slots = architecture.flatten(state["state"]["param_states"])
  slots = {k: v for k, v in slots.items() if not k.endswith("/m")}
  same(slots, architecture.flatten(source.optimizer))


@pytest.mark.parametrize(
  "reader", ["Checkpointer", "OrbaxCheckpointManagerInterface"]
)
def test_t5x_reads_our_native_files(source, wanted, tmp_path, reader):
  path, slots = tmp_path / "checkpoint_3000", source.optimizer
  t5x_native.save(path, source.params, step=3000, optimizer=slots)
  state, partitioner = wanted
  arguments = [state, partitioner, str(tmp_path)]
  if reader == "OrbaxCheckpointManagerInterface":
    arguments = [str(tmp_path), state, partitioner]
  restored = getattr(checkpoints, reader)(*arguments).restore(step=3000)
  check(restored, source)


def test_t5x_reads_ours(source, wanted, golden_config, tmp_path):
  orbax_io.save(
    tmp_path / "checkpoint_3000",
    source.params,
    golden_config,
    step=3000,
    slots=source.optimizer,
    opt_state={"count": np.zeros((), np.int32)},
  )
  manager = checkpoints.OrbaxCheckpointManagerInterface(str(tmp_path), *wanted)
  check(manager.restore(step=3000), source)
