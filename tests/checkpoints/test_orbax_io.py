"""Ours through Orbax: written whole, read by us and by Orbax and T5X's way."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from speccascade.checkpoints import CheckpointError, load, orbax_io, restore


@pytest.fixture(scope="module")
def written(tmp_path_factory, golden, golden_config):
  """A checkpoint of ours with Adafactor's slots and optax's state."""
  source = load(golden / "t5x_native", optimizer=True)
  optimizer = optax.chain(optax.clip(1.0), optax.adamw(1e-3))
  state = optimizer.init(source.params)
  state = jax.tree.map(lambda x: x + jnp.ones((), x.dtype), state)
  path = tmp_path_factory.mktemp("run") / "checkpoint_3000"
  orbax_io.save(
    path,
    source.params,
    golden_config,
    step=3000,
    opt_state=state,
    slots=source.optimizer,
  )
  return path, source, state


def same(a, b):
  return jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.all(
    jax.tree.map(np.array_equal, a, b)
  )


def test_reads_back(written):
  path, source, state = written
  checkpoint = load(path, optimizer=True)
  assert checkpoint.layout == "speccascade"
  assert same(checkpoint.params, source.params)
  assert same(checkpoint.optimizer, source.optimizer)
  # Shapes alone are enough to resume.
  for like in (state, jax.eval_shape(lambda: state)):
    again = orbax_io.read_opt_state(path, like)
    assert same(again, state)
    dtypes = lambda tree: jax.tree.map(lambda leaf: leaf.dtype, tree)
    assert dtypes(again) == dtypes(state)


def test_plain_orbax_reads_ours_as_it_reads_t5xs(written, golden):
  """The tree that T5X's Orbax reader looks for, nothing more."""
  path, *_ = written
  trees = []
  for step in (path, golden / "t5x_orbax" / "checkpoint_3000"):
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
      metadata = reader.metadata(step / "state").item_metadata.tree
      trees.append(
        reader.restore(
          step / "state",
          args=ocp.args.PyTreeRestore(
            restore_args=jax.tree.map(
              lambda _: ocp.RestoreArgs(restore_type=np.ndarray), metadata
            )
          ),
        )
      )
  assert same(*trees)


def test_another_optimizer_is_refused(written):
  path, source, state = written
  with pytest.raises(CheckpointError, match=r"other arrays than the optimizer"):
    orbax_io.read_opt_state(path, optax.sgd(1e-3, 0.9).init(source.params))
  halves = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state)
  with pytest.raises(CheckpointError, match=r"has shape and dtype"):
    orbax_io.read_opt_state(path, halves)


def test_no_opt_state(golden_params, golden_config, tmp_path):
  orbax_io.save(tmp_path / "checkpoint_1", golden_params, golden_config, step=1)
  with pytest.raises(CheckpointError, match="saved without opt_state"):
    orbax_io.read_opt_state(tmp_path / "checkpoint_1", {})
  assert load(tmp_path, optimizer=True).optimizer is None
  with pytest.raises(CheckpointError, match="exists already"):
    orbax_io.save(
      tmp_path / "checkpoint_1", golden_params, golden_config, step=1
    )


def test_params_of_another_config_are_not_written(
  golden_params, golden_config, tmp_path
):
  other = dataclasses.replace(golden_config, mlp_dim=8)
  with pytest.raises(CheckpointError, match=r"\[32, 64\].*\[32, 8\]"):
    orbax_io.save(tmp_path / "checkpoint_1", golden_params, other, step=1)
  assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_is_not_seen(
  golden_params, golden_config, tmp_path, monkeypatch
):
  def fail(*args, **kwargs):
    raise OSError("disk full")

  orbax_io.save(tmp_path / "checkpoint_1", golden_params, golden_config, step=1)
  with monkeypatch.context() as patch:
    patch.setattr(ocp.JsonCheckpointHandler, "_save_fn", fail)
    with pytest.raises(OSError, match="disk full"):
      orbax_io.save(
        tmp_path / "checkpoint_2", golden_params, golden_config, step=2
      )
  assert not (tmp_path / "checkpoint_2").exists()
  assert restore.steps(tmp_path) == [1]
  # A killed process leaves Orbax's temporary directory behind.
  leftovers = [p.name for p in tmp_path.iterdir() if "tmp" in p.name]
  assert all(name != "checkpoint_2" for name in leftovers)
  assert load(tmp_path).step == 1


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


# -------------------------------- faults --------------------------------------


@pytest.mark.parametrize("size", [0, 100])
@pytest.mark.parametrize(
  "name", ["state/_METADATA", "state/manifest.ocdbt", "state/d"]
)
def test_truncated_files_are_named(copy_of, name, size):
  path = copy_of("t5x_orbax") / "checkpoint_3000"
  file = path / name
  if file.is_dir():
    (file,) = file.iterdir()
  file.write_bytes(file.read_bytes()[:size])
  with pytest.raises(CheckpointError) as error:
    load(path)
  assert str(file) in str(error.value)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("state/manifest.ocdbt", r"state/manifest\.ocdbt is missing"),
    ("state/d", r"of local file \".*/state/d/\w+\""),
    # OCDBT reads a file that is not there as an empty one.
    (
      "state/ocdbt.process_0/d",
      r"array target/\S+ of .*/checkpoint_3000/state",
    ),
  ],
)
def test_missing_files(copy_of, name, message):
  path = copy_of("t5x_orbax") / "checkpoint_3000"
  file = path / name
  for each in file.iterdir() if file.is_dir() else [file]:
    each.unlink()
  with pytest.raises(CheckpointError, match=message):
    load(path)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"version": 2}, "of version 2"),
    ({"config": {"layers": 3}}, r"cannot be parsed.*layers"),
    ({"format": "other"}, "has format 'other'"),
    (None, r"metadata\.json cannot be parsed"),
  ],
)
def test_metadata_faults(
  golden_params, golden_config, tmp_path, changes, message
):
  path = tmp_path / "checkpoint_1"
  orbax_io.save(path, golden_params, golden_config, step=1)
  file = path / orbax_io.METADATA
  text = '{"format": "specc'
  if changes is not None:
    text = json.dumps(json.loads(file.read_text()) | changes)
  file.write_text(text)
  with pytest.raises(CheckpointError, match=message):
    load(path)


def test_other_orbax_trees_are_refused(tmp_path):
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as saver:
    saver.save(tmp_path / "a" / "state", {"weights": np.ones(2)})
  with pytest.raises(CheckpointError, match=r"starts with \['weights'\]"):
    load(tmp_path / "a")


def test_orbax_without_ocdbt(golden_params, tmp_path, manifest, hashes):
  tree = {"target": golden_params, "state": {"step": np.int32(5)}}
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as saver:
    saver.save(tmp_path / "a" / "state", tree)
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_zarr3=True)) as saver:
    saver.save(tmp_path / "b" / "state", tree)
  for name in ("a", "b"):
    checkpoint = load(tmp_path / name)
    assert checkpoint.step == 5
    assert hashes(checkpoint.params) == manifest


def test_vocabulary_identity_of_nothing(tmp_path):
  with pytest.raises(FileNotFoundError, match="no vocabulary model at"):
    orbax_io.vocabulary_identity(tmp_path / "v.model")
