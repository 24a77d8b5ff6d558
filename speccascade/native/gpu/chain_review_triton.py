"""The review of a chain of drafts by kernels for a GPU, in Pallas.

With filters one program reviews one place: it normalises the verifier's logits,
compares them with the drafter's, and draws the token that ends the chain there.
What the chain really does is decided from a few numbers of each place. Without
filters see `chain_parts_triton`.

Axes: B rows, G drafts, N tokens that may be drafted, V vocabulary.
"""

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from speccascade.native.gpu import chain_parts_triton
from speccascade.native.gpu.chain_review import DraftScores, PlaceReviews
from speccascade.native.gpu.filtered_laws_triton import (
  Held,
  filters_at,
  given,
  keeps,
  last_kept,
)
from speccascade.native.gpu.row_draws_triton import (
  BLOCK,
  Configuration,
  draw,
  places,
)

_TOKENS = 1 << 13  # of a part


def configuration(
  logits: jax.Array,
  drafts: DraftScores,
  *_: Any,
  greedy: bool = False,
  **__: Any,
) -> Configuration:
  """Returns the configuration of some logits."""
  if drafts.least is None and not greedy:
    return chain_parts_triton.configuration(logits)
  size = max(pl.next_power_of_2(logits.shape[2]), 2 * BLOCK)
  return Configuration(min(size, _TOKENS), warps=32 if size > _TOKENS else 8)


def _kernel(
  logits_ref: Any,
  temperature_ref: Any,
  u_ref: Any,
  *refs: Any,
  tokens: int,
  has: tuple[bool, ...],
  top_k: int | None,
) -> None:
  """Reviews one place of one row."""
  num = logits_ref.shape[1] - 1
  columns_ref, top_p_ref, min_p_ref, rest = given(refs, has)
  q_refs, q_tops, q_totals, drafts, q_least, q_last = (
    rest[i * num : (i + 1) * num] for i in range(6)
  )
  results = rest[6 * num :]
  top_ref, total_ref, plain_ref, token_ref, p_ref, q_ref, overlap_ref = results[
    :7
  ]
  row, place, size = pl.program_id(0), pl.program_id(1), logits_ref.shape[2]
  temperature = temperature_ref[0]

  def load_p(index: jax.Array) -> jax.Array:
    x = triton.load(
      logits_ref.at[row, place, index], mask=index < size, other=-jnp.inf
    )
    return jnp.where(x != x, jnp.inf, x)

  def load_q(index: jax.Array) -> jax.Array:
    """Returns the logits of this place's draft; -inf without probability."""
    mask = index < size
    if columns_ref is not None and q_refs:
      num_columns = q_refs[0].shape[1]
      index = triton.load(columns_ref.at[index], mask=mask, other=num_columns)
      mask = index < num_columns
    found = [
      triton.load(ref.at[row, index], mask=mask & (place == i), other=-jnp.inf)
      for i, ref in enumerate(q_refs)
    ]
    x = functools.reduce(jnp.maximum, found)
    is_kept = keeps(
      index, x, here(q_least, jnp.float32(0)), here(q_last, jnp.int32(0))
    )
    return jnp.where(is_kept, x, -jnp.inf)

  def here(refs: tuple[Any, ...], otherwise: Any) -> jax.Array:
    """Returns the entry of this place."""
    value = otherwise
    for i, ref in enumerate(refs):
      value = jnp.where(place == i, ref[row], value)
    return value

  parts = range(pl.cdiv(size, tokens))
  index = [places(part, tokens) for part in parts]
  held = [load_p(each) for each in index]
  # The sum at temperature 1, below the largest logit so far.
  top, plain = jnp.float32(-jnp.inf), jnp.float32(0)
  for x in held:
    new = jnp.maximum(top, jnp.max(x))
    base = jnp.where(new > -jnp.inf, new, 0.0)
    shrink = jnp.where(top > -jnp.inf, top - base, -jnp.inf)
    plain = plain * jnp.exp(shrink) + jnp.sum(jnp.exp(x - base))
    top = new
  base = jnp.where(top > -jnp.inf, top, 0.0)

  def weight(x: jax.Array) -> jax.Array:
    return jnp.exp(x / temperature - base / temperature)

  whole_row = [Held(i, x, weight(x)) for i, x in zip(index, held)]
  filters = filters_at(top_k, top_p_ref, min_p_ref)
  least, last = last_kept(whole_row, size, filters)
  results[7][row, place], results[8][row, place] = least, last
  held = [
    jnp.where(keeps(i, x, least, last), x, -jnp.inf)
    for i, x in zip(index, held)
  ]
  total = functools.reduce(jnp.add, [jnp.sum(weight(x)) for x in held])
  q_top, q_total = here(q_tops, jnp.float32(0)), here(q_totals, jnp.float32(1))

  def law_p(x: jax.Array) -> jax.Array:
    return weight(x) / total

  def load_kept_p(index: jax.Array) -> jax.Array:
    x = load_p(index)
    return jnp.where(keeps(index, x, least, last), x, -jnp.inf)

  def law_q(x: jax.Array) -> jax.Array:
    return jnp.exp(x / temperature - q_top / temperature) / q_total

  sums, whole = [], []
  overlap, most = jnp.float32(0), jnp.float32(0)
  for part in parts:
    p, q = law_p(held[part]), law_q(load_q(index[part]))
    left = jnp.maximum(p - q, 0.0)
    overlap += jnp.sum(jnp.minimum(p, q))
    sums.append(jnp.sum(left, axis=1))
    whole.append(jnp.sum(p, axis=1))
    most = jnp.maximum(most, jnp.max(sums[-1]))
  has_mass = most > 0
  sums = [jnp.where(has_mass, x, y) for x, y in zip(sums, whole)]

  def weights_at(index: jax.Array) -> jax.Array:
    p = law_p(load_kept_p(index))
    left = jnp.maximum(p - law_q(load_q(index)), 0.0)
    return jnp.where(has_mass, left, p)

  token_ref[row, place], _ = draw(sums, u_ref[row], weights_at)
  draft = jnp.clip(here(drafts, jnp.int32(0)), 0, size - 1)
  at_draft = draft + jnp.arange(BLOCK) * 0
  p_ref[row, place] = jnp.max(law_p(load_kept_p(at_draft)))
  q_ref[row, place] = jnp.max(law_q(load_q(at_draft)))
  top_ref[row, place], total_ref[row, place] = top, total
  plain_ref[row, place], overlap_ref[row, place] = plain, overlap


