"""Checks whether the arrays of a checkpoint fit an architecture.

Arrays have T5X's names in this package, for Llama too.
"""

import functools
import re

from flax import traverse_util

from speccascade.checkpoints.errors import CheckpointError
from speccascade.models import parameters
from speccascade.models.parameters import Config
from speccascade.models.t5.config import T5Config
from speccascade.runtime import memory

# Fields of configs that a run may choose: the same weights serve any value.
_RUN_CHOICES = (
  "dropout_rate",
  "dtype",
  "float32_attention_logits",
  "eos_ids",
  "bos_id",
  "start_id",
)


# Patterns by which arrays of T5X's scalable_t5 are recognised. Each is searched
# in a text with a line "NAME RANK" for each array.
_SCALABLE = {
  "scanned layers": r"\n(encoder|decoder)/\1/",
  "relative positions per layer": r"/layers_.*relpos_bias",
  "three-dimensional attention kernels": r"/kernel ([3-9]|\d\d)",
}
# From nested dicts to {"a/b/c": leaf}, and back.
flatten = functools.partial(traverse_util.flatten_dict, sep="/")
unflatten = functools.partial(traverse_util.unflatten_dict, sep="/")


def shapes_of(params: dict, *, where: str) -> dict[str, tuple[int, ...]]:
  """Returns the shape of each array, by name.

  Args:
    params: nested dict of arrays.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: T5X's scalable_t5 wrote the arrays. Its relative positions
      differ in each layer, and no network of this package has such positions.
  """
  shapes = {name: tuple(x.shape) for name, x in flatten(params).items()}
  listing = "".join(f"\n{name} {len(shape)}" for name, shape in shapes.items())
  for feature, pattern in _SCALABLE.items():
    if re.search(pattern, listing):
      raise CheckpointError(
        f"the checkpoint {where} has {feature}: it was written by T5X's "
        "scalable_t5 (or is a umT5); only the layout of t5x/examples/t5 is read"
      )
  return shapes


def check_num_layers(config: Config, num_arrays: int, *, where: str) -> None:
  """Checks that a config has no more layers than a checkpoint has arrays.

  A damaged config may have millions of layers. Listing their arrays would fill
  the memory.

  Args:
    config: the architecture.
    num_arrays: how many arrays the checkpoint has.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: the config has more layers.
  """
  counts = parameters.layer_counts(config)
  if sum(counts.values()) > num_arrays:
    layers = " and ".join(f"{name}={count}" for name, count in counts.items())
    raise CheckpointError(
      f"the config has {layers}, the checkpoint {where} only {num_arrays}"
      " arrays"
    )


def check_memory(config: Config, *, where: str) -> None:
  """Checks that the machine can hold a model's parameters in float32.

  Args:
    config: the architecture.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: the machine has less memory.
  """
  num_weights = parameters.num_parameters(config)
  if 4 * num_weights > memory.machine():
    raise CheckpointError(
      f"{where}: {num_weights:,} parameters take {4e-9 * num_weights:.1f} GB in"
      f" float32, this machine has {memory.machine() / 1e9:.1f} GB"
    )


def check_params(params: dict, config: Config, *, where: str = "") -> None:
  """Checks that a parameter tree has the arrays of `config`.

  Args:
    params: nested dict of arrays in T5X's names.
    config: the architecture.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: arrays are missing or unexpected, or have another shape.
      The message names them, with both shapes.
  """
  shapes = shapes_of(params, where=where)
  check_num_layers(config, len(shapes), where=where)
  try:
    parameters.check_params(config, params, f"the checkpoint {where} does")
  except ValueError as error:
    raise CheckpointError(str(error)) from error


def config_of(params: dict, *, where: str = "") -> T5Config:
  """Returns the architecture of a T5 1.0 or 1.1, from the shapes of its arrays.

  The shapes determine all but the activations. An MLP with one input kernel is
  taken for the relu of T5 1.0, and one with two input kernels for the gated
  gelu of T5 1.1, mT5 and Flan-T5.

  Args:
    params: nested dict of arrays in T5X's names.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: a T5 1.0 or 1.1 has other arrays.
  """
  shapes = shapes_of(params, where=where)
  is_gated = "decoder/layers_0/mlp/wi_0/kernel" in shapes
  wi = "wi_0" if is_gated else "wi"
  layers = {tuple(name.split("/")[:2]) for name in shapes if "/layers_" in name}
  try:
    vocab_size, emb_dim = shapes["token_embedder/embedding"]
    num_heads, _ = shapes["decoder/relpos_bias/rel_embedding"]
    _, joined_heads = shapes["decoder/layers_0/self_attention/query/kernel"]
    _, mlp_dim = shapes[f"decoder/layers_0/mlp/{wi}/kernel"]
    config = T5Config(
      vocab_size=vocab_size,
      emb_dim=emb_dim,
      num_heads=num_heads,
      num_encoder_layers=sum(stack == "encoder" for stack, _ in layers),
      num_decoder_layers=sum(stack == "decoder" for stack, _ in layers),
      head_dim=joined_heads // num_heads,
      mlp_dim=mlp_dim,
      mlp_activations=("gelu", "linear") if is_gated else ("relu",),
      logits_via_embedding="decoder/logits_dense/kernel" not in shapes,
    )
  except (KeyError, ValueError, ZeroDivisionError) as error:
    raise CheckpointError(
      f"the checkpoint {where} is not a T5 whose architecture can be read off"
      f" its arrays ({error}): give its T5Config (by DRAFTER, VERIFIER or"
      " --model_gin_file, as in configs/models/t5_1_1_small.gin)"
    ) from error
  check_params(params, config, where=where)
  return config


def check_config(wanted: Config, stored: Config, *, where: str = "") -> None:
  """Checks that a config has the architecture that is stored in a checkpoint.

  Args:
    wanted: the config.
    stored: the checkpoint's own config.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: the two differ. The message names every difference.
  """
  if type(wanted) is not type(stored):
    raise CheckpointError(
      f"the checkpoint {where} is of a {type(stored).__name__}; a"
      f" {type(wanted).__name__} is wanted"
    )
  wanted, stored = vars(wanted), vars(stored)
  differences = [
    f"{name}={value!r} (the checkpoint: {stored[name]!r})"
    for name, value in wanted.items()
    if name not in _RUN_CHOICES and value != stored[name]
  ]
  if differences:
    raise CheckpointError(
      f"the model config is not that of the checkpoint {where}: the config has "
      f"{', '.join(differences)}"
    )
