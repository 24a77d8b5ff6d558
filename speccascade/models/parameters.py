"""Which parameters a network has, and how a model stores them."""

import collections
from collections.abc import Iterable, Iterator, Mapping
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
from speccascade.models import cut_head
from speccascade.models.draft_heads import HeadsConfig, HeadsNetwork
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.network import CausalTransformer
from speccascade.models.reader_config import StateReaderConfig
from speccascade.models.sharding import partitioning
from speccascade.models.state_reader import StateReaderNetwork
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.network import Transformer
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.models.t5gemma.network import T5GemmaTransformer
from speccascade.models.taught_exit import ExitConfig, ExitNetwork

Config = (
  T5Config
  | T5GemmaConfig
  | LlamaConfig
  | HeadsConfig
  | ExitConfig
  | StateReaderConfig
)
NETWORKS = {
  T5Config: Transformer,
  T5GemmaConfig: T5GemmaTransformer,
  LlamaConfig: CausalTransformer,
  HeadsConfig: HeadsNetwork,
  ExitConfig: ExitNetwork,
  StateReaderConfig: StateReaderNetwork,
}
# The last two store kernels in bfloat16. A native product multiplies float32
# rows by them; the last one rounds the rows to bfloat16, too.
ROUNDED = "bfloat16_products"
KERNEL_DTYPES = ("float32", "bfloat16", ROUNDED)
# A drafter's may be in eight bits, too; see `native.Quantised`.
EIGHT_BITS = "int8"
DRAFTER_KERNEL_DTYPES = (*KERNEL_DTYPES, EIGHT_BITS)
# How many arrays of a checkpoint are read while others are packed.
_AHEAD = 8


def network(config: Config) -> nn.Module:
  """Returns the network of an architecture."""
  return NETWORKS[type(config)](config)


def layer_counts(config: Config) -> dict[str, int]:
  """Returns the numbers of layers, by fields such as "num_decoder_layers"."""
  fields = ("num_encoder_layers", "num_decoder_layers")
  return {
    field: getattr(config, field) for field in fields if hasattr(config, field)
  }


class Described(NamedTuple):
  """What a network says of a parameter.

  Attributes:
    shape: lengths of its axes.
    axes: names of its axes, such as "embed".
  """

  shape: tuple[int, ...]
  axes: tuple[str, ...]


@functools.lru_cache(maxsize=64)
def describe(config: Config) -> dict[str, Described]:
  """Returns the description of every parameter of a network, by path "a/b/c".

  The embedding comes first, then an encoder, then the decoder. Messages name
  parameters in this order.
  """
  # All layers of a stack are alike, so the network is traced with one of each.
  counts = layer_counts(config)
  one_layer: dict[str, Any] = dict.fromkeys(counts, 1)
  shallow = dataclasses.replace(config, **one_layer)
  init = network(shallow).initial_variables
  variables = jax.eval_shape(init, jax.random.key(0))
  flat = traverse_util.flatten_dict(variables["params"], sep="/")
  axes = partitioning.axis_names(variables)
  parameters = {}
  # "token_embedder" > "encoder" > "decoder".
  for name in sorted(flat, key=lambda name: name.split("/")[0], reverse=True):
    # "decoder/layers_0/mlp/wo/kernel" stands for one parameter of each layer.
    stack, is_layer, _ = name.partition("/layers_0/")
    for n in range(counts.get(f"num_{stack}_layers", 1) if is_layer else 1):
      path = name.replace("/layers_0/", f"/layers_{n}/")
      parameters[path] = Described(tuple(flat[name].shape), axes[name])
  return parameters


