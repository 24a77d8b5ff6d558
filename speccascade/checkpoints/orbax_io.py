"""Writes and reads this package's checkpoints, and reads T5X's Orbax layout.

Orbax writes a step directory of this package, whole or not at all:

  checkpoint_<step>/
    state/       {"target": params, "state": {"step"[, "param_states"]}}, the
                 tree of T5X's own Orbax checkpoints
    opt_state/   any pytree of arrays (the state of optax), if one was saved
    metadata/    metadata.json, see `step_metadata`

Arrays are stored as T5X stores them, as zarr in OCDBT, and each chunk has a
checksum (`array_writer`). Arrays of zarr3, Orbax's other format, are read too.

Reading opens the arrays with tensorstore, as Orbax does inside. So the same
code reads local paths and `gs://` without further packages, does not need the
devices of the run that saved, and names a damaged array in one line. Orbax's
own restore of a damaged file logs the tracebacks of its tasks.
"""

import ast
from collections.abc import Callable, Mapping
import functools
import hashlib
import itertools
import operator
import os
import pathlib
from typing import Any

import jax
from jax.sharding import NamedSharding
import numpy as np

from speccascade.checkpoints import (
  adafactor_slots,
  architecture,
  hub,
  step_metadata,
  storage,
  stored_arrays,
)
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models.parameters import Config
from speccascade.models.sharding import partitioning

STEP_PREFIX = "checkpoint"


def vocabulary_identity(path: str | os.PathLike) -> dict[str, str]:
  """Returns {"path", "sha256"} of a SentencePiece model.

  The SHA-256 identifies the vocabulary; the path says where it was.
  """
  model = storage.read_vocabulary(path)
  sha256 = hashlib.sha256(model).hexdigest()
  return {"path": hub.recorded(os.fspath(path)), "sha256": sha256}


def save(path: str | os.PathLike, *args, **kwargs) -> None:
  """Writes one step directory, whole or not at all.

  Args:
    path: the directory to create, e.g. `MODEL_DIR/checkpoint_3000`.
    *args: arguments of `save_args`.
    **kwargs: arguments of `save_args`.

  Raises:
    CheckpointError: something exists at the path, or the parameters do not fit
      the config.
  """
  import orbax.checkpoint as ocp

  directory = storage.Directory(path)
  directory.refuse_existing()
  with ocp.Checkpointer(ocp.CompositeCheckpointHandler(**_handlers())) as saver:
    saver.save(directory.url, args=save_args(*args, **kwargs))


def save_args(
  params: Mapping,
  config: Config,
  *,
  step: int,
  opt_state: Any = None,
  slots: Mapping | None = None,
  vocabulary: Mapping[str, str] | None = None,
  extra: Mapping[str, Any] | None = None,
):
  """Returns the `args` of `manager(...).save(step, args=...)`.

  Arrays that lie on a mesh are written shard by shard.

  Args:
    params: nested dict of arrays in T5X's names.
    config: the architecture, checked against `params`.
    step: training steps taken.
    opt_state: pytree of arrays; `read_opt_state` returns it.
    slots: Adafactor's `{"v_row", "v_col", "v"}` for each parameter, as in
      `Checkpoint.optimizer`. T5X and `load(..., optimizer=True)` read them.
    vocabulary: the vocabulary, as `vocabulary_identity` returns it.
    extra: JSON values; `Checkpoint.extra` has them after reading.

  Raises:
    CheckpointError: the parameters do not fit the config.
  """
  import orbax.checkpoint as ocp

  architecture.check_params(params, config, where="to be written")
  state = {"step": np.asarray(step, np.int32)}
  if slots is not None:
    state["param_states"] = adafactor_slots.with_momentum(slots)
  trees = {"state": {"target": dict(params), "state": state}}
  if opt_state is not None:
    trees["opt_state"] = opt_state
  items = {item: ocp.args.PyTreeSave(tree) for item, tree in trees.items()}
  metadata = step_metadata.of(
    config, step=step, vocabulary=vocabulary, extra=extra
  )
  return ocp.args.Composite(metadata=ocp.args.JsonSave(metadata), **items)


