"""The review of a chain by a target of two models as kernels for a GPU.

Programs of the first kernel have a part of one place each: they compute both
models' probabilities in registers, and write sums of what the target is
combined of, for each block of 128 tokens. One program of the last kernel joins
the parts of a row, decides what is accepted, and draws the token after it from
the sums, reading one block of logits again. A rule of tokens needs the mass
that it drops before it can mix: a kernel before these two sums it.

Axes: B rows, G drafts, P = G + 1 places, V vocabulary, C parts.
"""

import functools
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from speccascade.native.gpu import early_launch, mixed_laws
from speccascade.native.gpu.chain_review import DraftScores
from speccascade.native.gpu.filtered_laws_triton import keeps
from speccascade.native.gpu.mixed_laws import (
  LOSSY,
  OF_POSITION,
  OF_TOKEN,
  Entries,
  Numbers,
)
from speccascade.native.gpu.mixed_review import MixedReviews, PlaceLaws
from speccascade.native.gpu.row_draws_triton import (
  BLOCK,
  Configuration,
  draw,
  places,
)

_MOST = 1 << 10  # tokens of a part: a vocabulary is 32 programs


def configuration(logits: jax.Array, *_: Any, **__: Any) -> Configuration:
  """Returns the configuration of some logits."""
  tokens = min(max(pl.next_power_of_2(logits.shape[2]), 2 * BLOCK), _MOST)
  return Configuration(tokens, warps=4)


class _Models(NamedTuple):
  """What is known before the review; [1] each scalar."""

  logits: Any
  law: PlaceLaws
  drafts: DraftScores
  temperature: Any
  alpha: Any


class _Parts(NamedTuple):
  """What the kernel of parts writes.

  Attributes:
    blocks: [B, P, blocks] each, sums of each array of the basis.
    lefts: [B, P, C], sums of its first array.
    shared: [B, P, C], sums of min(q, second array).
    rejected: [B, P, C], sums of q above it; of the lossy target.
    at_draft: [B, P] each, the arrays of the basis at the drafts.
    draft_q: [B, P], q at the drafts.
    left: [B, P], the left side of a rule of tokens at the drafts.
    scale: [B, P], as in `Numbers`, where a block is verified as a whole.
  """

  blocks: tuple[Any, ...]
  lefts: Any
  shared: Any
  rejected: Any | None
  at_draft: tuple[Any, ...]
  draft_q: Any
  left: Any | None
  scale: Any | None


class _Place:
  """One place of a chain, as a program reads it."""

  def __init__(self, models: _Models, row: Any, place: Any) -> None:
    self._models, self._row, self._place = models, row, place
    self._rows = mixed_laws.drafter_rows(models.drafts)
    self.temperature = models.temperature[0]
    self.known = place < len(self._rows.logits)
    law = models.law
    self._p_top, self._p_total, self._p_plain = (
      x[row, place] for x in (law.top, law.total, law.plain_total)
    )
    self._q_top = self._here(self._rows.tops, jnp.float32(0))
    self._q_total = self._here(self._rows.totals, jnp.float32(1))
    self._q_plain = self._here(self._rows.plain_totals, jnp.float32(1))
    self.most = 1 / self._p_plain

  def _here(self, refs: tuple[Any, ...], otherwise: Any) -> jax.Array:
    """Returns the entry of this place."""
    if isinstance(self._place, int):
      inside = self._place < len(refs)
      return refs[self._place][self._row] if inside else otherwise
    value = otherwise
    for i, ref in enumerate(refs):
      value = jnp.where(self._place == i, ref[self._row], value)
    return value

  def draft(self) -> jax.Array:
    """Returns the draft of this place; 0 at the last one."""
    size = self._models.logits.shape[2]
    token = self._here(self._models.drafts.tokens, jnp.int32(0))
    return jnp.clip(token, 0, size - 1)

  def entries(self, index: jax.Array) -> Entries:
    """Returns the probabilities of tokens, of any shape."""
    models, row, place = self._models, self._row, self._place
    size, law = models.logits.shape[2], models.law
    # (An int beside scalars is not interpreted.)
    x = _load(models.logits.at[row, jnp.int32(place), index], index < size)
    p = jnp.exp(x / self.temperature - self._p_top / self.temperature)
    p = p / self._p_total
    if law.least is not None and law.last is not None:
      is_kept = keeps(index, x, law.least[row, place], law.last[row, place])
      p = jnp.where(is_kept, p, 0.0)
    column, mask = index, index < size
    if models.drafts.columns is not None:
      num = self._rows.logits[0].shape[1]
      columns: Any = models.drafts.columns
      column = triton.load(columns.at[index], mask=mask, other=num)
      mask = column < num
    found = [
      _load(ref.at[row, column], mask & (place == i))
      for i, ref in enumerate(self._rows.logits)
      if not isinstance(place, int) or place == i
    ]
    y = functools.reduce(jnp.maximum, found)
    q = jnp.exp(y / self.temperature - self._q_top / self.temperature)
    q = q / self._q_total
    if self._rows.least:
      is_kept = keeps(
        column,
        y,
        self._here(self._rows.least, jnp.float32(0)),
        self._here(self._rows.last, jnp.int32(0)),
      )
      q = jnp.where(is_kept, q, 0.0)
    p1 = jnp.exp(x - self._p_top) / self._p_plain
    return Entries(p, q, p1, jnp.exp(y - self._q_top) / self._q_plain)

  def numbers(self, scale: Any = 1.0, dropped: Any = 0.0) -> Numbers:
    """Returns the numbers of this place."""
    alpha = self._models.alpha[0]
    return Numbers(alpha, self.known, self.most, dropped, scale)


