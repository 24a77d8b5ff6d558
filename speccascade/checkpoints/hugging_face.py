"""Reads and writes Hugging Face's directories: config.json and safetensors.

The safetensors may be one file or several shards. The modules
`hugging_face_t5`, `hugging_face_t5gemma` and `hugging_face_llama` know what
config.json and the arrays mean for each kind of model.
"""

from collections.abc import Callable, Collection, Mapping
import json
import operator
import os
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from absl import logging
import numpy as np

from speccascade.checkpoints import (
  architecture,
  eagle_files,
  generation_settings,
  hugging_face_llama,
  hugging_face_names,
  hugging_face_t5,
  hugging_face_t5gemma,
  safetensors_files,
  storage,
)
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import Config
from speccascade.models.t5.config import T5Config
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.settings import fields

# SAID_BY is what `inspect` prints as the source of the architecture.
CONFIG = SAID_BY = "config.json"
ADAPTER = "adapter_config.json"
# Files of the tokenizer of a decoder-only model.
TOKENIZER = (
  storage.TOKENIZER,
  "tokenizer_config.json",
  "special_tokens_map.json",
  "chat_template.jinja",
  "generation_config.json",
)

# How safetensors' names of dtypes of quantized weights begin.
_QUANTIZED = ("F8", "F6", "F4")


class Family(Protocol):
  """What a module knows of a kind of model.

  Attributes:
    MODEL_TYPES: the values of `model_type` in config.json.
    ALSO_IN_GENERATION: settings of config.json that may stand in
      generation_config.json too, where they count.
  """

  MODEL_TYPES: Collection[str]
  ALSO_IN_GENERATION: Collection[str]

  def build_config(self, settings: dict) -> Any:
    """Returns the architecture that settings describe.

    Args:
      settings: the settings of a config.json, with `model_type`.

    Raises:
      SettingError: a setting is of a wrong kind, or out of range. The error has
        the setting's name in config.json.
      ValueError: the network here does not have a setting. The message names
        it.
    """

  def resolve(
    self,
    tensors: dict,
    config: Any,
    settings: dict,
    where: str,
    same: Callable,
  ) -> None:
    """Removes the arrays that the network does not have.

    Args:
      tensors: all arrays by name, or (shape, dtype) of each. It is changed.
      config: the architecture.
      settings: the settings of config.json.
      where: the checkpoint, for messages.
      same: a function from two values of `tensors` to whether they may be the
        same array.

    Raises:
      CheckpointError: arrays contradict config.json, or each other.
    """

  def settings_of(self, config: Any) -> dict:
    """Returns the settings of config.json that describe an architecture.

    Raises:
      CheckpointError: config.json cannot describe the architecture.
    """


_FAMILIES: dict[type, Family] = {
  T5Config: hugging_face_t5,
  T5GemmaConfig: hugging_face_t5gemma,
  LlamaConfig: hugging_face_llama,
}


def read(
  directory: storage.Directory, *, lazy: bool = False
) -> tuple[dict, Config]:
  """Returns (parameters in T5X's names, architecture) of a directory.

  The shapes are checked before any array is read.

  Args:
    directory: the directory, which holds config.json.
    lazy: whether the arrays of local files are left `stored_arrays.Unread`.

  Raises:
    CheckpointError: a file is missing or damaged, an array is missing,
      unexpected or of a wrong shape, config.json has a setting that no network
      here has, or the machine has not the memory. The message names the file,
      array or setting.
  """
  if eagle_files.takes(directory):
    return eagle_files.read(directory, lazy=lazy)
  where, (family, settings, config) = str(directory), _describe(directory)
  if directory.has(ADAPTER):
    logging.warning(
      "%s holds %s beside a whole model: the model is read without the adapter",
      where,
      ADAPTER,
    )
  stored = safetensors_files.read(directory, safetensors_files.shapes)
  _check_dtypes(stored, where)
  architecture.check_num_layers(config, len(stored), where=where)
  # Whether two arrays may be the same one is asked of their shapes here, and of
  # their numbers below.
  family.resolve(stored, config, settings, where, operator.eq)
  parameters = hugging_face_names.list_parameters(config)
  table = {parameter.hugging_face: parameter for parameter in parameters}
  hugging_face_names.check_shapes(stored, table, where)
  lazy = lazy and not directory.remote
  if not lazy:
    architecture.check_memory(config, where=where)
  tensors = safetensors_files.read(
    directory, safetensors_files.unread if lazy else safetensors_files.whole
  )
  family.resolve(tensors, config, settings, where, np.array_equal)
  params = {}
  for name, parameter in table.items():
    value = tensors.pop(name)
    value = value.T if parameter.transposed else value
    params[parameter.name] = value if lazy else np.ascontiguousarray(value)
  return architecture.unflatten(params), config


