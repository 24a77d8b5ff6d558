"""Native attention: exact, the same for every query, and over any slots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.models import attention
from tests.models.feeding import NEEDS_NATIVE

pytestmark = NEEDS_NATIVE


def operands(rows, queries, heads, dim, slots, seed=0):
  """Returns queries, keys, values and a bias that masks a third, float32."""
  rng = np.random.default_rng(seed)
  query = rng.normal(size=(rows, queries, heads, dim))
  key = rng.normal(size=(rows, heads, dim, slots))
  value = rng.normal(size=(rows, heads, slots, dim))
  bias = rng.normal(size=(rows, heads, queries, slots))
  is_masked = rng.random(bias.shape) < 0.3
  is_masked[..., 0] = False
  bias = np.where(is_masked, attention.MASKED, bias)
  return [x.astype(np.float32) for x in (query, key, value, bias)]


def exact(query, key, value, bias):
  """Returns float64 attention, and a bound of what float32 may differ by."""
  query, key, value, bias = (
    np.asarray(x, np.float64) for x in (query, key, value, bias)
  )
  scores = np.einsum("bnhd,bhdl->bhnl", query, key) + bias
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  sizes = np.einsum("bnhd,bhdl->bhnl", np.abs(query), np.abs(key))
  sizes = np.where(weights > 0, sizes + np.abs(bias) + np.abs(scores), 0)
  # Each score is off by (D + 2) roundings of its terms, so that a weight is
  # off by twice the worst, a share of itself; then exp, both sums, a quotient.
  num_roundings = 2 * (query.shape[3] + 2) * sizes.max(-1, keepdims=True)
  num_roundings = num_roundings + 2 * key.shape[3] + 8
  put = "bhnl,bhld->bnhd"
  bound = np.einsum(put, weights * num_roundings, np.abs(value))
  return np.einsum(put, weights, value), 2.0**-24 * bound


@pytest.mark.parametrize(
  ("rows", "queries", "heads", "dim", "slots"),
  [(1, 1, 1, 1, 1), (2, 6, 4, 48, 80), (1, 7, 3, 4, 7), (3, 13, 2, 33, 65)],
)
def test_equals_float64(build, rows, queries, heads, dim, slots):
  arrays = operands(rows, queries, heads, dim, slots)
  want, bound = exact(*arrays)
  actual = np.asarray(native.attend(*arrays))
  assert actual.shape == (rows, queries, heads, dim)
  assert np.all(np.abs(actual - want) <= bound)
  assert np.abs(actual - want).max() < 1e-5  # what is likely of the worst


def test_weights_are_exponentials_to_two_units_in_the_last_place(build):
  """Two slots with scores 0 and -x, and values that show each weight."""
  x = np.linspace(0, 90, 9001, dtype=np.float32)
  query = np.zeros((1, len(x), 1, 2), np.float32)
  key = np.zeros((1, 1, 2, 2), np.float32)
  value = np.eye(2, dtype=np.float32)[None, None]
  bias = np.stack([np.zeros_like(x), -x], -1)[None, None]
  actual = native.attend(query, key, value, bias)
  # The second weight over the first, free of the sum but for two roundings.
  actual = np.asarray(actual, np.float64)[0, :, 0]
  ratio, want = actual[:, 1] / actual[:, 0], np.exp(-x.astype(np.float64))
  is_normal = x < 87
  error = np.abs(ratio / want - 1)[is_normal]
  assert error.max() <= 3 * 2.0**-23
  assert np.all(actual[x > 87.4, 1] == 0)
  assert np.all(actual[x > 87.4, 0] == 1)


@pytest.mark.parametrize(("dim", "slots"), [(48, 80), (7, 37), (33, 6)])
def test_a_query_is_the_same_to_the_bit_beside_any_others(build, dim, slots):
  """As one of 1 to 8 queries, and in a row beside 0 to 3 others."""
  query, key, value, bias = operands(4, 20, 3, dim, slots)
  want = np.asarray(native.attend(query, key, value, bias))
  for num_rows in range(1, 5):
    for num_queries in range(1, 9):
      rows, queries = slice(4 - num_rows, 4), slice(3, 3 + num_queries)
      actual = native.attend(
        query[rows, queries], key[rows], value[rows], bias[rows, :, queries]
      )
      np.testing.assert_array_equal(actual, want[rows, queries])


@pytest.mark.parametrize("slots", [5, 64, 75])
def test_slots_past_reach_change_no_bit(build, slots):
  """Whether they are looked at or not; each row has a reach of its own."""
  query, key, value, bias = operands(3, 6, 2, 12, slots)
  # (The second row's last slot begins a vector.)
  reach = np.asarray([1, min(33, slots), slots], np.int32)
  is_past = np.arange(slots) >= reach[:, None, None, None]
  bias = np.where(is_past, np.float32(attention.MASKED), bias)
  want = np.asarray(native.attend(query, key, value, bias))
  actual = native.attend(query, key, value, bias, reach)
  np.testing.assert_array_equal(actual, want)
  far = native.attend(query, key, value, bias, reach + 1000)
  np.testing.assert_array_equal(far, want)
  np.testing.assert_array_equal(
    want[0], np.broadcast_to(value[0, :, 0], (6, 2, 12))
  )


def test_slots_past_reach_are_not_read(build):
  """But for those in one vector of 16 with a slot in reach."""
  query, key, value, bias = operands(1, 6, 2, 12, 64)
  bias[..., 20:] = attention.MASKED
  reach = np.asarray([20], np.int32)
  want = native.attend(query, key, value, bias, reach)
  key[..., 32:] = value[:, :, 32:] = np.nan
  actual = native.attend(query, key, value, bias, reach)
  np.testing.assert_array_equal(actual, want)


@pytest.mark.parametrize("axes", [(0, 1, 2), (0,), (1,), (2,), (0, 2), (1, 2)])
def test_bias_is_broadcast(axes):
  query, key, value, bias = operands(2, 3, 4, 8, 10)
  for axis in axes:
    bias = bias[(slice(None),) * axis + (slice(1),)]
  want = native.attend(
    query, key, value, np.broadcast_to(bias, (2, 4, 3, 10)).copy()
  )
  np.testing.assert_array_equal(native.attend(query, key, value, bias), want)


def test_all_masked_is_the_mean_as_in_xla(build):
  query, key, value, bias = operands(1, 2, 1, 4, 9)
  bias[:] = attention.MASKED
  actual = native.attend(query, key, value, bias)
  np.testing.assert_allclose(
    actual, attention.attend(query, key, value, bias), 1e-6
  )


@pytest.mark.parametrize("spoiled", ["query", "key", "bias"])
@pytest.mark.parametrize("by", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_where_it_is_seen(build, spoiled, by):
  """Such queries come out as from XLA, and spoil no other."""
  query, key, value, bias = operands(2, 7, 2, 20, 35)
  want = np.asarray(native.attend(query, key, value, bias))
  {"query": query[1, 3], "key": key[1], "bias": bias[1, :, 3]}[spoiled][
    ..., 5
  ] = by
  actual = np.asarray(native.attend(query, key, value, bias))
  xla = np.asarray(attention.attend(query, key, value, bias))
  np.testing.assert_allclose(actual, xla, atol=1e-5)
  np.testing.assert_array_equal(actual[0], want[0])
  if spoiled != "key":
    other_queries = [0, 1, 2, 4, 5, 6]
    np.testing.assert_array_equal(
      actual[1, other_queries], want[1, other_queries]
    )


def test_mapped_over_an_axis():
  arrays = [x[:, None] for x in operands(3, 4, 2, 8, 10)]
  actual = jax.vmap(native.attend)(*map(jnp.asarray, arrays))
  for row in range(3):
    want = native.attend(*(x[row] for x in arrays))
    np.testing.assert_array_equal(actual[row], want)


def test_what_does_not_fit_is_refused():
  query, key, value, bias = operands(2, 3, 4, 8, 10)
  reach = np.asarray([10, 10], np.int32)
  for arrays in (
    (query, key.swapaxes(2, 3), value, bias, reach),
    (query, key, value[:, :, :9], bias, reach),
    (query, key, value, bias[..., :1], reach),
    (query, key, value, bias[:, :2], reach),
    (query, key, value, bias, reach[:1]),
    (query, key, value, bias, reach.astype(np.float32)),
    (query, jnp.asarray(key, jnp.bfloat16), value, bias, reach),
  ):
    with pytest.raises(ValueError, match="do not fit each other"):
      native.attend(*arrays)
