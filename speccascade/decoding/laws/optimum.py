"""The best acceptance of several drafts under any exact verification.

Several tokens are drafted for one place. Whatever verifies them, the emitted
token has the distribution pi, and so the chance that it is one of the drafts
has a largest value, the optimum. `analysis.draft_acceptance` has the same on
the host, for every way to draw and any number of drafts.

Axes: B rows, K drafts of the place, V vocabulary.
"""

import jax
import jax.numpy as jnp

from speccascade.decoding.laws.numerics import first_argmax, normalise, ratio

Array = jax.Array


def of_drafts(q: Array, pi: Array, tokens: Array, certain: Array) -> Array:
  """Returns the optimum of certain drafts and at most one drawn one, [B].

  A token of the target among the certain drafts is always accepted. Outside
  them the draw of q without them is accepted as a single draft is.

  Args:
    q: [B, V], the distribution of the drafter.
    pi: [B, V], the target.
    tokens: [B, K] int32, the drafts.
    certain: [B, K] bool, the drafts that are a function of the prefix. Where
      all are, nothing is drawn.
  """
  index = jnp.where(certain, tokens, q.shape[1])
  row = jnp.arange(q.shape[0])[:, None]
  is_certain = jnp.zeros(q.shape, bool).at[row, index].set(True, mode="drop")
  rest = normalise(jnp.where(is_certain, 0, q), q)
  common = jnp.where(is_certain, pi, jnp.minimum(rest, pi))
  of_certain = jnp.where(is_certain, pi, 0)
  only = jnp.all(certain, axis=1, keepdims=True)
  return jnp.sum(jnp.where(only, of_certain, common), axis=1)


def of_draws(q: Array, pi: Array, num: int) -> Array:
  """Returns the optimum of `num` independent draws, [B].

  It is 1 + min over sets H of pi(H) - q(H)^K. The minimum is at a set of the
  tokens with the largest q / pi, or at the empty set.

  Args:
    q: [B, V], the distribution of the drafter.
    pi: [B, V], the target.
    num: static, K.

  Source: Hu et al. (arXiv 2502.18779).
  """
  q, pi = _by_ratio(q, pi)
  return _least(pi, jnp.cumsum(q, axis=1) ** num)


def of_two_without_replacement(q: Array, pi: Array) -> Array:
  """Returns the optimum of two draws, the second without the first, [B].

  As `of_draws`; the chance that both are in H is the sum over x in H of q(x)
  (q(H) - q(x)) / (1 - q(x)). It takes a distribution of two tokens or more.
  """
  q, pi = _by_ratio(q, pi)
  # The likeliest token is taken apart: 1 - q, which float32 rounds where q is
  # near 1, is the sum of the other ones.
  ids = jax.lax.broadcasted_iota(jnp.int32, q.shape, 1)
  is_top = ids == first_argmax(q)[:, None]
  top, others = jnp.where(is_top, q, 0), jnp.where(is_top, 0, q)
  odds = ratio(others, 1 - others)
  inside = jnp.cumsum(q, axis=1) * jnp.cumsum(odds, axis=1)
  inside -= jnp.cumsum(others * odds, axis=1)
  rest = jnp.cumsum(others, axis=1)
  inside += jnp.cumsum(top, axis=1) * ratio(rest, rest[:, -1:])
  return _least(pi, inside)


def _by_ratio(q: Array, pi: Array) -> tuple[Array, Array]:
  """Returns q and pi with the tokens sorted by q / pi, the largest first."""
  nothing = jnp.where(q > 0, jnp.inf, 0)
  key = jnp.where(pi > 0, q / jnp.where(pi > 0, pi, 1), nothing)
  _, q, pi = jax.lax.sort((-key, q, pi), dimension=1, num_keys=1)
  return q, pi


def _least(pi: Array, inside: Array) -> Array:
  """Returns 1 + min(0, pi(H) - inside(H)) over the first tokens, [B]."""
  excess = jnp.min(jnp.cumsum(pi, axis=1) - inside, axis=1)
  return 1 + jnp.minimum(excess, 0)
