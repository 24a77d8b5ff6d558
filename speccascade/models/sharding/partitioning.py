"""Where arrays lie on several devices: a mesh, and T5X's rules.

A mesh has two axes: `data` splits rows, `model` splits what a layer computes.
The networks name the axes of their arrays ("embed", "heads", ...). The rules
say which mesh axis splits each of these, and XLA adds the communication.

Source: T5X's `partitioning.standard_logical_axis_rules`.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import functools
from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
import numpy as np

DATA, MODEL = "data", "model"
Rules = tuple[tuple[str, str | None], ...]
RULES: Rules = (
  ("batch", DATA),
  ("vocab", MODEL),
  ("embed", None),
  ("mlp", MODEL),
  ("heads", MODEL),
  ("kv", None),
  ("joined_kv", MODEL),
  ("relpos_buckets", None),
  ("length", None),
)
# T5X's rules with `parameter_partitioning_dims=2`: the `data` axis splits the
# other axis of kernels, too.
RULES_2D: Rules = (
  *(rule for rule in RULES if rule[0] != "embed"),
  ("embed", DATA),
)
# Most checkpoints store an array of up to so many numbers as one chunk, and
# reading it in parts would read the chunk several times. In float32 it takes 64
# MiB.
MOST_READ = 2**24
# The fields of a config that are the length of an axis of arrays.
CUT = {
  "vocab": ("vocab_size",),
  "mlp": ("mlp_dim", "encoder_mlp_dim"),
  "heads": (
    "num_heads",
    "num_kv_heads",
    "encoder_num_heads",
    "encoder_num_kv_heads",
  ),
  "embed": ("emb_dim", "encoder_emb_dim"),
}


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where a model's arrays lie; static, part of a compiled program.

  Attributes:
    mesh: has axes `data` and `model`; an AbstractMesh has no devices.
    rules: which mesh axis splits each axis of arrays.
  """

  mesh: Mesh | AbstractMesh
  rules: Rules = RULES

  @property
  def sizes(self) -> dict[str, int]:
    """The devices along each mesh axis."""
    return dict(self.mesh.shape)

  @property
  def num_parts(self) -> int:
    """The number of parts that most parameters are split into."""
    is_2d = dict(self.rules)["embed"] is not None
    return self.sizes[MODEL] * (self.sizes[DATA] if is_2d else 1)

  def whole(self) -> "Layout":
    """Returns the layout of a model that every device holds whole."""
    rules = tuple(
      (name, axis if name == "batch" else None) for name, axis in RULES
    )
    return dataclasses.replace(self, rules=rules)

  def of_rows(self, num: int) -> "Layout":
    """Returns the layout for a number of rows.

    Where `data` does not divide the number, every device takes all rows.
    """
    if num % self.sizes[DATA] == 0:
      return self
    rules = tuple(
      (name, None if name == "batch" else axis) for name, axis in self.rules
    )
    return dataclasses.replace(self, rules=rules)

  def sharding(self, *axes: str | None) -> NamedSharding:
    """Returns where an array with these axes lies.

    Args:
      *axes: names of the array's axes, from the first on. Axes that are not
        named are not split: without any, the array is whole on every device.
    """
    spec = nn.logical_to_mesh_axes(axes, self.rules) or PartitionSpec()
    return NamedSharding(self.mesh, spec)

  def check(self, config: Any, what: str) -> None:
    """Raises ValueError where the mesh does not divide an architecture.

    Args:
      config: the architecture.
      what: name of the architecture, for the message.
    """
    rules = dict(self.rules)
    for mesh_axis, size in self.sizes.items():
      for array_axis, fields in CUT.items():
        if rules.get(array_axis) != mesh_axis:
          continue
        for field in fields:
          # (A T5 has no field num_kv_heads, and an encoder may have no width
          # of its own; one device divides anything.)
          length = getattr(config, field, None) or size
          if length % size == 0:
            continue
          divisor = max(n for n in range(1, size) if length % n == 0)
          raise ValueError(
            f"MESH splits {what} into {size} along {mesh_axis!r}, which does"
            f" not divide its {field} {length}; {divisor} does"
          )

  def check_rows(self, **rows: int) -> None:
    """Raises ValueError where the mesh does not divide a batch's rows.

    Args:
      **rows: a number of rows, by the name that the message gives it.
    """
    size = self.sizes[DATA]
    for name, num in rows.items():
      if num % size:
        raise ValueError(
          f"{name} is {num}, which MESH splits into {size} along {DATA!r}; take"
          f" a multiple of {size}"
        )

  def rows(self, tree: Any) -> Any:
    """Returns arrays [B, ...] with their rows split by `data`.

    Rows that `data` does not divide are whole on every device.
    """
    return jax.tree.map(
      lambda leaf: place(leaf, self.rows_sharding(leaf.shape[0])), tree
    )

  def rows_sharding(self, num: int) -> NamedSharding:
    """Returns where an array [B, ...] of so many rows lies."""
    return self.of_rows(num).sharding("batch")


