"""Operations with kernels for a GPU: their numbers, computed on a CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import attention, cache, layers
from speccascade.native.gpu import block_attention, row_products


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
  for name in ("interpreted", "xla"):
    got = block_attention(
      query,
      keys,
      values,
      bias,
      new=tuple(new),
      start=start,
      implementation=name,
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
  turned = key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
  want = cache.write(empty, turned, start)
  for name in ("interpreted", "xla"):
    _, *written = block_attention(
      query, *empty, bias, new=(key, value), start=start, implementation=name
    )
    for mine, plain in zip(written, want):
      np.testing.assert_array_equal(mine, plain)


def test_a_source_is_attended_to_whole_and_its_padding_is_not_seen():
  rng = np.random.default_rng(1)
  query = numbers(rng, 2, 3, 4, 32)
  keys, values = numbers(rng, 2, 4, 32, 17), numbers(rng, 2, 4, 17, 32)
  sizes = jnp.asarray([[9], [17]])
  bias = jnp.where(jnp.arange(17)[None] < sizes, 0, attention.MASKED)
  bias = bias[:, None, None]
  run = functools.partial(block_attention, implementation="interpreted")
  [got] = run(query, keys, values, bias)
  want = attention.attend(query, keys, values, bias)
  close(got, want)
  close(block_attention(query, keys, values, bias)[0], want)
  spoiled = values.at[0, :, 9:].set(1e6)
  [again] = run(query, keys, spoiled, bias)
  np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("name", ["interpreted", "xla"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_with_what_is_around_them(name, dtype):
  rng = np.random.default_rng(2)
  bound = 1e-5 if dtype == "float32" else 0.02
  x = numbers(rng, 2, 3, 200, dtype=dtype)
  wide, narrow = (
    0.1 * numbers(rng, 200, width, dtype=dtype) for width in (96, 40)
  )
  scale = 1 + 0.1 * numbers(rng, 200, dtype=dtype)
  normed = layers.norm(x, scale, 1e-6)
  run = functools.partial(row_products, implementation=name)
  for got, kernel in zip(run(x, (wide, narrow), norm=scale), (wide, narrow)):
    assert got.dtype == x.dtype
    close(got, normed @ kernel, bound)
  gate, up = wide, wide[::-1]
  [got] = run(x, (gate, up), norm=scale, activations=("gelu", "linear"))
  close(got, jax.nn.gelu(normed @ gate) * (normed @ up), bound)
  residual = numbers(rng, 2, 3, 96, dtype=dtype)
  [got] = run(x, (wide,), residual=residual)
  close(got, x @ wide + residual, bound)
