"""Targets that mix two models, as kernels for a GPU compute them.

Every target here is a combination of a few arrays over the vocabulary, `basis`,
whose factors are numbers of a place. So sums of these arrays say all that is
asked of the target, and numbers that are known last, such as what a rule
decides, need no second walk over the logits.

Everything here is arithmetic that kernels and plain JAX share.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from speccascade.native.gpu.chain_review import DraftScores

Array = jax.Array

LOSSLESS, LOSSY = "lossless", "lossy"
OF_POSITION = ("chow", "diff", "opt")  # rules that defer at a place
OF_TOKEN = ("token_v1", "token_v2", "token_v3")  # rules that drop tokens
RULES = (LOSSLESS, LOSSY, *OF_POSITION, *OF_TOKEN)


class Entries(NamedTuple):
  """Probabilities of tokens: sampled ones, and those at temperature 1."""

  p: Array
  q: Array
  p1: Array
  q1: Array


class Numbers(NamedTuple):
  """Numbers of a place, of a shape that broadcasts with the entries.

  Attributes:
    alpha: of the rule.
    known: bool, whether there is a q; else the target is p.
    most: the verifier's largest probability at temperature 1.
    dropped: sum of q over the tokens that a rule of tokens drops.
    scale: what p is multiplied by in the residual.
  """

  alpha: Array
  known: Array
  most: Array
  dropped: Array
  scale: Array


def token_sides(
  rule: str, at: Entries, numbers: Numbers
) -> tuple[Array, Array]:
  """Returns both sides of a rule of tokens: it drops where left < right."""
  if rule == "token_v3":
    return at.p1, (1 - numbers.alpha) * numbers.most
  left = at.q1 if rule == "token_v1" else at.p1
  return left, numbers.most - numbers.alpha


def place_sides(
  rule: str, most_q: Array, most_p: Array, tv: Array, alpha: Array
) -> tuple[Array, Array]:
  """Returns both sides of a rule of places: it defers where left < right.

  Args:
    rule: of `OF_POSITION`.
    most_q: the drafter's largest probability at temperature 1.
    most_p: the verifier's.
    tv: sum_v max(0, p - q).
    alpha: of the rule.
  """
  if rule == "chow":
    return most_q, jnp.broadcast_to(1 - alpha, most_q.shape)
  return most_q, most_p - (alpha * tv if rule == "opt" else alpha)


def basis(rule: str, at: Entries, numbers: Numbers) -> tuple[Array, ...]:
  """Returns arrays that residual and target are combined of: `combined`.

  The first one is for the residual, and the sum of min(q, second one) is the
  sum of min(q, pi), unless a rule of places does not defer.
  """
  p, q = at.p, at.q
  if rule in OF_TOKEN:
    left, right = token_sides(rule, at, numbers)
    kept = jnp.where(left < right, 0.0, q)
    pi = jnp.where(numbers.known, kept + numbers.dropped * p, p)
    return jnp.maximum(pi - q, 0.0), pi
  left = jnp.maximum(numbers.scale * p - q, 0.0)
  if rule == LOSSY:
    accepted = jnp.minimum(q, p / (1 - numbers.alpha))
    return left, jnp.where(numbers.known, accepted, p)
  return (left, p, q) if rule in OF_POSITION else (left, p)


def combined(
  rule: str, arrays: tuple[Array, ...], factor: Array
) -> tuple[Array, Array]:
  """Returns the residual and the target, or sums of them.

  Args:
    rule: of `RULES`.
    arrays: those of `basis`, or sums of them.
    factor: a rule of places: bool, whether it defers; lossy: the rejected mass
      over that of the first array. Others do not read it.
  """
  left, *whole = arrays
  if rule in OF_POSITION:
    p, q = whole
    return jnp.where(factor, left, 0.0), jnp.where(factor, p, q)
  if rule == LOSSY:
    return factor * left, whole[0] + factor * left
  return left, whole[0]


def num_accepted(
  place: Array, num: int, u: Array, q_x: Array, pi_x: Array
) -> Array:
  """Returns how many drafts are accepted one by one; over the last axis.

  Args:
    place: int32, 0 and on.
    num: G, static.
    u: uniforms of the drafts.
    q_x: probabilities of the drafts.
    pi_x: under the target.
  """
  accept = (u * q_x < pi_x) | (place >= num)
  return jnp.min(jnp.where(accept, num, place), axis=-1)


def num_of_block(
  place: Array, num: int, u: Array, scale: Array, gain: Array
) -> Array:
  """Returns how many drafts block verification accepts; over the last axis.

  Args:
    place: int32, 0 and on.
    num: G, static.
    u: the uniform of the draft before each place.
    scale: the probability P that the drafts before a place are kept.
    gain: sum_v max(0, P p - q) at the place.
  """
  whole = gain + (1 - scale)
  inner = jnp.where(whole > 0, gain / jnp.where(whole > 0, whole, 1.0), 0.0)
  chance = jnp.where(place == num, scale, inner)
  accept = (u < chance) & (place > 0) & (place <= num)
  return jnp.max(jnp.where(accept, place, 0), axis=-1)


def scale_after(scale: Array, p_x: Array, q_x: Array) -> Array:
  """Returns the P of block verification after one more draft."""
  change = jnp.where(q_x > 0, p_x / jnp.where(q_x > 0, q_x, 1.0), 0.0)
  return jnp.minimum(1.0, scale * change)


class DrafterRows(NamedTuple):
  """What a drafter knows of its rows, in tuples of one for each place."""

  logits: tuple[Array, ...]
  tops: tuple[Array, ...]
  totals: tuple[Array, ...]
  plain_totals: tuple[Array, ...]
  least: tuple[Array, ...]
  last: tuple[Array, ...]


def drafter_rows(drafts: DraftScores) -> DrafterRows:
  """Returns the rows of the drafts, and of the bonus where it is known."""
  names = ("logits", "tops", "totals", "plain_totals", "least", "last")
  rows = [tuple(getattr(drafts, name) or ()) for name in names]
  bonus = drafts.bonus or (None,) * len(names)
  return DrafterRows(
    *(row if x is None else (*row, x) for row, x in zip(rows, bonus))
  )
