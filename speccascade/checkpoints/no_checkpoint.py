"""Says why there is no checkpoint at a path, and what to do."""

from collections.abc import Iterator, Mapping, Sequence
import difflib
import os
import pathlib
import re
from types import MappingProxyType
from typing import Any

from speccascade.checkpoints import (
  eagle_settings,
  gguf_file,
  hugging_face,
  hugging_face_t5,
  safetensors_files,
  step_metadata,
  t5x_native,
)
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.checkpoints.storage import Directory
from speccascade.models.parameters import shorten

# Weights of PyTorch, and no state of its training, such as training_args.bin.
_PYTORCH = re.compile(
  r"(pytorch_model|model|consolidated)[\w.-]*\.(bin|pt|pth|ckpt)(\.index\.json)?"
)
# Names in the folders of Hugging Face's cache.
_CACHED, _SNAPSHOTS = "models--", "snapshots"
_MERGE = (
  "save the two as one with PeftModel.from_pretrained(base,"
  " adapter).merge_and_unload().save_pretrained(FOLDER)"
)
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


def error_of(directory: Directory) -> CheckpointError:
  """Returns the error that says why a directory is not a checkpoint."""
  if not directory.remote:
    local = pathlib.Path(directory.url)
    if local.is_file():
      return CheckpointError(
        f"{directory} is a file; give the directory of the checkpoint, "
        f"{local.parent}"
      )
    if not local.exists():
      return CheckpointNotFoundError(
        f"there is no checkpoint at {directory}{near_misses(directory.url)};"
        " give the path of a checkpoint: a local folder, one on gs://, or"
        " ORG/NAME of a model on Hugging Face's hub"
      )
  # A broken link, or a folder, of the name of such a file is a better reason.
  for name in (
    t5x_native.INDEX,
    step_metadata.METADATA,
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
    f"{directory} is not a complete checkpoint: it holds "
    f"{shorten(children)}; wanted checkpoint (T5X), state/_METADATA "
    "(Orbax), config.json with model.safetensors (Hugging Face), or "
    "checkpoint_<step> directories"
  )


def _found_advice(
  directory: Directory, children: Sequence[str]
) -> Iterator[tuple[str, str]]:
  """Yields names in a directory that is not a checkpoint, and what to do."""
  if hugging_face.ADAPTER in children:
    settings = _settings(directory, hugging_face.ADAPTER)
    base = _text(settings, "base_model_name_or_path")
    yield (
      hugging_face.ADAPTER,
      f"an adapter of {base or 'another model'}, and no model: {_MERGE}",
    )
  for name in filter(_PYTORCH.fullmatch, children):
    yield name, _pytorch_advice(name, _settings(directory, hugging_face.CONFIG))
  for name in children:
    if name.endswith(gguf_file.SUFFIX):
      yield name, f"a model in one file: give {directory}/{name}"
    elif name == _SNAPSHOTS or name.startswith(_CACHED):
      cached = directory if name == _SNAPSHOTS else directory / name
      if snapshot := _snapshot_of(cached):
        yield name, f"of Hugging Face's cache: give {snapshot}"


def _pytorch_advice(name: str, settings: Mapping[str, Any]) -> str:
  """Returns what to do with PyTorch weights beside a config.json's settings."""
  advice = "PyTorch weights, which are not read: "
  if _may_be_drafter(settings):
    return advice + (
      "if they are a drafter of EAGLE, save them as safetensors with"
      f" safetensors.torch.save_file(torch.load({name!r}, weights_only=True),"
      f" {safetensors_files.WEIGHTS!r})"
    )
  is_t5 = _text(settings, "model_type") in hugging_face_t5.MODEL_TYPES
  kind = "T5ForConditionalGeneration" if is_t5 else "AutoModelForCausalLM"
  return advice + (
    f"save them as safetensors with {kind}.from_pretrained(source)"
    ".save_pretrained(destination, safe_serialization=True)"
  )


def _may_be_drafter(settings: Mapping[str, Any]) -> bool:
  """Whether a config.json is, or may be, that of a drafter of EAGLE."""
  has_one_layer = settings.get("num_hidden_layers") == 1
  return has_one_layer or eagle_settings.is_named(settings)


def _snapshot_of(cached: Directory) -> Directory | None:
  """Returns the newest files of a model in Hugging Face's cache, or None."""
  snapshots = cached / _SNAPSHOTS
  names = snapshots.children()
  main = (cached.read("refs/main") or b"").decode(errors="replace").strip()
  name = main if main in names else next(iter(names), None)
  return snapshots / name if name else None


def _settings(directory: Directory, file: str) -> Mapping[str, Any]:
  """Returns the settings of a JSON file; none where it cannot be read."""
  try:
    return directory.read_json(file)
  except CheckpointError:
    return {}


def _text(settings: Mapping[str, Any], name: str) -> str:
  """Returns a setting that is a string, truncated; "" where it is none."""
  value = settings.get(name)
  return value[:_SHOWN] if isinstance(value, str) else ""


def of_files(
  where: str,
  names: Sequence[str],
  settings: Mapping[str, Any] = MappingProxyType({}),
) -> CheckpointError:
  """Returns the error that says why a repository of a hub is not a checkpoint.

  Args:
    where: the repository and its revision.
    names: the files that it has.
    settings: those of its config.json, as far as they are known.
  """
  download = f"hf download {where.partition('@')[0]}"
  for name in names:
    advice = _FOREIGN.get(name)
    if name == hugging_face.ADAPTER:
      advice = f"an adapter of another model, and no model: {_MERGE}"
    elif _PYTORCH.fullmatch(name):
      advice = _pytorch_advice(name, settings)
      if _may_be_drafter(settings):
        advice += f" in the FOLDER of {download} --local-dir FOLDER"
    elif name.endswith(gguf_file.SUFFIX):
      advice = (
        "a model in one file, which is read where it is on the disk:"
        f" {download} {name} --local-dir FOLDER"
      )
    if advice:
      return CheckpointError(f"{where} holds {name}, {advice}")
  held = f"holds {shorten(names)}" if names else "is empty"
  return CheckpointError(
    f"{where} {held}; wanted config.json with model.safetensors or its shards,"
    " and a tokenizer"
  )


def near_misses(path: str, *, quiet: bool = False) -> str:
  """Returns what is in the last folder of a path that exists.

  Args:
    path: the path, at which there is nothing.
    quiet: whether nothing is said where no name is nearly the path's.
  """
  place = pathlib.Path(os.path.abspath(path))
  parent = place.parent
  while not parent.exists():
    place, parent = parent, parent.parent
  names = sorted(child.name for child in parent.iterdir() if child.is_dir())
  near = difflib.get_close_matches(place.name, names, cutoff=0.5)
  if near:
    return f": {parent} has {', '.join(near)}"
  return "" if quiet else f": {parent} has no {place.name}"
