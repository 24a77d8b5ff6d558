"""Checkpoints of this package, and those that T5X writes through Orbax.

A step directory of ours, written by Orbax and so whole or not at all:

  checkpoint_<step>/
    state/       {"target": params, "state": {"step"[, "param_states"]}}, the
                 tree of T5X's own Orbax checkpoints
    opt_state/   any pytree of arrays (optax's state), where one was given
    metadata/    metadata.json: format, version, architecture, vocabulary

Orbax writes. Reading opens the arrays with tensorstore, as Orbax does inside:
the same code then serves local paths and `gs://` without further packages, it
does not ask for the devices of the run that saved, and an error names an array
in one line (Orbax's restore of a damaged file logs tracebacks of its tasks).
"""

import ast
from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import os
import pathlib
from typing import Any

import numpy as np

from speccascade.checkpoints import storage, stored_arrays
from speccascade.checkpoints.architecture import check_params
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models.t5.config import T5Config

FORMAT = "speccascade"
VERSION = 1
METADATA = "metadata/metadata.json"
STEP_PREFIX = "checkpoint"


def vocabulary_identity(path: str | os.PathLike) -> dict[str, str]:
  """Returns what tells a vocabulary apart: its path and its model's SHA-256."""
  path = os.fspath(path)
  folder, name = os.path.split(path)
  model = storage.Directory(folder or ".").read(name)
  if model is None:
    raise CheckpointNotFoundError(f"no vocabulary model at {path}")
  return {"path": path, "sha256": hashlib.sha256(model).hexdigest()}


def save(path: str | os.PathLike, *args, **kwargs) -> None:
  """Writes one step directory, whole or not at all.

  Args:
    path: the directory to make, e.g. `MODEL_DIR/checkpoint_3000`.
    *args: as in `save_args`.
    **kwargs: as there.

  Raises:
    CheckpointError: the path is taken, or params do not fit the config.
  """
  import orbax.checkpoint as ocp

  directory = storage.Directory(path)
  directory.refuse_existing()
  with ocp.Checkpointer(ocp.CompositeCheckpointHandler(**_handlers())) as saver:
    saver.save(directory.url, args=save_args(*args, **kwargs))


def save_args(
  params: Mapping,
  config: T5Config,
  *,
  step: int,
  opt_state: Any = None,
  slots: Mapping | None = None,
  vocabulary: Mapping[str, str] | None = None,
  extra: Mapping[str, Any] | None = None,
):
  """Returns what `manager(...).save(step, args=...)` takes.

  Args:
    params: nested dict of arrays in T5X's names.
    config: the architecture, checked against `params`.
    step: training steps taken.
    opt_state: pytree of arrays, given back by `read_opt_state`.
    slots: Adafactor's `{"v_row", "v_col", "v"}` per parameter, as in
      `Checkpoint.optimizer`; T5X and `load(..., optimizer=True)` read them.
    vocabulary: from `vocabulary_identity`.
    extra: JSON values, given back in `Checkpoint.extra`.
  """
  import orbax.checkpoint as ocp

  check_params(params, config, where="to be written")
  state = {"step": np.asarray(step, np.int32)}
  if slots is not None:
    state["param_states"] = stored_arrays.with_momentum(slots)
  metadata = {
    "format": FORMAT,
    "version": VERSION,
    "step": int(step),
    "config": dataclasses.asdict(config),
    "vocabulary": dict(vocabulary) if vocabulary else None,
    "extra": dict(extra or {}),
  }
  items = {
    "state": ocp.args.PyTreeSave({"target": dict(params), "state": state}),
    "metadata": ocp.args.JsonSave(metadata),
  }
  if opt_state is not None:
    items["opt_state"] = ocp.args.PyTreeSave(opt_state)
  return ocp.args.Composite(**items)


def manager(
  model_dir: str | os.PathLike,
  *,
  keep_latest: int = 1,
  metric: str | None = None,
  best_mode: str = "max",
):
  """Returns Orbax's CheckpointManager of a run directory.

  Its steps are what `save` writes: `manager.save(step, args=save_args(...),
  metrics={"bleu": ...})`. It writes in the caller's thread, so that a step is
  on disk when `save` returns.

  Args:
    model_dir: holds the `checkpoint_<step>` directories; made when absent.
    keep_latest: how many of the latest steps to keep.
    metric: the metric by which the best step is kept beside them, or None.
    best_mode: "max" or "min".
  """
  import orbax.checkpoint as ocp

  policies = ocp.checkpoint_managers
  value = (lambda metrics: metrics[metric]) if metric else None
  best = policies.BestN(
    get_metric_fn=value,
    reverse=best_mode == "min",
    n=1,
    keep_checkpoints_without_metrics=False,
  )
  latest = policies.LatestN(keep_latest)
  keep = policies.AnyPreservationPolicy([latest, best] if metric else [latest])
  return ocp.CheckpointManager(
    storage.Directory(model_dir).url,
    options=ocp.CheckpointManagerOptions(
      step_prefix=STEP_PREFIX,
      create=True,
      best_fn=value,
      best_mode=best_mode,
      preservation_policy=keep,
      enable_async_checkpointing=False,
    ),
    item_handlers=_handlers(),
  )


