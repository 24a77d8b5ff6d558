"""The two verifier steps, with uniforms at either side of each threshold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.verification import block_verify, token_verify

Q1, P1 = [0.5, 0.3, 0.15, 0.05], [0.2, 0.4, 0.3, 0.1]
NEAR = 1e-6


def call(verify, tokens, q, pi, u_accept, u_draw, count=None):
  """One row; q and pi [G+1, V]."""
  tokens = jnp.asarray([tokens], jnp.int32)
  count = tokens.shape[1] if count is None else count
  verdict = verify(
    tokens,
    jnp.array([count], jnp.int32),
    jnp.asarray([q], jnp.float32),
    jnp.asarray([pi], jnp.float32),
    jnp.asarray([u_accept], jnp.float32),
    jnp.asarray([u_draw], jnp.float32),
  )
  return tuple(
    int(x[0]) for x in (verdict.num_accepted, verdict.token, verdict.examined)
  )


@pytest.mark.parametrize("verify", [token_verify, block_verify])
def test_one_draft_at_its_threshold(verify):
  # Token 0 has p/q = .4; the residual is [0, 1/3, 1/2, 1/6].
  q, p = [Q1, Q1], [P1, P1]
  assert call(verify, [0], q, p, [0.4 - NEAR], 0.0)[0] == 1
  assert call(verify, [0], q, p, [0.4 + NEAR], 0.0)[0] == 0
  # Tokens with p > q are always kept.
  for token in (1, 2, 3):
    assert call(verify, [token], q, p, [1 - 2**-24], 0.0)[0] == 1
  # A rejection draws from the residual,
  for u, token in ((0.0, 1), (1 / 3 - NEAR, 1), (1 / 3 + NEAR, 2)):
    assert call(verify, [0], q, p, [0.9], u) == (0, token, 1)
  for u, token in ((5 / 6 - NEAR, 2), (5 / 6 + NEAR, 3), (1 - 2**-24, 3)):
    assert call(verify, [0], q, p, [0.9], u) == (0, token, 1)
  # an acceptance from the last row of pi, not from its residual.
  for u, token in ((0.0, 0), (0.2 - NEAR, 0), (0.2 + NEAR, 1), (0.95, 3)):
    assert call(verify, [0], q, p, [0.1], u) == (1, token, 1)


def test_the_first_no_ends_token_verification():
  q, p = [Q1] * 4, [P1] * 4
  yes, no = 0.0, 0.9
  assert call(token_verify, [0, 0, 0], q, p, [yes, no, yes], 0.5)[::2] == (1, 2)
  assert call(token_verify, [0, 0, 0], q, p, [no, yes, yes], 0.5)[::2] == (0, 1)
  assert call(token_verify, [0, 0, 0], q, p, [yes] * 3, 0.5)[::2] == (3, 3)


@pytest.mark.parametrize("verify", [token_verify, block_verify])
def test_short_blocks(verify):
  # Behind `count` anything may stand; the bonus row is at `count`.
  nan = [np.nan] * 4
  bonus = [0, 0, 0, 1.0]
  got = call(
    verify,
    [0, 9, 9],
    [Q1, nan, nan, nan],
    [P1, bonus, P1, P1],
    [0, 0, 0],
    0.5,
    1,
  )
  assert got == (1, 3, 1)
  # An empty block is a plain draw.
  for u, token in ((0.19, 0), (0.21, 1), (0.61, 2), (0.91, 3)):
    assert call(
      verify, [9, 9], [nan, nan, nan], [P1, nan, nan], [0, 0], u, 0
    ) == (0, token, 0)


@pytest.mark.parametrize("verify", [token_verify, block_verify])
def test_disjoint_supports(verify):
  # Every draft is rejected, and the residual is pi.
  q, p = [[0.5, 0.5, 0, 0]] * 2, [[0, 0, 0.25, 0.75]] * 2
  for u, token in ((0.0, 2), (0.24, 2), (0.26, 3), (1 - 2**-24, 3)):
    assert call(verify, [0], q, p, [0.0], u) == (0, token, 1)


@pytest.mark.parametrize("verify", [token_verify, block_verify])
def test_equal_laws_accept_everything(verify):
  q = [Q1] * 3
  for u in (0.0, 0.5, 1 - 2**-24):
    assert call(verify, [0, 3], q, q, [u, u], 0.1) == (2, 0, 2)


@pytest.mark.parametrize("verify", [token_verify, block_verify])
def test_one_hot_laws_accept_what_agrees(verify):
  hot = np.eye(4).tolist()
  q = [hot[2], hot[1], hot[0]]
  last = 1 - 2**-24
  assert call(
    verify, [2, 1], q, [hot[2], hot[1], hot[3]], [last] * 2, last
  ) == (2, 3, 2)
  assert call(verify, [2, 1], q, [hot[2], hot[3], hot[0]], [0.0] * 2, 0.0) == (
    1,
    3,
    2,
  )
  assert call(verify, [2, 1], q, [hot[0], hot[1], hot[3]], [0.0] * 2, 0.0) == (
    0,
    0,
    1,
  )


# The toy of the block verification paper: P = (1/3, 2/3), Q = (2/3, 1/3), two
# drafts. (p_1, h_1, h_2) of each draft; A = 0, B = 1.
TOY = {
  (0, 0): (0.5, 0.0, 0.25),
  (0, 1): (0.5, 0.0, 1.0),
  (1, 0): (1.0, 1.0, 0.5),
  (1, 1): (1.0, 1.0, 1.0),
}
TOY_Q, TOY_P = [[2 / 3, 1 / 3]] * 3, [[1 / 3, 2 / 3]] * 3


@pytest.mark.parametrize("draft", TOY)
def test_the_block_toys_thresholds(draft):
  _, *thresholds = TOY[draft]
  low, high = 0.0, 1 - 2**-24
  for i, h in enumerate(thresholds):
    others = [high, high]
    if h > 0:
      u = list(others)
      u[i] = max(h - NEAR, 0) if h < 1 else high
      assert call(block_verify, draft, TOY_Q, TOY_P, u, 0.5)[0] > i
    if h < 1:
      # The later one says no, so that this one is looked at.
      u = [low, high] if i == 1 else [h + NEAR, high]
      got = call(block_verify, draft, TOY_Q, TOY_P, u, 0.5)[0]
      if i == 1 or thresholds[1] < 1:
        assert got <= i


def accepted(verify) -> float:
  """Expected accepted drafts on the toy, by a grid of uniforms."""
  grid = (np.arange(24) + 0.5) / 24  # thresholds are multiples of 1/4
  u = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
  total = 0.0
  for draft in TOY:
    rows = len(u)
    verdict = verify(
      jnp.broadcast_to(jnp.array(draft, jnp.int32), (rows, 2)),
      jnp.full((rows,), 2, jnp.int32),
      jnp.broadcast_to(jnp.array(TOY_Q), (rows, 3, 2)),
      jnp.broadcast_to(jnp.array(TOY_P), (rows, 3, 2)),
      jnp.asarray(u, jnp.float32),
      jnp.full((rows,), 0.5),
    )
    chance = np.prod([TOY_Q[0][x] for x in draft])
    total += chance * float(np.mean(np.asarray(verdict.num_accepted)))
  return total


def test_the_block_toys_acceptance():
  np.testing.assert_allclose(accepted(token_verify), 10 / 9, atol=1e-6)
  np.testing.assert_allclose(accepted(block_verify), 11 / 9, atol=1e-6)


def test_a_later_draft_rescues_an_earlier_one():
  # BA: the first is refused by its own coin in token verification only if its
  # ratio is below 1; draft AB: h_1 = 0, h_2 = 1, so both always pass.
  high = 1 - 2**-24
  assert call(token_verify, [0, 1], TOY_Q, TOY_P, [0.6, 0.0], 0.0)[0] == 0
  assert call(block_verify, [0, 1], TOY_Q, TOY_P, [high, high], 0.0)[0] == 2


def test_the_blocks_residual_is_scaled():
  # AA rejected behind its first draft: the weights are max(0, p_1 pi - q) with
  # p_1 = .5, which is (0, 0): nothing; so tau = 1 cannot happen (h_1 = 0), and
  # a rejection is at 0, with weights max(0, pi - q) = (0, 1/3).
  for u in (0.0, 1 - 2**-24):
    assert call(block_verify, [0, 0], TOY_Q, TOY_P, [0.0, 0.9], u) == (0, 1, 1)
  # With reach .4 behind token 0: .4 P - Q2 for Q2 = (.05, .05, .1, .8) is
  # (.03, .11, .02, 0); unscaled it would be (.15, .35, .2, 0).
  q = [Q1, [0.05, 0.05, 0.1, 0.8], Q1]
  p = [P1, P1, P1]
  weights = np.array([0.03, 0.11, 0.02, 0]) / 0.16
  edges = np.cumsum(weights)
  # h_1 = s / (s + 1 - p_1) = .16 / .76; the second draft, token 3, has ratio
  # .1 / .8, so h_2 = .4 * .125 = .05.
  h1 = 0.16 / 0.76
  assert call(block_verify, [0, 3], q, p, [0.0, 0.05 - NEAR], 0.5)[0] == 2
  assert call(block_verify, [0, 3], q, p, [h1 - NEAR, 0.05 + NEAR], 0.5)[0] == 1
  assert call(block_verify, [0, 3], q, p, [h1 + NEAR, 0.05 + NEAR], 0.5)[0] == 0
  for u, token in (
    (edges[0] - NEAR, 0),
    (edges[0] + NEAR, 1),
    (edges[1] - NEAR, 1),
    (edges[1] + NEAR, 2),
  ):
    assert call(block_verify, [0, 3], q, p, [0.0, 0.9], u) == (1, token, 2)


@pytest.mark.parametrize("verify", [token_verify, block_verify])
def test_rounding_never_emits_a_token_without_mass(verify):
  # pi and q equal up to rounding: a rejection has probability near 0, and what
  # it draws has mass in pi.
  rng = np.random.default_rng(0)
  q = rng.dirichlet(np.full(300, 0.1), (500, 3)).astype(np.float32)
  q[q < 1e-4] = 0
  q /= q.sum(-1, keepdims=True)
  pi = q * (1 + rng.choice([-1, 0, 1], q.shape) * np.float32(2**-23))
  tokens = np.argmax(q[:, :2] > 0.05, axis=-1).astype(np.int32)
  u = rng.choice([0.0, 0.5, 1 - 2**-24], (500, 2)).astype(np.float32)
  verdict = jax.jit(verify)(
    tokens, jnp.full(500, 2), q, pi.astype(np.float32), u, u[:, 0]
  )
  n, token = np.asarray(verdict.num_accepted), np.asarray(verdict.token)
  assert np.all(pi[np.arange(500), n, token] > 0)


@pytest.mark.parametrize("verify", [token_verify, block_verify])
def test_rows_are_independent(verify):
  rng = np.random.default_rng(1)
  q, pi = rng.dirichlet(np.ones(4), (2, 6, 4)).astype(np.float32)
  tokens = rng.integers(0, 4, (6, 3)).astype(np.int32)
  count = np.array([3, 2, 1, 0, 3, 3], np.int32)
  u = rng.random((6, 3)).astype(np.float32)
  whole = verify(tokens, jnp.asarray(count), q, pi, u, jnp.asarray(u[:, 0]))
  for row in range(6):
    got = call(
      verify, tokens[row], q[row], pi[row], u[row], u[row, 0], count[row]
    )
    want = (whole.num_accepted, whole.token, whole.examined)
    assert got == tuple(int(x[row]) for x in want)
