"""Reads a checkpoint of any layout, from its path.

The files of a directory decide the layout, never the directory's name:

  metadata/metadata.json          this package's layout (Orbax)
  state/_METADATA                 T5X's layout through Orbax
  checkpoint                      T5X's native layout
  config.json and *.safetensors   Hugging Face's layout

A file NAME.gguf has the layout of llama.cpp.
"""

from collections.abc import Mapping
import dataclasses
import functools
import os
import re
from typing import Any

from absl import logging

from speccascade.checkpoints import (
  architecture,
  gguf_file,
  hub,
  hugging_face,
  no_checkpoint,
  orbax_io,
  safetensors_files,
  step_metadata,
  stored_arrays,
  t5x_native,
)
from speccascade.checkpoints.storage import Directory
from speccascade.models.parameters import Config

# Layouts of other software, which have parameters and an architecture, but no
# step and no optimizer.
OTHERS = {"hugging_face": hugging_face, "gguf": gguf_file}

_STEP = re.compile(r"checkpoint_(0|[1-9]\d*)")


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
      on `gs://bucket/...`. Or the name of a model on Hugging Face's hub,
      "org/name" or "org/name@revision", which is downloaded; see `hub`.
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
  is_ours = layout == "speccascade"
  metadata = step_metadata.read(directory) if is_ours else {}
  return orbax_io.open_arrays(directory, optimizer=optimizer), metadata


@dataclasses.dataclass(frozen=True)
class Folder:
  """What there is to read in a directory.

  The files are asked for once, when an answer first needs them; a directory
  that may have changed is read by another `Folder`.

  Attributes:
    directory: the directory, or a GGUF file.
  """

  directory: Directory

  @functools.cached_property
  def layout(self) -> str | None:
    """The layout of a complete checkpoint; None where there is none."""
    directory = self.directory
    if directory.url.endswith(gguf_file.SUFFIX):
      return "gguf"
    if directory.has(t5x_native.INDEX):
      return "t5x_native"
    if directory.has("state/_METADATA"):
      # On a local disk Orbax renames a directory that is complete. On gs:// it
      # writes this file at last.
      if directory.remote and not directory.has("state/commit_success.txt"):
        return None
      # A folder for the metadata without the file is a damaged checkpoint of
      # this package. Read as T5X's, it would lose its architecture.
      metadata_folder = os.path.dirname(step_metadata.METADATA)
      is_ours = directory.has(step_metadata.METADATA)
      is_ours = is_ours or os.path.isdir(f"{directory}/{metadata_folder}")
      return "speccascade" if is_ours else "t5x_orbax"
    if directory.has(hugging_face.CONFIG) and (
      directory.has(safetensors_files.WEIGHTS)
      or directory.has(safetensors_files.INDEX)
    ):
      return "hugging_face"
    return None

  @functools.cached_property
  def steps(self) -> dict[int, "Folder"]:
    """The complete steps of a run directory, in ascending order.

    A directory that is still being written has a suffix to its name, or lacks
    the file that decides its layout. It is left out.
    """
    matches = map(_STEP.fullmatch, self.directory.children())
    folders = {
      int(match[1]): Folder(self.directory / match[0])
      for match in matches
      if match
    }
    return {
      step: folders[step] for step in sorted(folders) if folders[step].layout
    }

  @property
  def checkpoint(self) -> "Folder | None":
    """The folder itself, or its latest step; None where it has neither."""
    if self.layout:
      return self
    return self.steps[max(self.steps)] if self.steps else None


def steps(path: str | os.PathLike) -> list[int]:
  """Returns the complete steps of a run directory; see `Folder.steps`."""
  return list(Folder(Directory(path)).steps)


def vocabulary_directory(path: str | os.PathLike) -> Directory | None:
  """Returns the directory with a checkpoint's vocabulary; None if none has it.

  The vocabulary is in the checkpoint's own directory, in the run directory of a
  step, or in the latest step of a run directory.
  """
  places = [Directory(hub.local(path, weights=False))]
  run, _, name = places[0].url.rpartition("/")
  if run and _STEP.fullmatch(name):
    places.append(Directory(run))
  elif latest := Folder(places[0]).checkpoint:
    places.append(latest.directory)
  return next((place for place in places if place.vocabulary()), None)


def resolve(path: str | os.PathLike) -> tuple[Directory, str]:
  """Returns (directory to read, its layout) for a path, as `load` takes it.

  Raises:
    CheckpointError: there is no checkpoint at the path.
  """
  folder = Folder(Directory(hub.local(path)))
  found = folder.checkpoint
  if found is None:
    raise no_checkpoint.error_of(folder.directory)
  if found is not folder and len(folder.steps) > 1:
    logging.info(
      "%s holds steps %s: taking the latest",
      folder.directory,
      list(folder.steps),
    )
  return found.directory, found.layout
