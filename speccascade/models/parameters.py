"""Which arrays a network has, and a parameter tree as it is used."""

import collections
from collections.abc import Iterable, Iterator
import concurrent.futures
import dataclasses
import functools
import math
from typing import Any, NamedTuple

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.network import CausalTransformer
from speccascade.models.sharding import partitioning
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.network import Transformer

Config = T5Config | LlamaConfig
NETWORKS = {T5Config: Transformer, LlamaConfig: CausalTransformer}
# With bfloat16 kernels, the last two, a native product has float32 rows; by the
# last it rounds these, too.
ROUNDED = "bfloat16_products"
KERNEL_DTYPES = ("float32", "bfloat16", ROUNDED)
# Arrays of a checkpoint that are read while others are packed.
_AHEAD = 8


def network(config: Config) -> nn.Module:
  """Returns the network of an architecture."""
  return NETWORKS[type(config)](config)


def layer_counts(config: Config) -> dict[str, int]:
  """Returns the number of layers by its field, such as num_decoder_layers."""
  names = ("num_encoder_layers", "num_decoder_layers")
  return {x: getattr(config, x) for x in names if hasattr(config, x)}


class Described(NamedTuple):
  """What a network says of a parameter: its shape, and its axes' names."""

  shape: tuple[int, ...]
  axes: tuple[str, ...]


@functools.lru_cache(maxsize=64)
def describe(config: Config) -> dict[str, Described]:
  """Returns what is known of every parameter of a network, by its path "a/b/c".

  The embedding first, then an encoder, as messages name them.
  """
  # The network is traced with one layer of each stack: all are alike.
  counts = layer_counts(config)
  shallow = dataclasses.replace(config, **dict.fromkeys(counts, 1))
  init = network(shallow).initial_variables
  variables = jax.eval_shape(init, jax.random.key(0))
  flat = traverse_util.flatten_dict(variables["params"], sep="/")
  axes = partitioning.axis_names(variables)
  parameters = {}
  for name in sorted(flat, key=lambda name: name.split("/")[0], reverse=True):
    stack, is_layer, _ = name.partition("/layers_0/")
    for n in range(counts[f"num_{stack}_layers"] if is_layer else 1):
      path = name.replace("/layers_0/", f"/layers_{n}/")
      parameters[path] = Described(tuple(flat[name].shape), axes[name])
  return parameters


