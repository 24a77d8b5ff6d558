"""Where arrays lie on several devices: a mesh, and T5X's rules.

A mesh has two axes: `data` cuts rows, `model` cuts what a layer computes. The
networks name the axes of their arrays ("embed", "heads", ...), the rules say
which mesh axis cuts each, and XLA adds the communication.

Source: T5X's `partitioning.standard_logical_axis_rules`.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
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
# T5X's with `parameter_partitioning_dims=2`: a kernel's other axis by rows.
RULES_2D: Rules = (*(x for x in RULES if x[0] != "embed"), ("embed", DATA))
# An array of so many numbers is one chunk of most checkpoints: to read it in
# parts would be to read it several times. In float32 it takes 64 MiB.
MOST_READ = 2**24
# The fields of a config that a mesh axis cuts, by the axis of arrays.
CUT = {
  "vocab": ("vocab_size",),
  "mlp": ("mlp_dim",),
  "heads": ("num_heads", "num_kv_heads"),
  "embed": ("emb_dim",),
}


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where a model's arrays lie; static, part of what is compiled.

  Attributes:
    mesh: of axes `data` and `model`; devices, or an AbstractMesh of none.
    rules: from the axes of arrays to those of the mesh.
  """

  mesh: Mesh
  rules: Rules = RULES

  @property
  def sizes(self) -> dict[str, int]:
    """The devices along each mesh axis."""
    return dict(self.mesh.shape)

  @property
  def num_parts(self) -> int:
    """Into how many parts most of the parameters are cut."""
    both = dict(self.rules)["embed"] is not None
    return self.sizes[MODEL] * (self.sizes[DATA] if both else 1)

  def whole(self) -> "Layout":
    """Returns the layout of a model that each device holds all of."""
    kept = ((name, axis if name == "batch" else None) for name, axis in RULES)
    return dataclasses.replace(self, rules=tuple(kept))

  def of_rows(self, num: int) -> "Layout":
    """Returns the layout of so many rows: each device takes all of those that
    `data` does not divide."""
    if num % self.sizes[DATA] == 0:
      return self
    rules = tuple((x, None if x == "batch" else axis) for x, axis in self.rules)
    return dataclasses.replace(self, rules=rules)

  def sharding(self, *axes: str | None) -> NamedSharding:
    """Returns where an array of these axes lies; none is on every device."""
    return NamedSharding(self.mesh, nn.logical_to_mesh_axes(axes, self.rules))

  def check(self, config: Any, what: str):
    """Raises ValueError where the mesh does not divide an architecture.

    Args:
      config: the architecture.
      what: its name, for the message.
    """
    for axis, size in self.sizes.items():
      for name, fields in CUT.items():
        cuts = dict(self.rules).get(name) == axis
        for field in filter(functools.partial(hasattr, config), fields):
          if cuts and (value := getattr(config, field)) % size:
            fits = max(n for n in range(1, size) if value % n == 0)
            raise ValueError(
              f"MESH cuts {what} into {size} along {axis!r}, which does not"
              f" divide its {field} {value}; {fits} does"
            )

  def check_rows(self, **rows: int):
    """Raises ValueError where the mesh does not divide a batch's rows.

    Args:
      **rows: a number of them, by the name that the message gives it.
    """
    for name, num in rows.items():
      if num % (size := self.sizes[DATA]):
        raise ValueError(
          f"{name} is {num}, which MESH cuts into {size} along {DATA!r}; take a"
          f" multiple of {size}"
        )

  def rows(self, tree: Any) -> Any:
    """Returns arrays [B, ...] with their rows cut by `data`, where it can."""
    lay = lambda leaf: place(leaf, self.rows_sharding(leaf.shape[0]))
    return jax.tree.map(lay, tree)

  def rows_sharding(self, num: int) -> NamedSharding:
    """Returns where an array of so many rows lies."""
    return self.of_rows(num).sharding("batch")


