"""Reads and writes the folders of EAGLE's public drafters, as state readers.

There are two layouts of EAGLE-1 and of EAGLE-3 each: that of EAGLE's own code,
and that of vLLM's speculators. Their arrays have the same names but for the
layer's and the product's; here all have those of speculators' EAGLE-3. What
EAGLE-3 calls d2t, the distance from a draft token's number to the token's id,
becomes the ids of a draft vocabulary.
"""

from collections.abc import Mapping
import functools
import json
import os
import re
from typing import Any

import numpy as np

from speccascade.checkpoints import (
  architecture,
  eagle_settings,
  hugging_face_names,
  safetensors_files,
  storage,
)
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models import cut_head, parameters
from speccascade.models.reader_config import EAGLE, EAGLE3, StateReaderConfig

CONFIG = "config.json"
FORMATS = ("eagle", "speculators")
# The distances of a draft vocabulary, and which tokens it has: no floats.
_TO_TARGET, _IS_KEPT = "d2t", "t2d"
_INTEGERS = (_TO_TARGET, _IS_KEPT)
_IDS = f"{cut_head.NAME}/ids"
# Buffers of old files.
_UNUSED = re.compile(r".*rotary_emb\.\w+|verifier_(norm|lm_head)\.weight")
# Patterns of our names, and the names without what is after the last point.
_NAMES = {
  r"fuse/(?:kernel|bias)": r"fc",
  r"fuse_states/product/kernel": r"fc",
  r"(\w+/\w+)/state_layer_norm/scale": r"\1/hidden_norm",
  rf"{cut_head.NAME}/kernel": r"lm_head",
  **hugging_face_names.LLAMA,
}
# What each format calls the layer and the product, by the layout.
_LAYER = {
  ("eagle", EAGLE): "layers.0.",
  ("eagle", EAGLE3): "midlayer.",
  ("speculators", EAGLE): "transformer.",
  ("speculators", EAGLE3): "layers.0.",
}
_PRODUCT = {("speculators", EAGLE): "fusion_fc."}


def takes(directory: storage.Directory) -> bool:
  """Whether a folder with a config.json holds such a drafter."""
  settings = directory.read_json(CONFIG)
  if eagle_settings.is_named(settings):
    return True
  # EAGLE-1's config.json is that of a Llama of one layer.
  if settings.get("num_hidden_layers") != 1:
    return False
  try:
    return "fc.weight" in _shapes(directory)
  except CheckpointError:  # Whoever reads the arrays says what is wrong.
    return False


def _shapes(directory: storage.Directory) -> dict:
  """Returns (shape, dtype) of each array, by speculators' names."""
  return _renamed(safetensors_files.read(directory, safetensors_files.shapes))


def _renamed(arrays: Mapping[str, Any]) -> dict:
  """Returns arrays by speculators' names of EAGLE-3."""
  found = {}
  for name, array in arrays.items():
    name = name.removeprefix("model.")
    name = re.sub(r"^(midlayer|transformer)\.", "layers.0.", name)
    name = re.sub(r"^fusion_fc\.", "fc.", name)
    if not _UNUSED.fullmatch(name):
      found[name] = array
  return found


def config_of(directory: storage.Directory) -> StateReaderConfig:
  """Returns the architecture that a folder describes.

  Raises:
    CheckpointError: it is that of a drafter that is not read here. The message
      names what is not.
  """
  return _config_of(directory, _shapes(directory))


def _config_of(directory: storage.Directory, shapes: Mapping):
  settings = directory.read_json(CONFIG)
  try:
    return eagle_settings.config_of(settings, shapes)
  except ValueError as error:
    raise CheckpointError(f"{directory}/{CONFIG}: {error}") from error


def _table(config: StateReaderConfig) -> dict:
  """Returns `hugging_face_names.Parameter`s of all arrays but the ids."""
  table = {}
  for path, shape in parameters.param_shapes(config).items():
    if path == _IDS:
      continue
    if path.startswith("fuse_states/norm_"):
      number = path.removeprefix("fuse_states/norm_").partition("/")[0]
      is_whole = config.eagle.norms_of_states == "whole"
      name = "input_norm" if is_whole else f"fc_norm.{number}"
    else:
      name = hugging_face_names.expand(_NAMES, path).removeprefix("model.")
      name = name.replace("decoder/layers_0/", "layers.0.")
    kind = "bias" if path.endswith("/bias") else "weight"
    is_transposed = len(shape) == 2 and not path.endswith("/embedding")
    name = f"{name}.{kind}"
    table[name] = hugging_face_names.Parameter(path, shape, name, is_transposed)
  return table


def shapes(directory: storage.Directory) -> tuple[dict, StateReaderConfig]:
  """Returns ({our name: (shape, dtype)}, architecture); reads no array."""
  stored = _shapes(directory)
  config = _config_of(directory, stored)
  found = {
    parameter.name: stored[name]
    for name, parameter in _table(config).items()
    if name in stored
  }
  if config.draft_vocab_size is not None and _TO_TARGET in stored:
    found[_IDS] = stored[_TO_TARGET]
  return found, config


