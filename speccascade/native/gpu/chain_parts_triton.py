"""The review of a chain of drafts without filters, in Pallas.

Three kernels for a GPU. A program of the first one has a part of a place: its
largest logit, and the sums below that at both temperatures. A program of the
second one joins what all parts of the place have, and compares its part with
the drafter's distribution. A program of the third one has a place: it joins the
parts, and draws the token that ends the chain there.

Axes: B rows, G drafts, N tokens that may be drafted, V vocabulary, P parts.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from speccascade.native.gpu import early_launch
from speccascade.native.gpu.chain_review import DraftScores, PlaceReviews
from speccascade.native.gpu.row_draws_triton import (
  BLOCK,
  Configuration,
  draw,
  places,
)

_MOST = 1 << 10  # tokens of a part: a vocabulary is 32 programs


def configuration(logits: jax.Array) -> Configuration:
  """Returns the configuration of some logits."""
  tokens = min(max(pl.next_power_of_2(logits.shape[2]), 2 * BLOCK), _MOST)
  return Configuration(tokens, warps=4)


class _Place:
  """One place of one row.

  Args:
    refs: the verifier's logits and the temperature; the columns, if
      `has_columns`; and of each draft logits, tops, totals and tokens.
    has_columns: whether tokens have columns in the drafter's logits.
    row: of the batch.
    place: of the chain.
  """

  def __init__(
    self,
    refs: tuple[Any, ...],
    has_columns: bool,
    row: jax.Array,
    place: jax.Array,
  ):
    self._logits, temperature, *rest = refs
    self._columns = rest.pop(0) if has_columns else None
    self._row, self._place = row, place
    self.num = self._logits.shape[1] - 1
    self.size = self._logits.shape[2]
    self._temperature = temperature[0]
    q_refs, tops, totals, drafts = (
      rest[i * self.num : (i + 1) * self.num] for i in range(4)
    )
    self._q_refs = q_refs
    self._q_top = self._here(tops, jnp.float32(0))
    self._q_total = self._here(totals, jnp.float32(1))
    self.draft = jnp.clip(self._here(drafts, jnp.int32(0)), 0, self.size - 1)

  def _here(self, refs: list[Any], otherwise: jax.Array) -> jax.Array:
    """Returns the entry of this place."""
    value = otherwise
    for i, ref in enumerate(refs):
      value = jnp.where(self._place == i, ref[self._row], value)
    return value

  def below(self, x: jax.Array, top: jax.Array) -> jax.Array:
    """Returns exp(x / T - top / T), 0 of what is not there."""
    shrunk = jnp.exp(x / self._temperature - top / self._temperature)
    return jnp.where(x > -jnp.inf, shrunk, 0.0)

  def load(self, index: jax.Array) -> jax.Array:
    """Returns the verifier's logits; NaN is +inf, -inf what is not there."""
    x = triton.load(
      self._logits.at[self._row, self._place, index],
      mask=index < self.size,
      other=-jnp.inf,
    )
    return jnp.where(x != x, jnp.inf, x)

  def law_q(self, index: jax.Array) -> jax.Array:
    """Returns the drafter's probabilities; 0 at the last place."""
    mask = index < self.size
    if self._columns is not None and self._q_refs:
      num_columns = self._q_refs[0].shape[1]
      index = triton.load(self._columns.at[index], mask=mask, other=num_columns)
      mask = index < num_columns
    found = [
      triton.load(
        ref.at[self._row, index],
        mask=mask & (self._place == i),
        other=-jnp.inf,
      )
      for i, ref in enumerate(self._q_refs)
    ]
    x = functools.reduce(jnp.maximum, found)
    weight = jnp.exp(x / self._temperature - self._q_top / self._temperature)
    return weight / self._q_total


def _base(top: jax.Array) -> jax.Array:
  """Returns what logits are taken below: 0 where none is finite."""
  return jnp.where(top > -jnp.inf, top, 0.0)


def _sums_kernel(
  *refs: Any, tokens: int, has_columns: bool, interpret: bool
) -> None:
  """Writes what is known of one part of one place."""
  *given, top_ref, plain_ref, sums_ref = refs
  row = jnp.max(early_launch.program_id(0, interpret))
  place, part = pl.program_id(1), pl.program_id(2)
  it = _Place(tuple(given), has_columns, row, place)
  x = it.load(part * tokens + places(0, tokens))
  top = jnp.max(x)
  base = _base(top)
  top_ref[row, place, part] = top
  plain_ref[row, place, part] = jnp.sum(jnp.exp(x - base))
  sums_ref[row, place, part] = jnp.sum(it.below(x, base))


