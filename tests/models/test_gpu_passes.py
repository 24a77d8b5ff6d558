"""The kernels for a GPU: their numbers, on a CPU, against the plain path."""

import dataclasses
import functools
import json
import logging
import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.models import (
  T5LM,
  LlamaConfig,
  LlamaLM,
  T5Config,
  attention,
  cache,
  gpu_passes,
  layers,
)
from speccascade.native.gpu import (
  block_attention_triton,
  row_products_triton,
)

ROOT = pathlib.Path(__file__).parents[2]
SIZES = {
  "vocab_size": 48,
  "emb_dim": 24,
  "num_heads": 4,
  "num_decoder_layers": 1,
  "head_dim": 8,
  "mlp_dim": 40,
}
MODELS = {
  "t5": T5Config(**SIZES, num_encoder_layers=1),
  "tied t5": T5Config(
    **SIZES,
    num_encoder_layers=1,
    mlp_activations=("relu",),
    logits_via_embedding=True,
  ),
  "llama": LlamaConfig(**SIZES, num_kv_heads=2, window=4),
  "biased": LlamaConfig(
    **SIZES,
    num_kv_heads=1,
    qkv_bias=True,
    out_bias=True,
    query_key_norm=True,
    logits_via_embedding=False,
  ),
}


def numbers(rng, *shape, dtype="float32"):
  return jnp.asarray(rng.normal(size=shape), dtype)


def close(got, want, bound=1e-5):
  """Compares arrays, with a bound of the largest number."""
  got, want = (np.asarray(x, np.float32) for x in (got, want))
  assert got.shape == want.shape
  gap = np.abs(got - want).max() / np.abs(want).max()
  assert gap <= bound, gap


# Rows, tokens, cached tokens, heads, key heads, width, slots. Sizes that are
# not powers of two, caches of several parts of 64 slots, blocks of 1 to 16
# tokens.
BLOCKS = [
  (1, 6, 1, 4, 4, 64, 71),
  (4, 1, 1, 6, 3, 16, 130),
  (3, 6, 6, 4, 4, 48, 71),
  (2, 16, 16, 8, 2, 32, 40),
  (2, 3, 3, 4, 1, 80, 64),
]