def read(
  directory: storage.Directory, *, lazy: bool = False
) -> tuple[dict, StateReaderConfig]:
  """Returns (parameters in our names, architecture) of a folder.

  The shapes are checked before any array is read.

  Args:
    directory: a folder that is taken.
    lazy: see `hugging_face.read`.

  Raises:
    CheckpointError: as of `hugging_face.read`.
  """
  where, stored = str(directory), _shapes(directory)
  config = _config_of(directory, stored)
  # EAGLE-1's drafters hold a copy of their verifier's table, too.
  unused = set(_INTEGERS)
  if not config.own_table:
    unused.add("embed_tokens.weight")
  if not config.own_head:
    unused.add("lm_head.weight")
  table = _table(config)
  hugging_face_names.check_shapes(
    {k: v for k, v in stored.items() if k not in unused}, table, where
  )
  lazy = lazy and not directory.remote
  if not lazy:
    architecture.check_memory(config, where=where)
  whole = functools.partial(safetensors_files.whole, leave_out=_INTEGERS)
  tensors = _renamed(
    safetensors_files.read(
      directory, safetensors_files.unread if lazy else whole
    )
  )
  params = {}
  for name, parameter in table.items():
    value = tensors.pop(name)
    value = value.T if parameter.transposed else value
    params[parameter.name] = value if lazy else np.ascontiguousarray(value)
  if config.draft_vocab_size is not None:
    ids = _ids(directory, config)
    order = np.argsort(ids, kind="stable")
    params[_IDS] = ids[order].astype(np.float32)
    if np.any(order != np.arange(len(ids))):
      kernel = np.asarray(params[f"{cut_head.NAME}/kernel"])
      params[f"{cut_head.NAME}/kernel"] = kernel[:, order]
  return architecture.unflatten(params), config


def _integers(directory: storage.Directory, name: str) -> dict:
  """Returns the arrays of a file that say the draft vocabulary."""
  with safetensors_files.opened(directory, name) as file:
    keys = set(file.keys()) & set(_INTEGERS)
    return {key: file.get_tensor(key) for key in keys}


def _ids(directory: storage.Directory, config: StateReaderConfig) -> np.ndarray:
  """Returns the ids [N] of the draft vocabulary, as d2t orders them."""
  num, vocab_size = config.draft_vocab_size, config.vocab_size
  found = safetensors_files.read(directory, _integers)
  if _TO_TARGET not in found or found[_TO_TARGET].shape != (num,):
    raise CheckpointError(
      f"{directory} has a draft vocabulary of {num} tokens and no d2t of"
      f" {num} numbers, which says which they are: copy the whole drafter"
    )
  ids = np.arange(num) + found[_TO_TARGET].astype(np.int64)
  is_kept = found.get(_IS_KEPT)
  wanted = np.isin(np.arange(vocab_size), ids)
  fits = np.unique(ids).size == num and ids.min() >= 0
  fits = fits and ids.max() < vocab_size
  if not fits or not (is_kept is None or np.array_equal(is_kept, wanted)):
    raise CheckpointError(
      f"{directory} has a d2t that does not name {num} of {vocab_size} tokens,"
      " or a t2d of other tokens: copy the whole drafter"
    )
  return ids


def save(
  path: str | os.PathLike,
  params: Mapping,
  config: StateReaderConfig,
  *,
  format: str,
  dtype: str = "float32",
  verifier: str | None = None,
) -> None:
  """Writes a folder that EAGLE's code, or speculators, reads; or nothing.

  Args:
    path: the folder to create, on a local disk.
    params: nested dict of arrays in our names; a `StateReader`'s, too.
    config: the architecture.
    format: one of `FORMATS`.
    dtype: of the arrays on the disk, "float32" or "bfloat16".
    verifier: what speculators is told of the verifier: a path, or its name on
      Hugging Face's hub.

  Raises:
    CheckpointError: something exists at the path, the path is not local, or the
      layout has no such reader.
  """
  import ml_dtypes  # noqa: F401  registers bfloat16 with numpy

  directory = storage.Directory(path)
  if directory.remote:
    raise CheckpointError(f"{directory}: this layout is written to local paths")
  directory.refuse_existing()
  settings = eagle_settings.settings_of(config, format, verifier)
  architecture.check_params(params, config, where="to be written")
  flat, tensors = architecture.flatten(dict(params)), {}
  place = format, config.layout
  for name, parameter in _table(config).items():
    value = np.asarray(flat[parameter.name]).astype(dtype)
    value = value.T if parameter.transposed else value
    name = re.sub(r"^layers\.0\.", _LAYER[place], name)
    name = re.sub(r"^fc\.", _PRODUCT.get(place, "fc."), name)
    tensors[name] = np.ascontiguousarray(value)
  if config.draft_vocab_size is not None:
    ids = np.asarray(flat[_IDS]).astype(np.int64)
    tensors[_TO_TARGET] = ids - np.arange(len(ids))
    tensors[_IS_KEPT] = np.isin(np.arange(config.vocab_size), ids)
  text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
  safetensors_files.write(directory, tensors, {CONFIG: text.encode()})
