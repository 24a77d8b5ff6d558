"""A pass of a T5's or a Llama's decoder over a few tokens, for a GPU.

XLA launches some 22 kernels for a layer, and with few rows a launch costs more
than its work. Here a layer is 8 launches of a T5 and 6 to 8 of a Llama: norm
and queries, keys, values; attention with the writes to the cache; the output
with its residual; and so on. The operations are those of `native.gpu`, and
`native.gpu.choice` says which pass has them.

Axes: B rows, N fed tokens, R read positions, L slots, H query heads, K key
heads, D head width, E model width, V vocabulary.
"""

from collections.abc import Callable, Sequence
import functools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.models import cache, cut_head, gpu_launches, layers
from speccascade.models.block import Block
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.products import LEAST_ROWS
from speccascade.models.sharding import partitioning
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.multi_head import relative_position_bucket
from speccascade.native.gpu import block_attention, choice, row_products
from speccascade.native.gpu.block_attention import Offsets
from speccascade.native.gpu.row_products import ACTIVATIONS, Gathered, whole

# Beyond these XLA's kernels are the better ones: products of many rows are no
# longer bound by memory, and one program reads all slots of a head.
MOST_ROWS = 64
MOST_SLOTS = 1024
# Implementations with one to three launches a layer, where these take a block.
_IN_LAUNCHES = ("cuda", "emulated")
# Fields of `LlamaConfig` that the kernels do not compute.
_XLA_ONLY = (
  "norm_offset",
  "post_norms",
  "scaled_embedding",
  "query_pre_attn_scalar",
  "attention_cap",
  "local_rope_theta",
)


def key(config: T5Config | LlamaConfig, tokens: jax.Array) -> str:
  """Returns the sizes by which `defaults.json` knows a pass of a decoder.

  Such as "512 wide, 6 heads of 64, MLP of 1024, 2 gates, 8 tokens, bfloat16".
  Up to 8 tokens of all rows count as 8, and others as a power of two.
  """
  heads = f"{config.num_heads} heads of {config.head_dim}"
  mlp = f"MLP of {config.mlp_dim}, {len(config.mlp_activations)} gates"
  num_tokens = max(8, 1 << (tokens.size - 1).bit_length())
  return (
    f"{config.emb_dim} wide, {heads}, {mlp}, {num_tokens} tokens,"
    f" {config.dtype}"
  )


def takes(
  config: T5Config | LlamaConfig,
  params: dict,
  state: Any,
  tokens: jax.Array,
) -> bool:
  """Whether `extend` feeds a block, while its program is traced.

  Args:
    config: the architecture.
    params: its parameters.
    state: `T5State` or `LlamaState`.
    tokens: [B, N] int32, the block.
  """
  name = _implementation(config, tokens)
  if name == "xla":
    return False
  if name not in choice.ANYWHERE and native.platform() != "gpu":
    return False
  if _has_launches(name, config, params, state, tokens):
    return True
  if reason := _reason_against(name, config, params, state, tokens):
    _say(reason)
    return False
  return True


def _has_launches(name, config, params, state, tokens) -> bool:
  """Whether a layer is the launches of `gpu_launches`."""
  if name not in _IN_LAUNCHES:
    return False
  reason = "the model is on a mesh" if partitioning.is_cut() else None
  reason = reason or gpu_launches.reason_against(
    name, config, params, state, tokens
  )
  if reason is not None:
    _say(reason, "one to three launches a layer are")
  return reason is None


def _implementation(config, tokens: jax.Array) -> str:
  """Returns the implementation that a pass should be made of."""
  return choice.preferred("decoder_pass", key(config, tokens))


def _reason_against(name, config, params, state, tokens) -> str | None:
  """Returns why the kernels do not take a block, or None if they do."""
  kernel = params["decoder"]["layers_0"]["self_attention"]["query"]["kernel"]
  found = getattr(kernel, "dtype", None)
  group = config.num_heads // getattr(config, "num_kv_heads", config.num_heads)
  num_slots = state.caches[0][0].shape[3]
  *kernels, _ = choice.FALLBACKS[name]
  missing = [row_products.missing(each) for each in kernels]
  unknown = set(config.mlp_activations) - ACTIVATIONS.keys()
  gemma = [field for field in _XLA_ONLY if getattr(config, field, None)]
  if all(missing):
    return missing[-1]
  if partitioning.is_cut():
    return "the model is on a mesh"
  if found != jnp.dtype(config.dtype):
    return f"kernels are {found} and activations {config.dtype}"
  if type(config) not in (T5Config, LlamaConfig):
    return "there are no kernels for the model's kind of attention"
  if unknown:
    return f"the activation {min(unknown)!r} is not known"
  if gemma:
    return f"the model has {', '.join(gemma)}"
  if max(tokens.size, group * tokens.shape[1]) > MOST_ROWS:
    return f"a block of {tokens.size} tokens is over {MOST_ROWS}"
  if num_slots > MOST_SLOTS:
    return f"a cache of {num_slots} slots is over {MOST_SLOTS}"
  return None


