"""The two verifier steps at their edges.

Every threshold and every draw is enumerated, see `test_exact_laws`; here is
what its chains have not, by hand.
"""

import dataclasses

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edge:
  """A block of one row, and what a verifier step must decide on it.

  Attributes:
    tokens: [G] drafts.
    q: [G+1, V].
    pi: [G+1, V].
    u: uniform of every accept decision.
    u_draw: uniform of the draw.
    count: how many of the tokens are drafts.
    accepted: how many of them are accepted.
    token: the token after them.
    examined: how many of them are examined.
  """

  tokens: list
  q: list
  pi: list
  u: float
  u_draw: float
  count: int
  accepted: int
  token: int
  examined: int


NAN, HOT = [np.nan] * 4, np.eye(4).tolist()
# After `count` anything is allowed; the bonus row is at `count`.
EDGES = {
  "short": Edge(
    tokens=[0, 9],
    q=[Q1, NAN, NAN],
    pi=[P1, HOT[3], P1],
    u=0.0,
    u_draw=0.5,
    count=1,
    accepted=1,
    token=3,
    examined=1,
  )
}
# An empty block is a plain draw.
for u_draw, token in ((0.19, 0), (0.21, 1), (0.61, 2), (0.91, 3)):
  EDGES[f"empty, {token}"] = Edge(
    tokens=[9, 9],
    q=[NAN] * 3,
    pi=[P1, NAN, NAN],
    u=0.0,
    u_draw=u_draw,
    count=0,
    accepted=0,
    token=token,
    examined=0,
  )
# Disjoint supports: every draft is rejected, and the residual is pi.
for u_draw, token in ((0.0, 2), (0.24, 2), (0.26, 3), (LAST, 3)):
  EDGES[f"disjoint, {u_draw}"] = Edge(
    tokens=[0],
    q=[[0.5, 0.5, 0, 0]] * 2,
    pi=[[0, 0, 0.25, 0.75]] * 2,
    u=0.0,
    u_draw=u_draw,
    count=1,
    accepted=0,
    token=token,
    examined=1,
  )
# Equal distributions accept every draft.
for u in (0.0, 0.5, LAST):
  EDGES[f"equal, {u}"] = Edge(
    tokens=[0, 3],
    q=[Q1] * 3,
    pi=[Q1] * 3,
    u=u,
    u_draw=0.1,
    count=2,
    accepted=2,
    token=0,
    examined=2,
  )
# One-hot distributions accept the drafts that agree: 2 1 against these.
for (first, second, bonus), u, accepted, token, examined in (
  ((2, 1, 3), LAST, 2, 3, 2),
  ((2, 3, 0), 0.0, 1, 3, 2),
  ((0, 1, 3), 0.0, 0, 0, 1),
):
  EDGES[f"one-hot, {accepted}"] = Edge(
    tokens=[2, 1],
    q=[HOT[2], HOT[1], HOT[0]],
    pi=[HOT[first], HOT[second], HOT[bonus]],
    u=u,
    u_draw=u,
    count=2,
    accepted=accepted,
    token=token,
    examined=examined,
  )


@EITHER
@pytest.mark.parametrize("case", EDGES)
def test_edges(verify, case):
  edge = EDGES[case]
  verdict = verify(
    jnp.asarray([edge.tokens], jnp.int32),
    jnp.asarray([edge.count], jnp.int32),
    jnp.asarray([edge.q], jnp.float32),
    jnp.asarray([edge.pi], jnp.float32),
    jnp.full((1, len(edge.tokens)), edge.u, jnp.float32),
    jnp.asarray([edge.u_draw], jnp.float32),
  )
  assert int(verdict.num_accepted[0]) == edge.accepted
  assert int(verdict.token[0]) == edge.token
  assert int(verdict.examined[0]) == edge.examined


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


@EITHER
def test_a_token_has_the_target_of_its_place_in_a_block(verify):
  # The distribution of a draft changes with its place, and at the second place
  # with a coin that the step does not see. The target mixes half of it with p.
  p, first_law = np.array([1 / 2, 1 / 2]), np.array([1 / 3, 2 / 3])
  second_laws = np.array([[1 / 6, 5 / 6], [5 / 6, 1 / 6]])
  shape = (2, 2, 2, 40, 40, 10)  # all thresholds are fortieths or tenths
  coin, x1, x2, u1, u2, u_draw = np.indices(shape).reshape(6, -1)
  rows = np.arange(coin.size)
  laws = [np.broadcast_to(law, (len(rows), 2)) for law in (first_law, p)]
  q = np.stack([laws[0], second_laws[coin], laws[1]], axis=1)
  pi = (q + p) / 2
  verdict = jax.jit(verify)(
    jnp.asarray(np.stack([x1, x2], axis=1), jnp.int32),
    jnp.full(rows.shape, 2, jnp.int32),
    jnp.asarray(q, jnp.float32),
    jnp.asarray(pi, jnp.float32),
    jnp.asarray((np.stack([u1, u2], axis=1) + 0.5) / 40, jnp.float32),
    jnp.asarray((u_draw + 0.5) / 10, jnp.float32),
  )
  num, token = np.asarray(verdict.num_accepted), np.asarray(verdict.token)
  chance = q[rows, 0, x1] * q[rows, 1, x2]

  def assert_law(tokens, which, law):
    """Asserts the distribution of tokens of the rows at a place."""
    written = np.bincount(tokens[which], chance[which], minlength=2)
    np.testing.assert_allclose(written / written.sum(), law, atol=1e-6)

  assert_law(np.where(num > 0, x1, token), rows >= 0, pi[0, 0])
  for side, draft in np.ndindex(2, 2):
    here = (num > 0) & (coin == side) & (x1 == draft)
    target = (second_laws[side] + p) / 2
    assert_law(np.where(num > 1, x2, token), here, target)
    assert_law(token, here & (num > 1), p)
