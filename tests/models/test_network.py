"""The network against T5X's own numbers, and a NumPy twin."""

import dataclasses
import functools
import hashlib
import json

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import Transformer, attention, products
from tests import toy
from tests.models import t5_twin

ATOL = 1e-4  # on logits of size 18, see tests/golden/README.md
near = functools.partial(np.testing.assert_allclose, atol=ATOL, rtol=0)
TOKENS = ("encoder_input", "decoder_input", "decoder_target")
SEGMENTS = ("encoder_segment_ids", "decoder_segment_ids")


def flat(tree):
  return traverse_util.flatten_dict(tree, sep="/")


@functools.partial(jax.jit, static_argnums=0)
def teacher_forced(module, params, batch):
  return module.apply(
    {"params": params},
    *[batch[f"{name}_tokens"] for name in TOKENS],
    *[batch.get(name) for name in SEGMENTS],
    enable_dropout=False,
  )


@functools.partial(jax.jit, static_argnums=0)
def encode(module, params, tokens):
  return module.apply(
    {"params": params}, tokens, enable_dropout=False, method="encode"
  )


def batch_of(arrays, name):
  return {k.split("/")[1]: v for k, v in arrays.items() if k.startswith(name)}


@pytest.fixture(scope="module")
def batch(golden_arrays):
  return batch_of(golden_arrays, "in/")


@pytest.fixture(scope="module")
def variables(golden_config):
  """What `init` makes, with its collections."""
  tokens = jnp.ones((1, 2), jnp.int32)
  init = functools.partial(
    Transformer(golden_config).init, enable_dropout=False
  )
  return jax.jit(init)(jax.random.key(1), tokens, tokens, tokens)


def test_parameter_tree_is_that_of_t5x(golden, golden_params, variables):
  manifest = json.loads((golden / "params_manifest.json").read_text())
  shapes = {name: tuple(entry["shape"]) for name, entry in manifest.items()}
  params_by_name = flat(variables["params"])
  assert {name: leaf.shape for name, leaf in params_by_name.items()} == shapes
  assert {leaf.dtype for leaf in params_by_name.values()} == {
    jnp.dtype("float32")
  }
  for name, leaf in flat(golden_params).items():
    digest = hashlib.sha256(leaf.tobytes()).hexdigest()
    assert digest == manifest[name]["sha256"], name


def test_every_parameter_names_its_axes(variables):
  axes = flat(variables["params_axes"])
  params = flat(variables["params"])
  assert set(axes) == {f"{name}_axes" for name in params}
  for name, leaf in params.items():
    assert len(axes[f"{name}_axes"].names) == leaf.ndim
  layer = "decoder/layers_1/"
  for name, want in {
    "token_embedder/embedding": ("vocab", "embed"),
    "decoder/logits_dense/kernel": ("embed", "vocab"),
    "encoder/relpos_bias/rel_embedding": ("heads", "relpos_buckets"),
    layer + "self_attention/key/kernel": ("embed", "joined_kv"),
    layer + "encoder_decoder_attention/out/kernel": ("joined_kv", "embed"),
    layer + "mlp/wi_1/kernel": ("embed", "mlp"),
    layer + "mlp/wo/kernel": ("mlp", "embed"),
    layer + "pre_mlp_layer_norm/scale": ("embed",),
  }.items():
    assert axes[f"{name}_axes"].names == want


