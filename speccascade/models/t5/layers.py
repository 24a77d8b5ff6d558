"""The layers of a T5, with T5X's parameter names, shapes and initialisers.

Axes: B rows, N queries, L keys, E model width, H heads, D head width, V
vocabulary. Parameters are float32; `dtype` is that of the activations.

Source: Raffel et al. 2020 and T5X's `examples/t5`, whose checkpoints must load
unchanged: kernels are [in, out], the heads joined head-major (column h*D + d),
no biases, and no 1/sqrt(D) in attention.
"""

from collections.abc import Callable
import functools
import operator

from flax import linen as nn
from flax.linen.partitioning import param_with_axes, with_sharding_constraint
import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.products import matmul

# Fewer slots of a cache than this are not worth a branch.
SMALLEST_REACH = 128
# Added to the score of a key that must not be seen.
MASKED = -1e10


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
  """Returns the function that `T5Config.mlp_activations` names."""
  return (lambda x: x) if name == "linear" else getattr(nn, name)


def attend_within(reach, query, key, value, bias, **options):
  """Returns `attend` over the first max(reach) of L slots, or a few more.

  What stands past it must be masked by `bias`; skipping it only saves time. XLA
  needs a size, so that one of a few is taken, at most twice the needed one.
  Only on a CPU: elsewhere a branch would wait for the host.

  Args:
    reach: [B] int32, each row's.
    query: as in `attend`, as what follows.
    key: [B, H, D, L].
    value: [B, H, L, D].
    bias: [B, H, N, L].
    **options: of `attend`.
  """
  num_slots = key.shape[3]
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
  return jax.lax.platform_dependent(
    query,
    key,
    value,
    bias,
    cpu=functools.partial(jax.lax.switch, index, branches),
    default=branches[-1],
  )


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
  """A matrix product without bias, [..., in] to [..., features]."""

  features: int
  axes: tuple[str, str]
  dtype: str = "float32"
  kernel_init: Callable = nn.initializers.variance_scaling(
    1.0, "fan_in", "truncated_normal"
  )

  @nn.compact
  def kernel(self, num_in: int):
    """Returns the kernel [in, features], or its panels."""
    shape = (num_in, self.features)
    return _kernel(self, "kernel", self.kernel_init, shape, self.axes)

  def has_panels(self) -> bool:
    """Whether the kernel is packed: its model decodes in float32 on a CPU."""
    return _panels(self, "kernel") is not None

  def __call__(self, x):
    return project(x, self)[0]


def project(x, *layers: Dense) -> list:
  """Returns x [..., in] through each layer; their panels are read in one go."""
  dtype = layers[0].dtype
  x = x.astype(dtype)
  kernels = [layer.kernel(x.shape[-1]) for layer in layers]
  if isinstance(kernels[0], native.Panels):
    return native.products(x, kernels)
  return [matmul(x, kernel.astype(dtype)) for kernel in kernels]


class LayerNorm(nn.Module):
  """Root mean square norm, in float32, without mean or bias."""

  dtype: str = "float32"

  @nn.compact
  def __call__(self, x):
    scale = param_with_axes(
      "scale",
      nn.initializers.ones,
      (x.shape[-1],),
      jnp.float32,
      axes=("embed",),
    )
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    x = (x * jax.lax.rsqrt(mean_square + 1e-6)).astype(self.dtype)
    return x * jnp.broadcast_to(scale.astype(self.dtype), x.shape)


class Embed(nn.Module):
  """The token table, [V, E], shared by both stacks."""

  config: T5Config

  def setup(self):
    self.embedding = _kernel(
      self,
      "embedding",
      nn.initializers.normal(stddev=1.0),
      (self.config.vocab_size, self.config.emb_dim),
      ("vocab", "embed"),
    )

  def __call__(self, tokens):
    """Returns [..., E] for int32 tokens [...]."""
    if isinstance(self.embedding, native.Panels):
      vectors = self.embedding.columns(tokens)
    else:
      vectors = jnp.asarray(self.embedding).at[tokens].get(mode="clip")
    return vectors.astype(self.config.dtype)

  def logits(self, x):
    """Returns [..., V] float32 of a T5 whose output is tied to the table."""
    x = x.astype(jnp.float32)
    if isinstance(self.embedding, native.Panels):
      [logits] = native.products(x, [self.embedding])
    else:
      logits = jnp.dot(x, self.embedding.astype(jnp.float32).T)
    return logits * x.shape[-1] ** -0.5


