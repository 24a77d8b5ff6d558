"""Which arrays a T5 has, and whether a checkpoint fits a config."""

from collections.abc import Iterator
from typing import NamedTuple

from flax import traverse_util

from speccascade.checkpoints.errors import CheckpointError
from speccascade.models.t5.config import T5Config

RELATIVE_BUCKETS = 32  # of T5X's network, where it is no hyperparameter
RELATIVE_MAX_DISTANCE = 128

# The other fields of T5Config are choices of a run, not facts of the weights.
_ARCHITECTURE = (
  "vocab_size",
  "emb_dim",
  "num_heads",
  "num_encoder_layers",
  "num_decoder_layers",
  "head_dim",
  "mlp_dim",
  "mlp_activations",
  "logits_via_embedding",
)


class Parameter(NamedTuple):
  """One array of a T5.

  Attributes:
    name: T5X's path, joined by "/".
    shape: T5X's shape.
    hugging_face: its name in a Hugging Face file.
    transposed: True where Hugging Face stores the transpose.
  """

  name: str
  shape: tuple[int, ...]
  hugging_face: str
  transposed: bool = False


def parameters(config: T5Config) -> list[Parameter]:
  """Returns every array of the model, in T5X's names and Hugging Face's.

  The joined axis of attention kernels is head-major: column h * head_dim + d.
  Square kernels hide a forgotten transpose, so it is said here for each array.
  """
  return list(_parameters(config))


# T5X's name of each attention, and Hugging Face's.
_ATTENTIONS = {
  "encoder": {"attention": "SelfAttention"},
  "decoder": {
    "self_attention": "SelfAttention",
    "encoder_decoder_attention": "EncDecAttention",
  },
}


def _parameters(config: T5Config) -> Iterator[Parameter]:
  width, joined = config.emb_dim, config.num_heads * config.head_dim
  num_wi = len(config.mlp_activations)
  wi = ["wi"] if num_wi == 1 else [f"wi_{i}" for i in range(num_wi)]
  scale = (width,)

  def kernel(name, shape, hugging_face):
    return Parameter(f"{name}/kernel", shape, f"{hugging_face}.weight", True)

  embedding = (config.vocab_size, width)
  yield Parameter("token_embedder/embedding", embedding, "shared.weight")
  for stack, attentions in _ATTENTIONS.items():
    yield Parameter(
      f"{stack}/relpos_bias/rel_embedding",
      (config.num_heads, RELATIVE_BUCKETS),
      f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
      True,
    )
    for n in range(getattr(config, f"num_{stack}_layers")):
      layer, block = f"{stack}/layers_{n}", f"{stack}.block.{n}.layer"
      for i, (attention, module) in enumerate(attentions.items()):
        norm = attention.replace("encoder_decoder", "cross")
        name = f"{layer}/pre_{norm}_layer_norm/scale"
        yield Parameter(name, scale, f"{block}.{i}.layer_norm.weight")
        for part in ("query", "key", "value", "out"):
          yield kernel(
            f"{layer}/{attention}/{part}",
            (joined, width) if part == "out" else (width, joined),
            f"{block}.{i}.{module}.{part[0]}",
          )
      i = len(attentions)
      name = f"{layer}/pre_mlp_layer_norm/scale"
      yield Parameter(name, scale, f"{block}.{i}.layer_norm.weight")
      for name in [*wi, "wo"]:
        yield kernel(
          f"{layer}/mlp/{name}",
          (config.mlp_dim, width) if name == "wo" else (width, config.mlp_dim),
          f"{block}.{i}.DenseReluDense.{name}",
        )
    name = f"{stack}/{stack}_norm/scale"
    yield Parameter(name, scale, f"{stack}.final_layer_norm.weight")
  if not config.logits_via_embedding:
    shape = (width, config.vocab_size)
    yield kernel("decoder/logits_dense", shape, "lm_head")


def flatten(tree: dict) -> dict:
  """Returns {"a/b/c": leaf} of nested dicts."""
  return traverse_util.flatten_dict(tree, sep="/")


def unflatten(flat: dict) -> dict:
  """Returns the nested dicts of {"a/b/c": leaf}."""
  return traverse_util.unflatten_dict(flat, sep="/")


