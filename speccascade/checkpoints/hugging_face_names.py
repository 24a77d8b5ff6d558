"""The names that Hugging Face's files have for the arrays of a model.

Arrays have T5X's names in this package, for Llama too. Hugging Face's names are
derived from them by the tables below.
"""

import re
from typing import NamedTuple

from speccascade.checkpoints.errors import CheckpointError
from speccascade.models import parameters
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import Config
from speccascade.models.t5.config import T5Config
from speccascade.models.t5gemma.config import T5GemmaConfig


class Parameter(NamedTuple):
  """One array of a model.

  Attributes:
    name: T5X's path of the array, joined by "/".
    shape: the shape in which T5X stores the array.
    hugging_face: the array's name in a Hugging Face file.
    transposed: whether Hugging Face stores the transpose of T5X's array.
  """

  name: str
  shape: tuple[int, ...]
  hugging_face: str
  transposed: bool = False


# Patterns of T5X's names, and templates of Hugging Face's names for the arrays.
# `list_parameters` replaces the text before a layer's number, and a "/".
_T5 = {
  r"token_embedder/embedding": r"shared",
  r"(\w+)/relpos_bias/rel_embedding": (
    r"\1.block.0.layer.0.SelfAttention.relative_attention_bias"
  ),
  r"(\w+/\w+)/(?:self_)?attention/(\w)\w*/kernel": r"\1/0.SelfAttention.\2",
  r"(\w+/\w+)/pre_(?:self_)?attention_layer_norm/scale": r"\1/0.layer_norm",
  r"(\w+/\w+)/encoder_decoder_attention/(\w)\w*/kernel": (
    r"\1/1.EncDecAttention.\2"
  ),
  r"(\w+/\w+)/pre_cross_attention_layer_norm/scale": r"\1/1.layer_norm",
  r"(encoder/\w+)/mlp/(\w+)/kernel": r"\1/1.DenseReluDense.\2",
  r"(encoder/\w+)/pre_mlp_layer_norm/scale": r"\1/1.layer_norm",
  r"(decoder/\w+)/mlp/(\w+)/kernel": r"\1/2.DenseReluDense.\2",
  r"(decoder/\w+)/pre_mlp_layer_norm/scale": r"\1/2.layer_norm",
  r"(\w+)/\1_norm/scale": r"\1.final_layer_norm",
  r"decoder/logits_dense/kernel": r"lm_head",
}
# Of a layer of Llama and of T5Gemma.
_LAYER = {
  r"(\w+/\w+)/self_attention/(\w)\w*_norm/scale": r"\1/self_attn.\2_norm",
  r"(\w+/\w+)/self_attention/(\w)\w*/(?:kernel|bias)": (
    r"\1/self_attn.\2_proj"
  ),
  r"(\w+/\w+)/mlp/wi_0/kernel": r"\1/mlp.gate_proj",
  r"(\w+/\w+)/mlp/wi_1/kernel": r"\1/mlp.up_proj",
  r"(\w+/\w+)/mlp/wo/kernel": r"\1/mlp.down_proj",
}
LLAMA = _LAYER | {
  r"token_embedder/embedding": r"model.embed_tokens",
  r"(\w+/\w+)/pre_self_attention_layer_norm/scale": r"\1/input_layernorm",
  r"(\w+/\w+)/pre_mlp_layer_norm/scale": r"\1/post_attention_layernorm",
  r"decoder/decoder_norm/scale": r"model.norm",
  r"decoder/logits_dense/kernel": r"lm_head",
}
# Llama's post_attention_layernorm is the norm before the MLP, Gemma's the norm
# after attention.
_POST_NORMS = LLAMA | {
  r"(\w+/\w+)/post_self_attention_layer_norm/scale": (
    r"\1/post_attention_layernorm"
  ),
  r"(\w+/\w+)/pre_mlp_layer_norm/scale": r"\1/pre_feedforward_layernorm",
  r"(\w+/\w+)/post_mlp_layer_norm/scale": r"\1/post_feedforward_layernorm",
}
_T5GEMMA = _LAYER | {
  r"token_embedder/embedding": r"model.decoder.embed_tokens",
  r"encoder/token_embedder/embedding": r"model.encoder.embed_tokens",
  r"(\w+/\w+)/encoder_decoder_attention/(\w)\w*/(?:kernel|bias)": (
    r"\1/cross_attn.\2_proj"
  ),
  r"(\w+/\w+)/(pre|post)_(self|cross)_attention_layer_norm/scale": (
    r"\1/\2_\3_attn_layernorm"
  ),
  r"(\w+/\w+)/(pre|post)_mlp_layer_norm/scale": (
    r"\1/\2_feedforward_layernorm"
  ),
  r"(\w+)/\1_norm/scale": r"model.\1.norm",
  r"decoder/logits_dense/kernel": r"lm_head.out_proj",
}
# A shared table is the encoder's.
_SHARED_TABLE = {
  r"token_embedder/\w+": r"model.encoder.embed_tokens"
} | _T5GEMMA
# The last part of Hugging Face's name, where it is not "weight".
_LAST = {"bias": "bias", "end_of_image": "eoi_embedding"}
# For each kind of model: the names above, what stands in place of T5X's
# "decoder/layers_" (\1 is the stack), and of the "/" before a part of a layer.
_HUGGING_FACE = {
  T5Config: (_T5, r"\1.block.", ".layer."),
  T5GemmaConfig: (_T5GEMMA, r"model.\1.layers.", "."),
  LlamaConfig: (LLAMA, r"model.layers.", "."),
}


