"""The review of a chain of drafts whose target mixes two models.

Of both models it needs logits, a largest one and two sums a row, so that no
distribution has to be written to memory: not the drafter's, not the verifier's,
not the target. `mixed_laws` says how the target is mixed.

Axes: B rows, G drafts, P = G + 1 places, N tokens that may be drafted, V
vocabulary.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.native.gpu.chain_review import DraftScores
from speccascade.native.gpu.filtered_laws import is_kept
from speccascade.native.gpu.mixed_laws import (
  LOSSLESS,
  LOSSY,
  OF_POSITION,
  OF_TOKEN,
  RULES,
  Entries,
  Numbers,
  basis,
  combined,
  drafter_rows,
  num_accepted,
  num_of_block,
  place_sides,
  scale_after,
  token_sides,
)
from speccascade.native.gpu.operation import Operation, not_float32
from speccascade.native.gpu.row_draws import invert

Array = jax.Array


class PlaceLaws(NamedTuple):
  """What is known of a verifier's rows at the places of a chain; [B, P] each.

  Attributes:
    top: as in `RowLaw`, like the next two.
    total: see `top`.
    plain_total: see `top`.
    least: as in `FilteredLaw`; None where nothing is filtered.
    last: int32, as in `FilteredLaw`.
  """

  top: Array
  total: Array
  plain_total: Array
  least: Array | None = None
  last: Array | None = None


class MixedReviews(NamedTuple):
  """What a review decides.

  Attributes:
    num_accepted: [B] int32.
    token: [B] int32, drawn after the accepted drafts.
    overlap: [B, P], sum_v min(q, pi) at the drafts.
    left: [B, P], the left side of the rule, at the drafts for a rule of tokens;
      0 without a rule.
    right: [B, P], the right side.
  """

  num_accepted: Array
  token: Array
  overlap: Array
  left: Array
  right: Array


class MixedReview(Operation):
  """Mixes, compares, decides and draws; see `reference`."""

  name = "mixed_review"
  modules: ClassVar = {"triton": "speccascade.native.gpu.mixed_review_triton"}

  def reference(
    self,
    logits: Array,
    law: PlaceLaws,
    drafts: DraftScores,
    temperature: Array,
    alpha: Array,
    u_accept: Array,
    u_draw: Array,
    *,
    rule: str,
    blockwise: bool = False,
  ) -> MixedReviews:
    """Reviews a chain whose target is that of a rule.

    The rules are those of `decoding.laws` with the same names.

    Args:
      logits: [B, P, V] float32 of the verifier.
      law: `PlaceLaws` of them.
      drafts: `DraftScores` of the G drafts, with `plain_totals`; with `bonus`
        where the target of the last place reads q.
      temperature: [] float32 above 0.
      alpha: [] float32; not used by the lossless target.
      u_accept: [B, G] float32 uniforms in [0, 1).
      u_draw: [B] float32 uniforms in [0, 1).
      rule: of `RULES`.
      blockwise: whether the block is verified as a whole, which is for the
        lossless target alone.
    """
    num = len(drafts.tokens)
    at, known, most_q = self._entries(logits, law, drafts, temperature)
    place = jnp.arange(num + 1, dtype=jnp.int32)[None]
    tokens = jnp.stack([*drafts.tokens, drafts.tokens[0] * 0], axis=1)

    def at_draft(values: Array) -> Array:
      return jnp.take_along_axis(values, tokens[..., None], axis=2)[..., 0]

    scale = jnp.ones_like(law.top)
    if blockwise:
      p_x, q_x = at_draft(at.p), at_draft(at.q)
      for i in range(num):
        after = scale_after(scale[:, i], p_x[:, i], q_x[:, i])
        scale = scale.at[:, i + 1].set(after)
    most = 1 / law.plain_total
    numbers = Numbers(
      alpha,
      known[..., None],
      most[..., None],
      jnp.zeros_like(alpha),
      scale[..., None],
    )
    left = right = jnp.zeros_like(most)
    if rule in OF_TOKEN:
      sides = token_sides(rule, at, numbers)
      dropped = jnp.where(sides[0] < sides[1], at.q, 0)
      numbers = numbers._replace(dropped=dropped.sum(axis=2, keepdims=True))
      left, right = at_draft(sides[0]), sides[1][..., 0]
    arrays = basis(rule, at, numbers)
    sums = arrays[0].sum(axis=2)
    overlap = jnp.minimum(at.q, arrays[1]).sum(axis=2)
    factor = jnp.ones_like(known)
    if rule in OF_POSITION:
      left, right = place_sides(rule, most_q, most, sums, alpha)
      factor = (left < right) | ~known
      overlap = jnp.where(factor, overlap, 1)
    elif rule == LOSSY:
      factor = jnp.maximum(at.q - arrays[1], 0).sum(axis=2)
      factor = jnp.where(sums > 0, factor / jnp.where(sums > 0, sums, 1), 0)
    residual, pi = combined(
      rule, arrays, jnp.broadcast_to(factor, sums.shape)[..., None]
    )
    if blockwise:
      before = jnp.pad(u_accept, ((0, 0), (1, 0)))
      end = num_of_block(place, num, before, scale, sums)
    else:
      u = jnp.pad(u_accept, ((0, 0), (0, 1)))
      end = num_accepted(place, num, u, at_draft(at.q), at_draft(pi))
    residual, pi = (
      jnp.take_along_axis(x, end[:, None, None], axis=1)[:, 0]
      for x in (residual, pi)
    )
    has_mass = jnp.max(residual, axis=1) > 0
    is_residual = (has_mass & (end < num))[:, None]
    token = invert(jnp.where(is_residual, residual, pi), u_draw)
    return MixedReviews(end, token, overlap, left, right)

  @staticmethod
  def _entries(
    logits: Array, law: PlaceLaws, drafts: DraftScores, temperature: Array
  ) -> tuple[Entries, Array, Array]:
    """Returns the probabilities [B, P, V]; [1, P] bool, where q is known; and
    the drafter's largest probabilities [B, P]."""
    top = law.top[..., None]
    p = jnp.exp(logits / temperature - top / temperature) / law.total[..., None]
    if law.least is not None and law.last is not None:
      p = jnp.where(is_kept(logits, law.least, law.last), p, 0)
    p1 = jnp.exp(logits - top) / law.plain_total[..., None]
    rows, laws, plains, most = drafter_rows(drafts), [], [], []
    for i, x in enumerate(rows.logits):
      scaled = x / temperature - rows.tops[i][:, None] / temperature
      q = jnp.exp(scaled) / rows.totals[i][:, None]
      if rows.least:
        q = jnp.where(is_kept(x, rows.least[i], rows.last[i]), q, 0)
      q1 = jnp.exp(x - rows.tops[i][:, None]) / rows.plain_totals[i][:, None]
      if drafts.columns is not None:
        end = x.shape[1] - 1
        index = jnp.minimum(drafts.columns, end)
        is_column = drafts.columns[None] <= end
        q, q1 = (jnp.where(is_column, y[:, index], 0) for y in (q, q1))
      laws.append(q)
      plains.append(q1)
      most.append(1 / rows.plain_totals[i])
    known = jnp.arange(p.shape[1])[None] < len(laws)
    if len(laws) < p.shape[1]:
      laws.append(jnp.zeros_like(p[:, 0]))
      plains.append(laws[-1])
      most.append(jnp.ones_like(law.top[:, 0]))
    q, q1, most_q = (jnp.stack(x, axis=1) for x in (laws, plains, most))
    return Entries(p, q, p1, q1), known, most_q

  def key(self, logits: Array, *arrays: object, **options: object) -> str:
    """Returns such as "opt, 5 drafts, 32128 tokens"."""
    del arrays
    rule = options.get("rule", LOSSLESS)
    if options.get("blockwise"):
      rule = f"{rule} by blocks"
    return f"{rule}, {logits.shape[1] - 1} drafts, {logits.shape[2]} tokens"

  def unfit(
    self, logits: Array, *arrays: object, **options: object
  ) -> str | None:
    """Returns why no kernel takes these logits; None if one does."""
    del arrays
    rule = options.get("rule", LOSSLESS)
    if rule not in RULES:
      return f"there is no rule {rule!r}, only {', '.join(RULES)}"
    if options.get("blockwise") and rule != LOSSLESS:
      return "a block is verified as a whole for the lossless target alone"
    return not_float32(logits)


mixed_review = MixedReview()
