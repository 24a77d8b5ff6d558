"""Each function against a slow float64 twin, at zeros, ties, one-hot, q = p."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.target_checks import trial_pairs

Q, P = (np.asarray(x, np.float64) for x in trial_pairs(6))


def kl(p, q):
  p, q = p[p > 0], q[p > 0]
  return np.sum(p * np.log(p / q)) if np.all(q > 0) else np.inf


def residual(pi, q):
  left = np.maximum(0, pi - q)
  return left / left.sum() if left.any() else pi


TWINS = {
  "total_variation": lambda q, p: np.abs(q - p).sum() / 2,
  "overlap": lambda q, p: np.minimum(q, p).sum(),
  "kl": kl,
  "jensen_shannon": lambda p, q: sum(kl(x, (p + q) / 2) / 2 for x in (p, q)),
  "residual": residual,
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", TWINS)
def test_pairs(name, compiled):
  function = getattr(numerics, name)
  function = jax.jit(function) if compiled else function
  expected = np.array([TWINS[name](q, p) for q, p in zip(Q, P)])
  with jax.enable_x64(True):
    actual = function(jnp.asarray(Q), jnp.asarray(P))
    assert actual.dtype == jnp.float64
  np.testing.assert_allclose(actual, expected, atol=1e-13)
  single = function(*(jnp.asarray(x, jnp.float32) for x in (Q, P)))
  assert single.dtype == jnp.float32
  np.testing.assert_allclose(single, expected, rtol=2e-5, atol=1e-6)


def test_one_distribution():
  with jax.enable_x64(True):
    p = jnp.asarray(P)
    # KL from a uniform distribution is what the entropy lacks.
    expected = [np.log(6) - kl(x, np.full(6, 1 / 6)) for x in P]
    np.testing.assert_allclose(numerics.entropy(p), expected, atol=1e-13)
    np.testing.assert_allclose(numerics.max_prob(p), P.max(-1))


def test_divergences_are_never_negative():
  # p log(p/q) alone sums to -1e-8 or so for nearly equal distributions.
  rng = np.random.default_rng(0)
  p = rng.dirichlet(np.ones(500), 50).astype(np.float32)
  q = p * (1 + 1e-4 * rng.normal(size=p.shape).astype(np.float32))
  q /= q.sum(-1, keepdims=True)
  for name in ("kl", "jensen_shannon"):
    value = getattr(numerics, name)(jnp.asarray(p), jnp.asarray(q))
    assert np.all(np.asarray(value) >= 0), name


def test_kl_of_a_law_that_is_nearly_nothing():
  # Below 1e-38 the ratio q/p overflows.
  p, q = jnp.array([1.0, 1e-39, 1e-37]), jnp.array([0.5, 0.25, 0.25])
  np.testing.assert_allclose(numerics.kl(p, q), np.log(2), rtol=1e-6)
  p = jnp.array([1.0, 1e-37, 1e-37])
  expected = 0.5 * np.log(0.5) + 0.5 * np.log(0.25 / 1e-37)
  np.testing.assert_allclose(numerics.kl(q, p), expected, rtol=1e-5)


def test_kl_of_factor():
  """To full precision near 1, where it cancels, and for very small factors."""
  factors = np.array([1e-12, 0.01, 0.4999, 0.6, 1.4, 3.0, 1e20])
  actual = numerics.kl_of_factor(jnp.asarray(factors, jnp.float32))
  expected = factors - 1 - np.log(factors)
  np.testing.assert_allclose(actual, expected, rtol=2e-6)
  near = 2.0**-11  # 1 + near is a number in float32
  actual = numerics.kl_of_factor(jnp.float32(1 + near))
  np.testing.assert_allclose(actual, near**2 / 2 - near**3 / 3, rtol=1e-3)


def test_first_argmax_breaks_ties_to_the_lowest_id():
  x = jnp.array(
    [[1.0, 3, 3, 2], [0, 0, 0, 0], [-jnp.inf, 5, 4, 5], [-2, -1, -3, -1]]
  )
  np.testing.assert_array_equal(numerics.first_argmax(x), [1, 0, 1, 1])
  assert numerics.first_argmax(x).dtype == jnp.int32


def test_normalise():
  weights = jnp.array([[2.0, 6.0], [0.0, 0.0]])
  other = jnp.array([[0.5, 0.5], [0.1, 0.9]])
  actual = numerics.normalise(weights, other)
  np.testing.assert_allclose(actual, [[0.25, 0.75], [0.1, 0.9]])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_narrow_floats_are_widened(dtype):
  assert numerics.at_least_float32(jnp.ones(3, dtype)).dtype == jnp.float32