def manager(
  model_dir: str | os.PathLike,
  *,
  keep_latest: int = 1,
  metric: str | None = None,
  best_mode: str = "max",
):
  """Returns Orbax's CheckpointManager of a run directory.

  `manager.save(step, args=save_args(...), metrics={"bleu": ...})` writes the
  step directory that `save` of this module writes. It writes in the caller's
  thread: when it returns, the step is on the disk.

  Args:
    model_dir: directory of the `checkpoint_<step>` directories; it is created
      if it does not exist.
    keep_latest: how many of the latest steps stay on the disk.
    metric: the metric whose best step stays on the disk too, or None.
    best_mode: "max" if a larger metric is better, "min" if a smaller one is.
  """
  from etils import epath
  import orbax.checkpoint as ocp

  policies = ocp.checkpoint_managers
  preserved, metric_value = [policies.LatestN(keep_latest)], None
  if metric:
    metric_value = operator.itemgetter(metric)
    best = policies.BestN(
      get_metric_fn=metric_value,
      reverse=best_mode == "min",
      n=1,
      keep_checkpoints_without_metrics=False,
    )
    preserved.append(best)
  url = storage.Directory(model_dir).url
  epath.Path(url).mkdir(parents=True, exist_ok=True)
  return ocp.CheckpointManager(
    url,
    options=ocp.CheckpointManagerOptions(
      step_prefix=STEP_PREFIX,
      create=False,
      multiprocessing_options=_first_process(),
      best_fn=metric_value,
      best_mode=best_mode,
      preservation_policy=policies.AnyPreservationPolicy(preserved),
      enable_async_checkpointing=False,
    ),
    item_handlers=_handlers(),
  )


def _handlers() -> dict:
  """Returns Orbax's handler of each item of a step directory."""
  import orbax.checkpoint as ocp

  from speccascade.checkpoints import array_writer

  tree = functools.partial(
    ocp.PyTreeCheckpointHandler,
    use_zarr3=False,
    type_handler_registry=array_writer.registry(),
    multiprocessing_options=_first_process(),
  )
  return {
    "state": tree(),
    "opt_state": tree(),
    "metadata": ocp.JsonCheckpointHandler(
      pathlib.Path(step_metadata.METADATA).name,
      multiprocessing_options=_first_process(),
    ),
  }


def _first_process():
  """Returns options by which only a job's first process writes: it has all."""
  import orbax.checkpoint as ocp

  return ocp.options.MultiprocessingOptions(
    primary_host=0,
    active_processes={0},
    barrier_sync_key_prefix=step_metadata.FORMAT,
  )


def open_arrays(
  directory: storage.Directory,
  *,
  optimizer: bool,
) -> stored_arrays.StoredArrays:
  """Opens the arrays of a train state.

  Args:
    directory: the step directory, which holds `state/_METADATA`.
    optimizer: whether to open the optimizer's slots too.

  Raises:
    CheckpointError: a file or array is damaged or missing. The message names
      it.
  """
  is_wanted = lambda name: stored_arrays.is_wanted(name, optimizer)
  state = open_item(directory, "state", is_wanted)
  if not any(name.startswith("target/") for name in state.arrays):
    folders = sorted({x.partition("/")[0] for x in _index(directory / "state")})
    raise CheckpointError(
      f"{state.where}/_METADATA lists no 'target': it is not a T5X-like train "
      f"state, its tree starts with {folders}"
    )
  if "state/step" not in state.arrays:
    raise CheckpointError(f"{state.where}/_METADATA lists no 'state/step'")
  return state