def list_parameters(config: Config) -> list[Parameter]:
  """Returns every array of a model, with T5X's and Hugging Face's names.

  The heads of attention kernels are joined into one axis, in which the column
  of dimension d of head h is h * head_dim + d. Hugging Face stores kernels
  transposed. Many kernels are square, so that a forgotten transpose changes no
  shape; the flag `transposed` of each array says it.
  """
  names, before_number, before_part = _HUGGING_FACE[type(config)]
  if type(config) is LlamaConfig and config.post_norms:
    names = _POST_NORMS
  if type(config) is T5GemmaConfig and config.shared_embedding:
    names = _SHARED_TABLE
  table = []
  for path, shape in parameters.param_shapes(config).items():
    # "decoder/layers_3/mlp/wo/kernel" first becomes "decoder/layers_3/2.Dense
    # ReluDense.wo", and then "decoder.block.3.layer.2.DenseReluDense.wo".
    name = expand(names, path)
    name = re.sub(r"(\w+)/layers_", before_number, name)
    name = name.replace("/", before_part)
    kind = _LAST.get(path.rpartition("/")[2], "weight")
    is_transposed = len(shape) == 2 and not path.endswith("/embedding")
    table.append(Parameter(path, shape, f"{name}.{kind}", is_transposed))
  return table


def expand(names: dict[str, str], path: str) -> str:
  """Returns the template of the first pattern that fits a path, filled in."""
  for pattern, template in names.items():
    if match := re.fullmatch(pattern, path):
      return match.expand(template)
  raise KeyError(path)


def check_shapes(stored: dict, table: dict, where: str) -> None:
  """Checks the names and shapes of arrays before they are read.

  Args:
    stored: {name: (shape, dtype)} of the arrays in a file.
    table: {name: `Parameter`} of the arrays that are wanted.
    where: the checkpoint, for messages.

  Raises:
    CheckpointError: arrays are missing or unexpected, or have another shape.
      The message names them.
  """
  wrong = []
  for name in table.keys() & stored.keys():
    shape, parameter = stored[name][0], table[name]
    shape = shape[::-1] if parameter.transposed else shape
    if shape != parameter.shape:
      wrong.append(
        f"{name} ({parameter.name}) has shape {list(shape)} as T5X "
        f"stores it, {list(parameter.shape)} by its settings"
      )
  misfits = {
    "missing: ": [name for name in table if name not in stored],
    "unexpected: ": sorted(stored.keys() - table.keys()),
    "wrong: ": sorted(wrong),
  }
  if text := parameters.format_misfits(misfits):
    if any(name.startswith("lm_head.") for name in misfits["missing: "]):
      text += (
        "; tie_word_embeddings is false in its settings, or left out: set it to"
        " true if the embedding is the output, too, or copy the whole model"
      )
    raise CheckpointError(
      f"the weights of {where} are not those of the model that its settings "
      f"describe; {text}"
    )
