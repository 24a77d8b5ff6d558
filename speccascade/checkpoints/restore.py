"""Reads a checkpoint of any layout, from its path.

The files of a directory decide the layout, never the directory's name:

  metadata/metadata.json          this package's layout (Orbax)
  state/_METADATA                 T5X's layout through Orbax
  checkpoint                      T5X's native layout
  config.json and *.safetensors   Hugging Face's layout

A file NAME.gguf has the layout of llama.cpp.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import difflib
import os
import pathlib
import re
from typing import Any

from absl import logging

from speccascade.checkpoints import (
  architecture,
  gguf_file,
  hugging_face,
  hugging_face_t5,
  orbax_io,
  safetensors_files,
  stored_arrays,
  t5x_native,
)
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.checkpoints.storage import Directory
from speccascade.models.parameters import Config, shorten

# Layouts of other software, which have parameters and an architecture, but no
# step and no optimizer.
OTHERS = {"hugging_face": hugging_face, "gguf": gguf_file}

_STEP = re.compile(r"checkpoint_(0|[1-9]\d*)")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # owner/model
# Weights of PyTorch, and no state of its training, such as training_args.bin.
_PYTORCH = re.compile(
  r"(pytorch_model|model|consolidated)[\w.-]*\.(bin|pt|pth|ckpt)(\.index\.json)?"
)
# Names in the folders of Hugging Face's cache.
_CACHED, _SNAPSHOTS = "models--", "snapshots"
_SHOWN = 80  # characters of a name in a message
# Files of checkpoints that are not read, and what to do with each.
_FOREIGN = {
  "flax_model.msgpack": "Hugging Face's Flax weights: want safetensors",
  "tf_model.h5": "Hugging Face's TensorFlow weights: want safetensors",
  "_METADATA": "one item of an Orbax checkpoint: give the directory above it",
  ".zarray": "one array of a T5X checkpoint: give the directory above it",
  "operative_config.gin": (
    "a TensorFlow T5 model directory; T5X's conversions of the public ones are "
    "under gs://t5-data/pretrained_models/t5x/"
  ),
}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A checkpoint, as it was read.

  Attributes:
    params: nested dict of float32 arrays in T5X's names.
    config: the architecture; None if neither the checkpoint nor the caller
      gave one.
    step: training steps taken; None if the layout has no step.
    optimizer: Adafactor's slots `{"v_row", "v_col", "v"}` for each parameter;
      None if there are none or they were not asked for.
    layout: "speccascade", "t5x_orbax", "t5x_native", "hugging_face" or "gguf".
    path: the directory that was read. If a run directory was asked for, this is
      the step directory in it.
    vocabulary: `{"path", "sha256"}` of the vocabulary; None if the layout does
      not store it.
    extra: the values that were saved as `extra` by `orbax_io.save`.
  """

  params: dict
  config: Config | None
  step: int | None
  optimizer: dict | None
  layout: str
  path: str
  vocabulary: Mapping[str, str] | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def require_config(self) -> Config:
    """Returns the architecture, from the arrays' shapes if it is not stored.

    Raises:
      CheckpointError: `architecture.config_of` knows no T5 with such arrays.
    """
    if self.config is not None:
      return self.config
    return architecture.config_of(self.params, where=self.path)


def load(
  path: str | os.PathLike,
  *,
  config: Config | None = None,
  optimizer: bool = False,
  lazy: bool = False,
) -> Checkpoint:
  """Reads a checkpoint.

  Args:
    path: path of a step directory, of a run directory (its latest step is
      read), of a Hugging Face directory, or of a GGUF file; on a local disk or
      on `gs://bucket/...`.
    config: the architecture that is wanted. It is checked against the
      checkpoint's own config, if it has one, and against its arrays.
    optimizer: whether to read Adafactor's slots too.
    lazy: whether to leave the parameters unread, as `stored_arrays.Unread`.
      GGUF files, and safetensors that are not on a local disk, are read whole
      all the same.

  Returns:
    The checkpoint; its config is `config` if that is not None.

  Raises:
    CheckpointNotFoundError: the checkpoint, or a file of it, does not exist.
    CheckpointError: the checkpoint is damaged, of an unknown kind, or has
      another architecture than `config`.
  """
  directory, layout = resolve(path)
  where = str(directory)
  vocabulary, extra = None, {}
  if layout in OTHERS:
    options = {"lazy": lazy} if layout == "hugging_face" else {}
    params, stored = OTHERS[layout].read(directory, **options)
    step = slots = None
    if config:
      architecture.check_config(config, stored, where=where)
    architecture.check_params(params, config or stored, where=where)
  else:
    arrays, metadata = open_arrays(directory, layout, optimizer=optimizer)
    stored = metadata.get("config")
    vocabulary, extra = metadata.get("vocabulary"), metadata.get("extra", {})
    if config and stored:
      architecture.check_config(config, stored, where=where)
    # The shapes are checked before an array is read.
    if config or stored:
      architecture.check_params(arrays.params, config or stored, where=where)
    else:
      architecture.shapes_of(arrays.params, where=where)
    params, step, slots = arrays.train_state(lazy=lazy)
  config = config or stored
  logging.info("read %s (%s, step %s)", where, layout, step)
  return Checkpoint(
    params, config, step, slots, layout, where, vocabulary, extra
  )