def test_initial_parameters_have_the_spread_of_t5(golden_config, variables):
  cfg = golden_config
  params = flat(variables["params"])
  layer = "encoder/layers_0/"
  for name, want in {
    "token_embedder/embedding": 1.0,
    layer + "attention/query/kernel": (cfg.emb_dim * cfg.head_dim) ** -0.5,
    layer + "attention/key/kernel": cfg.emb_dim**-0.5,
    layer + "attention/out/kernel": (cfg.num_heads * cfg.head_dim) ** -0.5,
    layer + "mlp/wo/kernel": cfg.mlp_dim**-0.5,
    "decoder/logits_dense/kernel": cfg.emb_dim**-0.5,
    "decoder/relpos_bias/rel_embedding": (2 / (cfg.num_heads + 32)) ** 0.5,
  }.items():
    values = np.asarray(params[name])
    # The sample deviation of n normal values spreads by sigma / sqrt(2 n).
    assert np.std(values) == pytest.approx(
      want, rel=5 / (2 * values.size) ** 0.5
    )
  # Cut at two deviations and widened to compensate; normal ones go further.
  mlp = np.abs(params[layer + "mlp/wo/kernel"]) * cfg.mlp_dim**0.5
  assert mlp.max() < 2 / 0.8796 + 1e-5
  assert np.abs(params["token_embedder/embedding"]).max() > 2.5
  assert np.all(params["decoder/decoder_norm/scale"] == 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outputs_equal_t5x(
  golden_config, golden_params, golden_arrays, batch, dtype
):
  module = Transformer(dataclasses.replace(golden_config, dtype=dtype))
  # bfloat16 sums may round otherwise on another machine: two of its steps at
  # the size of these logits, 18, and of these encoder outputs, 4.
  name, atol, encoder_atol = {
    "float32": ("f32", ATOL, ATOL),
    "bfloat16": ("bf16", 0.25, 0.0625),
  }[dtype]
  encoded = encode(module, golden_params, batch["encoder_input_tokens"])
  assert encoded.dtype == dtype
  real = batch["encoder_input_tokens"] != 0
  want = golden_arrays[f"{name}/encoder_output"]
  near(encoded.astype(jnp.float32)[real], want[real], atol=encoder_atol)
  logits = teacher_forced(module, golden_params, batch)
  assert logits.dtype == jnp.float32
  real = batch["decoder_target_tokens"] != 0
  want = golden_arrays[f"{name}/logits"]
  near(logits[real], want[real], atol=atol)


def test_positions_past_every_bucket(
  golden_config, golden_params, golden_arrays
):
  module = Transformer(golden_config)
  batch = batch_of(golden_arrays, "long/")
  encoded = encode(module, golden_params, batch["encoder_input_tokens"])
  logits = teacher_forced(module, golden_params, batch)
  near(encoded[:, ::8], batch["encoder_output_every8"])
  near(logits[:, ::10], batch["logits_every10"])
  np.testing.assert_array_equal(logits.argmax(-1), batch["argmax"])
  near(jax.nn.logsumexp(logits, axis=-1), batch["logsumexp"])


def test_packed_rows_equal_t5x(golden_config, golden_params, golden_arrays):
  batch = batch_of(golden_arrays, "packed/")
  logits = teacher_forced(Transformer(golden_config), golden_params, batch)
  real = batch["decoder_target_tokens"] != 0
  near(logits[real], batch["logits"][real])


def test_loss_and_gradients_equal_t5x(
  golden, golden_config, golden_params, golden_arrays, batch
):
  module = Transformer(golden_config)

  def loss(params):
    logits = teacher_forced(module, params, batch)
    total = jax.nn.logsumexp(logits, axis=-1)
    target = batch["decoder_target_tokens"][..., None]
    right = jnp.take_along_axis(logits, target, axis=-1)[..., 0]
    losses = total - right + 1e-4 * total**2
    return jnp.sum(losses * batch["decoder_loss_weights"])

  value, grads = jax.jit(jax.value_and_grad(loss))(golden_params)
  np.testing.assert_allclose(
    value, golden_arrays["loss/weighted"][0], rtol=1e-6
  )
  with np.load(golden / "golden_optimizer.npz") as arrays:
    for name, grad in flat(grads).items():
      want = arrays[f"grad/{name}"]
      near(grad, want, atol=1e-4 * np.abs(want).max(), err_msg=name)


@pytest.mark.parametrize("is_old", [True, False])
def test_logits_equal_the_numpy_twin(is_old):
  """T5 v1.0: one activation, output tied to the embedding and scaled."""
  config = toy.t5_config(
    num_encoder_layers=2,
    mlp_activations=("relu",) if is_old else ("gelu", "linear"),
    logits_via_embedding=is_old,
  )
  module = Transformer(config)
  rng = np.random.default_rng(0)
  source = rng.integers(2, 40, (1, 7), np.int32)
  target = rng.integers(2, 40, (1, 5), np.int32)
  tokens = source, target, target
  batch = {f"{name}_tokens": x for name, x in zip(TOKENS, tokens)}
  init = functools.partial(module.init, enable_dropout=False)
  params = jax.jit(init)(jax.random.key(0), *tokens)["params"]
  assert ("logits_dense" in params["decoder"]) is not is_old
  # Away from 1, so that a forgotten norm scale shows.
  params = jax.tree.map(lambda leaf: leaf + 0.1, params)
  logits = teacher_forced(module, params, batch)
  twin = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  want = t5_twin.logits(twin, config, source[0], target[0])
  np.testing.assert_allclose(logits[0], want, atol=1e-5 * np.abs(want).max())


def test_dropout_is_where_t5x_has_it(golden_config, golden_params, batch):
  """Everything but the encoder's output drops whole columns of a row."""
  layers = dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 1)
  config = dataclasses.replace(golden_config, dropout_rate=0.5, **layers)
  dropped_at = {}

  def record(call, args, kwargs, context):
    y = call(*args, **kwargs)
    if isinstance(context.module, nn.Dropout):
      name = "/".join(context.module.path[:-1])
      dropped = np.asarray(y == 0)
      is_shared = (dropped == dropped[..., :1, :]).all()
      dropped_at.setdefault(name, []).append(
        (dropped.shape[1:], bool(is_shared))
      )
    return y

  with nn.intercept_methods(record):
    Transformer(config).apply(
      {"params": golden_params},
      *[batch[f"{name}_tokens"][:1] for name in TOKENS],
      rngs={"dropout": jax.random.key(0)},
    )
  width, inner = (config.emb_dim,), (config.mlp_dim,)
  heads = (config.num_heads,)
  enc, dec = "encoder/layers_0", "decoder/layers_0"
  # Weights of unseen keys are 0 as well, so only their shape is looked at.
  [(causal_shape, _)] = dropped_at.pop(f"{dec}/self_attention")
  assert causal_shape == (*heads, 10, 10)
  assert dropped_at == {
    "encoder": [((14, *width), True), ((14, *width), False)],
    "decoder": [((10, *width), True)] * 2,
    enc: [((14, *width), True)] * 2,
    f"{enc}/attention": [((*heads, 14, 14), True)],
    f"{enc}/mlp": [((14, *inner), True)],
    dec: [((10, *width), True)] * 3,
    f"{dec}/encoder_decoder_attention": [((*heads, 10, 14), True)],
    f"{dec}/mlp": [((10, *inner), True)],
  }


