"""Hugging Face directories: config.json and safetensors, sharded or not.

What config.json and the arrays of each kind of model mean stands in a module of
its own: `hugging_face_t5`, `hugging_face_llama`.
"""

from collections.abc import Callable, Mapping
import contextlib
import functools
import json
import operator
import os
from types import MappingProxyType

import numpy as np

from speccascade.checkpoints import (
  architecture,
  hugging_face_llama,
  hugging_face_t5,
  storage,
  stored_arrays,
)
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models import parameters as model_params
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import Config
from speccascade.models.t5.config import T5Config
from speccascade.runtime import files

CONFIG = SAID_BY = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = (
  *(storage.TOKENIZER, "tokenizer_config.json", "special_tokens_map.json"),
  *("chat_template.jinja", "generation_config.json"),
)

_FAMILIES = {T5Config: hugging_face_t5, LlamaConfig: hugging_face_llama}


def read(
  directory: storage.Directory, *, lazy: bool = False
) -> tuple[dict, Config]:
  """Returns (params in T5X's names, architecture) of a directory.

  Shapes are checked before any array is read.

  Args:
    directory: holds config.json.
    lazy: whether the arrays of local files are `stored_arrays.Unread`.

  Raises:
    CheckpointError: naming the file that is missing or damaged, the array that
      is missing, unexpected or of the wrong shape, or the setting of
      config.json that no network here has; or the arrays are larger than the
      memory.
  """
  where, (family, settings, config) = str(directory), _described(directory)
  stored = _tensors(directory, _read_shapes)
  architecture.check_num_layers(config, len(stored), where=where)
  family.resolve(stored, settings, where, operator.eq)
  table = {p.hugging_face: p for p in architecture.parameters(config)}
  check_shapes(stored, table, where)
  lazy = lazy and not directory.remote
  if not lazy:
    architecture.check_memory(config, where=where)
  tensors = _tensors(directory, _unread if lazy else _read_file)
  family.resolve(tensors, settings, where, np.array_equal)
  params = {}
  for name, parameter in table.items():
    value = tensors.pop(name)
    value = value.T if parameter.transposed else value
    params[parameter.name] = value if lazy else np.ascontiguousarray(value)
  return architecture.unflatten(params), config


def check_shapes(stored: dict, table: dict, where: str) -> None:
  """Checks arrays before they are read.

  Args:
    stored: {name: (shape, dtype)}.
    table: the `architecture.Parameter` of each name that is wanted.
    where: the checkpoint, for messages.

  Raises:
    CheckpointError: naming those that are missing or unexpected, or have
      another shape.
  """
  wrong = []
  for name in table.keys() & stored.keys():
    shape, parameter = stored[name][0], table[name]
    kept = shape[::-1] if parameter.transposed else shape
    if kept != parameter.shape:
      wrong.append(
        f"{name} ({parameter.name}) has shape {list(kept)} as T5X "
        f"stores it, {list(parameter.shape)} by its settings"
      )
  misfits = {
    "missing: ": [name for name in table if name not in stored],
    "unexpected: ": sorted(stored.keys() - table.keys()),
    "wrong: ": sorted(wrong),
  }
  if text := model_params.format_misfits(misfits):
    raise CheckpointError(
      f"the weights of {where} are not those of the model that its settings "
      f"describe; {text}"
    )


def _described(directory: storage.Directory) -> tuple:
  """Returns (family, settings, architecture), by config.json."""
  where = f"{directory}/{CONFIG}"
  settings = directory.read_json(CONFIG)
  model_type = settings.get("model_type")
  known = [name for each in _FAMILIES.values() for name in each.MODEL_TYPES]
  if model_type not in known:
    per_layer = ": its relative positions are per layer"
    raise CheckpointError(
      f"{where} has model_type {model_type!r:.60}"
      f"{per_layer if model_type == 'umt5' else ''}; the architectures read "
      f"are {', '.join(known)} (Flan-T5 and byT5 are t5)"
    )
  if settings.get("quantization_config") is not None:
    raise CheckpointError(f"{where} is quantized; want float weights")
  [family] = [x for x in _FAMILIES.values() if model_type in x.MODEL_TYPES]
  return family, settings, family.config_of(settings, directory)


def shapes(directory: storage.Directory) -> tuple[dict, Config]:
  """Returns ({T5X's name: (shape, dtype)}, architecture); reads no array."""
  _, _, config = _described(directory)
  tensors = _tensors(directory, _read_shapes)
  architecture.check_num_layers(config, len(tensors), where=str(directory))
  table = {p.hugging_face: p.name for p in architecture.parameters(config)}
  held = {table[name]: tensors[name] for name in table if name in tensors}
  return held, config


