"""The optimum of the compiled loop is that of the closed forms on the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.drafting import children
from speccascade.decoding.laws import optimum
from speccascade.study.papers import draft_acceptance


@pytest.fixture(scope="module")
def laws():
  """(q, pi) [50, 7] float64, with zeros in both."""
  rng = np.random.default_rng(4)
  q, pi = rng.dirichlet(np.full(7, 0.5), (2, 50))
  q[:20, 1] = pi[10:30, 3] = q[5:15, 4] = pi[5:15, 4] = 0
  return [law / law.sum(axis=1, keepdims=True) for law in (q, pi)]


@pytest.mark.parametrize("num", [1, 2, 3])
def test_independent_draws(laws, num):
  with jax.enable_x64(True):
    got = optimum.of_draws(*map(jnp.asarray, laws), num)
  wanted = draft_acceptance.optimal_acceptance(*laws, num, "iid")
  np.testing.assert_allclose(got, wanted, atol=1e-12)


def test_two_draws_without_replacement(laws):
  with jax.enable_x64(True):
    got = optimum.of_two_without_replacement(*map(jnp.asarray, laws))
  wanted = draft_acceptance.optimal_acceptance(*laws, 2, "without_replacement")
  np.testing.assert_allclose(got, wanted, atol=1e-10)


def test_a_law_that_is_almost_sure():
  q = np.array([[1 - 2**-23, 2**-24, 2**-24]])
  pi = np.array([[0.5, 0.3, 0.2]])
  got = optimum.of_two_without_replacement(
    *(jnp.asarray(x, jnp.float32) for x in (q, pi))
  )
  # The sure token is drafted, and one of the others, each as often.
  np.testing.assert_allclose(got, 1, atol=1e-6)
  pi = np.array([[0.5, 0.5, 0.0]])
  got = optimum.of_two_without_replacement(
    *(jnp.asarray(x, jnp.float32) for x in (q, pi))
  )
  wanted = draft_acceptance.optimal_acceptance(q, pi, 2, "without_replacement")
  np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize("drawing", ["greedy_and_random", "top_k"])
@pytest.mark.parametrize("num", [1, 3])
def test_certain_drafts(laws, drawing, num):
  with jax.enable_x64(True):
    q, pi = map(jnp.asarray, laws)
    tokens, certain = children.draw_children(
      q[:, None],
      q[:, None],
      jnp.full((50, 1, num), 0.5),
      drawing,
      greedy=False,
    )
    got = optimum.of_drafts(q, pi, tokens[:, 0], certain[:, 0])
  wanted = draft_acceptance.optimal_acceptance(*laws, num, drawing)
  np.testing.assert_allclose(got, wanted, atol=1e-12)