def open_arrays(
  directory: Directory, layout: str, *, optimizer: bool
) -> tuple[stored_arrays.StoredArrays, dict]:
  """Opens the arrays of a step directory.

  Args:
    directory: the step directory.
    layout: its layout, one of T5X's or this package's.
    optimizer: whether to open Adafactor's slots too.

  Returns:
    The arrays, and the metadata of this package's layout; {} for T5X's.

  Raises:
    CheckpointError: a file or array is damaged or missing.
  """
  if layout == "t5x_native":
    return t5x_native.open_arrays(directory, optimizer=optimizer), {}
  metadata = {}
  if layout == "speccascade":
    metadata = orbax_io.read_metadata(directory)
  arrays = orbax_io.open_arrays(
    directory, metadata.get("checksums"), optimizer=optimizer
  )
  return arrays, metadata


def layout_of(directory: Directory) -> str | None:
  """Returns the layout of a complete step directory; None for others."""
  if directory.has(t5x_native.INDEX):
    return "t5x_native"
  if directory.has("state/_METADATA"):
    # On a local disk Orbax renames a directory that is complete. On gs:// it
    # writes this file at last.
    if directory.remote and not directory.has("state/commit_success.txt"):
      return None
    # A folder for the metadata without the file is a damaged checkpoint of this
    # package. Read as T5X's, it would lose its architecture.
    metadata_folder = os.path.dirname(orbax_io.METADATA)
    is_ours = directory.has(orbax_io.METADATA)
    is_ours = is_ours or os.path.isdir(f"{directory}/{metadata_folder}")
    return "speccascade" if is_ours else "t5x_orbax"
  if directory.has(hugging_face.CONFIG) and (
    directory.has(safetensors_files.WEIGHTS)
    or directory.has(safetensors_files.INDEX)
  ):
    return "hugging_face"
  return None


def steps(path: str | os.PathLike) -> list[int]:
  """Returns the complete steps of a run directory, in ascending order.

  A directory that is still being written has a suffix to its name, or lacks the
  file that decides its layout. It is left out.
  """
  directory, complete = Directory(path), []
  for name in directory.children():
    match = _STEP.fullmatch(name)
    if match and layout_of(directory / name):
      complete.append(int(match[1]))
  return sorted(complete)


def vocabulary_directory(path: str | os.PathLike) -> Directory | None:
  """Returns the directory with a checkpoint's vocabulary; None if none has it.

  The vocabulary is in the checkpoint's own directory, or in the run directory
  of a step.
  """
  places = [Directory(path)]
  run, _, name = places[0].url.rpartition("/")
  if run and _STEP.fullmatch(name):
    places.append(Directory(run))
  return next((place for place in places if place.vocabulary()), None)


def resolve(path: str | os.PathLike) -> tuple[Directory, str]:
  """Returns (directory to read, its layout) for a path, as `load` takes it.

  Raises:
    CheckpointError: there is no checkpoint at the path.
  """
  directory = Directory(path)
  if directory.url.endswith(gguf_file.SUFFIX):
    return directory, "gguf"
  if layout := layout_of(directory):
    return directory, layout
  if complete := steps(path):
    latest = directory / f"checkpoint_{complete[-1]}"
    if len(complete) > 1:
      logging.info("%s holds steps %s: taking the latest", directory, complete)
    return latest, layout_of(latest)
  raise _unknown(directory, os.fspath(path))