def _compare_kernel(
  *refs: Any, tokens: int, has_columns: bool, interpret: bool
) -> None:
  """Compares one part of one place with the drafter's distribution."""
  *given, tops_ref, plain_ref, sums_ref = refs[:-6]
  left_ref, whole_ref, overlap_ref, top_ref, total_ref, plain_total_ref = refs[
    -6:
  ]
  row = jnp.max(early_launch.program_id(0, interpret))
  place, part = pl.program_id(1), pl.program_id(2)
  it = _Place(tuple(given), has_columns, row, place)
  of_part = _reader(row, place)
  index = part * tokens + places(0, tokens)
  x, q = it.load(index), it.law_q(index)
  number = jnp.arange(pl.next_power_of_2(tops_ref.shape[2]))
  tops = of_part(tops_ref, number, -jnp.inf)
  top = jnp.max(tops)
  base = _base(top)
  total = jnp.sum(of_part(sums_ref, number, 0.0) * it.below(tops, base))
  shrinks = jnp.where(tops > -jnp.inf, jnp.exp(tops - base), 0.0)
  plain = jnp.sum(of_part(plain_ref, number, 0.0) * shrinks)
  # Programs of all parts write the same.
  top_ref[row, place], total_ref[row, place] = top, total
  plain_total_ref[row, place] = plain
  p = it.below(x, base) / total
  num = tokens // BLOCK
  block = part * num + jnp.arange(num)
  left_ref[row, place, block] = jnp.sum(jnp.maximum(p - q, 0.0), axis=1)
  whole_ref[row, place, block] = jnp.sum(p, axis=1)
  overlap_ref[row, place, part] = jnp.sum(jnp.minimum(p, q))


def _draw_kernel(*refs: Any, has_columns: bool, interpret: bool) -> None:
  """Draws the token of one place, by its parts."""
  *given, u_ref, left_ref, whole_ref, overlap_ref, top_ref, total_ref = refs[
    :-4
  ]
  token_ref, p_ref, q_ref, all_overlap_ref = refs[-4:]
  row = jnp.max(early_launch.program_id(0, interpret))
  place = pl.program_id(1)
  it = _Place(tuple(given), has_columns, row, place)
  of_part = _reader(row, place)
  base, total = _base(top_ref[row, place]), total_ref[row, place]
  block = jnp.arange(pl.next_power_of_2(left_ref.shape[2]))
  left = of_part(left_ref, block, 0.0)
  has_mass = jnp.max(left) > 0
  sums = jnp.where(has_mass, left, of_part(whole_ref, block, 0.0))

  def law_p(index: jax.Array) -> jax.Array:
    return it.below(it.load(index), base) / total

  def weights_at(index: jax.Array) -> jax.Array:
    p = law_p(index)
    return jnp.where(has_mass, jnp.maximum(p - it.law_q(index), 0.0), p)

  token_ref[row, place], _ = draw([sums], u_ref[row], weights_at)
  at_draft = it.draft + jnp.arange(BLOCK) * 0
  p_ref[row, place] = jnp.max(law_p(at_draft))
  q_ref[row, place] = jnp.max(it.law_q(at_draft))
  part = jnp.arange(pl.next_power_of_2(overlap_ref.shape[2]))
  all_overlap_ref[row, place] = jnp.sum(of_part(overlap_ref, part, 0.0))


def _reader(row: jax.Array, place: jax.Array) -> Callable[..., jax.Array]:
  """Returns what loads entries of a place; `other` of those beyond the last."""

  def load(ref: Any, index: jax.Array, other: float) -> jax.Array:
    mask = index < ref.shape[2]
    return triton.load(ref.at[row, place, index], mask=mask, other=other)

  return load


def run(
  logits: jax.Array,
  drafts: DraftScores,
  temperature: jax.Array,
  u: jax.Array,
  *,
  configuration: Configuration,
  interpret: bool,
) -> PlaceReviews:
  """Returns what `ChainReview.reference` does without filters."""
  rows, num_places, size = logits.shape
  tokens = configuration.tokens
  num = pl.cdiv(size, tokens)

  def of(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, num_places, *sizes), dtype)

  call: Any = functools.partial(
    pl.pallas_call,
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=1
    ),
  )
  has_columns = drafts.columns is not None
  options = {"has_columns": has_columns, "interpret": interpret}
  given = (
    logits,
    temperature.reshape(1),
    *((drafts.columns,) if has_columns else ()),
    *(*drafts.logits, *drafts.tops, *drafts.totals, *drafts.tokens),
  )
  sums = call(
    functools.partial(_sums_kernel, tokens=tokens, **options),
    out_shape=[of(num)] * 3,
    grid=(rows, num_places, num),
    name="chain_review_parts",
  )(*given)
  blocks = of(num * tokens // BLOCK)
  *compared, top, total, plain = call(
    functools.partial(_compare_kernel, tokens=tokens, **options),
    out_shape=[blocks, blocks, of(num), of(), of(), of()],
    grid=(rows, num_places, num),
    name="chain_review_compared",
  )(*given, *sums)
  token, draft_p, draft_q, overlap = call(
    functools.partial(_draw_kernel, **options),
    out_shape=[of(dtype=jnp.int32), of(), of(), of()],
    grid=(rows, num_places),
    name="chain_review",
  )(*given, u, *compared, top, total)
  return PlaceReviews(top, total, plain, token, draft_p, draft_q, overlap)