@functools.cache
def _say(reason: str, what: str = "the GPU's own kernels are"):
  """Says once why the next best kernels are taken in place of others."""
  best = "XLA's" if what.startswith("the GPU") else "the next best"
  logging.getLogger("speccascade").info(
    "%s left out where %s; %s compute it", what, reason, best
  )


def extend(
  config: T5Config | LlamaConfig,
  params: dict,
  state: Any,
  block: Block,
  context: tuple,
  project: Callable[[jax.Array], jax.Array],
  state_layers: Sequence[int] = (),
) -> tuple[tuple[cache.LayerCache, ...], jax.Array, jax.Array]:
  """Returns (caches, logits, hidden) of a fed block; see `CachedLM.extend`.

  Args:
    config: the architecture.
    params: its parameters, in the dtype of the activations.
    state: `T5State` or `LlamaState`.
    block: the fed tokens, without spare ones.
    context: what the network's `extend` takes after the caches.
    project: the output projection, see `CachedLM.project`.
    state_layers: whose inputs are the hidden states; see `CachedLM`.
  """
  embedder, decoder = params["token_embedder"], params["decoder"]
  x: Any = block.vectors
  if x is None:
    x = _vectors(config, embedder, block.tokens)
  feed = _t5_layers if isinstance(config, T5Config) else _llama_layers
  name = _implementation(config, block.tokens)
  if _has_launches(name, config, params, state, block.tokens):
    feed = gpu_launches.t5_layers
  with native.gpu_kernels(name):
    x, caches, inputs = feed(config, decoder, x, block, state, context)
  if block.read is not None and block.reads_fewer:
    x = _at(x, block.read)
  epsilon = getattr(config, "norm_epsilon", 1e-6)
  scale = decoder["decoder_norm"]["scale"]
  kernel = _head_kernel(config, params, x.dtype)

  def project_rows(x):
    """Returns logits of hidden states, with a single row among empty ones."""
    if x.size > x.shape[-1]:
      return project(x)
    return project(jnp.pad(x, ((0, 0), (0, LEAST_ROWS - 1), (0, 0))))[:, :1]

  def normed_product(x):
    """Returns logits of what the last layer returns, in one launch."""
    with native.gpu_kernels(name):
      [logits] = row_products(
        x, (kernel,), norm=scale.astype(x.dtype), epsilon=epsilon, is_wide=True
      )
    return logits

  if kernel is None:
    x = layers.norm(whole(x), scale, epsilon)
    logits, hidden = block.outputs(x, project_rows, config.vocab_size)
  elif isinstance(x, Gathered) and x.size and block.has_logits:
    logits, hidden = normed_product(x), layers.norm(whole(x), scale, epsilon)
  else:
    logits, x = block.outputs(whole(x), normed_product, config.vocab_size)
    hidden = layers.norm(x, scale, epsilon)
  if state_layers:
    hidden = block.states([whole(inputs[layer]) for layer in state_layers])
  return caches, logits, hidden


def _vectors(config, embedder: dict, tokens: jax.Array) -> jax.Array | Gathered:
  """Returns the vectors of tokens; the first layer looks them up if it can."""
  table = embedder["embedding"]
  is_whole = embedder.get("lookahead") is None
  if is_whole and getattr(table, "dtype", None) == config.dtype:
    return Gathered(table, tokens)
  return layers.vectors_of(embedder, tokens, config.dtype)


def _at(x: jax.Array, read: jax.Array) -> Gathered:
  """Returns x [B, N, E] at the read positions [B, R]."""
  num_rows, num_fed, width = x.shape
  if num_rows > 1:
    first = jnp.arange(num_rows, dtype=jnp.int32) * num_fed
    read = read + first[:, None]
  return Gathered(x.reshape(-1, width), read)


def _head_kernel(config, params: dict, dtype) -> jax.Array | None:
  """Returns the kernel [E, V] of an untied head; None where it is not one."""
  if config.logits_via_embedding or getattr(config, "logit_cap", None):
    return None
  head = params.get(cut_head.NAME, params["decoder"].get("logits_dense", {}))
  kernel = head.get("kernel")
  return kernel if getattr(kernel, "dtype", None) == dtype else None


def _products(x, *dense: dict, **options) -> list[jax.Array]:
  """Returns products with the kernels of dense layers."""
  kernels = tuple(each["kernel"].astype(x.dtype) for each in dense)
  return row_products(x, kernels, **options)


def _joined(x: jax.Array) -> jax.Array:
  """Returns [B, N, H * D] of heads [B, N, H, D]."""
  return x.reshape(*x.shape[:2], -1)


