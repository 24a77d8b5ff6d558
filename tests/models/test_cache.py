"""Each platform's way to write a block gives the same cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import cache
from tests import toy
from tests.models.feeding import CAPACITY, int32

WAYS = (cache.update_rows, cache.map_rows, cache.add_products)
SLOTS = 9


def on(platform, monkeypatch):
  """Makes programs of this CPU take the branches of another platform."""

  def choose(*args, default=None, **branches):
    return branches.get(platform, default)(*args)

  monkeypatch.setattr(jax.lax, "platform_dependent", choose)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
  ("num_rows", "num_new"), [(3, 4), (17, 2), (2, SLOTS)], ids=str
)
def test_ways_to_write_slots(way, dtype, num_rows, num_new):
  """Ragged starts, the first and the last slot, all bits of a number."""
  rng = np.random.default_rng(0)
  start = rng.integers(0, SLOTS - num_new + 1, num_rows)
  start[0], start[-1] = 0, SLOTS - num_new

  def some(num, axis, scale):
    shape = [num_rows, 2, 3, 3]
    shape[axis] = num
    # Numbers of all sizes.
    numbers = rng.normal(size=shape) * 10.0 ** rng.uniform(-30, 30, shape)
    return np.array(jnp.asarray(numbers * scale, dtype))

  axes = (2, 3)
  slots = [some(SLOTS, axis, 1) for axis in axes]
  new = [some(num_new, axis, -1) for axis in axes]

  @jax.jit
  def write(slots, new, start):
    return [
      way(*both, start, axis=axis) for *both, axis in zip(slots, new, axes)
    ]

  actual = write(*jax.tree.map(jnp.asarray, (slots, new)), int32(start))
  for axis, before, block, after in zip(axes, slots, new, actual):
    want = before.copy()
    for b, first in enumerate(start):
      at = [b, slice(None), slice(None)]
      at.insert(axis, slice(first, first + num_new))
      want[tuple(at)] = block[b]
    assert after.dtype == dtype
    np.testing.assert_array_equal(after, want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ways_to_read_slots(dtype):
  """A slot that is read twice, the first and the last, all bits of a number."""
  rng, num_rows = np.random.default_rng(0), 17
  index = rng.integers(0, SLOTS, (num_rows, 4))
  index[0], index[-1] = [0, 0, 5, 5], [SLOTS - 1, 2, 0, SLOTS - 1]
  shape = (num_rows, 2, 3, SLOTS)
  numbers = rng.normal(size=shape) * 10.0 ** rng.uniform(-30, 30, shape)
  keys = np.array(jnp.asarray(numbers, dtype))
  for axis, slots in ((3, keys), (2, keys.swapaxes(2, 3))):
    want = np.stack(
      [row.take(at, axis - 1) for row, at in zip(slots, index, strict=True)]
    )
    for way in (cache.gather_slots, cache.read_products, cache.read_turned):
      read = jax.jit(functools.partial(way, axis=axis))
      actual = read(jnp.asarray(slots), int32(index))
      assert actual.dtype == dtype
      np.testing.assert_array_equal(actual, want)


@pytest.mark.parametrize("num_rows", [2, 17])
def test_ways_to_look_up_the_bias(monkeypatch, num_rows):
  rng, num_fed = np.random.default_rng(0), 4
  by_offset = jnp.asarray(rng.normal(size=(3, 2 * SLOTS - 1)), jnp.float32)
  start = rng.integers(0, SLOTS - num_fed + 1, num_rows)
  start[0], start[-1] = 0, SLOTS - num_fed

  def bias():
    # (A function of its own: what is compiled for a CPU must not be found.)
    return jax.jit(lambda *args: cache.block_bias(*args, num_fed))(
      by_offset, int32(start)
    )

  want = bias()
  query = start[:, None] + np.arange(num_fed)
  is_seen = np.arange(SLOTS) <= query[..., None]
  np.testing.assert_array_equal(want[:, 1] > cache.MASKED, is_seen)
  for platform in ("tpu", "gpu"):
    on(platform, monkeypatch)
    np.testing.assert_array_equal(bias(), want)


@pytest.mark.parametrize(
  "name", toy.nightly(["t5", "t5 bfloat16", "mistral"], ["t5 bfloat16"])
)
def test_models_on_other_platforms(fed, monkeypatch, name):
  """Blocks and a kept path, up to the last slot."""
  case = fed(name)

  def results():
    # (Functions of their own: what is compiled for a CPU must not be found.)
    extend = jax.jit(lambda lm, *args: lm.extend(*args))
    keep = jax.jit(lambda lm, *args: lm.keep(*args))
    state, outputs = case.start(), []
    for place, count in (([0] * 3, [4, 0, 2]), ([CAPACITY - 4, 5, 0], [4] * 3)):
      state = state.replace(length=int32(place))
      block = int32(case.tokens[:, :4])
      state, out = extend(case.lm, state, block, int32(count))
      outputs += [out, state.caches]
    path = int32([[1, 2, 3], [0, 3, 0], [3, 0, 0]])
    kept = keep(case.lm, state, int32(place), path, int32([2, 2, 1]))
    return [*outputs, kept.caches]

  want = results()
  for platform in ("tpu", "gpu"):
    on(platform, monkeypatch)
    jax.tree.map(case.close, results(), want)


def test_a_tpu_goes_through_no_rows():
  """Nor does a GPU, and each is asked for what it does fast."""
  new = jnp.zeros((17, 2, 3, 4))

  def words(platform, num_slots=SLOTS):
    slots = jnp.zeros((17, 2, 3, num_slots))
    write = jax.jit(functools.partial(cache.write_slots, axis=3))
    traced = write.trace(slots, new, int32([0] * 17))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    wanted = ("while", "scatter", "dot_general", "HIGHEST")
    return {word for word in wanted if word in text}

  assert words("cpu") == {"while"}
  assert words("cuda") == {"scatter"}
  assert words("tpu") == {"dot_general", "HIGHEST"}
  # Where there are many slots, writing all of them takes longer; reading them
  # does not.
  assert words("tpu", cache.MOST_MULTIPLIED_SLOTS + 1) == {"scatter"}

  def reading(platform):
    traced = jax.jit(functools.partial(cache.read_slots, axis=3)).trace(
      new, jnp.zeros((17, 2), jnp.int32)
    )
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    return {word for word in ("gather", "HIGHEST") if word in text}

  assert reading("cpu") == reading("cuda") == {"gather"}
  assert reading("tpu") == {"HIGHEST"}
