"""A checkpoint of any layout, from its path.

The layout is told by what a directory holds, never by its name:

  metadata/metadata.json          this package's (Orbax)
  state/_METADATA                 T5X's through Orbax
  checkpoint                      T5X's native
  config.json and *.safetensors   Hugging Face's
  a file's name, NAME.gguf        llama.cpp's
"""

from collections.abc import Mapping
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
  orbax_io,
  stored_arrays,
  t5x_native,
)
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.checkpoints.storage import Directory
from speccascade.models.parameters import Config, shorten

# Layouts of others' software: parameters and an architecture, no more.
OTHERS = {"hugging_face": hugging_face, "gguf": gguf_file}

_STEP = re.compile(r"checkpoint_(0|[1-9]\d*)")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # owner/model
_PYTORCH = (
  "PyTorch weights, which are not read: save them as safetensors with "
  "T5ForConditionalGeneration.from_pretrained(source).save_pretrained("
  "destination, safe_serialization=True)"
)
# What other software writes, and what to do with it.
_FOREIGN = {
  "pytorch_model.bin": _PYTORCH,
  "pytorch_model.bin.index.json": f"sharded {_PYTORCH}",
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
  """What was read.

  Attributes:
    params: nested dict of float32 arrays in T5X's names.
    config: the architecture, or None when neither the checkpoint nor the
      caller says it.
    step: training steps, or None where the layout has none (Hugging Face).
    optimizer: Adafactor's slots per parameter, `{"v_row", "v_col", "v"}`, or
      None when there are none or they were not asked for.
    layout: "speccascade", "t5x_orbax", "t5x_native", "hugging_face" or "gguf".
    path: the directory read, a step of the run directory that was given.
    vocabulary: `{"path", "sha256"}` where the layout says it, else None.
    extra: what `orbax_io.save` was given as `extra`.
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
    """Returns `config`, or what the arrays say; see `architecture.config_of`.

    Raises:
      CheckpointError: they are those of no T5 that it knows.
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
    path: a step directory, a run directory that holds some (the latest is
      taken), a Hugging Face directory, or a GGUF file; local or
      `gs://bucket/...`.
    config: the architecture that is wanted; checked against the checkpoint's
      own config, where it has one, and against its arrays.
    optimizer: read Adafactor's slots too.
    lazy: leave the parameters unread: each gives its parts by slices, as
      `stored_arrays.Unread`. GGUF files, and safetensors that are not on a
      local disk, are read whole all the same.

  Returns:
    The checkpoint; its config is `config` where that is given.

  Raises:
    CheckpointNotFoundError: it, or a file of it, is not there.
    CheckpointError: it is damaged, of an unknown kind, or not of `config`.
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
    # Before anything is read, or built for it.
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
  """Returns the arrays of a step directory, opened, and our metadata if ours.

  Args:
    directory: see `resolve`.
    layout: as there, one of T5X's or ours.
    optimizer: open Adafactor's slots too.
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
  """Returns the layout of a complete step directory, or None."""
  if directory.has(t5x_native.INDEX):
    return "t5x_native"
  if directory.has("state/_METADATA"):
    # On gs:// nothing is renamed; Orbax says by this file that it finished.
    if directory.remote and not directory.has("state/commit_success.txt"):
      return None
    # Without its file, ours is damaged, and not T5X's.
    has_item = os.path.isdir(
      f"{directory}/{os.path.dirname(orbax_io.METADATA)}"
    )
    is_ours = directory.has(orbax_io.METADATA) or has_item
    return "speccascade" if is_ours else "t5x_orbax"
  if directory.has(hugging_face.CONFIG) and (
    directory.has(hugging_face.WEIGHTS) or directory.has(hugging_face.INDEX)
  ):
    return "hugging_face"
  return None


def steps(path: str | os.PathLike) -> list[int]:
  """Returns the steps of a run directory that are complete, ascending.

  A directory still being written has a suffix to its name, or lacks the file
  by which its layout is told; it is passed over.
  """
  directory = Directory(path)
  named = map(_STEP.fullmatch, directory.children())
  return sorted(int(m[1]) for m in named if m and layout_of(directory / m[0]))


def vocabulary_directory(path: str | os.PathLike) -> Directory | None:
  """Returns the directory that holds a checkpoint's vocabulary, None if none.

  It is the checkpoint's own directory, or the run directory of a step.
  """
  places = [Directory(path)]
  run, _, name = places[0].url.rpartition("/")
  if run and _STEP.fullmatch(name):
    places.append(Directory(run))
  return next((place for place in places if place.vocabulary()), None)


def resolve(path: str | os.PathLike) -> tuple[Directory, str]:
  """Returns the directory to read and its layout; see `load`."""
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
  """Says why a directory, given by a path, is no checkpoint."""
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
  for name in (
    *(t5x_native.INDEX, orbax_io.METADATA, "state/_METADATA"),
    *(hugging_face.CONFIG, hugging_face.WEIGHTS, hugging_face.INDEX),
  ):
    directory.check_file(name)
  for name, what in _FOREIGN.items():
    if directory.has(name):
      return CheckpointError(f"{directory} holds {name}, {what}")
  holds = directory.children()
  if not holds:
    return CheckpointNotFoundError(f"there is nothing at {directory}")
  return CheckpointError(
    f"{directory} is no complete checkpoint: it holds "
    f"{shorten(holds)}; wanted is checkpoint (T5X), state/_METADATA "
    "(Orbax), config.json with model.safetensors (Hugging Face), or "
    "checkpoint_<step> directories"
  )


def _what_to_give(path: str) -> str:
  """Returns what to do about a path at which there is nothing."""
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
  """Returns what the last directory that exists has instead."""
  parent = path.parent
  while not parent.exists():
    path, parent = parent, parent.parent
  names = sorted(child.name for child in parent.iterdir() if child.is_dir())
  near = difflib.get_close_matches(path.name, names, cutoff=0.5)
  if near:
    return f": {parent} has {', '.join(near)}"
  return f": {parent} has no {path.name}"