def read_tokenizer_files(directory: storage.Directory) -> dict[str, str]:
  """Returns the tokenizer of a decoder-only model, as files by their names."""
  texts = {}
  for name in filter(directory.has, TOKENIZER):
    with storage.parsing(f"{directory}/{name}"):
      texts[name] = directory.read(name).decode()
  return texts


def _tensors(directory: storage.Directory, read_file: Callable) -> dict:
  """Returns what `read_file` makes of every array, by Hugging Face's names."""
  if directory.has(WEIGHTS):
    return read_file(directory, WEIGHTS)

  def parse(index: dict) -> dict[str, str]:
    for shard in index["weight_map"].values():
      if os.path.basename(shard) != shard or shard in ("", ".", ".."):
        raise CheckpointError(
          f"{directory}/{INDEX} names the file {shard!r:.60}, want one beside "
          "it"
        )
    return index["weight_map"]

  shard_of = directory.read_json(INDEX, parse)
  tensors = {}
  for shard in sorted(set(shard_of.values())):
    directory.check_file(shard)
    if not directory.has(shard):
      raise CheckpointNotFoundError(
        f"{directory}/{shard}, which {INDEX} names, is missing: copy it again"
      )
    tensors |= read_file(directory, shard)
  for name, shard in shard_of.items():
    if name not in tensors:
      raise CheckpointError(
        f"{directory}/{shard} has no {name}, which {INDEX} places there"
      )
  return tensors


def _read_file(directory: storage.Directory, name: str) -> dict:
  with _opened(directory, name) as file:
    tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
  return stored_arrays.as_float32(tensors, where=f"{directory}/{name}")


def _unread(directory: storage.Directory, name: str) -> dict:
  """Returns each array of a file as an `Unread`."""

  def read(key, part):
    with _opened(directory, name) as file:
      return file.get_slice(key)[part]

  where = f"{directory}/{name}"
  return {
    key: stored_arrays.Unread(shape, functools.partial(read, key)).as_float32(
      key, where
    )
    for key, (shape, _) in _read_shapes(directory, name).items()
  }


def _read_shapes(directory: storage.Directory, name: str) -> dict:
  with _opened(directory, name) as file:
    slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
    return {
      key: (tuple(each.get_shape()), each.get_dtype())
      for key, each in slices.items()
    }


@contextlib.contextmanager
def _opened(directory: storage.Directory, name: str):
  import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
  import safetensors

  try:
    with (
      directory.local_copy(name) as path,
      safetensors.safe_open(path, framework="np") as file,
    ):
      yield file
  except (safetensors.SafetensorError, OSError, TypeError) as error:
    raise CheckpointError(
      f"{directory}/{name} is truncated or damaged "
      f"({storage.first_line(error)}): copy it again"
    ) from error


def save(
  path: str | os.PathLike,
  params: Mapping,
  config: Config,
  *,
  dtype: str = "float32",
  vocabulary: str | None = None,
  beside: Mapping[str, str] = MappingProxyType({}),
) -> None:
  """Writes a directory that transformers reads, or nothing.

  Args:
    path: the directory to make, a local one.
    params: nested dict of arrays in T5X's names.
    config: the architecture, checked against `params`.
    dtype: of the arrays, float32 or bfloat16 (nearest even).
    vocabulary: SentencePiece model to lay beside them, as spiece.model.
    beside: contents of further files by their names, such as a tokenizer's.

  Raises:
    CheckpointError: the path is taken or no local one, or the architecture has
      no name in config.json.
  """
  import ml_dtypes  # noqa: F401
  from safetensors.numpy import save_file

  directory = storage.Directory(path)
  if directory.remote:
    raise CheckpointError(f"{directory}: this layout is written to local paths")
  directory.refuse_existing()
  architecture.check_params(params, config, where="to be written")
  settings = _FAMILIES[type(config)].settings_of(config)
  flat, tensors = architecture.flatten(dict(params)), {}
  for each in architecture.parameters(config):
    value = np.asarray(flat[each.name]).astype(dtype)
    value = value.T if each.transposed else value
    tensors[each.hugging_face] = np.ascontiguousarray(value)
  texts = {CONFIG: json.dumps(settings, indent=2, sort_keys=True) + "\n"}
  contents = {k: text.encode() for k, text in (texts | dict(beside)).items()}
  if vocabulary is not None:
    contents[storage.SENTENCE_PIECE] = storage.read_vocabulary(vocabulary)
  with files.make_whole_folder(directory.url) as folder:
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    for name, content in contents.items():
      (folder / name).write_bytes(content)