class Attention(nn.Module):
  """Multi-head attention; keys and values can be made apart and kept."""

  config: T5Config

  def setup(self):
    cfg = self.config
    init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
    # T5 folds the 1/sqrt(D) of attention into the initial query kernel.
    query_init = lambda *args: init(*args) / cfg.head_dim**0.5
    project = functools.partial(
      Dense, cfg.num_heads * cfg.head_dim, ("embed", "joined_kv"), cfg.dtype
    )
    self.query = project(kernel_init=query_init)
    self.key = project(kernel_init=init)
    self.value = project(kernel_init=init)
    self.out = Dense(cfg.emb_dim, ("joined_kv", "embed"), cfg.dtype, init)
    self.dropout = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))

  def _split(self, x):
    x = x.reshape(*x.shape[:2], self.config.num_heads, self.config.head_dim)
    return with_sharding_constraint(x, ("batch", "length", "heads", "kv"))

  def queries(self, x):
    """Returns queries [B, N, H, D] of x [B, N, E]."""
    return self._split(self.query(x))

  def keys_values(self, x):
    """Returns keys [B, H, D, L] and values [B, H, L, D] of x [B, L, E]."""
    return self._kept(*project(x, self.key, self.value))

  def queries_keys_values(self, x):
    """Returns `queries` and `keys_values` of x [B, L, E], from one product."""
    query, key, value = project(x, self.query, self.key, self.value)
    return self._split(query), self._kept(key, value)

  def _kept(self, key, value):
    """Returns keys and values [B, L, H * D] as a cache keeps them."""
    key, value = self._split(key), self._split(value)
    return key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)

  def attend(self, query, key, value, bias, *, deterministic=True, reach=None):
    """Returns [B, N, E] for queries [B, N, H, D]; see the function `attend`.

    With `reach` [B] only so many slots of a row need be looked at, as those
    behind are masked; see `attend_within`.
    """
    if self.out.has_panels() and deterministic:
      context = native.attend(query, key, value, bias, reach)
      return self.out(context.reshape(*query.shape[:2], -1))
    look = attend
    if reach is not None:
      look = functools.partial(attend_within, reach)
    context = look(
      query,
      key,
      value,
      bias,
      float32_scores=self.config.float32_attention_logits,
      dropout=functools.partial(self.dropout, deterministic=deterministic),
    )
    return self.out(context.reshape(*query.shape[:2], -1))

  def __call__(self, x, memory, bias, *, deterministic=True):
    """Returns [B, N, E]: x [B, N, E] attends to memory [B, L, E]."""
    key, value = self.keys_values(memory)
    query = self.queries(x)
    return self.attend(query, key, value, bias, deterministic=deterministic)

  def step(self, x, bias):
    """Feeds one token, or makes the cache, as T5X's `decode=True` does.

    The collection `cache` holds `cached_key` and `cached_value` [B, H, D, L]
    and `cache_index` [], one index for all rows. Without it, x [B, L, E] fixes
    its size and is not remembered.

    Args:
      x: [B, 1, E], or [B, L, E] where there is no cache yet.
      bias: [1, H, L, L], position bias and causal mask of all L positions.

    Raises:
      ValueError: if there is a cache and x is not one token long.
    """
    query, (key, value) = self.queries_keys_values(x)
    turned = value.swapaxes(2, 3)
    if not self.has_variable("cache", "cached_key"):
      self.put_variable("cache", "cached_key", jnp.zeros_like(key))
      self.put_variable("cache", "cached_value", jnp.zeros_like(turned))
      self.put_variable("cache", "cache_index", jnp.zeros((), jnp.int32))
      return self.attend(query, key, value, bias)
    if x.shape[1] != 1:
      raise ValueError(
        f"a cached step feeds one token to each row, got {x.shape[1]}"
      )
    index = self.get_variable("cache", "cache_index")
    put = lambda name, new: jax.lax.dynamic_update_slice_in_dim(
      self.get_variable("cache", name), new, index, axis=3
    )
    key, turned = put("cached_key", key), put("cached_value", turned)
    self.put_variable("cache", "cached_key", key)
    self.put_variable("cache", "cached_value", turned)
    self.put_variable("cache", "cache_index", index + 1)
    bias = jax.lax.dynamic_slice_in_dim(bias, index, 1, axis=2)
    return self.attend(query, key, turned.swapaxes(2, 3), bias)


class Mlp(nn.Module):
  """The feed-forward block; two activations make it gated."""

  config: T5Config

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
    inner = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(
      inner, deterministic=deterministic
    )
    inner = with_sharding_constraint(inner, ("batch", "length", "mlp"))
    return Dense(cfg.emb_dim, ("mlp", "embed"), cfg.dtype, name="wo")(inner)
