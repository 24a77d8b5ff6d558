"""Writes this package's checkpoints, and reads them, by Orbax too."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from speccascade.checkpoints import (
  CheckpointError,
  adafactor_slots,
  architecture,
  load,
  orbax_io,
  restore,
)
from tests.checkpoints.conftest import hashes, same


@pytest.fixture(scope="module")
def state(source):
  """A state of optax, with other numbers than it starts with."""
  optimizer = optax.chain(optax.clip(1.0), optax.adamw(1e-3))
  return jax.tree.map(
    lambda leaf: leaf + jnp.ones((), leaf.dtype), optimizer.init(source.params)
  )


@pytest.fixture(scope="module")
def saved(tmp_path_factory, source, golden_config, state):
  """A checkpoint of ours with Adafactor's slots and optax's state."""
  path = tmp_path_factory.mktemp("run") / "checkpoint_3000"
  vocabulary = path.with_name("v.model")
  vocabulary.write_bytes(b"pieces")
  orbax_io.save(
    path,
    source.params,
    golden_config,
    step=3000,
    opt_state=state,
    slots=source.optimizer,
    vocabulary=orbax_io.vocabulary_identity(vocabulary),
    extra={"examples": 12},
  )
  return path


@pytest.fixture
def save(golden_params, golden_config, tmp_path):
  """Returns a function that writes a step of a run; it returns its path."""

  def call(step, config=golden_config, **more):
    path = tmp_path / f"checkpoint_{step}"
    orbax_io.save(path, golden_params, config, step=step, **more)
    return path

  return call


def test_reads_back(saved, source, state, golden_config):
  checkpoint = load(saved, optimizer=True)
  assert (checkpoint.layout, checkpoint.step) == ("speccascade", 3000)
  assert checkpoint.config == golden_config
  assert checkpoint.extra == {"examples": 12}
  # printf pieces | sha256sum
  digest = "b6aa423de4f79355751cdf73a26b069d5da4c248288cb8bdafc8f552f0adfc44"
  path = str(saved.with_name("v.model"))
  assert checkpoint.vocabulary == {"path": path, "sha256": digest}
  same(checkpoint.params, source.params)
  same(checkpoint.optimizer, source.optimizer)
  # Shapes alone are enough to resume.
  for like in (state, jax.eval_shape(lambda: state)):
    again = orbax_io.read_opt_state(saved, like)
    same(again, state)
    dtypes = lambda tree: jax.tree.map(lambda leaf: leaf.dtype, tree)
    assert dtypes(again) == dtypes(state)


def test_plain_orbax_reads_ours_as_it_reads_t5xs(saved, golden):
  """The tree that T5X's Orbax reader looks for, nothing more."""
  trees = []
  for step in (saved, golden / "t5x_orbax" / "checkpoint_3000"):
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
      metadata = reader.metadata(step / "state").item_metadata.tree
      as_numpy = lambda _: ocp.RestoreArgs(restore_type=np.ndarray)
      args = ocp.args.PyTreeRestore(
        restore_args=jax.tree.map(as_numpy, metadata)
      )
      trees.append(reader.restore(step / "state", args=args))
  same(*trees)


@pytest.mark.parametrize("writer", ["save", "manager"])
def test_our_arrays_open_as_t5x_opens_them(
  source, golden_config, tmp_path, writer
):
  """T5X takes each array for zarr in OCDBT, and a missing chunk for damage."""
  import tensorstore as ts

  how = {"step": 3000, "slots": source.optimizer}
  step = tmp_path / "checkpoint_3000"
  if writer == "save":
    orbax_io.save(step, source.params, golden_config, **how)
  else:
    with orbax_io.manager(tmp_path) as manager:
      args = orbax_io.save_args(source.params, golden_config, **how)
      manager.save(3000, args=args)
  assert ocp.type_handlers.is_ocdbt_checkpoint(step / "state")
  slots = adafactor_slots.with_momentum(source.optimizer)
  state = {"step": np.int32(3000), "param_states": slots}
  tree = {"target": source.params, "state": state}
  for name, wanted in architecture.flatten(tree).items():
    kvstore = {
      "driver": "ocdbt",
      "base": {"driver": "file", "path": f"{step / 'state'}/"},
      "path": f"{name.replace('/', '.')}/",
    }
    spec = {
      "driver": "zarr",
      "kvstore": kvstore,
      "fill_missing_data_reads": False,
    }
    array = ts.open(spec, open=True).result()
    same(array.read().result(), wanted)
    assert array.dtype.numpy_dtype == np.asarray(wanted).dtype
    # What has a checksum that this way of reading compares.
    assert array.codec.to_json()["compressor"]["id"] == "gzip"