def put(
  leaf: Any, sharding: NamedSharding, dtype: jax.typing.DTypeLike
) -> jax.Array:
  """Returns an array where it lies; each part is read, and cast, by itself.

  An array of up to `MOST_READ` numbers is read whole.

  Args:
    leaf: an array, or an object with a shape that gives a part by slices.
    sharding: where the array lies.
    dtype: of the result.
  """
  if isinstance(leaf, jax.Array):
    return place(jnp.asarray(leaf, dtype), sharding)
  if leaf.size <= MOST_READ:
    leaf = np.asarray(leaf)
  # Devices that hold the same part, by the part's (start, stop) along each
  # axis: the part is read once for all of them.
  devices: dict[tuple, list] = {}
  shape = tuple(leaf.shape)
  indices: Mapping[Any, Any] = sharding.addressable_devices_indices_map(shape)
  for device, index in indices.items():
    assert index is not None  # every device of the sharding has a part
    bounds = tuple(part.indices(n)[:2] for part, n in zip(index, shape))
    devices.setdefault(bounds, []).append(device)
  shards = []
  for bounds, holders in devices.items():
    part = np.asarray(leaf[tuple(slice(*pair) for pair in bounds)])
    part = np.array(part, dtype, order="C", ndmin=part.ndim)
    shards += [jax.device_put(part, device) for device in holders]
  return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def place(leaf: Any, sharding: jax.sharding.Sharding) -> jax.Array:
  """Returns an array where a sharding puts it.

  With several processes each has the whole array, and puts its own part.
  """
  if sharding.is_fully_addressable or not _is_local(leaf):
    return jax.device_put(leaf, sharding)
  # NumPy, which the parts are taken from, has no random keys: their numbers are
  # placed instead.
  is_keys = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
  numbers = np.asarray(jax.random.key_data(leaf) if is_keys else leaf)
  array = jax.make_array_from_callback(
    numbers.shape, sharding, lambda index: numbers[index]
  )
  if is_keys:
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
  return array


def _is_local(leaf: Any) -> bool:
  """Whether this process has all of an array."""
  return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable


def fetch(tree: Any) -> Any:
  """Returns a tree with NumPy arrays, each whole in every process."""
  if all(map(_is_local, jax.tree.leaves(tree))):
    return jax.device_get(tree)

  def get(leaf):
    if _is_local(leaf):
      return jax.device_get(leaf)
    return multihost_utils.process_allgather(leaf, tiled=True)

  return jax.tree.map(get, tree)


@contextlib.contextmanager
def use_layout(layout: Layout | None, num_rows: int) -> Iterator[None]:
  """Has the networks' constraints hold while so many rows are traced."""
  if layout is None:
    yield
    return
  mesh = layout.mesh
  abstract = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
  rules = layout.of_rows(num_rows).rules
  with jax.sharding.use_abstract_mesh(abstract), nn.logical_axis_rules(rules):
    yield


def under_layout(method: Callable) -> Callable:
  """Decorates a method of a language model: it runs under the model's `layout`.

  Args:
    method: takes the model, then a tree of arrays whose axis 0 is B.
  """

  @functools.wraps(method)
  def call(model, first, *args, **kwargs):
    num_rows = jax.tree.leaves(first)[0].shape[0]
    with use_layout(model.layout, num_rows):
      return method(model, first, *args, **kwargs)

  return call


def is_cut() -> bool:
  """Whether a `Layout` holds for what is traced, this package's or T5X's."""
  return bool(nn.get_logical_axis_rules())


def axis_names(variables: Mapping) -> dict[str, tuple[str, ...]]:
  """Returns the names of the axes of every parameter, by its path "a/b/c".

  Args:
    variables: result of a network's `init`.
  """
  flat = traverse_util.flatten_dict(variables["params_axes"], sep="/")
  return {
    path.removesuffix("_axes"): tuple(axes.names) for path, axes in flat.items()
  }


def map_by_path(tree: Any, function: Callable[[str, Any], Any]) -> Any:
  """Returns nested dicts in which a function replaces each leaf.

  Args:
    tree: nested dicts.
    function: of the path "a/b/c" of a leaf, and the leaf.
  """
  flat = traverse_util.flatten_dict(tree, sep="/")
  mapped = {path: function(path, leaf) for path, leaf in flat.items()}
  return traverse_util.unflatten_dict(mapped, sep="/")


def layout_of(params: Any) -> Layout | None:
  """Returns the layout of parameters that lie on a mesh, else None."""
  leaves = jax.tree.leaves(params)
  shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
  named = [x for x in shardings if isinstance(x, NamedSharding)]
  if not named or named[0].mesh.size == 1:
    return None
  is_2d = any(DATA in x.spec for x in named)
  return Layout(named[0].mesh, RULES_2D if is_2d else RULES)


def state_shardings(tree: Any, params: Any, shardings: Any = None) -> Any:
  """Returns where the leaves of a training state lie.

  A leaf whose path and shape are those of a parameter, such as a moment, lies
  where the parameter lies. All other leaves are small, and lie on every device.

  Args:
    tree: of objects with a shape, such as an optimizer's state.
    params: nested dicts of arrays.
    shardings: where the parameters lie, a tree; None asks the parameters.
  """
  if shardings is None:
    shardings = jax.tree.map(lambda leaf: leaf.sharding, params)

  def keys(path):
    # An optimizer puts its own fields and indices around the dicts' keys.
    return tuple(key.key for key in path if hasattr(key, "key"))

  flat, _ = jax.tree_util.tree_flatten_with_path(params)
  places = jax.tree.leaves(shardings)
  by_key = {
    (keys(path), leaf.shape): sharding
    for (path, leaf), sharding in zip(flat, places)
  }
  everywhere = NamedSharding(places[0].mesh, PartitionSpec())
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: by_key.get((keys(path), leaf.shape), everywhere), tree
  )
