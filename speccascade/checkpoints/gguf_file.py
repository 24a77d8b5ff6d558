"""GGUF files of llama.cpp, of Llama's and Qwen's kind, quantized or not.

Metadata becomes the settings of a Hugging Face config.json, and what those mean
is said there; what has none is refused. Reading wants the package `gguf`.
"""

import contextlib
import os

import numpy as np

from speccascade.checkpoints import (
  architecture,
  gguf_header,
  gguf_tokenizer,
  hugging_face,
  hugging_face_llama,
  storage,
)
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig

SUFFIX = ".gguf"
SAID_BY = "the file's metadata"
# Of those of llama.cpp; Mistral is a llama, with a window if it says one.
ARCHITECTURES = ("llama", "qwen2", "qwen3")
WINDOW = "attention.sliding_window"

# Settings by their names here, after the architecture's.
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
_SCALING = {
  "type": "rope_type",
  "factor": "factor",
  "original_context_length": "original_max_position_embeddings",
  "yarn_beta_fast": "beta_fast",
  "yarn_beta_slow": "beta_slow",
}
# Settings that change no number.
_IDLE = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
# Llama 3's factors of rotary frequencies, which llama.cpp writes instead of the
# settings; these are those of all that were published.
ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3 = {
  "rope_type": "llama3",
  "low_freq_factor": 1.0,
  "high_freq_factor": 4.0,
  "original_max_position_embeddings": 8192,
}
# Parts of Hugging Face's names of arrays, and what stands for them here.
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


def read(path: storage.Directory) -> tuple[dict, LlamaConfig]:
  """Returns (params in T5X's names as float32, architecture) of a file.

  Raises:
    CheckpointError: it is missing or damaged, of another architecture, has
      other arrays than its metadata says, or the package `gguf` is not there.
  """
  params = {}
  with _opened(path) as (reader, config):
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
      for part, heads in {
        ".attn_q.": config.num_heads,
        ".attn_k.": config.num_kv_heads,
      }.items():
        if part in name and kind == "llama":
          value = _by_halves(value, heads)
      value = value.T if parameter.transposed else value
      params[parameter.name] = np.array(value, order="C")  # not in the file
  return architecture.unflatten(params), config


def shapes(path: storage.Directory) -> tuple[dict, LlamaConfig]:
  """Returns ({T5X's name: (shape, kind)}, architecture); reads no array."""
  with _opened(path) as (reader, config):
    table, stored = _table(reader, config, path), _stored(reader)
    return {table[name].name: stored[name] for name in table}, config


def tokenizer(path: storage.Directory) -> dict[str, str]:
  """Returns the file's tokenizer; see `gguf_tokenizer.files`."""
  with _opened(path) as (reader, _):
    names = [name for name in reader.fields if name.startswith("tokenizer.")]
    said = {name: reader.fields[name].contents() for name in names}
  return gguf_tokenizer.files(said, str(path))


def _by_halves(value: np.ndarray, num_heads: int) -> np.ndarray:
  """Returns rows [H * D, ...] in Hugging Face's order.

  llama.cpp turns neighbours (2 i, 2 i + 1) of a llama, the network here i and
  i + D / 2.
  """
  pairs = value.reshape(num_heads, -1, 2, *value.shape[1:])
  return pairs.swapaxes(1, 2).reshape(value.shape)


def _stored(reader) -> dict:
  """Returns {name: (shape, kind)} of the parameters of a file."""
  return {
    array.name: (tuple(map(int, array.shape[::-1])), array.tensor_type.name)
    for array in reader.tensors
    if array.name != ROPE_FACTORS
  }


def _table(reader, config: LlamaConfig, path: storage.Directory) -> dict:
  """Returns the parameters of a config by their names here, all checked."""
  table = {}
  for parameter in architecture.parameters(config):
    name = parameter.hugging_face
    for theirs, ours in _NAMES.items():
      name = name.replace(theirs, ours)
    table[name] = parameter
  hugging_face.check_shapes(_stored(reader), table, str(path))
  return table


