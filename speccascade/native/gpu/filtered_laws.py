"""The distributions of rows of logits that filters leave, and a token of each.

Top-k, top-p and min-p each keep the first tokens of one order: the larger logit
first, and of equal logits the lower id. So what all of them keep is known by
the last token that is kept, its logit and its id, and a filtered distribution
is a function of a logit, an id and four numbers of its row.

Axes: R rows, V vocabulary.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.native.gpu.operation import Operation, not_float32
from speccascade.native.gpu.row_draws import invert

LARGEST = 1 << 15  # a larger vocabulary does not fit the registers of a program


class Filters(NamedTuple):
  """What filters a row; None where a filter keeps every token.

  Attributes:
    top_k: static, the number of tokens that are kept.
    top_p: [] float32, the probability that the kept tokens have at least.
    min_p: [] float32, how many times as likely as the likeliest token a token
      is at least.
  """

  top_k: int | None = None
  top_p: jax.Array | None = None
  min_p: jax.Array | None = None


class FilteredLaw(NamedTuple):
  """What is known of rows of logits. Sums at a temperature are of kept tokens.

  Attributes:
    top: as in `RowLaw`, like the next three.
    total: see `top`.
    plain_total: see `top`. It is of all tokens.
    token: see `top`.
    least: [R], the logit of the last kept token.
    last: [R] int32, its id.
  """

  top: jax.Array
  total: jax.Array
  plain_total: jax.Array
  token: jax.Array | None
  least: jax.Array
  last: jax.Array


def is_kept(logits: jax.Array, least: jax.Array, last: jax.Array) -> jax.Array:
  """Returns which tokens filters keep, bool of the shape of the logits.

  Args:
    logits: [..., V].
    least: [...], as in `FilteredLaw`.
    last: [...] int32, as in `FilteredLaw`.
  """
  index = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  least, last = least[..., None], last[..., None]
  return (logits > least) | ((logits == least) & (index <= last))


def threshold(
  logits: jax.Array, weights: jax.Array, filters: Filters
) -> tuple[jax.Array, jax.Array]:
  """Returns `least` and `last` of rows of logits, [...] each.

  Args:
    logits: [..., V] without NaN.
    weights: [..., V], exp(logit / T - top / T).
    filters: `Filters`.
  """
  size = logits.shape[-1]
  # (A sort may put -0.0 after 0.0.)
  ids = jnp.argsort(-jnp.where(logits == 0, 0, logits), axis=-1, stable=True)
  weights = jnp.take_along_axis(weights, ids, axis=-1)
  rank = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  num = jnp.full(logits.shape[:-1], size, jnp.int32)
  if filters.top_k is not None:
    num = jnp.minimum(num, filters.top_k)
  weights = jnp.where(rank < num[..., None], weights, 0)
  if filters.top_p is not None:
    top_p = jnp.maximum(filters.top_p, jnp.finfo(jnp.float32).tiny)
    goal = jnp.minimum(top_p, 1) * jnp.sum(weights, axis=-1)
    # The token that reaches the goal is the last one.
    short = jnp.cumsum(weights, axis=-1) < goal[..., None]
    num = jnp.minimum(num, 1 + jnp.sum(short, axis=-1, dtype=jnp.int32))
  if filters.min_p is not None:
    likely = jnp.sum(weights >= filters.min_p, axis=-1, dtype=jnp.int32)
    num = jnp.minimum(num, jnp.maximum(likely, 1))
  last = jnp.take_along_axis(ids, num[..., None] - 1, axis=-1)
  least = jnp.take_along_axis(logits, last, axis=-1)
  return least[..., 0], last[..., 0].astype(jnp.int32)


class FilteredLaws(Operation):
  """Filters and normalises rows of logits, and draws; see `reference`."""

  name = "filtered_laws"
  modules: ClassVar = {"triton": "speccascade.native.gpu.filtered_laws_triton"}

  def reference(
    self,
    logits: jax.Array,
    temperature: jax.Array,
    u: jax.Array | None = None,
    top_p: jax.Array | None = None,
    min_p: jax.Array | None = None,
    *,
    top_k: int | None = None,
    column: int = 0,
  ) -> FilteredLaw:
    """Returns what is known of rows of logits.

    Args:
      logits: [R, V] float32. Of a row with NaN or +inf, or with nothing but
        -inf, all but `top` is undefined.
      temperature: [] float32.
      u: [R, N] float32 uniforms in [0, 1); None draws no token.
      top_p: as in `Filters`, like `min_p`.
      min_p: see `top_p`.
      top_k: as in `Filters`.
      column: which of the N uniforms draws.
    """
    logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)
    top = jnp.max(logits, axis=1)
    plain = jnp.exp(logits - top[:, None])
    weights = jnp.exp(logits / temperature - top[:, None] / temperature)
    least, last = threshold(logits, weights, Filters(top_k, top_p, min_p))
    weights = jnp.where(is_kept(logits, least, last), weights, 0)
    token = None if u is None else invert(weights, u[:, column])
    total, plain_total = jnp.sum(weights, axis=1), jnp.sum(plain, axis=1)
    return FilteredLaw(top, total, plain_total, token, least, last)

  def key(self, logits: jax.Array, *arrays: object, **options: object) -> str:
    """Returns such as "32128 tokens"."""
    del arrays, options
    return f"{logits.shape[-1]} tokens"

  def unfit(
    self, logits: jax.Array, *arrays: object, **options: object
  ) -> str | None:
    """Returns why no kernel takes these logits; None if one does."""
    del arrays, options
    return too_large(logits) or not_float32(logits)


def too_large(logits: jax.Array) -> str | None:
  """Returns why no kernel filters so many tokens; None if one does."""
  size = logits.shape[-1]
  if size <= LARGEST:
    return None
  return f"the logits are of {size} tokens, more than {LARGEST}"


filtered_laws = FilteredLaws()