@pytest.mark.parametrize(
  "dtype", toy.nightly(["float32", "bfloat16"], ["float32"])
)
def test_one_token_cache_of_t5x(
  golden_config, golden_params, golden_arrays, batch, dtype
):
  """`decode=True` as t5x drives it: init by `__call__`, step by `decode`."""
  module = Transformer(dataclasses.replace(golden_config, dtype=dtype))
  source = batch["encoder_input_tokens"]
  tokens = batch["decoder_input_tokens"]
  options = {"decode": True, "enable_dropout": False, "mutable": ["cache"]}
  ones = map(np.ones_like, (source, tokens, tokens))
  _, changed = module.apply({"params": golden_params}, *ones, **options)
  cache = changed["cache"]
  shapes = {k: v.shape for k, v in flat(cache).items() if "layers_1" in k}
  prefix = "decoder/layers_1/self_attention/"
  cfg = golden_config
  slots = (len(tokens), cfg.num_heads, cfg.head_dim, tokens.shape[1])
  assert shapes == {
    prefix + "cached_key": slots,
    prefix + "cached_value": slots,
    prefix + "cache_index": (),
  }
  encoded = encode(module, golden_params, source)

  @jax.jit
  def step(cache, token):
    logits, changed = module.apply(
      {"params": golden_params, "cache": cache},
      *(encoded, source, token, token),
      **{"max_decode_length": tokens.shape[1], "method": "decode", **options},
    )
    return changed["cache"], logits[:, 0]

  logits = []
  for i in range(tokens.shape[1]):
    cache, step_logits = step(cache, tokens[:, i : i + 1])
    logits.append(step_logits)
  name, atol = {"float32": ("f32", ATOL), "bfloat16": ("bf16", 0.25)}[dtype]
  want = golden_arrays[f"{name}/cached_step_logits"]
  near(np.stack(logits, 1), want, atol=atol)
  with pytest.raises(ValueError, match="one token to each row, got 2"):
    step(cache, tokens[:, :2])


