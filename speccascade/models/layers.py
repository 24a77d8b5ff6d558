"""What the networks are made of, with T5X's parameter names and shapes.

Parameters are float32; a module's `dtype` is the dtype of its activations.
Kernels are [in, out].

Axes: E model width, V vocabulary.

Source: T5X's `examples/t5`, whose checkpoints must load unchanged.
"""

from collections.abc import Callable, Mapping
import functools
import operator
from typing import Any

from flax import linen as nn
from flax.linen.partitioning import param_with_axes, with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.models.products import matmul

# Which results a layer stores for its gradient. The names are T5X's, for how
# much is computed again: "full" stores nothing, "minimal" stores products.
REMAT = {
  "full": None,
  "minimal": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
}


def run(
  layer: nn.Module, remat: str | None, *arrays: Any, **options: Any
) -> jax.Array:
  """Returns what a layer computes from arrays.

  Args:
    layer: called with the arrays and the options.
    remat: name in `REMAT`; None stores all results for the gradient.
    *arrays: arguments that are arrays, or trees of arrays.
    **options: arguments that are static.
  """
  if remat is None:
    return layer(*arrays, **options)

  def call(layer, *arrays):
    return layer(*arrays, **options)

  return nn.remat(call, policy=REMAT[remat])(layer, *arrays)


def activation(name: str) -> Callable:
  """Returns the function that a config's `mlp_activations` names."""
  return (lambda x: x) if name == "linear" else getattr(nn, name)


def _prepared(
  module: nn.Module, name: str
) -> native.Panels | native.Quantised | None:
  """Returns what stands in place of a module's parameter, or None."""
  if not module.has_variable("params", name):
    return None
  kernel: Any = module.get_variable("params", name)
  is_one = isinstance(kernel, native.Panels | native.Quantised)
  return kernel if is_one else None


def _kernel(
  module: nn.Module,
  name: str,
  init: Callable,
  shape: tuple[int, int],
  axes: tuple[str, str],
) -> Any:
  """Returns a parameter that rows are multiplied by, as it is stored."""
  prepared = _prepared(module, name)
  if prepared is not None:
    return prepared
  return param_with_axes(name, init, shape, jnp.float32, axes=axes)


class Dense(nn.Module):
  """A matrix product, [..., in] to [..., features].

  Attributes:
    features: number of outputs.
    axes: names of the kernel's axes.
    dtype: name of the dtype of inputs and outputs.
    kernel_init: initializer of the kernel.
    use_bias: whether a bias is added.
  """

  features: int
  axes: tuple[str, str]
  dtype: str = "float32"
  kernel_init: Callable = nn.initializers.variance_scaling(
    1.0, "fan_in", "truncated_normal"
  )
  use_bias: bool = False

  @nn.compact
  def weights(self, num_in: int) -> tuple[Any, jax.Array | None]:
    """Returns the kernel [in, features] as it is stored, and a bias or None."""
    shape, bias = (num_in, self.features), None
    kernel = _kernel(self, "kernel", self.kernel_init, shape, self.axes)
    if self.use_bias:
      zeros, axes = nn.initializers.zeros, self.axes[1:]
      bias = param_with_axes("bias", zeros, shape[1:], jnp.float32, axes=axes)
    return kernel, bias

  def has_panels(self) -> bool:
    """Whether the kernel is packed: its model decodes in float32 on a CPU."""
    return isinstance(_prepared(self, "kernel"), native.Panels)

  def __call__(self, x: jax.Array) -> jax.Array:
    return project(x, self)[0]


def project(x: jax.Array, *layers: Dense) -> list[jax.Array]:
  """Returns x [..., in] through each layer, [..., features] each.

  One native call multiplies by the panels of all layers.
  """
  dtype = layers[0].dtype
  x = x.astype(dtype)
  kernels, biases = zip(*(layer.weights(x.shape[-1]) for layer in layers))
  if isinstance(kernels[0], native.Panels):
    results = native.products(x, kernels)
  elif isinstance(kernels[0], native.Quantised):
    results = [kernel.times(x) for kernel in kernels]
  else:
    results = [matmul(x, kernel.astype(dtype)) for kernel in kernels]
  # Broadcast by hand: where ranks differ, the core raises (rank promotion).
  return [
    y if bias is None else y + jnp.broadcast_to(bias.astype(dtype), y.shape)
    for y, bias in zip(results, biases)
  ]


class LayerNorm(nn.Module):
  """Root mean square norm, in float32, without mean or bias; see `norm`."""

  dtype: str = "float32"
  epsilon: float = 1e-6
  offset: int = 0

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    init, axes = nn.initializers.constant(1 - self.offset), ("embed",)
    scale = param_with_axes("scale", init, x.shape[-1:], jnp.float32, axes=axes)
    return norm(x, scale, self.epsilon, self.dtype, self.offset)


def norm(
  x: jax.Array,
  scale: jax.Array,
  epsilon: float,
  dtype: str | None = None,
  offset: int = 0,
) -> jax.Array:
  """Returns x [..., E] through a root mean square norm; see `LayerNorm`.

  Args:
    x: what is normed, in float32.
    scale: [E].
    epsilon: added to the mean square.
    dtype: of the result; None is the dtype of `x`.
    offset: added to the scale.
  """
  result = jnp.dtype(dtype or x.dtype)
  x = x.astype(jnp.float32)
  mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  x = x * jax.lax.rsqrt(mean_square + epsilon)
  if offset:
    # Cast after the scale, as Gemma does: near 1 bfloat16 keeps 8 bits of it.
    scale = scale.astype(jnp.float32) + offset
    return (x * jnp.broadcast_to(scale, x.shape)).astype(result)
  # Cast before the scale, as T5X does: in bfloat16 the order shows.
  x = x.astype(result)
  return x * jnp.broadcast_to(scale.astype(result), x.shape)