def put(leaf: Any, sharding: NamedSharding, dtype: Any) -> jax.Array:
  """Returns an array where it lies; each part is read, and cast, by itself.

  An array of up to `MOST_READ` numbers is read whole.

  Args:
    leaf: an array, or what has a shape and gives a part by slices.
    sharding: where it lies.
    dtype: wanted.
  """
  if isinstance(leaf, jax.Array):
    return place(jnp.asarray(leaf, dtype), sharding)
  if leaf.size <= MOST_READ:
    leaf = np.asarray(leaf)
  devices: dict[tuple, list] = {}
  shape = tuple(leaf.shape)
  indices = sharding.addressable_devices_indices_map(shape)
  for device, index in indices.items():
    bounds = [part.indices(n)[:2] for part, n in zip(index, shape)]
    devices.setdefault(tuple(bounds), []).append(device)
  shards = []
  for bounds, holders in devices.items():
    part = np.asarray(leaf[tuple(slice(*each) for each in bounds)])
    part = np.array(part, dtype, order="C", ndmin=part.ndim)
    shards += [jax.device_put(part, device) for device in holders]
  return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def place(leaf: Any, sharding: jax.sharding.Sharding) -> jax.Array:
  """Returns an array where it is to lie; of several processes each has all of
  it, and puts its own part."""
  if sharding.is_fully_addressable or not _is_here(leaf):
    return jax.device_put(leaf, sharding)
  if is_keys := jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    impl, leaf = jax.random.key_impl(leaf), jax.random.key_data(leaf)
  leaf = np.asarray(leaf)
  put = jax.make_array_from_callback(
    leaf.shape, sharding, lambda index: leaf[index]
  )
  return jax.random.wrap_key_data(put, impl=impl) if is_keys else put


def _is_here(leaf: Any) -> bool:
  return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable


def fetch(tree: Any) -> Any:
  """Returns a tree in NumPy's arrays, whole in each process."""
  if all(map(_is_here, jax.tree.leaves(tree))):
    return jax.device_get(tree)
  gather = functools.partial(multihost_utils.process_allgather, tiled=True)
  get = lambda leaf: (jax.device_get if _is_here(leaf) else gather)(leaf)
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
  """Has a language model's method run under its `layout`.

  Args:
    method: of (model, what has axis 0 = B, ...).
  """

  @functools.wraps(method)
  def call(model, first, *args, **kwargs):
    num_rows = jax.tree.leaves(first)[0].shape[0]
    with use_layout(model.layout, num_rows):
      return method(model, first, *args, **kwargs)

  return call


def is_cut() -> bool:
  """Whether what is traced has a `Layout`, this package's or T5X's."""
  return bool(nn.get_logical_axis_rules())


def axis_names(variables: dict) -> dict[str, tuple]:
  """Returns the names of the axes of every parameter, by its path "a/b/c".

  Args:
    variables: of a network's `init`.
  """
  flat = traverse_util.flatten_dict(variables["params_axes"], sep="/")
  return {x.removesuffix("_axes"): (*axes.names,) for x, axes in flat.items()}


def map_by_path(tree: Any, function: Callable) -> Any:
  """Returns nested dicts, `function` of each path "a/b/c" and leaf applied."""
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


def state_shardings(tree: Any, params: Any, lying: Any = None) -> Any:
  """Returns where the leaves of a training state lie, as its parameters do.

  What has the path and the shape of a parameter in it lies as that does, such
  as a moment; all others, which are small, are on every device.

  Args:
    tree: of what has a shape, such as an optimizer's state.
    params: nested dicts of arrays.
    lying: where they lie, a tree; None asks them.
  """
  if lying is None:
    lying = jax.tree.map(lambda leaf: leaf.sharding, params)
  keys = lambda path: tuple(key.key for key in path if hasattr(key, "key"))
  flat, _ = jax.tree_util.tree_flatten_with_path(params)
  places = jax.tree.leaves(lying)
  of = {(keys(path), leaf.shape): x for (path, leaf), x in zip(flat, places)}
  everywhere = NamedSharding(places[0].mesh, PartitionSpec())
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: of.get((keys(path), leaf.shape), everywhere), tree
  )
