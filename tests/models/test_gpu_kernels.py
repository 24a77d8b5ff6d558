"""Operations with kernels for a GPU: their numbers, computed on a CPU."""

import functools
import json
import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import attention, cache, layers
from speccascade.native.gpu import (
  block_attention,
  row_products,
  row_products_triton,
)
from speccascade.native.gpu.block_attention import Offsets
from speccascade.native.gpu.row_products import Gathered

ROOT = pathlib.Path(__file__).parents[2]


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
  by_offset = numbers(rng, heads, 2 * num_slots - 1)
  bias = cache.block_bias(by_offset, start, num_new)
  spare = (0, 0), (0, 0), (0, num_fed - num_new), (0, 0)
  bias = jnp.pad(bias, spare, mode="edge")
  turned = new[0].transpose(0, 2, 3, 1), new[1].transpose(0, 2, 1, 3)
  written = cache.write((keys, values), turned, start)
  want = attention.attend(
    query, *(jnp.repeat(x, heads // key_heads, axis=1) for x in written), bias
  )
  ways = [("interpreted", bias), ("xla", bias)]
  if num_fed == num_new:
    place = jnp.asarray(rng.permutation(2 * num_slots - 1), jnp.int32)
    shuffled = jnp.zeros_like(by_offset).at[:, place].set(by_offset)
    ways = [(name, Offsets(shuffled, place)) for name, _ in ways]
  for name, bias in ways:
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


# The largest difference from the same sums in float64, over the largest sum.
# In bfloat16 a normed row times a norm's scale is rounded once in the kernel,
# and twice in the reference.
BOUNDS = {"float32": 1e-5, "bfloat16": 0.02}


def normed(x, scale):
  """Returns float64 rows through a root mean square norm."""
  return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def gelu(x):
  return np.asarray(jax.nn.gelu(jnp.asarray(x, jnp.float32)), np.float64)


# Rows and inputs: in two splits that are whole parts, in two that are not, and
# in one that is not.
@pytest.mark.parametrize(("rows", "num_in"), [(1, 256), (6, 96), (9, 200)])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_products_with_what_is_around_them(rows, num_in, dtype):
  rng = np.random.default_rng(rows)
  # Far from unit size, as a row of a deep decoder is.
  x = 100 * numbers(rng, rows, num_in)
  x, wide, narrow, scale, residual = arrays = [
    each.astype(dtype)
    for each in (
      x,
      0.1 * numbers(rng, num_in, 96),
      0.1 * numbers(rng, num_in, 40),
      1 + 0.1 * numbers(rng, num_in),
      100 * numbers(rng, rows, 96),
    )
  ]
  plain = [np.asarray(each, np.float64) for each in arrays]
  rows_in, of_wide, of_narrow, of_scale, of_residual = plain
  through = normed(rows_in, of_scale)
  wants = [
    [through @ of_wide, through @ of_narrow, through @ of_wide],
    [gelu(through @ of_wide) * (through @ of_wide[::-1])],
    [rows_in @ of_wide + of_residual],
  ]
  for name in ("interpreted", "xla"):
    run = functools.partial(row_products, implementation=name)
    gots = [
      run(x, (wide, narrow, wide), norm=scale),
      run(x, (wide, wide[::-1]), norm=scale, activations=("gelu", "linear")),
      run(x, (wide,), residual=residual),
    ]
    for got, want in zip(gots, wants):
      for mine, each in zip(got, want):
        assert mine.dtype == x.dtype
        close(mine, each, BOUNDS[dtype])


# Those of T5-large and T5-small: inputs, outputs, kernels, whether normed.
PRODUCTS = [
  (1024, 1024, 3, True),
  (1024, 1024, 1, False),
  (1024, 2816, 2, True),
  (2816, 1024, 1, False),
  (512, 384, 3, True),
  (384, 512, 1, False),
  (1024, 512, 1, False),
]


@pytest.mark.parametrize("rows", [1, 6, 64])
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_enough_of_a_kernel_is_asked_for_and_fits(product, rows):
  num_in, num_out, num_kernels, has_norm = product
  shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
  how = row_products_triton.configuration(
    shape((rows, num_in)),
    (shape((num_in, num_out)),) * num_kernels,
    norm=shape((num_in,)) if has_norm else None,
  )
  programs = -(-num_out // how.columns)
  a_part = how.inputs * how.splits * how.columns * num_kernels * 2
  whole = num_in * num_out * num_kernels * 2
  in_flight = programs * (how.stages - 1) * a_part
  # Little's law asks for 1.75 MB of an H100.
  assert in_flight >= min(whole, 1.75e6)
  lines = max(16, rows) * how.inputs * 2 * (2 if has_norm else 1)
  together = -(-programs // 132)
  assert together * how.stages * (a_part + lines) <= 227 * 1024


def test_a_given_configuration_gives_the_same_numbers():
  rng = np.random.default_rng(5)
  x, kernel, scale = (
    numbers(rng, *each) for each in ((2, 200), (200, 40), (200,))
  )
  run = functools.partial(
    row_products, x, (kernel,), norm=scale, implementation="interpreted"
  )
  [want] = run()
  # 200 inputs in 4 splits of 50, which fill no part of 16; 40 outputs in
  # programs of 32.
  for columns, splits in ((32, 4), (16, 8)):
    configuration = row_products_triton.Configuration(
      columns=columns, splits=splits, inputs=16, stages=2
    )
    close(run(configuration=configuration)[0], want)


def test_rows_do_not_change_one_another():
  rng = np.random.default_rng(6)
  x, kernel, scale = (
    numbers(rng, *each, dtype="bfloat16") for each in ((8, 96), (96, 40), (96,))
  )
  run = functools.partial(
    row_products, kernels=(kernel,), norm=scale, implementation="interpreted"
  )
  [all_rows] = run(x)
  for rows in (slice(0, 1), slice(2, 8)):
    np.testing.assert_array_equal(run(x[rows])[0], all_rows[rows])


def test_products_stream_their_weights_when_compiled_for_an_h100(tmp_path):
  python = ROOT / ".venv-gpu-compiler/bin/python"
  if not python.exists():
    pytest.skip("no compiler for GPUs: bash launch/gpu_compiler.sh")
  done = subprocess.run(
    [python, "-m", "tests.gpu_products", tmp_path],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={"PATH": "/usr/bin:/bin"},
  )
  assert done.returncode == 0, done.stderr[-2000:]
  found = [json.loads(line) for line in done.stdout.splitlines()]
  assert len(found) == 4
  for each in found:
    how = each["asked"]
    part = how["inputs"] * how["splits"] * how["columns"] * each["kernels"] * 2
    # What all stages but one hold was asked for before the first product, and
    # no other load is waited for between products.
    assert each["bytes"] == (how["stages"] - 1) * part
    assert each["waits_beside"] == 0
    assert each["waits"]
    assert each["triggers"]
    assert each["spilled"] == 0


@pytest.mark.parametrize("name", ["interpreted", "xla"])
def test_rows_of_a_table_are_looked_up_and_logits_are_wide(name):
  rng = np.random.default_rng(5)
  table, out = (numbers(rng, 40, width, dtype="bfloat16") for width in (64, 96))
  index = jnp.asarray([[3, 39, 0], [7, 41, 3]], jnp.int32)  # 41 is clipped
  kernel = 0.1 * numbers(rng, 64, 96, dtype="bfloat16")
  norm = 1 + 0.1 * numbers(rng, 64, dtype="bfloat16")
  x, residual = (each.at[index].get(mode="clip") for each in (table, out))
  run = functools.partial(row_products, implementation=name)
  [got] = run(Gathered(table, index), (kernel,), residual=Gathered(out, index))
  close(got, run(x, (kernel,), residual=residual)[0], 0)
  [logits] = run(Gathered(table, index), (kernel,), norm=norm, is_wide=True)
  assert logits.dtype == jnp.float32
  wide = layers.norm(x, norm, 1e-6).astype(jnp.float32)
  close(logits, wide @ kernel.astype(jnp.float32), 0.01)