def vectors_of(
  embedder: Mapping[str, jax.Array], tokens: jax.Array, dtype: str
) -> jax.Array:
  """Returns the vectors [..., E] of tokens by an embedder's parameters.

  Args:
    embedder: "embedding" and, where there are any, "lookahead": the `table` and
      `ahead` of `look_up`.
    tokens: as in `look_up`.
    dtype: name of the dtype.
  """
  return look_up(
    embedder["embedding"], tokens, dtype, embedder.get("lookahead")
  )


def look_up(
  table: jax.Array | native.Panels | native.Quantised,
  tokens: jax.Array,
  dtype: str,
  ahead: jax.Array | None = None,
  factor: float | None = None,
) -> jax.Array:
  """Returns the vectors [..., E] of int32 tokens [...], in a dtype.

  Args:
    table: [V, E]; or `Panels` or `Quantised` [E, V], whose columns are the
      vectors.
    tokens: ids; an id past the table is read as the last id.
    dtype: name of the dtype.
    ahead: [K, E], vectors of the ids V, ..., V + K - 1, which are look-ahead
      embeddings; None where there are none.
    factor: of the vectors, itself rounded to the dtype; None is not a factor.
  """
  if isinstance(table, native.Panels | native.Quantised):
    vectors, size = table.columns(tokens), table.num_out
  else:
    vectors = jnp.asarray(table).at[tokens].get(mode="clip")
    size = table.shape[0]
  vectors = vectors.astype(dtype)
  if ahead is not None:
    place = jnp.clip(tokens - size, 0, ahead.shape[0] - 1)
    vectors = jnp.where(
      (tokens >= size)[..., None], ahead.astype(dtype)[place], vectors
    )
  return vectors if factor is None else vectors * jnp.asarray(factor, dtype)


class Embed(nn.Module):
  """The token table, [V, E].

  Where the parameters have `lookahead` [K, E] as well, the ids V to V + K - 1
  are look-ahead embeddings: tokens that can be read, and have no logits.

  Attributes:
    config: has `vocab_size`, `emb_dim` and `dtype`.
    stddev: standard deviation of the initial values.
    factor: factor of the logits.
    vector_factor: factor of the vectors, see `look_up`.
    end_of_image_id: the token that ends an image. It is read as a vector of its
      own, which no factor changes; None where there is no such token.
  """

  config: Any
  stddev: float = 1.0
  factor: float = 1.0
  vector_factor: float | None = None
  end_of_image_id: int | None = None

  def setup(self):
    init = nn.initializers.normal(self.stddev)
    shape = (self.config.vocab_size, self.config.emb_dim)
    axes = ("vocab", "embed")
    self.embedding = _kernel(self, "embedding", init, shape, axes)
    if self.end_of_image_id is not None:
      self.end_of_image = param_with_axes(
        "end_of_image", init, shape[1:], jnp.float32, axes=axes[1:]
      )

  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Returns [..., E] for int32 tokens [...]; see `look_up`."""
    ahead: Any = None
    if self.has_variable("params", "lookahead"):
      ahead = self.get_variable("params", "lookahead")
    vectors = look_up(
      self.embedding, tokens, self.config.dtype, ahead, self.vector_factor
    )
    if self.end_of_image_id is None:
      return vectors
    is_end = (tokens == self.end_of_image_id)[..., None]
    end = jnp.broadcast_to(self.end_of_image, vectors.shape)
    return jnp.where(is_end, end.astype(vectors.dtype), vectors)

  def logits(self, x: jax.Array) -> jax.Array:
    """Returns x [..., E] times the table, logits [..., V] float32."""
    x = x.astype(jnp.float32)
    if isinstance(self.embedding, native.Panels):
      [logits] = native.products(x, [self.embedding])
    elif isinstance(self.embedding, native.Quantised):
      logits = self.embedding.times(x)
    else:
      logits = jnp.dot(x, self.embedding.astype(jnp.float32).T)
    return logits * self.factor


class Mlp(nn.Module):
  """The feed-forward block; two activations make it gated.

  Attributes:
    config: has `mlp_dim`, `mlp_activations`, `emb_dim` and `dtype`.
    dropout_rate: share of the inner activations that training drops.
  """

  config: Any
  dropout_rate: float = 0.0

  @nn.compact
  def __call__(self, x: jax.Array, *, deterministic: bool = True) -> jax.Array:
    cfg = self.config
    # T5X's names: v1.0 has one inner kernel, v1.1 two.
    names = ["wi"] if len(cfg.mlp_activations) == 1 else ["wi_0", "wi_1"]
    inputs = [
      Dense(cfg.mlp_dim, ("embed", "mlp"), cfg.dtype, name=name)
      for name in names
    ]
    gates = [
      activation(kind)(inner)
      for kind, inner in zip(cfg.mlp_activations, project(x, *inputs))
    ]
    inner = functools.reduce(operator.mul, gates)
    inner = nn.Dropout(self.dropout_rate, broadcast_dims=(-2,))(
      inner, deterministic=deterministic
    )
    inner = with_sharding_constraint(inner, ("batch", "length", "mlp"))
    return Dense(cfg.emb_dim, ("mlp", "embed"), cfg.dtype, name="wo")(inner)
