"""The review of a chain of drafts by the model that verifies them.

It is one operation where the target is the verifier's own distribution. Of the
drafter it needs logits, a largest one and a sum, so that no distribution has to
be written to memory.

Axes: B rows, G drafts, N tokens that may be drafted, V vocabulary.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.native.gpu.filtered_laws import (
  Filters,
  is_kept,
  threshold,
  too_large,
)
from speccascade.native.gpu.operation import Operation, not_float32
from speccascade.native.gpu.row_draws import invert


class BonusScores(NamedTuple):
  """What a drafter knows of the rows after its last draft.

  Attributes:
    logits: [B, N] float32.
    top: [B], as `tops` of `DraftScores`, like the others.
    total: see `top`.
    plain_total: see `top`.
    least: see `top`.
    last: see `top`.
  """

  logits: jax.Array
  top: jax.Array
  total: jax.Array
  plain_total: jax.Array
  least: jax.Array | None = None
  last: jax.Array | None = None


class DraftScores(NamedTuple):
  """What a drafter knows of the rows from which G drafts were drawn.

  Attributes:
    logits: [B, N] float32 of each draft.
    tops: [B] of each, the largest logit.
    totals: [B] of each, the sum of exp(logit / T - top / T).
    tokens: [B] int32 of each, the draft.
    columns: [V] int32, the column of each token in these logits, and N of a
      token that is not drafted; None where N = V, and column i is token i.
    least: [B] of each, as in `FilteredLaw`; None where nothing is filtered.
    last: [B] int32 of each, as in `FilteredLaw`: a column, where some are kept.
    plain_totals: [B] of each, the sum of exp(logit - top); None where no rule
      reads the drafter's confidence.
    bonus: of the rows after the last draft; None where they are not asked for.
  """

  logits: tuple[jax.Array, ...]
  tops: tuple[jax.Array, ...]
  totals: tuple[jax.Array, ...]
  tokens: tuple[jax.Array, ...]
  columns: jax.Array | None = None
  least: tuple[jax.Array, ...] | None = None
  last: tuple[jax.Array, ...] | None = None
  plain_totals: tuple[jax.Array, ...] | None = None
  bonus: BonusScores | None = None


class PlaceReviews(NamedTuple):
  """What is known of the G + 1 places of a chain; all [B, G + 1].

  Attributes:
    top: as in `RowLaw`, like the next two.
    total: see `top`.
    plain_total: see `top`.
    token: int32, drawn from what is left of the verifier's distribution where
      the draft at this place is rejected; at the last place, from all of it.
    draft_p: the verifier's probability of the draft.
    draft_q: the drafter's; 0 at the last place.
    overlap: sum_v min(q, p); 0 at the last place.
    least: as in `FilteredLaw`; None where nothing is filtered.
    last: as in `FilteredLaw`.
  """

  top: jax.Array
  total: jax.Array
  plain_total: jax.Array
  token: jax.Array
  draft_p: jax.Array
  draft_q: jax.Array
  overlap: jax.Array
  least: jax.Array | None = None
  last: jax.Array | None = None


class ChainReview(Operation):
  """Normalises, compares and draws at all places; see `reference`."""

  name = "chain_review"
  modules: ClassVar = {"triton": "speccascade.native.gpu.chain_review_triton"}

  def reference(
    self,
    logits: jax.Array,
    drafts: DraftScores,
    temperature: jax.Array,
    u: jax.Array,
    top_p: jax.Array | None = None,
    min_p: jax.Array | None = None,
    *,
    top_k: int | None = None,
    greedy: bool = False,
  ) -> PlaceReviews:
    """Returns what is known of each place of a chain.

    Only one of the tokens that are drawn is used, that of the place where the
    chain ends; which place this is does not depend on `u`.

    Args:
      logits: [B, G + 1, V] float32 of the verifier.
      drafts: `DraftScores` of the G drafts.
      temperature: [] float32; not used where greedy.
      u: [B] float32 uniforms in [0, 1); not used where greedy.
      top_p: as in `Filters`, like `min_p`. Filters are both models'.
      min_p: see `top_p`.
      top_k: as in `Filters`.
      greedy: whether both models take the first of their largest logits. Each
        distribution is one-hot then, and `total` is 1.
    """
    logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)
    top = jnp.max(logits, axis=2)
    plain = jnp.sum(jnp.exp(logits - top[..., None]), axis=2)
    if greedy:
      token = jnp.argmax(logits, axis=2).astype(jnp.int32)
      draft_q = jnp.ones_like(top).at[:, -1].set(0)
      x = jnp.stack([*drafts.tokens, jnp.full_like(token[:, 0], -1)], axis=1)
      is_same = (token == x).astype(top.dtype)
      one = jnp.ones_like(top)
      return PlaceReviews(top, one, plain, token, is_same, draft_q, is_same)
    p = jnp.exp(logits / temperature - top[..., None] / temperature)
    least = last = None
    if drafts.least is not None:
      least, last = threshold(logits, p, Filters(top_k, top_p, min_p))
      p = jnp.where(is_kept(logits, least, last), p, 0)
    total = jnp.sum(p, axis=2)
    p = p / total[..., None]

    q = jnp.stack(
      [self._law(drafts, i, temperature) for i in range(len(drafts.logits))]
      + [jnp.zeros_like(p[:, 0])],
      axis=1,
    )
    left = jnp.maximum(p - q, 0)
    has_mass = jnp.max(left, axis=2, keepdims=True) > 0
    left = jnp.where(has_mass, left, p)
    every = jnp.broadcast_to(u[:, None], top.shape)
    token = invert(left.reshape(-1, left.shape[2]), every.reshape(-1))
    x = jnp.stack([*drafts.tokens, jnp.zeros_like(drafts.tokens[0])], axis=1)
    draft_p, draft_q = (
      jnp.take_along_axis(law, x[..., None], axis=2)[..., 0] for law in (p, q)
    )
    return PlaceReviews(
      top,
      total,
      plain,
      token.reshape(top.shape),
      draft_p,
      draft_q,
      jnp.sum(jnp.minimum(q, p), axis=2),
      least,
      last,
    )

  @staticmethod
  def _law(drafts: DraftScores, i: int, temperature: jax.Array) -> jax.Array:
    """Returns the distribution [B, V] of draft i."""
    x, top = drafts.logits[i], drafts.tops[i][:, None] / temperature
    q = jnp.exp(x / temperature - top) / drafts.totals[i][:, None]
    if drafts.least is not None and drafts.last is not None:
      q = jnp.where(is_kept(x, drafts.least[i], drafts.last[i]), q, 0)
    if drafts.columns is None:
      return q
    end = q.shape[1] - 1
    found = q[:, jnp.minimum(drafts.columns, end)]
    return jnp.where(drafts.columns <= end, found, 0)

  def key(self, logits: jax.Array, *arrays: object, **options: object) -> str:
    """Returns such as "5 drafts, 32128 tokens"."""
    del arrays, options
    return f"{logits.shape[1] - 1} drafts, {logits.shape[2]} tokens"

  def unfit(
    self,
    logits: jax.Array,
    drafts: DraftScores,
    *arrays: object,
    **options: object,
  ) -> str | None:
    """Returns why no kernel takes these logits; None if one does."""
    del arrays, options
    is_filtered = drafts.least is not None
    return (too_large(logits) if is_filtered else None) or not_float32(logits)


chain_review = ChainReview()