def check_params(params: dict, config: T5Config, *, where: str = "") -> None:
  """Checks that a parameter tree is that of `config`.

  Args:
    params: nested dict of arrays in T5X's names.
    config: the architecture wanted.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: naming the arrays that are missing or unexpected, or have
      another shape, with both shapes.
  """
  got = {name: tuple(value.shape) for name, value in flatten(params).items()}
  refuse_scalable(got, where=where)
  want = {p.name: p.shape for p in parameters(config)}
  faults = []
  if missing := [name for name in want if name not in got]:
    faults.append(f"missing {some(missing)}")
  if unexpected := [name for name in got if name not in want]:
    faults.append(f"unexpected {some(unexpected)}")
  if wrong := [
    f"{name} has shape {list(got[name])} in the checkpoint, {list(want[name])}"
    " by the config"
    for name in want
    if name in got and got[name] != want[name]
  ]:
    faults.append(some(wrong))
  if faults:
    raise CheckpointError(
      f"the checkpoint {where} does not fit the model config: "
      f"{'; '.join(faults)}; give the config that the checkpoint was made with"
    )


def config_of(params: dict, *, where: str = "") -> T5Config:
  """Returns the architecture that the arrays have, as a T5 1.0 or 1.1.

  Shapes say everything but the activations: one kernel into the MLP is taken
  for the relu of T5 1.0, two for the gated gelu of T5 1.1, mT5 and Flan-T5.

  Args:
    params: nested dict of arrays in T5X's names.
    where: the checkpoint, for the message.

  Raises:
    CheckpointError: they are not those of such a T5.
  """
  shapes = {name: tuple(x.shape) for name, x in flatten(params).items()}
  refuse_scalable(shapes, where=where)
  is_gated = "decoder/layers_0/mlp/wi_0/kernel" in shapes
  wi = "wi_0" if is_gated else "wi"
  try:
    vocab_size, emb_dim = shapes["token_embedder/embedding"]
    num_heads, _ = shapes["decoder/relpos_bias/rel_embedding"]
    _, joined = shapes["decoder/layers_0/self_attention/query/kernel"]
    _, mlp_dim = shapes[f"decoder/layers_0/mlp/{wi}/kernel"]
  except (KeyError, ValueError) as error:
    raise CheckpointError(
      f"the checkpoint {where} is no T5 whose architecture can be read off its"
      f" arrays ({error}): give its T5Config"
    ) from error
  config = T5Config(
    vocab_size=vocab_size,
    emb_dim=emb_dim,
    num_heads=num_heads,
    num_encoder_layers=_num_layers(shapes, "encoder"),
    num_decoder_layers=_num_layers(shapes, "decoder"),
    head_dim=joined // num_heads,
    mlp_dim=mlp_dim,
    mlp_activations=("gelu", "linear") if is_gated else ("relu",),
    logits_via_embedding="decoder/logits_dense/kernel" not in shapes,
  )
  check_params(params, config, where=where)
  return config


def _num_layers(shapes, stack: str) -> int:
  prefix = f"{stack}/layers_"
  layers = {
    name.removeprefix(prefix).partition("/")[0]
    for name in shapes
    if name.startswith(prefix)
  }
  return len(layers)


def refuse_scalable(shapes: dict[str, tuple[int, ...]], *, where: str = ""):
  """Refuses the parameter trees of T5X's scalable_t5.

  Its relative positions are per layer, so its weights are no plain T5's.
  """
  if any(
    name.startswith(("encoder/encoder/", "decoder/decoder/")) for name in shapes
  ):
    what = "scanned layers"
  elif any("/layers_" in name and "relpos_bias" in name for name in shapes):
    what = "relative positions per layer"
  elif any(
    name.endswith("/kernel") and len(shape) > 2
    for name, shape in shapes.items()
  ):
    what = "three-dimensional attention kernels"
  else:
    return
  raise CheckpointError(
    f"the checkpoint {where} has {what}: it was written by T5X's scalable_t5 "
    "(or is a umT5); only the layout of t5x/examples/t5 is read"
  )


def check_config(
  wanted: T5Config, stored: T5Config, *, where: str = ""
) -> None:
  """Checks that a config has the architecture that a checkpoint says it has.

  Raises:
    CheckpointError: naming every difference.
  """
  differences = [
    f"{name}={getattr(wanted, name)!r} "
    f"(the checkpoint: {getattr(stored, name)!r})"
    for name in _ARCHITECTURE
    if getattr(wanted, name) != getattr(stored, name)
  ]
  if differences:
    raise CheckpointError(
      f"the model config is not that of the checkpoint {where}: the config has "
      f"{', '.join(differences)}"
    )


def some(items: list[str], limit: int = 4) -> str:
  """Returns the first few of a list, and how many more there are."""
  more = len(items) - limit
  shown = ", ".join(items[:limit])
  return f"{shown} and {more} more" if more > 0 else shown