def param_shapes(config: Config) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every parameter; see `describe`."""
  return {path: each.shape for path, each in describe(config).items()}


def num_parameters(config: Config) -> int:
  """Returns how many numbers a model is made of."""
  return sum(map(math.prod, param_shapes(config).values()))


def check_params(config, params: dict, what="the parameters do") -> None:
  """Checks that a parameter tree is that of `config`.

  Args:
    config: the architecture wanted.
    params: nested dict of what has a shape, in T5X's names.
    what: subject and verb of the message.

  Raises:
    ValueError: naming the arrays that are missing or unexpected, or have
      another shape, with both shapes.
  """
  if text := misfits(params, param_shapes(config)):
    raise ValueError(
      f"{what} not fit the model config: {text}; give the config that the "
      "checkpoint was made with"
    )


def misfits(params: dict, want: dict[str, tuple[int, ...]]) -> str:
  """Returns which arrays of a tree are not what is wanted; none are "".

  Args:
    params: nested dict of what has a shape.
    want: the shapes, by paths "a/b/c".
  """
  flat = traverse_util.flatten_dict(params, sep="/")
  got = {name: tuple(leaf.shape) for name, leaf in flat.items()}
  return format_misfits(
    {
      "missing ": [name for name in want if name not in got],
      "unexpected ": [name for name in got if name not in want],
      "": [
        f"{name} has shape {list(got[name])}, {list(shape)} by the config"
        for name, shape in want.items()
        if got.get(name, shape) != shape
      ],
    }
  )


def prepare(
  config: Config, params, kernel_dtype=None, *, donate=False, layout=None
) -> dict:
  """Returns a parameter tree with each array cast, or packed, as it is used.

  Arguments and errors as of `CachedLM.create`, but:

  Args:
    config: the architecture, with the activations' dtype.
    params: nested dict of arrays, as in a checkpoint, or of what is read when
      it is made an array; then a few are held at a time.
  """
  check_params(config, params)
  flat = traverse_util.flatten_dict(params, sep="/")
  if kernel_dtype not in (None, *KERNEL_DTYPES):
    wanted = " or ".join(map(repr, KERNEL_DTYPES))
    raise ValueError(f"kernel_dtype is {kernel_dtype!r}; wanted {wanted}")
  has_panels = bool(kernel_dtype) and layout is None and native.is_available()
  about = describe(config)
  uses = {name: storage(config, name, kernel_dtype) for name in flat}
  packed = {
    name: about[name].shape[:: 1 if name.endswith("/kernel") else -1]
    for name, use in uses.items()
    if has_panels and use.is_packed
  }
  stored = "float32" if kernel_dtype == "float32" else "bfloat16"
  packer = native.Packer(packed, stored, kernel_dtype == ROUNDED)
  if donate:
    params.clear()
  leaves = flat.values() if layout else _read_ahead(flat.values())
  for name, leaf in zip(list(flat), leaves):
    dtype = uses[name].dtype
    if layout is not None:
      place = layout.sharding(*about[name].axes)
      flat[name] = partitioning.put(leaf, place, jnp.dtype(dtype))
    elif name in packed:
      packer.add(name, leaf if name.endswith("/kernel") else leaf.T)
      flat[name] = None
    else:
      flat[name] = jnp.asarray(leaf, dtype)
  flat |= packer.panels()
  return traverse_util.unflatten_dict(flat, sep="/")


def _read_ahead(leaves: Iterable[Any]) -> Iterator[Any]:
  """Yields leaves as arrays; a few are read while one is used."""
  is_read = lambda leaf: isinstance(leaf, np.ndarray | jax.Array)
  read = lambda leaf: leaf if is_read(leaf) else np.asarray(leaf)
  with concurrent.futures.ThreadPoolExecutor(_AHEAD) as pool:
    reading = collections.deque()
    for leaf in leaves:
      reading.append(pool.submit(read, leaf))
      if len(reading) > _AHEAD:
        yield reading.popleft().result()
    while reading:
      yield reading.popleft().result()


class Storage(NamedTuple):
  """How `prepare` stores a parameter.

  Attributes:
    dtype: name of the array's dtype.
    is_packed: whether it is packed where there is a native product.
  """

  dtype: str
  is_packed: bool


def storage(
  config: Config, name: str, kernel_dtype: str | None = None
) -> Storage:
  """Returns how `prepare` stores the parameter of a name "a/b/c"."""
  is_table = name == "token_embedder/embedding"
  is_tied = is_table and config.logits_via_embedding
  # Logits are computed in float32 whatever the activations are.
  is_head = is_tied or name == "decoder/logits_dense/kernel"
  used = "float32" if is_head else config.dtype
  is_kernel = is_tied or name.endswith("/kernel")
  is_half = is_kernel and kernel_dtype in ("bfloat16", ROUNDED)
  return Storage(
    dtype="bfloat16" if is_half else used,
    is_packed=is_kernel and used == "float32",
  )


tree = functools.partial(traverse_util.unflatten_dict, sep="/")


def place_params(
  config: Config, params: dict, layout: partitioning.Layout
) -> dict:
  """Returns a parameter tree where a layout puts it, in float32."""
  place = lambda path: layout.sharding(*describe(config)[path].axes)
  put = lambda x, leaf: partitioning.put(leaf, place(x), np.float32)
  return partitioning.map_by_path(params, put)


def shardings(config: Config, layout: partitioning.Layout) -> dict:
  """Returns where a layout puts each parameter, in a tree of them."""
  return tree(
    {
      path: layout.sharding(*each.axes)
      for path, each in describe(config).items()
    }
  )


def format_misfits(misfits: dict[str, list[str]]) -> str:
  """Returns each kind of misfit with the first few of its list, in one line."""
  return "; ".join(k + shorten(items) for k, items in misfits.items() if items)


def shorten(items: list[str]) -> str:
  """Returns the first few of a list, and how many more there are."""
  more, shown = len(items) - 4, ", ".join(items[:4])
  return f"{shown} and {more} more" if more > 0 else shown