@pytest.mark.parametrize("slot", ["v", "v_row", "v_col"])
def test_a_chunk_of_a_slot_that_is_missing_is_damage(source, save, slot):
  # T5X leaves out chunks of zeros. Here every chunk is written.
  path = save(1, slots=jax.tree.map(np.zeros_like, source.optimizer))
  same(
    load(path, optimizer=True).optimizer["decoder"]["decoder_norm"],
    {
      "scale": {
        x: np.zeros_like(y)
        for x, y in source.optimizer["decoder"]["decoder_norm"]["scale"].items()
      }
    },
  )
  arrays, _ = restore.open_arrays(*restore.resolve(path), optimizer=True)
  store = arrays.arrays[
    f"state/param_states/decoder/decoder_norm/scale/{slot}"
  ].kvstore
  [chunk] = [key for key in store.list().result() if b"zarr" not in key]
  del store[chunk]
  with pytest.raises(CheckpointError, match=f"scale/{slot} .*missing"):
    load(path, optimizer=True)
  load(path)


def test_another_optimizer_is_refused(saved, source, state, save):
  with pytest.raises(CheckpointError, match=r"other arrays than the optimizer"):
    orbax_io.read_opt_state(saved, optax.sgd(1e-3, 0.9).init(source.params))
  halves = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state)
  with pytest.raises(CheckpointError, match=r"has shape and dtype"):
    orbax_io.read_opt_state(saved, halves)
  path = save(1)
  with pytest.raises(CheckpointError, match="saved without opt_state"):
    orbax_io.read_opt_state(path, {})
  assert load(path, optimizer=True).optimizer is None


def test_what_is_not_written(save, golden_config, tmp_path):
  other = dataclasses.replace(golden_config, mlp_dim=8)
  with pytest.raises(CheckpointError, match=r"\[32, 64\].*\[32, 8\]"):
    save(1, other)
  assert list(tmp_path.iterdir()) == []
  save(1)
  with pytest.raises(CheckpointError, match="exists already"):
    save(1)


@pytest.mark.parametrize(
  ("mode", "values", "best"),
  [("max", (5.0, 9.0, 7.0, 6.0), 2), ("min", (2.0, 1.0, 3.0), 2)],
)
def test_manager_keeps_the_latest_and_the_best(
  golden_params, golden_config, tmp_path, mode, values, best
):
  with orbax_io.manager(tmp_path, metric="x", best_mode=mode) as manager:
    for step, value in enumerate(values, 1):
      args = orbax_io.save_args(golden_params, golden_config, step=step)
      manager.save(step, args=args, metrics={"x": value})
    assert manager.best_step() == best
  assert restore.steps(tmp_path) == [best, len(values)]
  assert load(tmp_path).step == len(values)
  # As a resumed run does.
  with orbax_io.manager(tmp_path, metric="x", best_mode=mode) as manager:
    assert (manager.latest_step(), manager.best_step()) == (len(values), best)


def test_other_orbax_trees_are_refused(tmp_path):
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as saver:
    saver.save(tmp_path / "a" / "state", {"weights": np.ones(2)})
  with pytest.raises(CheckpointError, match=r"starts with \['weights'\]"):
    load(tmp_path / "a")


@pytest.mark.parametrize("kind", ["use_ocdbt", "use_zarr3"])
def test_other_kinds_of_arrays(golden_params, tmp_path, manifest, kind):
  handler = ocp.PyTreeCheckpointHandler(**{kind: kind == "use_zarr3"})
  with ocp.Checkpointer(handler) as saver:
    tree = {"target": golden_params, "state": {"step": np.int32(5)}}
    saver.save(tmp_path / "state", tree)
  checkpoint = load(tmp_path)
  assert checkpoint.step == 5
  assert hashes(checkpoint.params) == manifest