def _unknown(directory: Directory, path: str) -> CheckpointError:
  """Returns the error that says why a directory is no checkpoint."""
  if not directory.remote:
    local = pathlib.Path(directory.url)
    if local.is_file():
      return CheckpointError(
        f"{directory} is a file; give the directory of the checkpoint, "
        f"{local.parent}"
      )
    if not local.exists():
      return CheckpointNotFoundError(
        f"there is no checkpoint at {directory}{_near_misses(local)};"
        f" {_what_to_give(path)}"
      )
  # A broken link, or a folder, of the name of such a file is a better reason.
  for name in (
    t5x_native.INDEX,
    orbax_io.METADATA,
    "state/_METADATA",
    hugging_face.CONFIG,
    safetensors_files.WEIGHTS,
    safetensors_files.INDEX,
  ):
    directory.check_file(name)
  children = directory.children()
  advice = dict(_found_advice(directory, children)) | _FOREIGN
  for name, what_to_do in advice.items():
    if name in children:
      return CheckpointError(f"{directory} holds {name}, {what_to_do}")
  if not children:
    return CheckpointNotFoundError(f"there is nothing at {directory}")
  return CheckpointError(
    f"{directory} is no complete checkpoint: it holds "
    f"{shorten(children)}; wanted is checkpoint (T5X), state/_METADATA "
    "(Orbax), config.json with model.safetensors (Hugging Face), or "
    "checkpoint_<step> directories"
  )


def _found_advice(
  directory: Directory, children: Sequence[str]
) -> Iterator[tuple[str, str]]:
  """Yields names in a directory that is no checkpoint, and what to do."""
  if hugging_face.ADAPTER in children:
    base = _setting(directory, hugging_face.ADAPTER, "base_model_name_or_path")
    yield (
      hugging_face.ADAPTER,
      f"an adapter of {base or 'another model'}, and no model: save the two as"
      " one with PeftModel.from_pretrained(base, adapter).merge_and_unload()"
      ".save_pretrained(FOLDER)",
    )
  for name in filter(_PYTORCH.fullmatch, children):
    is_t5 = (
      _setting(directory, hugging_face.CONFIG, "model_type")
      in hugging_face_t5.MODEL_TYPES
    )
    kind = "T5ForConditionalGeneration" if is_t5 else "AutoModelForCausalLM"
    yield (
      name,
      f"PyTorch weights, which are not read: save them as safetensors with"
      f" {kind}.from_pretrained(source).save_pretrained(destination,"
      " safe_serialization=True)",
    )
  for name in children:
    if name.endswith(gguf_file.SUFFIX):
      yield name, f"a model in one file: give {directory}/{name}"
    elif name == _SNAPSHOTS or name.startswith(_CACHED):
      cached = directory if name == _SNAPSHOTS else directory / name
      if snapshot := _snapshot_of(cached):
        yield name, f"of Hugging Face's cache: give {snapshot}"


def _snapshot_of(cached: Directory) -> Directory | None:
  """Returns the newest files of a model in Hugging Face's cache, or None."""
  snapshots = cached / _SNAPSHOTS
  names = snapshots.children()
  main = (cached.read("refs/main") or b"").decode(errors="replace").strip()
  name = main if main in names else next(iter(names), None)
  return snapshots / name if name else None


def _setting(directory: Directory, file: str, name: str) -> str:
  """Returns a text of a JSON file, cut; "" where the file does not have it."""
  try:
    value = directory.read_json(file).get(name)
  except CheckpointError:
    return ""
  return value[:_SHOWN] if isinstance(value, str) else ""


def _what_to_give(path: str) -> str:
  """Returns advice for a path at which there is nothing."""
  text = (
    "give the path of a checkpoint: a local folder, or one on gs://; nothing is"
    " downloaded from a hub"
  )
  if _HUB_NAME.fullmatch(path):
    text += (
      f". If {path} is a name on Hugging Face's hub, `hf download {path}"
      " --local-dir FOLDER` copies it to a FOLDER, which is what to give"
    )
  return text


def _near_misses(path: pathlib.Path) -> str:
  """Returns what is in the last folder of a path that exists."""
  parent = path.parent
  while not parent.exists():
    path, parent = parent, parent.parent
  names = sorted(child.name for child in parent.iterdir() if child.is_dir())
  near = difflib.get_close_matches(path.name, names, cutoff=0.5)
  if near:
    return f": {parent} has {', '.join(near)}"
  return f": {parent} has no {path.name}"