@pytest.mark.parametrize(
  "block",
  [
    *BLOCKS[:2],
    *(pytest.param(block, marks=pytest.mark.slow) for block in BLOCKS[2:]),
  ],
  ids=str,
)
def test_a_block_attends_as_in_separate_steps(block):
  rows, num_fed, num_new, heads, key_heads, width, num_slots = block
  rng = np.random.default_rng(num_slots)
  query = numbers(rng, rows, num_fed, heads, width)
  new = [numbers(rng, rows, num_new, key_heads, width) for _ in range(2)]
  keys = numbers(rng, rows, key_heads, width, num_slots)
  values = numbers(rng, rows, key_heads, num_slots, width)
  # What a slot holds past the row's length must not be seen, whatever it is.
  start = jnp.asarray(rng.integers(0, num_slots - num_new + 1, rows), jnp.int32)
  bias = cache.block_bias(
    numbers(rng, heads, 2 * num_slots - 1), start, num_new
  )
  spare = (0, 0), (0, 0), (0, num_fed - num_new), (0, 0)
  bias = jnp.pad(bias, spare, mode="edge")
  turned = new[0].transpose(0, 2, 3, 1), new[1].transpose(0, 2, 1, 3)
  written = cache.write((keys, values), turned, start)
  want = attention.attend(
    query, *(jnp.repeat(x, heads // key_heads, axis=1) for x in written), bias
  )
  got = block_attention_triton.cached_attention(
    query, *new, bias, keys, values, start, interpret=True
  )
  close(got[0], want)
  for mine, plain in zip(got[1:], written):
    np.testing.assert_array_equal(mine, plain)


def test_numbers_that_are_not_finite_do_not_reach_the_cache():
  rng = np.random.default_rng(0)
  query, key, value = (numbers(rng, 1, 2, 2, 16) for _ in range(3))
  key = key.at[0, 1, 0, 3].set(jnp.nan)
  value = value.at[0, 1, 1, 2].set(jnp.inf)
  empty = jnp.zeros((1, 2, 16, 20)), jnp.zeros((1, 2, 20, 16))
  start = jnp.asarray([4])
  bias = cache.block_bias(jnp.zeros((1, 39)), start, 2)
  _, *written = block_attention_triton.cached_attention(
    query, key, value, bias, *empty, start, interpret=True
  )
  turned = key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
  for mine, plain in zip(written, cache.write(empty, turned, start)):
    np.testing.assert_array_equal(mine, plain)


def test_a_source_is_attended_to_whole_and_its_padding_is_not_seen():
  rng = np.random.default_rng(1)
  query = numbers(rng, 2, 3, 4, 32)
  keys, values = numbers(rng, 2, 4, 32, 17), numbers(rng, 2, 4, 17, 32)
  sizes = jnp.asarray([[9], [17]])
  bias = jnp.where(jnp.arange(17)[None] < sizes, 0, attention.MASKED)
  bias = bias[:, None, None]
  got = block_attention_triton.attention(
    query, keys, values, bias, interpret=True
  )
  close(got, attention.attend(query, keys, values, bias))
  spoiled = values.at[0, :, 9:].set(1e6)
  again = block_attention_triton.attention(
    query, keys, spoiled, bias, interpret=True
  )
  np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_with_what_is_around_them(dtype):
  rng = np.random.default_rng(2)
  bound = 1e-5 if dtype == "float32" else 0.02
  x = numbers(rng, 2, 3, 200, dtype=dtype)
  wide, narrow = (
    0.1 * numbers(rng, 200, width, dtype=dtype) for width in (96, 40)
  )
  scale = 1 + 0.1 * numbers(rng, 200, dtype=dtype)
  normed = layers.norm(x, scale, 1e-6)
  run = functools.partial(row_products_triton.products, interpret=True)
  for got, kernel in zip(run(x, (wide, narrow), norm=scale), (wide, narrow)):
    assert got.dtype == x.dtype
    close(got, normed @ kernel, bound)
  gate, up = wide, wide[::-1]
  [got] = run(x, (gate, up), norm=scale, activations=("gelu", "linear"))
  close(got, jax.nn.gelu(normed @ gate) * (normed @ up), bound)
  residual = numbers(rng, 2, 3, 96, dtype=dtype)
  [got] = run(x, (wide,), residual=residual)
  close(got, x @ wide + residual, bound)


def blocks(mode, lm, prompt):
  """Returns what a chain, a tree, its kept path and a short read give."""
  rows = len(prompt)
  rng = np.random.default_rng(3)
  chain, tree, last = (
    jnp.asarray(rng.integers(1, 40, (rows, num)), jnp.int32)
    for num in (5, 4, 3)
  )
  seen = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
  everywhere = lambda x: jnp.broadcast_to(x, (rows, *x.shape))

  @jax.jit
  def run(lm, prompt, counts):
    state = lm.prefill(prompt, capacity=21)
    state, of_chain = lm.extend(state, chain, counts)
    start = state.length
    state, of_tree = lm.extend(
      state,
      tree,
      everywhere(jnp.asarray(4)),
      depth=everywhere(jnp.asarray([0, 1, 1, 2])),
      ancestors=everywhere(jnp.asarray(seen, bool)),
    )
    path = everywhere(jnp.asarray([0, 1, 3]))
    state = lm.keep(state, start, path, everywhere(jnp.asarray(3)))
    state, read = lm.extend(
      state,
      last,
      everywhere(jnp.asarray(2)),
      read=everywhere(jnp.asarray([1])),
    )
    # Of a row that is fed less, the tokens after its count say nothing.
    return of_chain.logits[:, 0], of_tree.logits, read.logits, read.hidden

  with native.gpu_kernels(mode):
    counts = jnp.asarray(rng.integers(1, 6, rows), jnp.int32)
    return run(lm, prompt, counts)


@pytest.mark.parametrize(
  "name",
  [
    "t5",
    *(pytest.param(name, marks=pytest.mark.slow) for name in [*MODELS][1:]),
  ],
)
def test_a_pass_is_the_plain_pass(name, monkeypatch):
  monkeypatch.setenv("SPECCASCADE_NATIVE", "0")
  config = MODELS[name]
  kind = T5LM if isinstance(config, T5Config) else LlamaLM
  # Its hidden states are those that the layers read, the last layer first.
  layers = range(config.num_decoder_layers)[::-1]
  lm = kind.init(config, jax.random.key(0)).handing_out(layers)
  prompt = jnp.asarray(np.random.default_rng(4).integers(3, 40, (2, 6)))
  for got, want in zip(
    blocks("interpreted", lm, prompt), blocks("off", lm, prompt)
  ):
    close(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tied t5", "biased"])
def test_a_pass_with_a_cut_head_is_the_plain_pass(name, monkeypatch):
  monkeypatch.setenv("SPECCASCADE_NATIVE", "0")
  config = MODELS[name]
  kind = T5LM if isinstance(config, T5Config) else LlamaLM
  lm = kind.init(config, jax.random.key(0)).cut_to(range(1, 48, 3))
  prompt = jnp.asarray(np.random.default_rng(4).integers(3, 40, (2, 6)))
  *got, hidden = blocks("interpreted", lm, prompt)
  *want, plain = blocks("off", lm, prompt)
  close(hidden, plain)
  for x, y in zip(got, want):
    assert np.isfinite(x).sum() == x.size // 3
    close(x[..., 1::3], y[..., 1::3])


def test_the_kernels_say_where_they_are_left_out(caplog):
  config = MODELS["llama"]
  lm = LlamaLM.init(config, jax.random.key(0))
  state = jax.eval_shape(
    lambda: lm.prefill(jnp.ones((1, 4), jnp.int32), capacity=2000)
  )
  tokens = jnp.ones((1, 5), jnp.int32)
  params = lm.params
  assert not gpu_passes.takes(config, params, state, tokens)
  gpu_passes._say.cache_clear()
  with native.gpu_kernels("interpreted"), caplog.at_level(logging.INFO):
    assert not gpu_passes.takes(config, params, state, tokens)
    assert not gpu_passes.takes(config, params, state, tokens)
  assert [each.message for each in caplog.records] == [
    "the GPU's own kernels are left out where a cache of 2003 slots is over"
    " 1024; XLA's compute it"
  ]
  # A program for a CPU has none, even where they are asked for.
  with native.gpu_kernels("on"):
    assert not native.has_gpu_kernels()
    with jax.default_device("gpu"):
      assert native.has_gpu_kernels()


# What the kernels do not compute, as a config of Llama's kind says it.
WITHOUT_KERNELS = {
  "norm_offset": 1,
  "post_norms": True,
  "scaled_embedding": True,
  "query_pre_attn_scalar": 12.0,
  "attention_cap": 30.0,
  "local_rope_theta": 500.0,
}


@pytest.mark.parametrize("field", WITHOUT_KERNELS)
def test_the_kernels_leave_out_what_they_do_not_compute(field, caplog):
  change = {field: WITHOUT_KERNELS[field]}
  plain = MODELS["llama"]
  config = dataclasses.replace(plain, windowed_layers=(0,), **change)
  lm = LlamaLM.init(config, jax.random.key(0))
  prompt, tokens = jnp.ones((1, 4), jnp.int32), jnp.ones((1, 5), jnp.int32)
  state = jax.eval_shape(lambda: lm.prefill(prompt, capacity=20))
  gpu_passes._say.cache_clear()
  with native.gpu_kernels("interpreted"), caplog.at_level(logging.INFO):
    assert not gpu_passes.takes(config, lm.params, state, tokens)
    assert field in caplog.text
    whole = LlamaLM.init(plain, jax.random.key(0))
    assert gpu_passes.takes(plain, whole.params, state, tokens)


@pytest.mark.slow
def test_a_layer_is_few_launches_when_compiled_for_an_h100():
  python = ROOT / ".venv-gpu-compiler/bin/python"
  if not python.exists():
    pytest.skip("no compiler for GPUs: bash launch/gpu_compiler.sh")
  counts = {}
  for switch in ("0", "1"):
    done = subprocess.run(
      [
        *(python, "-m", "benchmarks.compiled.case", "--target", "h100"),
        *("--pair", "t5-small:t5-large", "--method", "verifier"),
        *("--layers", "1", "4"),
      ],
      capture_output=True,
      text=True,
      cwd=ROOT,
      env={"SPECCASCADE_GPU_KERNELS": switch, "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["cache_copies"] == 0
    counts[switch] = row["launches"], row["read_bytes"]
  (plain, plain_bytes), (few, few_bytes) = counts["0"], counts["1"]
  # 21 launches are outside of the layers, and a layer has 8.
  assert few <= 21 + 4 * 8 < plain
  assert few_bytes <= plain_bytes
