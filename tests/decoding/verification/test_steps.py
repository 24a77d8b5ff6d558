"""The two verifier steps at their edges.

Every threshold and every draw is enumerated, see `test_exact_laws`; here is
what its chains have not, by hand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.verification.steps import block_verify, token_verify
from tests import toy

Q1, P1 = (x.tolist() for x in toy.WORKED[1])
LAST = 1 - 2**-24
pytestmark = pytest.mark.usefixtures("either_way")
EITHER = pytest.mark.parametrize("verify", [token_verify, block_verify])


def call(verify, tokens, q, pi, u_accept, u_draw, count=None):
  """Returns (accepted, token, examined) of one row; q and pi [G+1, V]."""
  count = len(tokens) if count is None else count
  floats = (q, pi, u_accept, u_draw)
  verdict = verify(
    jnp.asarray([tokens], jnp.int32),
    jnp.array([count], jnp.int32),
    *(jnp.asarray([x], jnp.float32) for x in floats),
  )
  return tuple(
    int(x[0]) for x in (verdict.num_accepted, verdict.token, verdict.examined)
  )


NAN, HOT = [np.nan] * 4, np.eye(4).tolist()
EDGES = {
  # After `count` anything may stand; the bonus row is at `count`.
  "short": (
    [0, 9],
    [Q1, NAN, NAN],
    [P1, HOT[3], P1],
    [0, 0],
    0.5,
    1,
    (1, 3, 1),
  ),
  # An empty block is a plain draw.
  **{
    f"empty, {token}": (
      *([9, 9], [NAN] * 3, [P1, NAN, NAN], [0, 0], u, 0),
      (0, token, 0),
    )
    for u, token in ((0.19, 0), (0.21, 1), (0.61, 2), (0.91, 3))
  },
  # Disjoint supports: every draft is rejected, and the residual is pi.
  **{
    f"disjoint, {u}": (
      *([0], [[0.5, 0.5, 0, 0]] * 2, [[0, 0, 0.25, 0.75]] * 2, [0], u, 1),
      (0, token, 1),
    )
    for u, token in ((0.0, 2), (0.24, 2), (0.26, 3), (LAST, 3))
  },
  # Equal laws accept everything,
  **{
    f"equal, {u}": ([0, 3], [Q1] * 3, [Q1] * 3, [u, u], 0.1, 2, (2, 0, 2))
    for u in (0.0, 0.5, LAST)
  },
  # one-hot ones what agrees.
  **{
    f"one-hot, {num}": (
      *([2, 1], [HOT[2], HOT[1], HOT[0]], [HOT[x] for x in pi], [u, u], u, 2),
      (num, token, examined),
    )
    for pi, u, num, token, examined in (
      ((2, 1, 3), LAST, 2, 3, 2),
      ((2, 3, 0), 0.0, 1, 3, 2),
      ((0, 1, 3), 0.0, 0, 0, 1),
    )
  },
}


@EITHER
@pytest.mark.parametrize("case", EDGES)
def test_edges(verify, case):
  *arguments, want = EDGES[case]
  assert call(verify, *arguments) == want


@EITHER
def test_rounding_never_emits_a_token_without_mass(verify):
  # pi and q equal up to rounding: a rejection has probability near 0, and what
  # it draws has mass in pi.
  rng = np.random.default_rng(0)
  q = rng.dirichlet(np.full(300, 0.1), (500, 3)).astype(np.float32)
  q[q < 1e-4] = 0
  q /= q.sum(-1, keepdims=True)
  pi = q * (1 + rng.choice([-1, 0, 1], q.shape) * np.float32(2**-23))
  tokens = np.argmax(q[:, :2] > 0.05, axis=-1).astype(np.int32)
  u = rng.choice([0.0, 0.5, LAST], (500, 2)).astype(np.float32)
  verdict = jax.jit(lambda *args: verify(*args))(
    tokens, jnp.full(500, 2), q, pi.astype(np.float32), u, u[:, 0]
  )
  n, token = np.asarray(verdict.num_accepted), np.asarray(verdict.token)
  assert np.all(pi[np.arange(500), n, token] > 0)
