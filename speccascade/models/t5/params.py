"""Which arrays a T5 has, and whether a parameter tree has them."""

import dataclasses
import functools

from flax import traverse_util
import jax
import jax.numpy as jnp

from speccascade.models.t5.config import T5Config
from speccascade.models.t5.network import Transformer


@functools.lru_cache(maxsize=64)
def param_shapes(config: T5Config) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every parameter of a T5, by its path "a/b/c".

  The embedding first, then the encoder, as messages name them.
  """
  # The network is traced with one layer of each stack: all are alike.
  one = dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=1)
  tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  init = functools.partial(Transformer(one).init, enable_dropout=False)
  tree = jax.eval_shape(init, jax.random.key(0), tokens, tokens, tokens)
  flat = traverse_util.flatten_dict(tree["params"], sep="/")
  shapes = {}
  for name in sorted(flat, key=lambda name: name.split("/")[0], reverse=True):
    stack, is_layer, _ = name.partition("/layers_0/")
    for n in range(getattr(config, f"num_{stack}_layers") if is_layer else 1):
      path = name.replace("/layers_0/", f"/layers_{n}/")
      shapes[path] = tuple(flat[name].shape)
  return shapes


def check_params(
  config: T5Config, params: dict, what: str = "the parameters do"
) -> None:
  """Checks that a parameter tree is that of `config`.

  Args:
    config: the architecture wanted.
    params: nested dict of what has a shape, in T5X's names.
    what: subject and verb of the message.

  Raises:
    ValueError: naming the arrays that are missing or unexpected, or have
      another shape, with both shapes.
  """
  flat = traverse_util.flatten_dict(params, sep="/")
  got = {name: tuple(leaf.shape) for name, leaf in flat.items()}
  want = param_shapes(config)
  misfits = {
    "missing ": [name for name in want if name not in got],
    "unexpected ": [name for name in got if name not in want],
    "": [
      f"{name} has shape {list(got[name])}, {list(shape)} by the config"
      for name, shape in want.items()
      if got.get(name, shape) != shape
    ],
  }
  if text := listed(misfits):
    raise ValueError(
      f"{what} not fit the model config: {text}; give the config that the "
      "checkpoint was made with"
    )


def listed(misfits: dict[str, list[str]]) -> str:
  """Returns each kind of misfit with the first few of its list, in one line."""
  return "; ".join(k + some(items) for k, items in misfits.items() if items)


def some(items: list[str], limit: int = 4) -> str:
  """Returns the first few of a list, and how many more there are."""
  more = len(items) - limit
  shown = ", ".join(items[:limit])
  return f"{shown} and {more} more" if more > 0 else shown
