"""The two verifier steps, with uniforms at either side of each threshold.

What a step does with a batch of many blocks is enumerated, see
`test_exact_laws`; here are its edges, by hand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.verification import block_verify, token_verify
from tests import toy

Q1, P1 = (x.tolist() for x in toy.WORKED[1])
NEAR, LAST = 1e-6, 1 - 2**-24
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


# One draft of Q1 against P1: token 0 has p/q = .4, the others more than 1; the
# residual is [0, 1/3, 1/2, 1/6]. Draft, uniforms, (accepted, token).
ONE_DRAFT = [
  (0, 0.4 - NEAR, 0.0, (1, 0)),
  (0, 0.4 + NEAR, 0.0, (0, 1)),
  # Tokens with p > q are always kept.
  *((token, LAST, 0.0, (1, 0)) for token in (1, 2, 3)),
  # A rejection draws from the residual,
  (0, 0.9, 1 / 3 - NEAR, (0, 1)),
  (0, 0.9, 1 / 3 + NEAR, (0, 2)),
  (0, 0.9, 5 / 6 - NEAR, (0, 2)),
  (0, 0.9, 5 / 6 + NEAR, (0, 3)),
  (0, 0.9, LAST, (0, 3)),
  # an acceptance from the last row of pi, not from its residual.
  (0, 0.1, 0.2 - NEAR, (1, 0)),
  (0, 0.1, 0.2 + NEAR, (1, 1)),
  (0, 0.1, 0.95, (1, 3)),
]


@EITHER
@pytest.mark.parametrize(("draft", "u_accept", "u_draw", "want"), ONE_DRAFT)
def test_one_draft_at_its_threshold(verify, draft, u_accept, u_draw, want):
  verdict = call(verify, [draft], [Q1, Q1], [P1, P1], [u_accept], u_draw)
  assert verdict == (*want, 1)


@pytest.mark.parametrize(
  ("u_accept", "want"),
  [([0, 0.9, 0], (1, 2)), ([0.9, 0, 0], (0, 1)), ([0, 0, 0], (3, 3))],
)
def test_the_first_no_ends_token_verification(u_accept, want):
  verdict = call(token_verify, [0, 0, 0], [Q1] * 4, [P1] * 4, u_accept, 0.5)
  assert verdict[::2] == want


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


# The toy of the block verification paper: P = (1/3, 2/3), Q = (2/3, 1/3), two
# drafts. (h_1, h_2) of each draft; A = 0, B = 1. `test_theory` has what follows
# for the number accepted.
TOY = {(0, 0): (0.0, 0.25), (0, 1): (0.0, 1.0), (1, 0): (1.0, 0.5)}
TOY |= {(1, 1): (1.0, 1.0)}
TOY_Q, TOY_P = [[2 / 3, 1 / 3]] * 3, [[1 / 3, 2 / 3]] * 3


@pytest.mark.parametrize("draft", TOY)
def test_the_block_toys_thresholds(draft):
  for i, h in enumerate(TOY[draft]):
    if h > 0:
      u = [LAST, LAST]
      u[i] = max(h - NEAR, 0) if h < 1 else LAST
      assert call(block_verify, draft, TOY_Q, TOY_P, u, 0.5)[0] > i
    # The later one says no, so that this one is looked at.
    if h < 1 and (i == 1 or TOY[draft][1] < 1):
      u = [0.0, LAST] if i == 1 else [h + NEAR, LAST]
      assert call(block_verify, draft, TOY_Q, TOY_P, u, 0.5)[0] <= i


def test_the_blocks_residual_is_scaled():
  # AA rejected after its first draft: the weights are max(0, p_1 pi - q) with
  # p_1 = .5, which is (0, 0): nothing; so tau = 1 cannot happen (h_1 = 0), and
  # a rejection is at 0, with weights max(0, pi - q) = (0, 1/3).
  for u in (0.0, LAST):
    assert call(block_verify, [0, 0], TOY_Q, TOY_P, [0.0, 0.9], u) == (0, 1, 1)
  # With reach .4 after token 0: .4 P - Q2 for Q2 = (.05, .05, .1, .8) is
  # (.03, .11, .02, 0); unscaled it would be (.15, .35, .2, 0).
  arguments = [0, 3], [Q1, [0.05, 0.05, 0.1, 0.8], Q1], [P1, P1, P1]
  # h_1 = s / (s + 1 - p_1) = .16 / .76; the second draft, token 3, has ratio
  # .1 / .8, so h_2 = .4 * .125 = .05.
  h_1, h_2 = 0.16 / 0.76, 0.05
  for u_accept, num in (
    ([0.0, h_2 - NEAR], 2),
    ([h_1 - NEAR, h_2 + NEAR], 1),
    ([h_1 + NEAR, h_2 + NEAR], 0),
  ):
    assert call(block_verify, *arguments, u_accept, 0.5)[0] == num
  for edge, before in ((0.03 / 0.16, 0), (0.14 / 0.16, 1)):
    for u, token in ((edge - NEAR, before), (edge + NEAR, before + 1)):
      verdict = call(block_verify, *arguments, [0.0, 0.9], u)
      assert verdict == (1, token, 2)


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
