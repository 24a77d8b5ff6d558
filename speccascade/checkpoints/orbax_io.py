"""Checkpoints of this package, and those that T5X writes through Orbax.

A step directory of ours, written by Orbax and so whole or not at all:

  checkpoint_<step>/
    state/       {"target": params, "state": {"step"[, "param_states"]}}, the
                 tree of T5X's own Orbax checkpoints
    opt_state/   any pytree of arrays (optax's state), where one was given
    metadata/    metadata.json: format, version, kind, architecture,
                 vocabulary, checksums of the chunks of both, and one of itself

Orbax writes. Reading opens the arrays with tensorstore, as Orbax does inside:
the same code then serves local paths and `gs://` without further packages, it
does not ask for the devices of the run that saved, and an error names an array
in one line (Orbax's restore of a damaged file logs tracebacks of its tasks).
"""

import ast
from collections.abc import Callable, Mapping
import dataclasses
import functools
import hashlib
import os
import pathlib
from typing import Any

import jax
from jax.sharding import NamedSharding
import numpy as np

from speccascade.checkpoints import architecture, chunks, storage, stored_arrays
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import Config
from speccascade.models.sharding import partitioning
from speccascade.models.t5.config import T5Config
from speccascade.settings import fields

FORMAT = "speccascade"
VERSION = 1
METADATA = "metadata/metadata.json"
KINDS = {"t5": T5Config, "llama": LlamaConfig}
STEP_PREFIX = "checkpoint"


def vocabulary_identity(path: str | os.PathLike) -> dict[str, str]:
  """Returns what tells a vocabulary apart: its path and its model's SHA-256."""
  model = storage.read_vocabulary(path)
  sha256 = hashlib.sha256(model).hexdigest()
  return {"path": os.fspath(path), "sha256": sha256}


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
  config: Config,
  *,
  step: int,
  opt_state: Any = None,
  slots: Mapping | None = None,
  vocabulary: Mapping[str, str] | None = None,
  extra: Mapping[str, Any] | None = None,
):
  """Returns what `manager(...).save(step, args=...)` takes.

  Args:
    params: nested dict of arrays in T5X's names; what lies on a mesh is written
      shard by shard, here and below.
    config: the architecture, checked against `params`.
    step: training steps taken.
    opt_state: pytree of arrays, given back by `read_opt_state`.
    slots: Adafactor's `{"v_row", "v_col", "v"}` per parameter, as in
      `Checkpoint.optimizer`; T5X and `load(..., optimizer=True)` read them.
    vocabulary: from `vocabulary_identity`.
    extra: JSON values, given back in `Checkpoint.extra`.
  """
  import orbax.checkpoint as ocp

  architecture.check_params(params, config, where="to be written")
  state = {"step": np.asarray(step, np.int32)}
  if slots is not None:
    state["param_states"] = stored_arrays.with_momentum(slots)
  trees = {"state": {"target": dict(params), "state": state}}
  if opt_state is not None:
    trees["opt_state"] = opt_state
  metadata = {
    "format": FORMAT,
    "version": VERSION,
    "step": int(step),
    "kind": next(k for k, v in KINDS.items() if isinstance(config, v)),
    "config": dataclasses.asdict(config),
    "vocabulary": dict(vocabulary) if vocabulary else None,
    "extra": dict(extra or {}),
    "checksums": {
      item: chunks.checksums(_named(tree)[0]) for item, tree in trees.items()
    },
  }
  metadata["crc32"] = chunks.checksum_of_json(metadata)
  in_chunks = lambda _: ocp.SaveArgs(chunk_byte_size=chunks.CHUNK_BYTES)
  items = {
    item: ocp.args.PyTreeSave(tree, save_args=jax.tree.map(in_chunks, tree))
    for item, tree in trees.items()
  }
  return ocp.args.Composite(metadata=ocp.args.JsonSave(metadata), **items)


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
  from etils import epath
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
  url = storage.Directory(model_dir).url
  epath.Path(url).mkdir(parents=True, exist_ok=True)
  return ocp.CheckpointManager(
    url,
    options=ocp.CheckpointManagerOptions(
      step_prefix=STEP_PREFIX,
      create=False,
      # Of a job's processes the first writes, and has all of the arrays.
      multiprocessing_options=_alone(),
      best_fn=value,
      best_mode=best_mode,
      preservation_policy=keep,
      enable_async_checkpointing=False,
    ),
    item_handlers=_handlers(),
  )


def _handlers() -> dict:
  import orbax.checkpoint as ocp

  tree = functools.partial(
    ocp.PyTreeCheckpointHandler, multiprocessing_options=_alone()
  )
  return {
    "state": tree(),
    "opt_state": tree(),
    "metadata": ocp.JsonCheckpointHandler(
      pathlib.Path(METADATA).name, multiprocessing_options=_alone()
    ),
  }


def _alone():
  import orbax.checkpoint as ocp

  return ocp.options.MultiprocessingOptions(
    primary_host=0, active_processes={0}, barrier_sync_key_prefix=FORMAT
  )