def _load(ref: Any, mask: jax.Array) -> jax.Array:
  """Returns logits; NaN is +inf, and -inf what is not there."""
  x = triton.load(ref, mask=mask, other=-jnp.inf)
  return jnp.where(x != x, jnp.inf, x)


def _sum_of_parts(ref: Any, row: jax.Array, place: jax.Array) -> jax.Array:
  """Returns the sum of the parts of one place."""
  part = jnp.arange(pl.next_power_of_2(ref.shape[2]))
  mask = part < ref.shape[2]
  return jnp.sum(triton.load(ref.at[row, place, part], mask=mask, other=0.0))


def _split(refs: Any, *trees: Any) -> list[Any]:
  """Returns the references as the trees that they are the leaves of."""
  rest, found = list(refs), []
  for tree in trees:
    here, rest = rest[: tree.num_leaves], rest[tree.num_leaves :]
    found.append(jax.tree.unflatten(tree, here))
  return found


def _dropped_kernel(
  *refs: Any, tree: Any, tokens: int, rule: str, interpret: bool
) -> None:
  """Writes the mass that a rule of tokens drops in a part of a place."""
  models, [dropped_ref] = _split(refs, tree, jax.tree.structure([0]))
  row = jnp.max(early_launch.program_id(0, interpret))
  place, part = pl.program_id(1), pl.program_id(2)
  here = _Place(models, row, place)
  at = here.entries(part * tokens + places(0, tokens))
  left, right = mixed_laws.token_sides(rule, at, here.numbers())
  dropped_ref[row, place, part] = jnp.sum(jnp.where(left < right, at.q, 0.0))


def _parts_kernel(
  *refs: Any,
  tree: Any,
  results: Any,
  tokens: int,
  rule: str,
  blockwise: bool,
  interpret: bool,
) -> None:
  """Writes sums of a part of one place of one row."""
  (models, dropped_ref), parts = _split(refs, tree, results)
  row = jnp.max(early_launch.program_id(0, interpret))
  place, part = pl.program_id(1), pl.program_id(2)
  here = _Place(models, row, place)
  scale, dropped = jnp.float32(1), jnp.float32(0)
  if blockwise:
    scale = _scale(models, row, place)
  if dropped_ref is not None:
    dropped = _sum_of_parts(dropped_ref, row, place)
  numbers = here.numbers(scale, dropped)

  at = here.entries(part * tokens + places(0, tokens))
  arrays = mixed_laws.basis(rule, at, numbers)
  num = tokens // BLOCK
  block = part * num + jnp.arange(num)
  for ref, values in zip(parts.blocks, arrays):
    ref[row, place, block] = jnp.sum(values, axis=1)
  parts.lefts[row, place, part] = jnp.sum(arrays[0])
  parts.shared[row, place, part] = jnp.sum(jnp.minimum(at.q, arrays[1]))
  if parts.rejected is not None:
    above = jnp.maximum(at.q - arrays[1], 0.0)
    parts.rejected[row, place, part] = jnp.sum(above)

  # All programs of a place write the same.
  draft = here.entries(here.draft())
  for ref, value in zip(parts.at_draft, mixed_laws.basis(rule, draft, numbers)):
    ref[row, place] = value
  parts.draft_q[row, place] = draft.q
  if parts.left is not None:
    left, _ = mixed_laws.token_sides(rule, draft, numbers)
    parts.left[row, place] = left
  if parts.scale is not None:
    parts.scale[row, place] = scale


