"""Passes with the kernels for a GPU, on a CPU, against the plain path."""

import dataclasses
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
  gpu_passes,
)
from speccascade.native.gpu import kernel_tables
from tests.models.test_gpu_kernels import close

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
    blocks("interpreted", lm, prompt), blocks("xla", lm, prompt)
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
  *want, plain = blocks("xla", lm, prompt)
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
  caplog.clear()
  short = jax.eval_shape(
    lambda: lm.prefill(jnp.ones((1, 4), jnp.int32), capacity=20)
  )
  with native.gpu_kernels("triton"), caplog.at_level(logging.INFO):
    assert not gpu_passes.takes(config, params, short, tokens)
    assert not caplog.records
    with jax.default_device("gpu"):
      assert gpu_passes.takes(config, params, short, tokens)


def test_the_table_says_which_passes_have_kernels_unasked(monkeypatch):
  config = MODELS["llama"]
  lm = LlamaLM.init(config, jax.random.key(0))
  tokens = jnp.ones((1, 5), jnp.int32)
  state = jax.eval_shape(lambda: lm.prefill(tokens, capacity=20))
  row = {"implementation": "triton", "gain": 1.2, "because": "a test"}
  table = {"": {"decoder_pass": {gpu_passes.key(config, tokens): row}}}
  monkeypatch.setattr(kernel_tables, "read", lambda name: table)

  def takes():
    with jax.default_device("gpu"):
      return gpu_passes.takes(config, lm.params, state, tokens)

  assert takes()
  assert not gpu_passes.takes(config, lm.params, state, tokens)  # on this CPU
  with native.gpu_kernels("xla"):
    assert not takes()
  monkeypatch.setenv("SPECCASCADE_GPU_KERNELS", "0")
  assert not takes()
  monkeypatch.delenv("SPECCASCADE_GPU_KERNELS")
  assert takes()
  row["gain"] = 1.09
  assert not takes()


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
  for name in ("xla", "triton"):
    done = subprocess.run(
      [
        *(python, "-m", "benchmarks.compiled.case", "--target", "h100"),
        *("--pair", "t5-small:t5-large", "--method", "verifier"),
        *("--layers", "1", "4", "--variant", name),
      ],
      capture_output=True,
      text=True,
      cwd=ROOT,
      env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["cache_copies"] == 0
    counts[name] = row["launches"], row["read_bytes"]
  (plain, plain_bytes), (few, few_bytes) = counts["xla"], counts["triton"]
  # 21 launches are outside of the layers, and a layer has 8.
  assert few <= 21 + 4 * 8 < plain
  assert few_bytes <= plain_bytes