def param_shapes(config: Config) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every parameter; see `describe`."""
  return {path: each.shape for path, each in describe(config).items()}


def num_parameters(config: Config) -> int:
  """Returns the number of numbers in all parameters of a model."""
  return sum(map(math.prod, param_shapes(config).values()))


def check_params(
  config: Config, params: Mapping, what: str = "the parameters do"
) -> None:
  """Checks that a parameter tree fits an architecture.

  Args:
    config: the architecture wanted.
    params: nested dict of objects with a shape, in T5X's names.
    what: subject and verb of the message.

  Raises:
    ValueError: arrays are missing or unexpected, or have another shape; the
      message names the first few, with both shapes.
  """
  text = misfits(params, param_shapes(config))
  if text:
    raise ValueError(
      f"{what} not fit the model config: {text}; give the config that the "
      "checkpoint was made with"
    )


def misfits(params: Mapping, want: Mapping[str, tuple[int, ...]]) -> str:
  """Returns, in one line, which arrays of a tree are not the wanted ones.

  Args:
    params: nested dict of objects with a shape.
    want: the shapes, by paths "a/b/c".

  Returns:
    The first few names of each kind of misfit; "" where all arrays fit.
  """
  flat = traverse_util.flatten_dict(params, sep="/")
  shapes = {name: tuple(leaf.shape) for name, leaf in flat.items()}
  return format_misfits(
    {
      "missing ": [name for name in want if name not in shapes],
      "unexpected ": [name for name in shapes if name not in want],
      "": [
        f"{name} has shape {list(shapes[name])}, {list(shape)} by the config"
        for name, shape in want.items()
        if shapes.get(name, shape) != shape
      ],
    }
  )


def prepare(
  config: Config,
  params: dict,
  kernel_dtype: str | None = None,
  *,
  donate: bool = False,
  layout: partitioning.Layout | None = None,
) -> dict:
  """Returns a parameter tree with each array cast or packed, as it is used.

  Args:
    config: the architecture, with the activations' dtype.
    params: nested dict of arrays, as in a checkpoint; or of objects that read
      their array when NumPy asks for it, a few of which are held at a time.
    kernel_dtype: see `CachedLM.create`.
    donate: see `CachedLM.create`.
    layout: see `CachedLM.create`.

  Raises:
    ValueError: see `CachedLM.create`.
  """
  check_params(config, params)
  flat = traverse_util.flatten_dict(params, sep="/")
  if kernel_dtype not in (None, *DRAFTER_KERNEL_DTYPES):
    wanted = " or ".join(map(repr, DRAFTER_KERNEL_DTYPES))
    raise ValueError(f"kernel_dtype is {kernel_dtype!r}; wanted {wanted}")
  if layout is not None:
    check_one_device(kernel_dtype)
  descriptions = describe(config)
  storages = {name: storage(config, name, kernel_dtype) for name in flat}
  packer = _packer(config, storages, kernel_dtype, is_laid_out=bool(layout))
  if donate:
    params.clear()
  # With a layout each device reads its own part, so nothing is read ahead.
  leaves = flat.values() if layout else _read_ahead(flat.values())
  for name, leaf in zip(list(flat), leaves):
    dtype = storages[name].dtype
    if layout is not None:
      sharding = layout.sharding(*descriptions[name].axes)
      flat[name] = partitioning.put(leaf, sharding, jnp.dtype(dtype))
    elif name in packer.shapes:
      packer.add(name, _as_kernel(name, leaf))
      flat[name] = None  # the array may go: its panels come below
    elif storages[name].is_scaled:
      kernel = native.quantise(_as_kernel(name, leaf))
      flat[name] = jax.tree.map(jnp.asarray, kernel)
    else:
      flat[name] = jnp.asarray(leaf, dtype)
  flat |= packer.panels()
  return traverse_util.unflatten_dict(flat, sep="/")


def kernel_dtype_of(params: Any) -> str | None:
  """Returns the `kernel_dtype` that a parameter tree was prepared with.

  Arrays that are not packed may have been prepared with None; their dtype is
  returned. None is returned where there is no kernel.
  """
  flat = traverse_util.flatten_dict(params, sep="/")
  for name, kernel in flat.items():
    if not name.endswith("/kernel"):
      continue
    if isinstance(kernel, native.Panels):
      return ROUNDED if kernel.rounds else kernel.array.dtype.name
    return jnp.dtype(kernel.dtype).name
  return None


def unpacked(params: Any) -> Any:
  """Returns parameters with arrays, as of a checkpoint, for packed kernels."""
  flat = traverse_util.flatten_dict(params, sep="/")
  kinds = native.Panels | native.Quantised
  for name, leaf in flat.items():
    if isinstance(leaf, kinds):
      columns = leaf.columns(jnp.arange(leaf.num_out))
      flat[name] = columns.T if name.endswith("/kernel") else columns
  return traverse_util.unflatten_dict(flat, sep="/")


def check_one_device(kernel_dtype: str | None) -> None:
  """Raises ValueError where kernels of a dtype cannot lie on a mesh."""
  if kernel_dtype == EIGHT_BITS:
    raise ValueError(
      "kernels in int8 lie on one device, and a mesh is set: leave MESH out, or"
      " take another dtype of kernels"
    )


def _as_kernel(name: str, leaf: Any) -> Any:
  """Returns a kernel [in, out]: a tied table [V, E] is the head's, turned."""
  return leaf if name.endswith("/kernel") else leaf.T


