"""Reads GGUF files of llama.cpp with models like Llama, Qwen or Gemma.

The arrays may be quantized. The metadata of a file is translated into the
settings of a config.json of Hugging Face, which `hugging_face_llama` reads. A
file with metadata that has no such setting is refused. Reading needs the
package `gguf`.
"""

import contextlib
import os

import numpy as np

from speccascade.checkpoints import (
  architecture,
  gguf_tokenizer,
  hugging_face_llama,
  hugging_face_names,
  storage,
)
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig

SUFFIX = ".gguf"
SAID_BY = "the file's metadata"  # the source of the architecture, for `inspect`
# The architectures of llama.cpp that are read. A Mistral is a "llama", and has
# a window in its metadata if it uses one.
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3")
WINDOW = "attention.sliding_window"
# The most values of a header. Those of Gemma 3's tokenizer are 1.1 million: a
# text counts twice, since its length is a value too. The package takes about
# 700 bytes for each.
_MOST_READS = 2**21

# Settings of config.json, by the metadata's names after the architecture's.
_SETTINGS = {
  "block_count": "num_hidden_layers",
  "context_length": "max_position_embeddings",
  "embedding_length": "hidden_size",
  "feed_forward_length": "intermediate_size",
  "attention.head_count": "num_attention_heads",
  "attention.head_count_kv": "num_key_value_heads",
  "attention.key_length": "head_dim",
  "rope.freq_base": "rope_theta",
  "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
# Further ones, by the architectures that have them.
_CAPS = {
  "attn_logit_softcapping": "attn_logit_softcapping",
  "final_logit_softcapping": "final_logit_softcapping",
}
_OWN_SETTINGS = {
  "gemma2": _CAPS,
  "gemma3": {"rope.freq_base_swa": "rope_local_base_freq"},
}
_WINDOWED = ("llama", "gemma2", "gemma3")
# llama.cpp divides queries by the root of the width of a head, and in a Gemma
# with so many layers, the 27B, by the root of the model's share of a head. No
# file says it, nor which layers have the window.
_SHARES = (("gemma2", 46), ("gemma3", 62))
_SCALING = {
  "type": "rope_type",
  "factor": "factor",
  "original_context_length": "original_max_position_embeddings",
  "yarn_beta_fast": "beta_fast",
  "yarn_beta_slow": "beta_slow",
}
# Metadata that changes no number of the model.
_IDLE = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
# llama.cpp writes the factors of Llama 3's rotary frequencies as an array, and
# not the settings that the factors come from. All models that were published
# have the settings below. The array gives the last setting, "factor".
ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3 = {
  "rope_type": "llama3",
  "low_freq_factor": 1.0,
  "high_freq_factor": 4.0,
  "original_max_position_embeddings": 8192,
}
# Parts of Hugging Face's names of arrays, and the parts of names in GGUF files.
_NAMES = {
  "model.embed_tokens": "token_embd",
  "model.layers.": "blk.",
  "model.norm": "output_norm",
  "lm_head": "output",
  "self_attn.o_proj": "attn_output",
  "self_attn.": "attn_",
  "input_layernorm": "attn_norm",
  "post_attention_layernorm": "ffn_norm",
  "mlp.": "ffn_",
  "_proj": "",
}
_POST_NORM_NAMES = {
  "post_attention_layernorm": "post_attention_norm",
  "pre_feedforward_layernorm": "ffn_norm",
  "post_feedforward_layernorm": "post_ffw_norm",
}


def read(path: storage.Directory) -> tuple[dict, LlamaConfig]:
  """Returns (parameters in T5X's names as float32, architecture) of a file.

  Raises:
    CheckpointError: the file is missing or damaged, has another architecture,
      or has other arrays than its metadata says, or the package `gguf` is not
      installed.
  """
  params = {}
  with _open(path) as (reader, config):
    from gguf import quants

    table = _table(reader, config, path)
    architecture.check_memory(config, where=str(path))
    arrays = {array.name: array for array in reader.tensors}
    kind = reader.fields["general.architecture"].contents()
    for name, parameter in table.items():
      array = arrays[name]
      try:
        value = quants.dequantize(array.data, array.tensor_type)
      except NotImplementedError as error:
        raise CheckpointError(
          f"{path}: {name} is quantized as {array.tensor_type.name}, which the"
          " package gguf does not read"
        ) from error
      value = value.astype(np.float32)
      if kind == "llama":
        if ".attn_q." in name:
          value = _pair_halves(value, config.num_heads)
        elif ".attn_k." in name:
          value = _pair_halves(value, config.num_kv_heads)
      if name.endswith("norm.weight"):
        # The files have the scales with the offset already added.
        value = value - config.norm_offset
      value = value.T if parameter.transposed else value
      # A copy: the reader's arrays end with the open file.
      params[parameter.name] = np.array(value, order="C")
  return architecture.unflatten(params), config


def shapes(path: storage.Directory) -> tuple[dict, LlamaConfig]:
  """Returns ({T5X's name: (shape, kind)}, architecture); reads no array.

  The kind is the name of a quantization, such as "Q8_0", or of a dtype.
  """
  with _open(path) as (reader, config):
    table, stored = _table(reader, config, path), _stored_shapes(reader)
    return {table[name].name: stored[name] for name in table}, config


def tokenizer(path: storage.Directory) -> dict[str, str]:
  """Returns {name: text} of the files of the tokenizer in a GGUF file."""
  with _open(path) as (reader, _):
    names = [name for name in reader.fields if name.startswith("tokenizer.")]
    metadata = {name: reader.fields[name].contents() for name in names}
  return gguf_tokenizer.files(metadata, str(path))


def _pair_halves(value: np.ndarray, num_heads: int) -> np.ndarray:
  """Returns the rows of a kernel in the order of Hugging Face."""
  # The rotary positions of a "llama" of llama.cpp turn the neighbours 2 i and 2
  # i + 1 of a head. Those of the network here turn i and i + D / 2. With D = 4
  # the rows 0, 1, 2, 3 of a head become the rows 0, 2, 1, 3.
  pairs = value.reshape(num_heads, -1, 2, *value.shape[1:])
  return pairs.swapaxes(1, 2).reshape(value.shape)


def _stored_shapes(reader) -> dict:
  """Returns {GGUF's name: (shape, kind)} of the parameters of a file."""
  return {
    # GGUF lists the axes from the innermost on.
    array.name: (tuple(map(int, array.shape[::-1])), array.tensor_type.name)
    for array in reader.tensors
    if array.name != ROPE_FACTORS
  }


def _table(reader, config: LlamaConfig, path: storage.Directory) -> dict:
  """Returns {GGUF's name: parameter} of a config, checked against the file."""
  table = {}
  names = _NAMES | (_POST_NORM_NAMES if config.post_norms else {})
  for parameter in hugging_face_names.list_parameters(config):
    name = parameter.hugging_face
    for part, gguf_part in names.items():
      name = name.replace(part, gguf_part)
    table[name] = parameter
  hugging_face_names.check_shapes(_stored_shapes(reader), table, str(path))
  return table


def _open_bounded(path: str, where: str):
  """Returns the reader of the package `gguf`, bounded by the size of the file.

  The package trusts the counts in the header and makes an object for each item,
  past the end of the file too. So a damaged file of one kilobyte could fill the
  memory.
  """
  import gguf

  class Bounded(gguf.GGUFReader):
    """Refuses to read past the end of the file, or too many values."""

    _num_reads = 0

    def _get(self, offset, dtype, count=1, override_order=None):
      end = int(offset) + np.dtype(dtype).itemsize * int(count)
      if end > len(self.data):
        raise CheckpointError(
          f"{where} is truncated or damaged: it has {len(self.data):,} bytes,"
          f" and its header promises bytes up to {end:,}: copy it again"
        )
      self._num_reads += 1
      if self._num_reads > _MOST_READS:
        raise CheckpointError(
          f"{where} has a header of more than {_MOST_READS:,} values: it is"
          " damaged, copy it again"
        )
      return super()._get(offset, dtype, count, override_order)

  return Bounded(path)


@contextlib.contextmanager
def _open(path: storage.Directory):
  """Gives (reader of the package `gguf`, architecture) of a file."""
  try:
    import gguf  # noqa: F401
  except ImportError as error:
    raise CheckpointError(
      f"{path} is read by the package gguf: pip install gguf"
    ) from error
  folder, name = os.path.split(str(path))
  folder = storage.Directory(folder)
  folder.check_file(name)
  if not folder.has(name):
    raise CheckpointNotFoundError(f"there is no file {path}")
  with folder.local_copy(name) as local:
    with storage.parsing(str(path)):
      reader = _open_bounded(local, str(path))
      metadata = {
        name: field.contents() for name, field in reader.fields.items()
      }
      settings = _settings(metadata, _stored_shapes(reader), path)
      arrays = {array.name: array.data for array in reader.tensors}
    try:
      config = hugging_face_llama.build_config(settings)
      if ROPE_FACTORS in arrays:
        config = _with_factors(config, settings, arrays[ROPE_FACTORS])
    except ValueError as error:
      raise CheckpointError(f"{path}: {error}") from error
    architecture.check_num_layers(config, len(reader.tensors), where=str(path))
    yield reader, config


def _settings(metadata: dict, stored: dict, path: storage.Directory) -> dict:
  """Returns the settings of a config.json, translated from metadata."""
  kind = metadata.get("general.architecture")
  if kind not in ARCHITECTURES:
    raise CheckpointError(
      f"{path} has general.architecture {kind!r:.60}; read are"
      f" {', '.join(ARCHITECTURES)}"
    )
  names = _SETTINGS | _OWN_SETTINGS.get(kind, {})
  settings = _pick(metadata, names, f"{kind}.")
  for name in ("rms_norm_eps", "rope_theta", "rope_local_base_freq"):
    if name in settings:
      # Stored as float32, 1e-6 reads as 9.99999997e-07. The shortest text of
      # the float32 is the number that was meant.
      settings[name] = float(str(np.float32(settings[name])))
  head_dim = settings.get(
    "head_dim", settings["hidden_size"] // settings["num_attention_heads"]
  )
  window = kind in _WINDOWED and metadata.get(f"{kind}.{WINDOW}")
  known = {*names, *([WINDOW] if window else [])}
  _check_known(metadata, kind, head_dim, known, path)
  scaling = _pick(metadata, _SCALING, f"{kind}.rope.scaling.")
  if scaling.get("rope_type", "none") != "none":
    settings["rope_scaling"] = scaling
  num_rotated = metadata.get(f"{kind}.rope.dimension_count", head_dim)
  # A chat model often has two tokens that end a text.
  ends = [metadata.get(f"tokenizer.ggml.{x}_token_id") for x in ("eos", "eot")]
  types = {"gemma3": "gemma3_text", "llama": "mistral" if window else kind}
  scalar = head_dim
  if (kind, settings.get("num_hidden_layers")) in _SHARES:
    scalar = settings["hidden_size"] // settings["num_attention_heads"]
  return settings | {
    "model_type": types.get(kind, kind),
    "query_pre_attn_scalar": scalar,
    "sliding_window": window or None,
    "vocab_size": stored["token_embd.weight"][0][0],
    "tie_word_embeddings": "output.weight" not in stored,
    "attention_bias": "blk.0.attn_q.bias" in stored,
    "partial_rotary_factor": num_rotated / head_dim,
    "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
    "eos_token_id": [*dict.fromkeys(end for end in ends if end is not None)],
  }


def _pick(metadata: dict, names: dict[str, str], prefix: str) -> dict:
  """Returns the metadata whose names, after a prefix, are keys of `names`."""
  return {
    setting: metadata[prefix + name]
    for name, setting in names.items()
    if prefix + name in metadata
  }


def _check_known(
  metadata: dict,
  kind: str,
  head_dim: int,
  known: set[str],
  path: storage.Directory,
):
  """Checks that every metadata of the architecture is read."""
  known |= {*_IDLE, "rope.dimension_count"}
  known |= {f"rope.scaling.{name}" for name in _SCALING}
  for name, value in metadata.items():
    short = name.removeprefix(f"{kind}.")
    is_of_architecture = short != name
    # A value may say again what another says, or be 0, which says nothing.
    is_repeated = short == "attention.value_length" and value == head_dim
    if is_of_architecture and short not in known and value and not is_repeated:
      raise CheckpointError(
        f"{path} says {name} = {value!r:.60}, which is not read: give the"
        " Hugging Face directory instead"
      )


def _with_factors(config: LlamaConfig, settings: dict, factors) -> LlamaConfig:
  """Returns the architecture with rotary frequencies divided by factors."""
  factors = np.asarray(factors, np.float32)
  # The lowest frequencies are divided by "factor" itself, the others by less.
  scaling = _LLAMA3 | {"factor": float(factors.max())}
  scaled = hugging_face_llama.build_config(settings | {"rope_scaling": scaling})
  plain, divided = (rotary.frequencies(x)[0] for x in (config, scaled))
  if "rope_scaling" in settings or not np.allclose(plain, divided * factors):
    raise ValueError(
      f"{ROPE_FACTORS} is not a scaling of Llama 3's with the published"
      " settings: give the Hugging Face directory instead"
    )
  return scaled
