"""What the networks are made of, with T5X's parameter names and shapes.

Axes: B rows, N queries, L keys, E model width, H heads, D head width, V
vocabulary. Parameters are float32; `dtype` is that of the activations. Kernels
are [in, out].

Source: T5X's `examples/t5`, whose checkpoints must load unchanged.
"""

from collections.abc import Callable
import functools
import operator
from typing import Any

from flax import linen as nn
from flax.linen.partitioning import param_with_axes, with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.models.products import matmul

# Fewer slots of a cache than this are not worth a branch.
SMALLEST_REACH = 128
# Added to the score of a key that must not be seen.
MASKED = -1e10
# What a layer keeps for its gradient, by T5X's names of what is left out.
REMAT = {
  "full": None,
  "minimal": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
}


def run(layer, remat: str | None, *arrays, **options):
  """Returns what a layer makes of arrays; see `REMAT`, None keeps all."""
  if remat is None:
    return layer(*arrays, **options)
  call = lambda layer, *arrays: layer(*arrays, **options)
  return nn.remat(call, policy=REMAT[remat])(layer, *arrays)


def attend(query, key, value, bias, *, float32_scores=False, dropout=None):
  """Returns softmax(query key + bias) value, the scores not scaled.

  Args:
    query: [B, N, H, D].
    key: [B, H, D, L].
    value: [B, H, L, D]; in these layouts no product has to turn them first.
    bias: broadcasts to [B, H, N, L]; position bias and mask.
    float32_scores: compute the scores and the softmax in float32.
    dropout: function applied to the weights, or None.

  Returns:
    [B, N, H, D] in the dtype of `value`.
  """
  if float32_scores:
    query, key = query.astype(jnp.float32), key.astype(jnp.float32)
  scores = jnp.einsum("bnhd,bhdl->bhnl", query, key)
  weights = jax.nn.softmax(scores + bias.astype(scores.dtype))
  weights = weights.astype(value.dtype)
  if dropout is not None:
    weights = dropout(weights)
  # (Not an einsum: it would put the values first, and turn the result.)
  return jnp.matmul(weights, value).swapaxes(1, 2)


def _activation(name: str) -> Callable:
  """Returns the function that a config's `mlp_activations` names."""
  return (lambda x: x) if name == "linear" else getattr(nn, name)


def attend_within(reach, query, key, value, bias, **options):
  """Returns `attend` over the first max(reach) of L slots, or a few more.

  What stands past it must be masked by `bias`; skipping it only saves time. XLA
  needs a size, so that one of a few is taken, at most twice the needed one.
  Only on a CPU: elsewhere a branch would wait for the host.

  Arguments as of `attend`, with a bias [B, H, N, L], and:

  Args:
    reach: [B] int32, each row's; None looks at all of them.
  """
  num_slots = 0 if reach is None else key.shape[3]
  sizes = [
    SMALLEST_REACH << i
    for i in range(num_slots.bit_length())
    if SMALLEST_REACH << i <= num_slots // 2
  ]

  def within(size):
    return lambda query, key, value, bias: attend(
      query, key[..., :size], value[:, :, :size], bias[..., :size], **options
    )

  if not sizes:
    return attend(query, key, value, bias, **options)
  branches = [within(size) for size in [*sizes, num_slots]]
  index = sum((jnp.max(reach) > size).astype(jnp.int32) for size in sizes)
  at_most = functools.partial(jax.lax.switch, index, branches)
  operands, whole = (query, key, value, bias), branches[-1]
  return jax.lax.platform_dependent(*operands, cpu=at_most, default=whole)


def _panels(module, name):
  """Returns the panels in the place of a module's parameter, or None."""
  if not module.has_variable("params", name):
    return None
  kernel = module.get_variable("params", name)
  return kernel if isinstance(kernel, native.Panels) else None


def _kernel(module, name, init, shape, axes):
  """Returns a module's parameter of a product, or the panels in its place."""
  panels = _panels(module, name)
  if panels is not None:
    return panels
  return param_with_axes(name, init, shape, jnp.float32, axes=axes)