def _scale(models: _Models, row: jax.Array, place: jax.Array) -> jax.Array:
  """Returns the probability that the drafts before a place are kept."""
  scale = jnp.float32(1)
  for i in range(len(models.drafts.tokens)):
    before = _Place(models, row, i)
    draft = before.entries(before.draft())
    after = mixed_laws.scale_after(scale, draft.p, draft.q)
    scale = jnp.where(i < place, after, scale)
  return scale


def _kernel(
  *refs: Any,
  tree: Any,
  parts_tree: Any,
  rule: str,
  blockwise: bool,
  interpret: bool,
) -> None:
  """Decides on one row, and draws its token."""
  (models, dropped_ref, u_ref, u_draw_ref), parts, results = _split(
    refs, tree, parts_tree, jax.tree.structure(MixedReviews(*range(5)))
  )
  row = jnp.max(early_launch.program_id(0, interpret))
  num, count = len(models.drafts.tokens), models.logits.shape[1]
  place = jnp.arange(pl.next_power_of_2(count))
  is_place = place < count

  def of_places(ref: Any, other: float = 0.0) -> jax.Array:
    return triton.load(ref.at[row, place], mask=is_place, other=other)

  def summed(ref: Any) -> jax.Array:
    part = jnp.arange(pl.next_power_of_2(ref.shape[2]))[None, :]
    mask = is_place[:, None] & (part < ref.shape[2])
    each = triton.load(ref.at[row, place[:, None], part], mask=mask, other=0.0)
    return jnp.sum(each, axis=1)

  def number_at(values: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(place == end, values, jnp.zeros_like(values)))

  most = 1 / of_places(models.law.plain_total, 1.0)
  alpha, shared = models.alpha[0], summed(parts.shared)
  left = right = jnp.zeros_like(most)
  factor: Any = jnp.ones_like(most)
  if rule in OF_POSITION:
    most_q = jnp.ones_like(most)
    rows = mixed_laws.drafter_rows(models.drafts)
    for i, ref in enumerate(rows.plain_totals):
      most_q = jnp.where(place == i, 1 / ref[row], most_q)
    tv = summed(parts.lefts) if rule == "opt" else most
    left, right = mixed_laws.place_sides(rule, most_q, most, tv, alpha)
    defers = (left < right) | (place >= len(rows.logits))
    shared = jnp.where(defers, shared, 1.0)
    factor = jnp.where(defers, 1.0, 0.0)
  elif rule in OF_TOKEN:
    left = of_places(parts.left)
    right = most - alpha if rule != "token_v3" else (1 - alpha) * most
  elif rule == LOSSY:
    mass = summed(parts.lefts)
    factor = summed(parts.rejected) / jnp.where(mass > 0, mass, 1.0)
    factor = jnp.where(mass > 0, factor, 0.0)

  def mixed(arrays: Any, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    known = factor > 0 if rule in OF_POSITION else factor
    return mixed_laws.combined(rule, tuple(arrays), known)

  at_draft = [of_places(ref) for ref in parts.at_draft]
  if blockwise:
    index = place - 1
    u = triton.load(
      u_ref.at[row, index], mask=(index >= 0) & (index < num), other=1.0
    )
    scale = of_places(parts.scale, 1.0)
    end = mixed_laws.num_of_block(place, num, u, scale, summed(parts.lefts))
  else:
    u = triton.load(u_ref.at[row, place], mask=place < num, other=1.0)
    _, pi_x = mixed(at_draft, factor)
    q_x = of_places(parts.draft_q)
    end = mixed_laws.num_accepted(place, num, u, q_x, pi_x)

  # The sums and the entries of the place where the chain ends.
  factor_here = number_at(factor)
  here = _Place(models, row, end)
  numbers = here.numbers(
    parts.scale[row, end] if blockwise else jnp.float32(1),
    0.0 if dropped_ref is None else _sum_of_parts(dropped_ref, row, end),
  )
  block = jnp.arange(pl.next_power_of_2(parts.blocks[0].shape[2]))
  mask = block < parts.blocks[0].shape[2]
  residual, whole = mixed(
    [
      triton.load(ref.at[row, end, block], mask=mask, other=0.0)
      for ref in parts.blocks
    ],
    factor_here,
  )
  is_residual = (jnp.max(residual) > 0) & (end < num)

  def weights_at(index: jax.Array) -> jax.Array:
    arrays = mixed_laws.basis(rule, here.entries(index), numbers)
    residual, whole = mixed(arrays, factor_here)
    return jnp.where(is_residual, residual, whole)

  sums = jnp.where(is_residual, residual, whole)
  results.token[row], _ = draw([sums], u_draw_ref[row], weights_at)
  results.num_accepted[row] = end
  for ref, values in (
    (results.overlap, shared),
    (results.left, left),
    (results.right, right),
  ):
    triton.store(ref.at[row, place], values, mask=is_place)


@functools.partial(
  jax.jit, static_argnames=("configuration", "interpret", "rule", "blockwise")
)
def run(
  logits: jax.Array,
  law: PlaceLaws,
  drafts: DraftScores,
  temperature: jax.Array,
  alpha: jax.Array,
  u_accept: jax.Array,
  u_draw: jax.Array,
  *,
  configuration: Configuration,
  interpret: bool,
  rule: str,
  blockwise: bool = False,
) -> MixedReviews:
  """Returns what `MixedReview.reference` does."""
  rows, count, size = logits.shape
  tokens = configuration.tokens
  num = pl.cdiv(size, tokens)

  def of(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)

  call: Any = functools.partial(
    pl.pallas_call,
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=1
    ),
  )
  models = _Models(
    logits, law, drafts, temperature.reshape(1), alpha.reshape(1)
  )
  options: dict[str, Any] = {"rule": rule, "interpret": interpret}
  dropped = None
  if rule in OF_TOKEN:
    leaves, tree = jax.tree.flatten(models)
    dropped = call(
      functools.partial(_dropped_kernel, tree=tree, tokens=tokens, **options),
      out_shape=of(rows, count, num),
      grid=(rows, count, num),
      name="mixed_review_dropped",
    )(*leaves)
  arrays = 3 if rule in OF_POSITION else 2
  number: Any = of(rows, count)
  sums = of(rows, count, num)
  results = _Parts(
    blocks=(of(rows, count, num * tokens // BLOCK),) * arrays,
    lefts=sums,
    shared=sums,
    rejected=sums if rule == LOSSY else None,
    at_draft=(number,) * arrays,
    draft_q=number,
    left=number if rule in OF_TOKEN else None,
    scale=number if blockwise else None,
  )
  options["blockwise"] = blockwise
  leaves, tree = jax.tree.flatten((models, dropped))
  shapes, parts_tree = jax.tree.flatten(results)
  parts = call(
    functools.partial(
      _parts_kernel, tree=tree, results=parts_tree, tokens=tokens, **options
    ),
    out_shape=shapes,
    grid=(rows, count, num),
    name="mixed_review_parts",
  )(*leaves)
  leaves, tree = jax.tree.flatten((models, dropped, u_accept, u_draw))
  token: Any = of(rows, dtype=jnp.int32)
  return MixedReviews(
    *call(
      functools.partial(_kernel, tree=tree, parts_tree=parts_tree, **options),
      out_shape=MixedReviews(token, token, number, number, number),
      grid=(rows,),
      name="mixed_review",
    )(*leaves, *parts)
  )