def _check_dtypes(stored: dict, where: str) -> None:
  """Checks that arrays are not quantized to floats of 8 bits or less."""
  for name, (_, dtype) in sorted(stored.items()):
    # Such weights have scales of their own, in other arrays.
    if str(dtype).startswith(_QUANTIZED):
      raise CheckpointError(
        f"{where} has {name} of dtype {dtype}, quantized weights; want"
        " float32, float16 or bfloat16: take the model's files of such weights,"
        " or save it with .to(torch.bfloat16).save_pretrained(FOLDER)"
      )


class _Description(NamedTuple):
  """What config.json says of a model; `config` is its architecture."""

  family: Family
  settings: dict[str, Any]
  config: Any


def _describe(directory: storage.Directory) -> _Description:
  """Returns what config.json and generation_config.json say."""
  where = f"{directory}/{CONFIG}"
  settings = directory.read_json(CONFIG)
  model_type = settings.get("model_type")
  known = [name for each in _FAMILIES.values() for name in each.MODEL_TYPES]
  if model_type not in known:
    reason = ""
    if model_type == "umt5":
      reason = ": its relative positions are per layer"
    raise CheckpointError(
      f"{where} has model_type {model_type!r:.60}{reason}; the architectures"
      f" read are {', '.join(known)} (Flan-T5 and ByT5 are t5)"
    )
  if settings.get("quantization_config") is not None:
    raise CheckpointError(f"{where} is quantized; want float weights")
  [family] = [x for x in _FAMILIES.values() if model_type in x.MODEL_TYPES]
  chosen = generation_settings.overriding(directory, family.ALSO_IN_GENERATION)
  try:
    config = family.build_config(settings | chosen)
  except ValueError as error:
    if isinstance(error, fields.SettingError) and error.name in chosen:
      where = f"{directory}/{generation_settings.GENERATION}"
    raise CheckpointError(f"{where}: {error}") from error
  return _Description(family, settings, config)


def config_of(directory: storage.Directory) -> Config:
  """Returns the architecture that the config.json of a directory describes."""
  if eagle_files.takes(directory):
    return eagle_files.config_of(directory)
  return _describe(directory).config


def shapes(directory: storage.Directory) -> tuple[dict, Config]:
  """Returns ({T5X's name: (shape, dtype)}, architecture); reads no array.

  Arrays that the architecture has and the files lack are left out.
  """
  if eagle_files.takes(directory):
    return eagle_files.shapes(directory)
  config = config_of(directory)
  tensors = safetensors_files.read(directory, safetensors_files.shapes)
  architecture.check_num_layers(config, len(tensors), where=str(directory))
  stored = {
    parameter.name: tensors[parameter.hugging_face]
    for parameter in hugging_face_names.list_parameters(config)
    if parameter.hugging_face in tensors
  }
  return stored, config


def read_tokenizer_files(directory: storage.Directory) -> dict[str, str]:
  """Returns {name: text} of the tokenizer's files in a directory.

  Files that the directory does not have are left out.

  Raises:
    CheckpointError: a file is not UTF-8.
  """
  texts = {}
  for name in filter(directory.has, TOKENIZER):
    with storage.parsing(f"{directory}/{name}"):
      texts[name] = directory.read(name).decode()
  return texts


def save(
  path: str | os.PathLike,
  params: Mapping,
  config: Config,
  *,
  dtype: str = "float32",
  vocabulary: str | None = None,
  beside: Mapping[str, str] = MappingProxyType({}),
) -> None:
  """Writes a directory that transformers reads, whole or not at all.

  Args:
    path: the directory to create, on a local disk.
    params: nested dict of arrays in T5X's names.
    config: the architecture, checked against `params`.
    dtype: dtype of the arrays on the disk: float32, or bfloat16, to which they
      are rounded (nearest even).
    vocabulary: path of a SentencePiece model that is copied as spiece.model.
    beside: {name: text} of further files, such as the files of a tokenizer.

  Raises:
    CheckpointError: something exists at the path, the path is not local, or
      config.json cannot describe the architecture.
  """
  import ml_dtypes  # noqa: F401  registers bfloat16 with numpy

  directory = storage.Directory(path)
  if directory.remote:
    raise CheckpointError(f"{directory}: this layout is written to local paths")
  directory.refuse_existing()
  if type(config) not in _FAMILIES:
    raise CheckpointError(
      f"a {type(config).__name__} is not a model that transformers has; state"
      " readers are written with --format=eagle or speculators, all else with"
      " --format=speccascade"
    )
  architecture.check_params(params, config, where="to be written")
  settings = _FAMILIES[type(config)].settings_of(config)
  flat, tensors = architecture.flatten(dict(params)), {}
  for parameter in hugging_face_names.list_parameters(config):
    value = np.asarray(flat[parameter.name]).astype(dtype)
    value = value.T if parameter.transposed else value
    tensors[parameter.hugging_face] = np.ascontiguousarray(value)
  texts = {CONFIG: json.dumps(settings, indent=2, sort_keys=True) + "\n"}
  texts |= beside
  contents = {name: text.encode() for name, text in texts.items()}
  if vocabulary is not None:
    contents[storage.SENTENCE_PIECE] = storage.read_vocabulary(vocabulary)
  safetensors_files.write(directory, tensors, contents)
