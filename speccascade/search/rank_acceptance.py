"""How likely each child of a place is accepted, along given texts.

Both models read the texts once, as for `acceptance.rates_along`. Where a text
was written by the target's own chain, the acceptance of each of K children of
each place follows from the laws there. So the blocks that any tree would take
to write the texts are known without decoding with the tree.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.drafting.children import draw_children
from speccascade.decoding.laws import numerics
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.draft_tree import (
  IID,
  ROOT,
  WITHOUT_REPLACEMENT,
  Drawing,
)
from speccascade.decoding.verification.tree_steps import k_seq_factor
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.search.acceptance import is_inside, laws_along
from speccascade.search.head_acceptance import head_laws_along, least_place

Array = jax.Array
_SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class RankRates:
  """How likely each token of N texts is the child of each rank.

  Attributes:
    by_depth: [D, N, T, K, K] float64: at [d, n, t, k - 1, b] the chance that
      token t of text n was accepted as the child of rank b where k children
      were drafted d + 1 levels below the root, given that the token was
      written. It is 0 for b >= k, and after the end of a text. D is 1 where the
      chance is the same at each depth.
    first_drafts: whether the first block of a text drafts; see
      `ModelPair.first_block_drafts`.
  """

  by_depth: np.ndarray
  first_drafts: bool = True

  def at(self, depth: int) -> np.ndarray:
    """Returns the chances of a depth, [N, T, K, K].

    Args:
      depth: the levels below the root, from 1 on.
    """
    return self.by_depth[min(depth, len(self.by_depth)) - 1]


def rank_rates_along(
  study: Study,
  point: Point,
  texts: Decoded,
  *,
  drawing: Drawing,
  verification: str,
  max_children: int,
  max_depth: int = 1,
) -> RankRates:
  """Returns how likely each token of the texts is the child of each rank.

  Without replacement the children depend on each other. There one set of
  children is drawn at each place, and the numbers are unbiased estimates, which
  may exceed 1.

  The children that a model drafts are accepted alike at each depth. Of draft
  heads each depth has its own head. A target that uses the heads' distribution
  depends on the depth, too: for such a target the numbers are estimates.

  Args:
    study: the pair of models, and the N sources.
    point: a method with a target, which wrote the texts.
    texts: the texts that were written for the sources, of T tokens at most.
    drawing: how children are chosen.
    verification: "token" or "k_seq". The numbers of "token" are also a lower
      bound of what "traversal" accepts in the mean.
    max_children: K.
    max_depth: the most levels of a tree, at most as many as draft heads give
      distributions.
  """
  target, has_heads = point.spec.target, study.pair.has_heads
  num_depths = max_depth if has_heads else 1
  shape = (*texts.tokens.shape, max_children, max_children)
  rates = np.zeros((num_depths, *shape))
  key = jax.random.key(_SEED)
  for number, (here, tokens, by_depth) in enumerate(
    _laws_by_depth(study, point, texts, num_depths)
  ):
    batch_key = jax.random.fold_in(key, number)
    for d, laws in enumerate(by_depth):
      of_rows = _rank_rates(
        target,
        point.decoder_alpha,
        laws,
        tokens,
        jax.random.fold_in(batch_key, d) if has_heads else batch_key,
        drawing=drawing,
        verification=verification,
        max_children=max_children,
        greedy=point.is_greedy,
      )
      rates[d, here] = of_rows[: here.stop - here.start]
  first_drafts = study.pair.first_block_drafts
  if has_heads:
    for d in range(num_depths):
      rates[d, :, : least_place(d, first_drafts)] = 0
  rates = np.where(is_inside(texts)[..., None, None], rates, 0)
  return RankRates(rates, first_drafts)


def _laws_by_depth(
  study: Study, point: Point, texts: Decoded, num_depths: int
) -> Iterator[tuple[slice, np.ndarray, list]]:
  """Yields what `laws_along` yields, with the laws of drafts of each depth."""
  if not study.pair.has_heads:
    for here, tokens, laws in laws_along(study, point.sampling, texts):
      yield here, tokens, [laws]
    return
  for here, tokens, by_head, verifier in head_laws_along(
    study, point.sampling, texts, num_depths
  ):
    yield here, tokens, [[drafter, verifier] for drafter in by_head]


@functools.partial(
  jax.jit,
  static_argnums=0,
  static_argnames=("drawing", "verification", "max_children", "greedy"),
)
def _rank_rates(
  target,
  alpha,
  laws,
  tokens: Array,
  key: Array,
  *,
  drawing: Drawing,
  verification: str,
  max_children: int,
  greedy: bool,
) -> Array:
  """Returns `rank_rates_along` of a batch of texts, [B, T, K, K]."""
  (q1, q), (p1, p) = laws
  pi = target.probs(q1, p1, alpha=alpha, sampled=(q, p))
  u = jax.random.uniform(key, (*tokens.shape, max_children))
  rows = []
  for num in range(1, max_children + 1):
    if verification == "k_seq" and not greedy:
      rates = _of_k_seq(q, pi, tokens, num)
    else:
      children = draw_children(q, q1, u[..., :num], drawing, greedy=greedy)
      rates = _of_children(q, pi, tokens, *children, drawing)
    rates += [jnp.zeros_like(rates[0])] * (max_children - num)
    rows.append(jnp.stack(rates, axis=-1))
  # Of a token that the target cannot write nothing is known.
  of_text = numerics.of_token(pi, tokens)[..., None, None]
  return numerics.ratio(jnp.stack(rows, axis=-2), of_text)


def _of_k_seq(q: Array, pi: Array, tokens: Array, num: int) -> list[Array]:
  """Returns `_of_children` of `num` independent draws that K-SEQ verifies."""
  count = jnp.full(tokens.shape, num, q.dtype)
  _, common, chance, _ = k_seq_factor(q, pi, count)
  of_text = numerics.of_token(common, tokens)
  return [(1 - chance) ** rank * of_text for rank in range(num)]


def _of_children(
  q: Array,
  pi: Array,
  tokens: Array,
  children: Array,
  is_certain: Array,
  drawing: Drawing,
) -> list[Array]:
  """Returns the chances that each child is accepted and is the text's token.

  The steps are those of `tree_steps.token_verify`. A drawn child is averaged
  over its own draw, so that only draws before it matter.

  Args:
    q: [B, T, V], the law of the drafter before each token.
    pi: [B, T, V], the target.
    tokens: [B, T] int32, the texts.
    children: [B, T, K] int32.
    is_certain: [B, T, K] bool.
    drawing: how the children were chosen.

  Returns:
    K arrays [B, T].
  """
  num = children.shape[-1]
  ids = jax.lax.broadcasted_iota(jnp.int32, q.shape, q.ndim - 1)
  law, residual = q, pi
  if drawing != IID:
    for rank in range(num):
      taken = ids == children[..., rank, None]
      taken &= is_certain[..., rank, None]
      law = jnp.where(taken, 0, law)
    law = numerics.normalise(law, q)
  # The chance that all trials before failed.
  reach = jnp.ones(tokens.shape, q.dtype)
  chances = []
  for rank in range(num):
    child, is_drawn = children[..., rank], ~is_certain[..., rank]
    common = jnp.minimum(law, residual)
    chances.append(
      jnp.where(is_drawn, reach * numerics.of_token(common, tokens), 0)
    )
    missed = 1 - jnp.sum(common, axis=-1)
    after = law
    if drawing == WITHOUT_REPLACEMENT:
      accepted = numerics.ratio(
        numerics.of_token(residual, child), numerics.of_token(law, child)
      )
      missed = 1 - jnp.minimum(1, accepted)
      after = jnp.where(ids == child[..., None], 0, law)
      after = numerics.normalise(after, law)
    reach = jnp.where(is_drawn, reach * jnp.maximum(missed, 0), reach)
    left = numerics.residual(residual, law)
    residual = jnp.where(is_drawn[..., None], left, residual)
    law = jnp.where(is_drawn[..., None], after, law)
  # The draw after all trials may be a certain child.
  of_text = reach * numerics.of_token(residual, tokens)
  return [
    chance
    + jnp.where(
      is_certain[..., rank] & (children[..., rank] == tokens), of_text, 0
    )
    for rank, chance in enumerate(chances)
  ]


def by_depth(rates: RankRates, texts: Decoded, max_depth: int) -> np.ndarray:
  """Returns the acceptance by depth, number of children and rank.

  A block is as likely to begin at each token of a text as at any other one. The
  places at a depth count with the chance that a chain of drafts reaches them.
  The first block of a text does not count where it drafts nothing.

  Args:
    rates: what `rank_rates_along` returns.
    texts: the N texts.
    max_depth: D.

  Returns:
    [D, K, K] float64, in [0, 1].
  """
  inside = is_inside(texts)
  weights = inside.astype(np.float64)
  if not rates.first_drafts:
    weights[:, 0] = 0
  result = np.zeros((max_depth, *rates.at(1).shape[2:]))
  for depth in range(max_depth):
    total, here = weights.sum(), rates.at(depth + 1)
    if total > 0:
      result[depth] = np.einsum("nt,ntkb->kb", weights, here) / total
    # The chain goes on where its only child was accepted.
    passed = weights * here[..., 0, 0]
    weights = np.zeros_like(weights)
    weights[:, 1:] = passed[:, :-1] * inside[:, 1:]
  result = np.clip(result, 0, 1)
  # Estimates without replacement may exceed 1 in sum.
  return result / np.maximum(result.sum(axis=-1, keepdims=True), 1)


def tokens_per_block(
  rates: RankRates, texts: Decoded, parents: Sequence[int]
) -> float:
  """Returns the tokens of a block of a tree, over blocks that write the texts.

  As in `speedup.blocks_of_texts`, the chance that a block begins at each token
  is carried along the texts; here a path of the tree is accepted, or a part of
  it.

  Args:
    rates: what `rank_rates_along` returns.
    texts: the N texts.
    parents: the tree, level by level, -1 is the root.
  """
  num, length = texts.tokens.shape
  reach, depths = _path_chances(rates, parents)
  depth = max(depths, default=0)
  inside = is_inside(texts)
  # The chance that a block from each token accepts d drafts at least.
  at_least = np.zeros((depth + 2, num, length))
  at_least[0] = 1
  for chance, d in zip(reach, depths):
    at_least[d] += chance
  at_least = np.minimum.accumulate(np.clip(at_least, 0, 1), axis=0)
  begins = np.zeros((num, length + depth + 1))
  begins[:, 0] = 1
  if not rates.first_drafts:
    begins[:, 1] = 1
  for start in range(0 if rates.first_drafts else 1, length):
    begins[:, start] *= inside[:, start]
    for accepted in range(depth + 1):
      ends = at_least[accepted, :, start] - at_least[accepted + 1, :, start]
      begins[:, start + accepted + 1] += begins[:, start] * ends
  return float(inside.sum() / begins[:, :length].sum())


def _path_chances(
  rates: RankRates, parents: Sequence[int]
) -> tuple[list[np.ndarray], list[int]]:
  """Returns the chance [N, T] that a block accepts each node, and its depth.

  A block begins at token t. Past the end of the texts the chance is 0.
  """
  num_children = {parent: list(parents).count(parent) for parent in parents}
  chances: list[np.ndarray] = []
  depths: list[int] = []
  ranks = dict.fromkeys(num_children, 0)
  for parent in parents:
    depth = 1 if parent == ROOT else depths[parent] + 1
    here = rates.at(depth)[:, :, num_children[parent] - 1, ranks[parent]]
    ranks[parent] += 1
    # The child of depth d of a block from t is token t + d - 1.
    shifted = np.zeros_like(here)
    width = max(0, here.shape[1] - depth + 1)
    shifted[:, :width] = here[:, depth - 1 :]
    before = 1.0 if parent == ROOT else chances[parent]
    chances.append(before * shifted)
    depths.append(depth)
  return chances, depths