def read_metadata(directory: storage.Directory) -> dict:
  """Returns metadata.json of a step directory of ours.

  Its `config` is that of its kind, its `checksums` None where it is older than
  they are.

  Raises:
    CheckpointError: it cannot be parsed, is not as it was written, or is of a
      later version.
  """
  where = f"{directory}/{METADATA}"

  def parse(metadata: dict) -> dict:
    if metadata["format"] != FORMAT:
      raise CheckpointError(
        f"{where} has format {metadata['format']!r:.60}, want {FORMAT!r}"
      )
    if metadata["version"] > VERSION:
      raise CheckpointError(
        f"{where} is of version {metadata['version']!r:.60}; this package "
        f"reads up to {VERSION}: install a later one"
      )
    crc32 = metadata.pop("crc32", None)
    if crc32 not in (None, chunks.checksum_of_json(metadata)):
      raise CheckpointError(f"{where} is not as it was written: copy it again")
    for name, kind in {
      "config": dict,
      "vocabulary": dict | None,
      "extra": dict,
      "checksums": dict | None,
    }.items():
      if not isinstance(metadata.setdefault(name), kind):
        raise TypeError(f"{name} is {metadata[name]!r:.60}")
    vocabulary = metadata["vocabulary"] or {}
    if not all(isinstance(value, str) for value in vocabulary.values()):
      raise TypeError(f"vocabulary is {vocabulary!r:.60}")
    sums = metadata["checksums"] and {
      item: {name: chunks.Checksums(**each) for name, each in arrays.items()}
      for item, arrays in metadata["checksums"].items()
    }
    kind = metadata.setdefault("kind", "t5")  # which older ones do not say
    fields.one_of(list(KINDS), kind=kind)
    config = fields.build(KINDS[kind], metadata["config"])
    return metadata | {"config": config, "checksums": sums}

  return directory.read_json(METADATA, parse)


def open_arrays(
  directory: storage.Directory,
  checksums: Mapping | None = None,
  *,
  optimizer: bool,
) -> stored_arrays.StoredArrays:
  """Returns the arrays of a train state, opened.

  Args:
    directory: holds `state/_METADATA`.
    checksums: those of `read_metadata`, where it is ours.
    optimizer: open its slots too.

  Raises:
    CheckpointError: naming the file or array that is damaged or missing.
  """
  is_wanted = lambda name: stored_arrays.is_wanted(name, optimizer)
  state = open_item(directory, "state", checksums, is_wanted)
  if not any(name.startswith("target/") for name in state.arrays):
    folders = sorted({x.partition("/")[0] for x in _index(directory / "state")})
    raise CheckpointError(
      f"{state.where}/_METADATA lists no 'target': it is no T5X-like train "
      f"state, its tree starts with {folders}"
    )
  if "state/step" not in state.arrays:
    raise CheckpointError(f"{state.where}/_METADATA lists no 'state/step'")
  return state


def read_opt_state(path: str | os.PathLike, like: Any) -> Any:
  """Returns the `opt_state` that `save` was given.

  Args:
    path: the step directory.
    like: pytree of arrays or ShapeDtypeStructs, e.g. `optimizer.init(params)`.

  Returns:
    A pytree with the structure of `like`, of numpy arrays; where those of
    `like` lie on a mesh, of arrays that lie as they do, read part by part.

  Raises:
    CheckpointError: it holds none, or another structure, shape or dtype, as
      after a change of optimizer.
  """
  directory = storage.Directory(path)
  item = directory / "opt_state"
  if not item.has("_METADATA"):
    raise CheckpointError(f"{item.url} is not there: saved without opt_state")
  stored = read_metadata(directory)["checksums"]
  state = open_item(directory, "opt_state", stored)
  wanted, structure = _named(like)
  if odd := sorted(wanted.keys() ^ state.arrays.keys()):
    raise CheckpointError(
      f"{item} has other arrays than the optimizer ({odd[0]} among "
      f"{len(odd)}): resume with the optimizer that the run began with"
    )
  for name, leaf in wanted.items():
    got = (state.arrays[name].shape, state.dtype(name))
    want = (tuple(leaf.shape), np.dtype(leaf.dtype))
    if got != want:
      raise CheckpointError(
        f"{item}: {name} has shape and dtype {got}, the optimizer wants "
        f"{want}: resume with the optimizer that the run began with"
      )
  places = [getattr(leaf, "sharding", None) for leaf in wanted.values()]
  if not all(isinstance(place, NamedSharding) for place in places):
    return structure.unflatten(state.read(wanted).values())
  return structure.unflatten(
    partitioning.put(state.unread(name), place, state.dtype(name))
    for name, place in zip(wanted, places)
  )


def open_item(
  directory: storage.Directory,
  name: str,
  checksums: Mapping | None,
  is_wanted: Callable[[str], bool] = lambda name: True,
) -> stored_arrays.StoredArrays:
  """Returns the arrays of an item of a step directory, opened.

  Args:
    directory: of the step.
    name: "state" or "opt_state".
    checksums: see `open_arrays`.
    is_wanted: says of a name whether to open it.
  """
  item = directory / name
  item.check_files()
  return stored_arrays.StoredArrays.open(
    str(item),
    {n: spec for n, spec in _index(item).items() if is_wanted(n)},
    checksums=None if checksums is None else checksums.get(name, {}),
  )


def _named(tree) -> tuple[dict, Any]:
  """Returns the leaves of a pytree by Orbax's names, and its structure."""
  leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
  name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
  return {name(path): leaf for path, leaf in leaves}, structure


def _index(item: storage.Directory) -> dict[str, dict]:
  """Returns the tensorstore spec of each array of an Orbax pytree."""

  def parse(metadata: dict) -> tuple:
    paths = [
      ast.literal_eval(path)
      for path, entry in metadata["tree_metadata"].items()
      if not entry["value_metadata"].get("skip_deserialize")
    ]
    for name in (name for path in paths for name in path):
      if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r:.60} names no array")
    architecture.unflatten({"/".join(path): path for path in paths})
    return metadata, paths

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