def _greedy_kernel(logits_ref: Any, *refs: Any, tokens: int) -> None:
  """Reviews one place of one row, where the likeliest tokens are taken."""
  num = logits_ref.shape[1] - 1
  drafts = refs[:num]
  top_ref, total_ref, plain_ref, token_ref, p_ref, q_ref, overlap_ref = refs[
    num:
  ]
  row, place, size = pl.program_id(0), pl.program_id(1), logits_ref.shape[2]
  top, plain = jnp.float32(-jnp.inf), jnp.float32(0)
  first = jnp.int32(0)
  for part in range(pl.cdiv(size, tokens)):
    index = places(part, tokens)
    x = triton.load(
      logits_ref.at[row, place, index], mask=index < size, other=-jnp.inf
    )
    x = jnp.where(x != x, jnp.inf, x)
    most = jnp.max(x)
    new = jnp.maximum(top, most)
    base = jnp.where(new > -jnp.inf, new, 0.0)
    shrink = jnp.where(top > -jnp.inf, top - base, -jnp.inf)
    plain = plain * jnp.exp(shrink) + jnp.sum(jnp.exp(x - base))
    own = jnp.min(jnp.where((x == most) & (index < size), index, size - 1))
    # Of equal logits those of an earlier part come first.
    first = jnp.where(most > top, own, first)
    top = new
  draft = jnp.int32(-1)
  for i, ref in enumerate(drafts):
    draft = jnp.where(place == i, ref[row], draft)
  is_same = jnp.where(first == draft, 1.0, 0.0)
  top_ref[row, place], total_ref[row, place] = top, jnp.float32(1)
  plain_ref[row, place], token_ref[row, place] = plain, first
  p_ref[row, place], overlap_ref[row, place] = is_same, is_same
  q_ref[row, place] = jnp.where(place < num, 1.0, 0.0)


@functools.partial(
  jax.jit, static_argnames=("configuration", "interpret", "top_k", "greedy")
)
def run(
  logits: jax.Array,
  drafts: DraftScores,
  temperature: jax.Array,
  u: jax.Array,
  top_p: jax.Array | None = None,
  min_p: jax.Array | None = None,
  *,
  configuration: Configuration,
  interpret: bool,
  top_k: int | None = None,
  greedy: bool = False,
) -> PlaceReviews:
  """Returns what `ChainReview.reference` does."""
  if drafts.least is None and not greedy:
    return chain_parts_triton.run(
      logits,
      drafts,
      temperature,
      u,
      configuration=configuration,
      interpret=interpret,
    )
  grid = logits.shape[:2]
  number = jax.ShapeDtypeStruct(grid, jnp.float32)
  token = jax.ShapeDtypeStruct(grid, jnp.int32)
  if greedy:
    kernel: Any = functools.partial(_greedy_kernel, tokens=configuration.tokens)
    arrays = (logits, *drafts.tokens)
  else:
    optional = (
      drafts.columns,
      *(None if x is None else x.reshape(1) for x in (top_p, min_p)),
    )
    kernel = functools.partial(
      _kernel,
      tokens=configuration.tokens,
      has=tuple(x is not None for x in optional),
      top_k=top_k,
    )
    arrays = (
      logits,
      temperature.reshape(1),
      u,
      *(x for x in optional if x is not None),
      *drafts.logits,
      *drafts.tops,
      *drafts.totals,
      *drafts.tokens,
      *(drafts.least or ()),
      *(drafts.last or ()),
    )
  results = pl.pallas_call(
    kernel,
    out_shape=[
      *[number] * 3,
      token,
      *[number] * 3,
      *([] if greedy else [number, token]),
    ],
    grid=grid,
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=1
    ),
    name="chain_review",
  )(*arrays)
  return PlaceReviews(*results)