def _mlp(config, layer: dict, x: jax.Array, epsilon: float) -> jax.Array:
  """Returns x after the MLP, with its norm and residual."""
  mlp = layer["mlp"]
  names = [name for name in sorted(mlp) if name != "wo"]
  [inner] = _products(
    x,
    *(mlp[name] for name in names),
    norm=layer["pre_mlp_layer_norm"]["scale"].astype(x.dtype),
    epsilon=epsilon,
    activations=tuple(config.mlp_activations),
  )
  return _products(inner, mlp["wo"], residual=x)[0]


def _by_bucket(config, decoder, capacity: int) -> Offsets:
  """Returns the position bias of a T5's decoder, for caches of L slots."""
  distances = np.arange(1 - capacity, capacity)
  buckets = relative_position_bucket(distances, bidirectional=False)
  table = decoder["relpos_bias"]["rel_embedding"].astype(config.dtype)
  return Offsets(table, jnp.asarray(buckets, jnp.int32))


def _t5_layers(config, decoder, x, block, state, context):
  """Returns (x [B, N, E] after a T5's layers, caches, what each layer read)."""
  sources, source_bias, by_offset = context
  if block.depth is None:
    bias = _by_bucket(config, decoder, state.caches[0][0].shape[3])
  else:
    bias = block.bias(by_offset)
  split = lambda y: y.reshape(*y.shape[:2], config.num_heads, -1)
  caches, inputs = [], []
  for number, (keys, values) in enumerate(state.caches):
    layer = decoder[f"layers_{number}"]
    inputs.append(x)

    def norm(name, layer=layer):
      return layer[f"pre_{name}_layer_norm"]["scale"].astype(config.dtype)

    attention = layer["self_attention"]
    query, key, value = _products(
      x,
      *(attention[name] for name in ("query", "key", "value")),
      norm=norm("self_attention"),
    )
    query, *new = map(split, (query, key, value))
    mixed, *written = block_attention(
      query, keys, values, bias, new=tuple(new), start=block.start
    )
    caches.append(tuple(written))
    [x] = _products(_joined(mixed), attention["out"], residual=x)
    attention = layer["encoder_decoder_attention"]
    [query] = _products(x, attention["query"], norm=norm("cross_attention"))
    [mixed] = block_attention(split(query), *sources[number], source_bias)
    [x] = _products(_joined(mixed), attention["out"], residual=x)
    x = _mlp(config, layer, x, 1e-6)
  return x, tuple(caches), inputs


def _llama_layers(config, decoder, x, block, state, context):
  """Returns (x [B, N, E] after the layers, caches, what each layer read)."""
  del context
  epsilon, start = config.norm_epsilon, block.start
  positions = rotary.positions(start, x.shape[:2], block.depth)
  angles = rotary.angles(config, positions)
  capacity = state.caches[0][0].shape[3]
  biases = {}
  split = lambda y: y.reshape(*y.shape[:2], -1, config.head_dim)
  caches, inputs = [], []
  for number, (keys, values) in enumerate(state.caches):
    inputs.append(x)
    layer, window = decoder[f"layers_{number}"], config.window_of(number)
    if window not in biases:
      mask = cache.window_by_offset(window, capacity)
      biases[window] = block.bias(mask)
      if block.depth is None:
        every = jnp.arange(mask.shape[1], dtype=jnp.int32)
        biases[window] = Offsets(jnp.asarray(mask), every)
    attention = layer["self_attention"]
    dense = [attention[name] for name in ("query", "key", "value")]
    scale = layer["pre_self_attention_layer_norm"]["scale"].astype(x.dtype)
    results = _products(x, *dense, norm=scale, epsilon=epsilon)
    if config.qkv_bias:
      results = [_add(y, each["bias"]) for y, each in zip(results, dense)]
    query, key, value = map(split, results)
    if config.query_key_norm:
      query = layers.norm(query, attention["query_norm"]["scale"], epsilon)
      key = layers.norm(key, attention["key_norm"]["scale"], epsilon)
    mixed, *written = block_attention(
      rotary.turn(query, *angles),
      keys,
      values,
      biases[window],
      new=(rotary.turn(key, *angles), value),
      start=start,
      scale=config.head_dim**-0.5,
    )
    caches.append(tuple(written))
    out = attention["out"]
    if config.out_bias:
      x = _add(whole(x), out["bias"])
    [x] = _products(_joined(mixed), out, residual=x)
    x = _mlp(config, layer, x, epsilon)
  return x, tuple(caches), inputs


def _add(x: jax.Array, bias: jax.Array) -> jax.Array:
  """Returns x [..., F] and a bias [F]."""
  return x + jnp.broadcast_to(bias.astype(x.dtype), x.shape)
