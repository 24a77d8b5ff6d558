"""T5X itself reads what is written here; runs only where T5X is installed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.checkpoints import load, orbax_io, t5x_native

pytestmark = pytest.mark.needs_tf
checkpoints = pytest.importorskip("t5x.checkpoints")


@pytest.fixture(scope="module")
def source(golden):
  return load(golden / "t5x_native", optimizer=True)


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
  jax.tree.map(np.testing.assert_array_equal, state["target"], source.params)

  def slots(tree):
    if "v_row" in tree:
      return {name: tree[name] for name in ("v_row", "v_col", "v")}
    return {name: slots(value) for name, value in tree.items()}

  jax.tree.map(
    np.testing.assert_array_equal,
    slots(state["state"]["param_states"]),
    slots(source.optimizer),
  )


@pytest.mark.parametrize(
  "reader", ["Checkpointer", "OrbaxCheckpointManagerInterface"]
)
def test_t5x_reads_our_native_files(source, wanted, tmp_path, reader):
  t5x_native.save(
    tmp_path / "checkpoint_3000",
    source.params,
    step=3000,
    optimizer=source.optimizer,
  )
  state, partitioner = wanted
  if reader == "Checkpointer":
    made = checkpoints.Checkpointer(state, partitioner, str(tmp_path))
  else:
    made = checkpoints.OrbaxCheckpointManagerInterface(
      str(tmp_path), state, partitioner
    )
  check(made.restore(step=3000), source)


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