def _handlers() -> dict:
  import orbax.checkpoint as ocp

  return {
    "state": ocp.PyTreeCheckpointHandler(),
    "opt_state": ocp.PyTreeCheckpointHandler(),
    "metadata": ocp.JsonCheckpointHandler(pathlib.Path(METADATA).name),
  }


def read_metadata(directory: storage.Directory) -> dict:
  """Returns metadata.json of a step directory of ours.

  Raises:
    CheckpointError: it cannot be parsed, or is of a later version.
  """
  where = f"{directory}/{METADATA}"

  def parse(metadata: dict) -> dict:
    if metadata["format"] != FORMAT:
      raise CheckpointError(
        f"{where} has format {metadata['format']!r}, want {FORMAT!r}"
      )
    if metadata["version"] > VERSION:
      raise CheckpointError(
        f"{where} is of version {metadata['version']}; this package reads up "
        f"to {VERSION}: install a later one"
      )
    return metadata | {"config": T5Config(**metadata["config"])}

  return directory.read_json(METADATA, parse)


def read(
  directory: storage.Directory, *, optimizer: bool = False
) -> tuple[dict, int, dict | None]:
  """Returns (params, step, Adafactor slots or None) of a step directory.

  Args:
    directory: holds `state/_METADATA`.
    optimizer: read the slots too.
  """
  item = directory / "state"
  index = _index(item)
  specs = {
    name: spec
    for name, spec in index.items()
    if stored_arrays.is_wanted(name, optimizer)
  }
  folders = sorted({name.partition("/")[0] for name in index})
  if "target" not in folders:
    raise CheckpointError(
      f"{item}/_METADATA lists no 'target': it is no T5X-like train state, its "
      f"tree starts with {folders}"
    )
  if "state/step" not in specs:
    raise CheckpointError(f"{item}/_METADATA lists no 'state/step'")
  values = stored_arrays.read_all(specs, where=str(item))
  return stored_arrays.train_state(values, where=str(item))


def read_opt_state(path: str | os.PathLike, like: Any) -> Any:
  """Returns the `opt_state` that `save` was given.

  Args:
    path: the step directory.
    like: pytree of arrays or ShapeDtypeStructs, e.g. `optimizer.init(params)`.

  Returns:
    A pytree with the structure of `like` and numpy arrays.

  Raises:
    CheckpointError: it holds none, or another structure, shape or dtype, as
      after a change of optimizer.
  """
  import jax

  item = storage.Directory(path) / "opt_state"
  if not item.has("_METADATA"):
    raise CheckpointError(f"{item.url} is not there: saved without opt_state")
  index = _index(item)
  leaves, structure = jax.tree_util.tree_flatten_with_path(like)
  name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
  wanted = {name(path): leaf for path, leaf in leaves}
  if odd := sorted(wanted.keys() ^ index.keys()):
    raise CheckpointError(
      f"{item} has other arrays than the optimizer ({odd[0]} among "
      f"{len(odd)}): resume with the optimizer that the run began with"
    )
  values = stored_arrays.read_all(index, where=str(item))
  for name, leaf in wanted.items():
    got = (values[name].shape, values[name].dtype)
    want = (tuple(leaf.shape), np.dtype(leaf.dtype))
    if got != want:
      raise CheckpointError(
        f"{item}: {name} has shape and dtype {got}, the optimizer wants "
        f"{want}: resume with the optimizer that the run began with"
      )
  return structure.unflatten([values[name] for name in wanted])


def _index(item: storage.Directory) -> dict[str, dict]:
  """Returns the tensorstore spec of each array of an Orbax pytree."""

  def parse(metadata: dict) -> tuple:
    return metadata, [
      ast.literal_eval(path)
      for path, entry in metadata["tree_metadata"].items()
      if not entry["value_metadata"].get("skip_deserialize")
    ]

  metadata, paths = item.read_json("_METADATA", parse)
  manifest = "manifest.ocdbt"
  is_ocdbt = metadata.get("use_ocdbt", item.has(manifest))
  if is_ocdbt and not item.has(manifest):
    raise CheckpointNotFoundError(f"{item}/{manifest} is missing")
  driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
  specs = {}
  for path in paths:
    kvstore = (item / ".".join(path)).kvstore()
    if is_ocdbt:
      base = item.kvstore()
      kvstore = {"driver": "ocdbt", "base": base, "path": ".".join(path) + "/"}
    specs["/".join(path)] = {"driver": driver, "kvstore": kvstore}
  return specs