def test_packed_rows_cannot_be_decoded(golden_config, golden_params, batch):
  with pytest.raises(ValueError, match="packed rows cannot be decoded"):
    Transformer(golden_config).apply(
      {"params": golden_params},
      *[batch[f"{name}_tokens"] for name in TOKENS],
      np.ones_like(batch["encoder_input_tokens"]),
      np.ones_like(batch["decoder_input_tokens"]),
      decode=True,
      enable_dropout=False,
    )


def test_scores_can_be_computed_in_float32():
  rng = np.random.default_rng(0)
  make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
  query, key, value = make(1, 9, 2, 16), make(1, 2, 16, 9), make(1, 2, 9, 16)
  # Scores near 64 are rounded to steps of 1/4 in bfloat16.
  bias = 64 + jnp.zeros((1, 1, 1, 9), jnp.float32)
  wide = lambda a: a.astype(jnp.float32)
  exact = attention.attend(wide(query), wide(key), wide(value), bias)
  error = lambda **kwargs: jnp.mean(
    jnp.abs(wide(attention.attend(query, key, value, bias, **kwargs)) - exact)
  )
  assert error(float32_scores=True) < 0.004
  assert error(float32_scores=False) > 0.01


@pytest.mark.parametrize("reach", [1, 128, 129, 256, 257, 512])
def test_attention_looks_at_every_slot_within_reach(reach):
  """The first 128, 256 or all of 512 slots, as many as it takes."""
  rng = np.random.default_rng(reach)
  make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  arrays = make(2, 3, 2, 4), make(2, 2, 4, 512), make(2, 2, 512, 4)
  # The last slot in reach has the most weight.
  bias = np.where(np.arange(512) == reach - 1, 3, 0)
  bias = np.where(np.arange(512) >= reach, attention.MASKED, bias)
  bias = jnp.broadcast_to(jnp.asarray(bias, jnp.float32), (2, 2, 3, 512))
  actual = jax.jit(attention.attend_within)(jnp.int32(reach), *arrays, bias)
  np.testing.assert_allclose(actual, attention.attend(*arrays, bias), atol=1e-5)


def test_one_row_is_multiplied_in_slices_on_a_cpu():
  """The product of one row, its gradient, and that XLA sees a batch of them."""
  first, second = jax.random.split(jax.random.key(0))
  x = jax.random.normal(first, (1, 1, 256))
  kernel = jax.random.normal(second, (256, products.LEAST_SLICED // 256))
  want = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64)
  matmul = jax.jit(products.matmul)
  near(matmul(x, kernel), want)
  rows = jnp.tile(x, (1, 2, 1))
  near(matmul(rows, kernel), np.tile(want, (1, 2, 1)))

  # A kernel whose rows cannot be cut evenly is not cut.
  tall = jnp.ones((255, products.LEAST_SLICED // 255 + 1))
  assert np.all(matmul(jnp.ones((1, 1, 255)), tall) == 255)

  slope = jax.jit(jax.grad(lambda x: products.matmul(x, kernel).sum()))(x)
  near(slope[0, 0], np.sum(np.asarray(kernel, np.float64), 1))

  def is_batched(*args):
    lowered = matmul.trace(*args).lower(lowering_platforms=("cpu",))
    return "batching_dims" in lowered.as_text()

  assert is_batched(x, kernel)
  assert not is_batched(rows, kernel)
  assert not is_batched(x, kernel[:, :-1])
  assert not is_batched(x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16))
  elsewhere = matmul.trace(x, kernel).lower(lowering_platforms=("tpu",))
  assert "batching_dims" not in elsewhere.as_text()