def _packer(
  config: Config,
  storages: Mapping[str, "Storage"],
  kernel_dtype: str | None,
  is_laid_out: bool,
) -> native.Packer:
  """Returns the packer of a model's kernels, of none where none is packed."""
  has_panels = bool(kernel_dtype) and not is_laid_out and native.is_available()
  descriptions, shapes = describe(config), {}
  for name, stored in storages.items():
    if has_panels and stored.is_packed:
      rows, columns = descriptions[name].shape
      # A tied table [V, E] is the head's kernel [E, V], turned.
      is_kernel = name.endswith("/kernel")
      shapes[name] = (rows, columns) if is_kernel else (columns, rows)
  rounds = kernel_dtype == ROUNDED
  dtype = "bfloat16" if rounds or not kernel_dtype else kernel_dtype
  return native.Packer(shapes, dtype, rounds)


def _read_ahead(leaves: Iterable[Any]) -> Iterator[Any]:
  """Yields leaves as arrays; a few are read while one is used."""

  def read(leaf):
    is_read = isinstance(leaf, np.ndarray | jax.Array)
    return leaf if is_read else np.asarray(leaf)

  with concurrent.futures.ThreadPoolExecutor(_AHEAD) as pool:
    futures: collections.deque = collections.deque()
    for leaf in leaves:
      futures.append(pool.submit(read, leaf))
      if len(futures) > _AHEAD:
        yield futures.popleft().result()
    while futures:
      yield futures.popleft().result()


class Storage(NamedTuple):
  """How `prepare` stores a parameter.

  Attributes:
    dtype: name of the array's dtype.
    is_packed: whether it is packed where there is a native product.
    is_scaled: whether each output has a float32 scale, too.
  """

  dtype: str
  is_packed: bool
  is_scaled: bool = False

  @staticmethod
  def num_out(name: str, shape: tuple[int, ...]) -> int:
    """Returns the outputs of a kernel [in, out], or of a table [V, E]."""
    return shape[-1] if name.endswith("/kernel") else shape[0]


def storage(
  config: Config, name: str, kernel_dtype: str | None = None
) -> Storage:
  """Returns how `prepare` stores the parameter of a name "a/b/c"."""
  is_table = name == "token_embedder/embedding"
  is_tied = is_table and getattr(config, "logits_via_embedding", False)
  # Logits are computed in float32 whatever the activations are.
  if name == f"{cut_head.NAME}/ids":
    return Storage(dtype="int32", is_packed=False)
  heads = ("decoder/logits_dense/kernel", f"{cut_head.NAME}/kernel")
  is_head = is_tied or name in heads
  used = "float32" if is_head else config.dtype
  is_kernel = is_tied or name.endswith("/kernel")
  dtype: str = used
  if is_kernel and kernel_dtype in ("bfloat16", ROUNDED, EIGHT_BITS):
    dtype = EIGHT_BITS if kernel_dtype == EIGHT_BITS else "bfloat16"
  return Storage(
    dtype=dtype,
    is_packed=is_kernel and used == "float32",
    is_scaled=dtype == EIGHT_BITS,
  )


def tree(flat: Mapping[str, Any]) -> dict:
  """Returns nested dicts of what is given by paths "a/b/c"."""
  return traverse_util.unflatten_dict(flat, sep="/")


def place_params(
  config: Config, params: Mapping, layout: partitioning.Layout
) -> dict:
  """Returns a parameter tree, in float32, where a layout puts its arrays."""
  descriptions = describe(config)

  def put(path, leaf):
    sharding = layout.sharding(*descriptions[path].axes)
    return partitioning.put(leaf, sharding, np.float32)

  return partitioning.map_by_path(params, put)


def shardings(config: Config, layout: partitioning.Layout) -> dict:
  """Returns a tree of shardings: where a layout puts each parameter."""
  return tree(
    {
      path: layout.sharding(*description.axes)
      for path, description in describe(config).items()
    }
  )


def format_misfits(misfits: Mapping[str, list[str]]) -> str:
  """Returns each kind of misfit with the first few of its list, in one line.

  Args:
    misfits: by the words that a kind begins with, such as "missing ", the names
      of that kind.
  """
  return "; ".join(
    kind + shorten(names) for kind, names in misfits.items() if names
  )


def shorten(items: list[str]) -> str:
  """Returns the first few of a list, and how many more there are.

  >>> shorten(["a", "b", "c", "d", "e", "f"])
  'a, b, c, d and 2 more'
  """
  num_more, first = len(items) - 4, ", ".join(items[:4])
  return f"{first} and {num_more} more" if num_more > 0 else first
