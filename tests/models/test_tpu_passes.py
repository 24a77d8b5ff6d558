"""The kernels for a TPU: their numbers, on a CPU, against the plain path."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding import Sampling, decoder, row_keys
from speccascade.models import T5LM, attention, cache, layers
from speccascade.models import tpu_passes as passes
from speccascade.native import tpu_attention
from tests import tpu_compiler
from tests.models.test_gpu_kernels import close, numbers
from tests.models.test_gpu_passes import MODELS

# Fed tokens, cached tokens, heads, width of a head, slots. Sizes that fill no
# register, a spare token, more heads than lines of a register.
BLOCKS = [(2, 1, 4, 8, 21), (6, 6, 3, 16, 71), (3, 3, 12, 8, 130)]


def turned(values):
  return values.swapaxes(2, 3)[0].reshape(-1, values.shape[2])


def joined(x):
  return x[0].reshape(x.shape[1], -1)


@pytest.mark.parametrize(
  ("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 0.02)]
)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_attends_as_in_separate_steps(block, dtype, bound):
  num_fed, num_new, heads, width, num_slots = block
  rng = np.random.default_rng(num_slots)
  x = numbers(rng, num_fed, 40, dtype=dtype)
  query, *new = (
    numbers(rng, 1, num_fed, heads, width, dtype=dtype) for _ in range(3)
  )
  keys = numbers(rng, 1, heads, width, num_slots, dtype=dtype)
  values = numbers(rng, 1, heads, num_slots, width, dtype=dtype)
  start = jnp.asarray([num_slots - num_new - 2], jnp.int32)
  bias = cache.block_bias(
    numbers(rng, heads, 2 * num_slots - 1), start, num_new
  )
  spare = (0, 0), (0, 0), (0, num_fed - num_new), (0, 0)
  bias = jnp.pad(bias, spare, mode="edge")
  # The norm's factor comes after the products.
  factor = jax.lax.rsqrt(jnp.mean(jnp.square(x.astype("float32")), -1) + 1e-6)[
    None, :, None, None
  ]
  normed = [(y.astype("float32") * factor).astype(dtype) for y in (query, *new)]
  written = cache.write(
    (keys, values),
    (
      normed[1].transpose(0, 2, 3, 1)[..., :num_new],
      normed[2].transpose(0, 2, 1, 3)[:, :, :num_new],
    ),
    start,
  )
  want = attention.attend(normed[0], *written, bias, float32_scores=True)
  got, *mine = tpu_attention.cached_attention(
    x,
    *map(joined, (query, *new)),
    tpu_attention.lines(bias[0]),
    keys[0].reshape(-1, num_slots),
    turned(values),
    start,
    num_heads=heads,
    num_new=num_new,
    interpret=True,
  )
  close(got, joined(want), bound)
  plain = written[0][0].reshape(-1, num_slots), turned(written[1])
  is_new = np.arange(num_slots) - start[0]
  is_new = (is_new >= 0) & (is_new < num_new)
  for ours, theirs in zip(mine, plain):
    close(ours, theirs, bound / 10)
    np.testing.assert_array_equal(ours[:, ~is_new], theirs[:, ~is_new])


def test_numbers_that_are_not_finite_do_not_reach_the_cache():
  rng = np.random.default_rng(0)
  x, query, key, value = (numbers(rng, 2, 32) for _ in range(4))
  spoiled = key.at[1, 3].set(jnp.nan), value.at[0, 20].set(jnp.inf)
  keys, values = numbers(rng, 32, 20), numbers(rng, 32, 20)
  bias = cache.block_bias(jnp.zeros((2, 39)), jnp.asarray([4]), 2)

  def written(key, value):
    return tpu_attention.cached_attention(
      *(x, query, key, value),
      *(tpu_attention.lines(bias[0]), keys, values, jnp.asarray([4])),
      num_heads=2,
      num_new=2,
      interpret=True,
    )[1:]

  plain = written(key, value)
  for got, want, at in zip(written(*spoiled), plain, ((3, 5), (20, 4))):
    np.testing.assert_array_equal(got, want.at[at].set(0))


def test_a_source_is_attended_to_whole_and_its_padding_is_not_seen():
  rng = np.random.default_rng(1)
  x, query = numbers(rng, 3, 24), numbers(rng, 1, 3, 4, 8)
  keys, values = numbers(rng, 1, 4, 8, 17), numbers(rng, 1, 4, 17, 8)
  bias = jnp.where(jnp.arange(17)[None] < 9, 0.0, attention.MASKED)

  def attend(values):
    return tpu_attention.source_attention(
      *(x, joined(query), bias, keys[0].reshape(-1, 17), turned(values)),
      num_heads=4,
      interpret=True,
    )

  normed = query * layers.norm(x, jnp.ones(24), 1e-6)[None, :, :1, None]
  normed = normed / x[None, :, :1, None]
  want = attention.attend(normed, keys, values, bias[None, None])
  close(attend(values), joined(want))
  spoiled = values.at[:, :, 9:].set(1e6)
  np.testing.assert_array_equal(attend(spoiled), attend(values))


def blocks(mode, lm, prompt):
  """Returns what a chain, a tree, its path, a short read and a token give."""
  rng = np.random.default_rng(3)
  chain, tree, last, one = (
    jnp.asarray(rng.integers(1, 40, (1, num)), jnp.int32)
    for num in (5, 4, 3, 1)
  )
  seen = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
  row = lambda x: jnp.asarray(x)[None]

  @jax.jit
  def run(lm, prompt):
    state = lm.prefill(prompt, capacity=21)
    state, of_chain = lm.extend(state, chain, row(3))
    start = state.length
    state, of_tree = lm.extend(
      *(state, tree, row(4)),
      depth=row([0, 1, 1, 2]),
      ancestors=row(np.asarray(seen, bool)),
    )
    state = lm.keep(state, start, row([0, 1, 3]), row(3))
    state, read = lm.extend(state, last, row(2), read=row([1]))
    state, token = lm.extend(state, one, row(1))
    outputs = of_chain, of_tree, read, token
    return [(each.logits, each.hidden) for each in outputs]

  with native.tpu_kernels(mode):
    return jax.tree.leaves(run(lm, prompt))


@pytest.mark.parametrize(
  "name", ["t5", pytest.param("tied t5", marks=pytest.mark.slow)]
)
def test_a_pass_is_the_plain_pass(name, monkeypatch):
  monkeypatch.setenv("SPECCASCADE_NATIVE", "0")
  lm = T5LM.init(MODELS[name], jax.random.key(0))
  lm = lm.handing_out([0]) if name == "t5" else lm
  prompt = jnp.asarray(np.random.default_rng(4).integers(3, 40, (1, 6)))
  plain = blocks("xla", lm, prompt)
  for got, want in zip(blocks("interpreted", lm, prompt), plain):
    close(got, want)


def test_blocks_give_the_tokens_of_the_plain_path(monkeypatch):
  monkeypatch.setenv("SPECCASCADE_NATIVE", "0")
  small, large = (T5LM.init(MODELS["t5"], jax.random.key(i)) for i in range(2))
  inputs, keys = jnp.asarray([[5, 9, 3, 7]]), row_keys(0, 0, jnp.arange(1))

  def tokens(method, drafter, mode, **options):
    run = decoder(method, max_decode_len=12, eos_id=1, **options)
    sampling = Sampling.create(0.0)
    with native.tpu_kernels(mode):
      return run(drafter, large, inputs, keys, 0.0, sampling).tokens

  plain = tokens("verifier", None, "xla", gamma=1)
  drafted = tokens("spec_decode", small, "interpreted", gamma=3)
  np.testing.assert_array_equal(drafted, plain)


# What the kernels do not take: a change of the config, rows, tokens, slots, and
# what a program is for.
LEFT_OUT = {
  "rows": ({}, 2, 5, 20, "tpu"),
  "tokens": ({}, 1, 33, 40, "tpu"),
  "slots": ({}, 1, 5, 40000, "tpu"),
  "float32": ({"dtype": "float32"}, 1, 5, 20, "tpu"),
  "a cpu": ({}, 1, 5, 20, "cpu"),
}


@pytest.mark.parametrize("name", [None, *LEFT_OUT])
def test_the_kernels_leave_out_what_they_do_not_take(name, monkeypatch):
  change, rows, num, slots, platform = LEFT_OUT.get(name, ({}, 1, 5, 20, "tpu"))
  config = dataclasses.replace(MODELS["t5"], dtype="bfloat16")
  config = dataclasses.replace(config, **change)

  def made():
    lm = T5LM.init(config, jax.random.key(0))
    params = jax.tree.map(lambda x: x.astype(config.dtype), lm.params)
    return params, lm.prefill(jnp.ones((rows, 4), jnp.int32), capacity=slots)

  monkeypatch.setenv("SPECCASCADE_NATIVE", "0")
  params, state = jax.eval_shape(made)
  tokens = jnp.ones((rows, num), jnp.int32)
  with jax.default_device(platform):
    assert passes.takes(config, params, state, tokens) == (name is None)
    with native.tpu_kernels("xla"):
      assert not passes.takes(config, params, state, tokens)
    monkeypatch.setenv("SPECCASCADE_TPU_KERNELS", "0")
    assert not passes.takes(config, params, state, tokens)


@pytest.mark.slow
@tpu_compiler.NEEDED
@pytest.mark.parametrize(
  "case", ["v4:2x2x1", "v5e:1x1", "v5p:2x2x1", "v6e:2x2"]
)
def test_the_largest_blocks_compile(case):
  sizes = tpu_compiler.said("tpu_kernels", case)
  assert len(sizes) >= 4