def read_opt_state(path: str | os.PathLike, like: Any) -> Any:
  """Returns the `opt_state` that was saved in a step directory.

  Args:
    path: the step directory.
    like: pytree of arrays or ShapeDtypeStructs, e.g. `optimizer.init(params)`.

  Returns:
    A pytree with the structure of `like`. Its leaves are NumPy's arrays. If the
    leaves of `like` lie on a mesh, the leaves of the result lie on it in the
    same way, and are read part by part.

  Raises:
    CheckpointError: the directory has no `opt_state`, or one with another
      structure, shape or dtype, as after a change of the optimizer.
  """
  directory = storage.Directory(path)
  item = directory / "opt_state"
  if not item.has("_METADATA"):
    raise CheckpointError(f"{item.url} is not there: saved without opt_state")
  state = open_item(directory, "opt_state")
  wanted, structure = _leaves_by_name(like)
  if odd := sorted(wanted.keys() ^ state.arrays.keys()):
    raise CheckpointError(
      f"{item} has other arrays than the optimizer ({odd[0]} among "
      f"{len(odd)}): resume with the optimizer that the run began with"
    )
  for name, leaf in wanted.items():
    stored_kind = (state.arrays[name].shape, state.dtype(name))
    wanted_kind = (tuple(leaf.shape), np.dtype(leaf.dtype))
    if stored_kind != wanted_kind:
      raise CheckpointError(
        f"{item}: {name} has shape and dtype {stored_kind}, the optimizer wants"
        f" {wanted_kind}: resume with the optimizer that the run began with"
      )
  shardings = [getattr(leaf, "sharding", None) for leaf in wanted.values()]
  if not all(isinstance(sharding, NamedSharding) for sharding in shardings):
    return structure.unflatten(state.read(wanted).values())
  return structure.unflatten(
    partitioning.put(state.unread(name), sharding, state.dtype(name))
    for name, sharding in zip(wanted, shardings)
  )


def open_item(
  directory: storage.Directory,
  name: str,
  is_wanted: Callable[[str], bool] = lambda name: True,
) -> stored_arrays.StoredArrays:
  """Opens the arrays of an item of a step directory.

  Args:
    directory: the step directory.
    name: "state" or "opt_state".
    is_wanted: a function from the name of an array to whether it is opened.
  """
  item = directory / name
  item.check_files()
  return stored_arrays.StoredArrays.open(
    str(item),
    {key: spec for key, spec in _index(item).items() if is_wanted(key)},
  )


def _leaves_by_name(tree) -> tuple[dict, Any]:
  """Returns the leaves of a pytree by Orbax's names, and its structure."""
  leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
  named = {
    jax.tree_util.keystr(path, simple=True, separator="/"): leaf
    for path, leaf in leaves
  }
  return named, structure


def _index(item: storage.Directory) -> dict[str, dict]:
  """Returns the tensorstore spec of each array of an Orbax pytree."""

  def parse(metadata: dict) -> tuple:
    paths = [
      ast.literal_eval(path)
      for path, entry in metadata["tree_metadata"].items()
      if not entry["value_metadata"].get("skip_deserialize")
    ]
    # A damaged or hostile file must not name files outside the checkpoint.
    for name in itertools.chain.from_iterable(paths):
      if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r:.60} names no array")
    # This raises if one array is inside another one.
    architecture.unflatten({"/".join(path): path for path in paths})
    return metadata, paths

  metadata, paths = item.read_json("_METADATA", parse)
  manifest = "manifest.ocdbt"
  is_ocdbt = metadata.get("use_ocdbt", item.has(manifest))
  if is_ocdbt and not item.has(manifest):
    raise CheckpointNotFoundError(f"{item}/{manifest} is missing")
  common = {"driver": "zarr3" if metadata.get("use_zarr3") else "zarr"}
  # Then chunks of zeros are stored too, so that a missing chunk is damage.
  if metadata.get("store_array_data_equal_to_fill_value"):
    common["fill_missing_data_reads"] = False
  specs = {}
  for path in paths:
    kvstore = (item / ".".join(path)).kvstore()
    if is_ocdbt:
      base = item.kvstore()
      kvstore = {"driver": "ocdbt", "base": base, "path": ".".join(path) + "/"}
    specs["/".join(path)] = common | {"kvstore": kvstore}
  return specs