class Dense(nn.Module):
  """A matrix product, [..., in] to [..., features]."""

  features: int
  axes: tuple[str, str]
  dtype: str = "float32"
  kernel_init: Callable = nn.initializers.variance_scaling(
    1.0, "fan_in", "truncated_normal"
  )
  use_bias: bool = False

  @nn.compact
  def weights(self, num_in: int):
    """Returns the kernel [in, features] or its panels, and the bias or None."""
    shape, bias = (num_in, self.features), None
    kernel = _kernel(self, "kernel", self.kernel_init, shape, self.axes)
    if self.use_bias:
      zeros, axes = nn.initializers.zeros, self.axes[1:]
      bias = param_with_axes("bias", zeros, shape[1:], jnp.float32, axes=axes)
    return kernel, bias

  def has_panels(self) -> bool:
    """Whether the kernel is packed: its model decodes in float32 on a CPU."""
    return _panels(self, "kernel") is not None

  def __call__(self, x):
    return project(x, self)[0]


def project(x, *layers: Dense) -> list:
  """Returns x [..., in] through each layer; their panels are read in one go."""
  dtype = layers[0].dtype
  x = x.astype(dtype)
  kernels, biases = zip(*(layer.weights(x.shape[-1]) for layer in layers))
  if isinstance(kernels[0], native.Panels):
    results = native.products(x, kernels)
  else:
    results = [matmul(x, kernel.astype(dtype)) for kernel in kernels]
  return [
    y if bias is None else y + jnp.broadcast_to(bias.astype(dtype), y.shape)
    for y, bias in zip(results, biases)
  ]


class LayerNorm(nn.Module):
  """Root mean square norm, in float32, without mean or bias."""

  dtype: str = "float32"
  epsilon: float = 1e-6

  @nn.compact
  def __call__(self, x):
    ones, shape, axes = nn.initializers.ones, x.shape[-1:], ("embed",)
    scale = param_with_axes("scale", ones, shape, jnp.float32, axes=axes)
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    x = (x * jax.lax.rsqrt(mean_square + self.epsilon)).astype(self.dtype)
    return x * jnp.broadcast_to(scale.astype(self.dtype), x.shape)


class Embed(nn.Module):
  """The token table, [V, E].

  Attributes:
    config: has `vocab_size`, `emb_dim` and `dtype`.
    stddev: of its initial values.
    factor: of the logits that it makes.
  """

  config: Any
  stddev: float = 1.0
  factor: float = 1.0

  def setup(self):
    init = nn.initializers.normal(self.stddev)
    shape = (self.config.vocab_size, self.config.emb_dim)
    axes = ("vocab", "embed")
    self.embedding = _kernel(self, "embedding", init, shape, axes)

  def __call__(self, tokens):
    """Returns [..., E] for int32 tokens [...]."""
    if isinstance(self.embedding, native.Panels):
      vectors = self.embedding.columns(tokens)
    else:
      vectors = jnp.asarray(self.embedding).at[tokens].get(mode="clip")
    return vectors.astype(self.config.dtype)

  def logits(self, x):
    """Returns [..., V] float32 of an output that is tied to the table."""
    x = x.astype(jnp.float32)
    if isinstance(self.embedding, native.Panels):
      [logits] = native.products(x, [self.embedding])
    else:
      logits = jnp.dot(x, self.embedding.astype(jnp.float32).T)
    return logits * self.factor


class Mlp(nn.Module):
  """The feed-forward block; two activations make it gated.

  Attributes:
    config: has `mlp_dim`, `mlp_activations`, `emb_dim` and `dtype`.
    dropout_rate: of the inner activations.
  """

  config: Any
  dropout_rate: float = 0.0

  @nn.compact
  def __call__(self, x, *, deterministic=True):
    cfg = self.config
    names = ["wi"] if len(cfg.mlp_activations) == 1 else ["wi_0", "wi_1"]
    inputs = [
      Dense(cfg.mlp_dim, ("embed", "mlp"), cfg.dtype, name=name)
      for name in names
    ]
    gates = [
      _activation(activation)(inner)
      for activation, inner in zip(cfg.mlp_activations, project(x, *inputs))
    ]
    inner = functools.reduce(operator.mul, gates)
    inner = nn.Dropout(self.dropout_rate, broadcast_dims=(-2,))(
      inner, deterministic=deterministic
    )
    inner = with_sharding_constraint(inner, ("batch", "length", "mlp"))
    return Dense(cfg.emb_dim, ("mlp", "embed"), cfg.dtype, name="wo")(inner)