@contextlib.contextmanager
def _opened(path: storage.Directory):
  """Gives (the package's reader, architecture) of a file."""
  try:
    import gguf
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
    gguf_header.check(local, str(path))
    with storage.parsing(str(path)):
      reader = gguf.GGUFReader(local)
      said = {name: x.contents() for name, x in reader.fields.items()}
      settings = _settings(said, _stored(reader), path)
      arrays = {array.name: array.data for array in reader.tensors}
    try:
      config = hugging_face_llama.build_config(settings)
      if ROPE_FACTORS in arrays:
        config = _with_factors(config, settings, arrays[ROPE_FACTORS])
    except ValueError as error:
      raise CheckpointError(f"{path}: {error}") from error
    architecture.check_num_layers(config, len(reader.tensors), where=str(path))
    yield reader, config


def _settings(said: dict, stored: dict, path: storage.Directory) -> dict:
  """Returns metadata as the settings of a config.json."""
  kind = said.get("general.architecture")
  if kind not in ARCHITECTURES:
    raise CheckpointError(
      f"{path} has general.architecture {kind!r:.60}; read are"
      f" {', '.join(ARCHITECTURES)}"
    )
  picked = lambda table, prefix: {
    name: said[prefix + theirs]
    for theirs, name in table.items()
    if prefix + theirs in said
  }
  settings = picked(_SETTINGS, f"{kind}.")
  for name in ("rms_norm_eps", "rope_theta"):  # float32: as it was typed
    if name in settings:
      settings[name] = float(str(np.float32(settings[name])))
  head_dim = settings.get(
    "head_dim", settings["hidden_size"] // settings["num_attention_heads"]
  )
  turned = said.get(f"{kind}.rope.dimension_count", head_dim)
  window = kind == "llama" and said.get(f"{kind}.{WINDOW}")
  known = {*_SETTINGS, *_IDLE, "rope.dimension_count"}
  known |= {f"rope.scaling.{name}" for name in _SCALING}
  known |= {WINDOW} if window else set()
  for name, value in said.items():
    short = name.removeprefix(f"{kind}.")
    is_same = short == "attention.value_length" and value == head_dim
    if short != name and short not in known and value and not is_same:
      raise CheckpointError(
        f"{path} says {name} = {value!r:.60}, which is not read: give the"
        " Hugging Face directory instead"
      )
  scaling = picked(_SCALING, f"{kind}.rope.scaling.")
  if scaling.get("rope_type", "none") != "none":
    settings["rope_scaling"] = scaling
  ends = [said.get(f"tokenizer.ggml.{x}_token_id") for x in ("eos", "eot")]
  return settings | {
    "model_type": "mistral" if window else kind,
    "sliding_window": window or None,
    "vocab_size": stored["token_embd.weight"][0][0],
    "tie_word_embeddings": "output.weight" not in stored,
    "attention_bias": "blk.0.attn_q.bias" in stored,
    "partial_rotary_factor": turned / head_dim,
    "bos_token_id": said.get("tokenizer.ggml.bos_token_id"),
    "eos_token_id": [*dict.fromkeys(x for x in ends if x is not None)],
  }


def _with_factors(config: LlamaConfig, settings: dict, factors) -> LlamaConfig:
  """Returns the architecture whose rotary frequencies are divided by factors.

  Raises:
    ValueError: they are not Llama 3's.
  """
  factors = np.asarray(factors, np.float32)
  scaling = _LLAMA3 | {"factor": float(factors.max())}
  scaled = hugging_face_llama.build_config(settings | {"rope_scaling": scaling})
  plain, divided = (rotary.frequencies(x)[0] for x in (config, scaled))
  if "rope_scaling" in settings or not np.allclose(plain, divided * factors):
    raise ValueError(
      f"{ROPE_FACTORS} is no scaling of Llama 3's with the published settings:"
      " give the Hugging Face directory instead"
    )
  return scaled
