"""Native laws and draws: what `speccascade.decoding` defines, row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from speccascade import native
from speccascade.decoding import Sampling
from speccascade.decoding.verification import steps
from tests import toy
from tests.models.feeding import NEEDS_NATIVE

pytestmark = NEEDS_NATIVE
SIZES = (1, 5, 16, 300, 1000)


def rows(size, num=12):
  """Logits with ties, zeros and a wide range, [num, size] float32."""
  rng = np.random.default_rng(size)
  x = rng.normal(0, 3, (num, size))
  x[:3] = np.round(x[:3])
  x[3] = 0
  x[4, 1::2] = -np.inf
  x[5, size // 2] = 80
  return x.astype(np.float32)


def laws(logits, u, temperature=1.0, greedy=False):
  """Returns (law, token, is a law); u is the second of two columns."""
  u = jnp.stack([jnp.zeros_like(u), u], axis=-1)
  actual = native.laws(
    jnp.asarray(logits), jnp.float32(temperature), u, column=1, greedy=greedy
  )
  return [np.asarray(x) for x in actual]


def assert_drawn(weights, u, token):
  """Asserts inverse draws, but for uniforms within rounding of an edge."""
  top = np.cumsum(weights.astype(np.float64), axis=-1)
  top, low = top / top[..., -1:], (top - weights) / top[..., -1:]
  pick = lambda x: np.take_along_axis(x, token[..., None], axis=-1)[..., 0]
  assert np.all(pick(weights) > 0)
  assert np.all((pick(low) - 1e-6 <= u) & (u <= pick(top) + 1e-6))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 1e30])
def test_laws_equal_float64(build, size, temperature):
  x, u = rows(size), np.linspace(0, 0.9999, 12, dtype=np.float32)
  law, token, is_law = laws(x, u, temperature)
  want = special.softmax(x.astype(np.float64) / temperature, axis=-1)
  # An exponent that is off by a rounding moves a distribution by a share of
  # itself.
  np.testing.assert_allclose(law, want, rtol=3e-5, atol=1e-37)
  assert np.all(law[want > 1e-36] > 0)
  assert np.all(law[np.isneginf(x)] == 0)
  np.testing.assert_allclose(law.sum(-1, dtype=np.float64), 1, atol=1e-6)
  assert is_law.all()
  assert_drawn(law, u, token)


@pytest.mark.parametrize("size", SIZES)
def test_greedy_is_one_hot_at_the_first_best(build, size):
  x = rows(size)
  law, token, _ = laws(x, np.zeros(12, np.float32), greedy=True)
  np.testing.assert_array_equal(token, np.argmax(x, axis=-1))
  np.testing.assert_array_equal(law, np.eye(size)[token])


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("size", [7, 70])
def test_invalid_probabilities_are_found_at_any_place(build, size, greedy):
  x = np.zeros((2 * size + 2, size), np.float32)
  np.fill_diagonal(x[:size], np.nan)
  np.fill_diagonal(x[size:-2], np.inf)
  x[-2], x[-1, 1:] = -np.inf, -np.inf
  u = np.full(len(x), 0.5, np.float32)
  _, token, is_law = laws(x, u, greedy=greedy)
  np.testing.assert_array_equal(np.flatnonzero(is_law), [len(x) - 1])
  assert np.all((token >= 0) & (token < size))


@pytest.mark.parametrize("size", [70, 30000])
def test_a_row_is_the_same_to_the_bit_beside_any_others(size):
  x, u = rows(size), np.linspace(0, 0.9999, 12, dtype=np.float32)
  together = laws(x, u, 0.7)
  for row in range(12):
    alone = laws(x[row : row + 1], u[row : row + 1], 0.7)
    for actual, want in zip(alone, together):
      np.testing.assert_array_equal(actual[0], want[row])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_plain_laws_are_those_at_temperature_1(build, size, temperature):
  x, u = rows(size), np.zeros(12, np.float32)
  x[6, 0] = np.nan
  law = jnp.asarray(laws(x, u, temperature)[0])
  plain = native.plain_laws(jnp.asarray(x), law, jnp.float32(temperature))
  np.testing.assert_array_equal(plain, laws(x, u)[0])


@pytest.mark.parametrize("size", SIZES)
def test_overlaps_equal_float64_and_do_not_depend_on_other_rows(build, size):
  laws = np.random.default_rng(size).dirichlet(np.full(size, 0.3), (2, 3, 5))
  q, p = jnp.asarray(laws, jnp.float32)
  actual = np.asarray(native.overlap(q, p))
  want = np.minimum(q, p).astype(np.float64).sum(-1)
  np.testing.assert_allclose(actual, want, rtol=1e-6)
  alone = native.overlap(q[2:, 4:], p[2:, 4:])
  np.testing.assert_array_equal(alone, actual[2:, 4:])


def test_replacements_are_those_of_the_definition(build, monkeypatch):
  rng = np.random.default_rng(0)
  q, pi = rng.dirichlet(np.full(300, 0.3), (2, 200, 4)).astype(np.float32)
  pi[:50] = q[:50]  # no residual
  count = jnp.asarray(rng.integers(0, 4, 200), jnp.int32)
  num = jnp.minimum(jnp.asarray(rng.integers(0, 4, 200), jnp.int32), count)
  u, reach = jnp.asarray(rng.random((2, 200)), jnp.float32)
  for scale in (None, reach):
    block = (num, count, jnp.asarray(q), jnp.asarray(pi), u, scale)
    actual = steps.replacement(*block)
    with monkeypatch.context() as patch:
      patch.setattr(native, "takes", lambda *arrays: False)
      want = steps.replacement(*block)
    assert np.mean(np.asarray(actual == want)) >= 0.99  # but at an edge


@pytest.mark.parametrize("temperature", toy.nightly([0.0, 0.9], [0.9]))
def test_decoders_write_the_same_tokens(temperature, monkeypatch):
  point = toy.sources(), 0.5, Sampling.create(temperature)
  call = lambda: toy.decode("spec_cascade_opt", *point, max_decode_len=9)
  actual = call()
  jax.clear_caches()
  monkeypatch.setattr(native, "takes", lambda *arrays: False)
  want = call()
  jax.clear_caches()
  np.testing.assert_array_equal(actual.tokens, want.tokens)
  stats = zip(jax.tree.leaves(actual.stats), jax.tree.leaves(want.stats))
  for leaf, plain_leaf in stats:
    np.testing.assert_allclose(leaf, plain_leaf, rtol=1e-5)
