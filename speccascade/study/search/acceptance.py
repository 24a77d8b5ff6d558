"""How likely drafts are accepted along given texts, for every rule at once.

Both models read the texts once. Each target distribution is a function of the
two models' distributions, so the acceptance of every rule and alpha follows
without decoding with it. A text that a target's own chain wrote gives the
target's acceptance exactly, see `analysis.blocks`. Along the verifier's texts
the acceptance is estimated by sum_v min(q, pi), which is the chance that a
draft is accepted after a prefix that the verifier wrote.

For draft heads and a target that is the verifier the acceptance is exact,
because the verifier wrote the texts. A target that uses the heads' distribution
writes other texts for other beginnings of blocks; its acceptance along the
verifier's texts is an estimate.

The functions return rates [D, K, K, ..., N, T] as `analysis.blocks` takes them:
by depth, number of children and rank. D is 1 where a language model drafts, and
K is 1 for chains.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.drafting.children import draw_children
from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.draft_tree import (
  IID,
  WITHOUT_REPLACEMENT,
  Drawing,
)
from speccascade.decoding.verification.tree_steps import k_seq_factor
from speccascade.generate import teacher_forcing
from speccascade.generate.points.point import Point
from speccascade.study.measuring.study import Study
from speccascade.study.papers import draft_acceptance
from speccascade.study.search.draft_kinds import kind_of

Array = jax.Array
_SEED = 0
_NUM_PLACES = 32  # at which the optimum is worked out


def laws_along(
  study: Study, sampling: Sampling, texts: Decoded, num_depths: int = 1
) -> Iterator[tuple[slice, np.ndarray, list, tuple]]:
  """Yields the distributions of both models before each token of texts.

  Args:
    study: the pair of models, and the N sources.
    sampling: how logits become distributions.
    texts: the texts that were written for the sources, of T tokens at most.
    num_depths: D, how many drafts of a block are asked for, the first ones.

  Yields:
    The rows of a batch as a slice of the N; their tokens [B, T] int32, where
    the last batch is filled up with rows that mean nothing; for each of the D
    drafts the distributions that it drafts each token from, and those of the
    verifier: two arrays [B, T, V] each, at temperature 1 and as they are drawn
    from. Values of tokens before `least_place` are undefined.
  """
  pair, examples = study.pair, study.examples
  num, length = texts.tokens.shape
  size = length * pair.verifier_lm.vocab_size * num_depths
  rows = min(num, teacher_forcing.most_rows(size))
  for start in range(0, num, rows):
    # The last batch is filled up to `rows` texts, so that one program reads all
    # batches.
    here = slice(start, min(num, start + rows))
    batch = study.session.pad_examples(examples[here], rows)
    tokens = np.zeros((rows, length), np.int32)
    tokens[: here.stop - start] = texts.tokens[here]
    drafter = pair.drafter_of(batch, length)
    by_depth, verifier = kind_of(pair).laws(
      drafter, pair.verifier_lm, sampling, num_depths, batch, tokens
    )
    yield here, tokens, by_depth, verifier


def least_place(draft: int, first_drafts: bool) -> int:
  """Returns the first place of a text that a draft reaches.

  Args:
    draft: 0 for the first draft of a block, and so on.
    first_drafts: whether the first block of a text drafts; if not, it writes
      one token.
  """
  return draft if first_drafts else draft + 1


def rates_along(
  study: Study,
  points: Sequence[Point],
  texts: Decoded,
  *,
  is_own: bool,
  max_depth: int = 1,
  is_over: Callable[[], bool] = lambda: False,
) -> np.ndarray:
  """Returns how likely the draft of each token of each text is accepted.

  Args:
    study: the pair of models, and the N sources.
    points: A methods with a target; all points have one sampling.
    texts: the texts that were written for the sources, of T tokens at most.
    is_own: whether the texts were written by the chain of the points' target.
      The verifier's texts always are texts of a lossless method's chain.
    max_depth: the longest chain in question.
    is_over: asked before each target but the first is compiled; True leaves the
      others out, whose rates are NaN.

  Returns:
    [D, 1, 1, A, N, T] float64 in [0, 1]; 0 after the end of a text, and for the
    first tokens of a text, which no such draft reaches.
  """
  num_depths = kind_of(study.pair).num_depths(max_depth)
  rates = np.full((num_depths, len(points), *texts.tokens.shape), np.nan)
  groups = _group_by_target(points)
  for here, tokens, by_depth, verifier in laws_along(
    study, points[0].sampling, texts, num_depths
  ):
    for number, (target, places, alphas) in enumerate(groups):
      # The first batch compiles the programs of all batches.
      if number and here.start == 0 and is_over():
        groups = groups[:number]
        break
      for depth, drafter in enumerate(by_depth):
        of_rows = _target_rates(
          target,
          is_own or target.is_lossless,
          alphas,
          (drafter, verifier),
          tokens,
        )
        rates[depth, places, here] = of_rows[:, : here.stop - here.start]
  rates = _where_drafted(np.clip(rates, 0, 1), study, texts)
  return rates[:, None, None]


def _group_by_target(
  points: Sequence[Point],
) -> list[tuple[Target, list[int], Any]]:
  """Returns each target of some points, with its points and their alphas."""
  places_by_target = {}
  for place, point in enumerate(points):
    places_by_target.setdefault(point.spec.target, []).append(place)
  groups = []
  for target, places in places_by_target.items():
    # The alphas of a learned rule share its parameters.
    stacked = [points[i].decoder_alpha for i in places]
    alphas = jax.tree.map(
      lambda *each: jnp.asarray(each, jnp.float32), *stacked
    )
    groups.append((target, places, alphas))
  return groups


def _where_drafted(
  rates: np.ndarray, study: Study, texts: Decoded
) -> np.ndarray:
  """Returns rates [D, ..., N, T], 0 where no such draft is."""
  places = np.arange(texts.tokens.shape[1])
  inside = places < np.asarray(texts.lengths)[:, None]
  rates = np.where(inside, rates, 0)
  for depth in range(len(rates)):
    least = least_place(depth, study.pair.first_block_drafts)
    rates[depth, ..., :least] = 0
  return rates


@functools.partial(jax.jit, static_argnums=(0, 1))
def _target_rates(target, is_own, alphas, laws, tokens):
  """Returns the acceptance [A, B, T] of one target at each of its alphas."""
  (q1, q), (p1, p) = laws

  def rates_at(alpha):
    pi = target.probs(q1, p1, alpha=alpha, sampled=(q, p))
    if not is_own:
      return numerics.overlap(q, pi)
    # min(q, pi)(x) / pi(x): given that x was written, the chance that x is a
    # draft that was accepted.
    both = numerics.of_token(jnp.minimum(q, pi), tokens)
    return numerics.ratio(both, numerics.of_token(pi, tokens))

  return jax.lax.map(rates_at, alphas)


def rank_rates_along(
  study: Study,
  point: Point,
  texts: Decoded,
  *,
  drawing: Drawing,
  verification: str,
  max_children: int,
  max_depth: int = 1,
) -> np.ndarray:
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

  Returns:
    [D, K, K, N, T] float64; 0 for ranks without a child, and after the end of a
      text.
  """
  kind = kind_of(study.pair)
  num_depths = kind.num_depths(max_depth)
  by_rank = (num_depths, max_children, max_children)
  rates = np.zeros((*by_rank, *texts.tokens.shape))
  key = jax.random.key(_SEED)
  for number, (here, tokens, by_depth, verifier) in enumerate(
    laws_along(study, point.sampling, texts, num_depths)
  ):
    batch_key = jax.random.fold_in(key, number)
    for depth, drafter in enumerate(by_depth):
      of_rows = _rank_rates(
        point.spec.target,
        point.decoder_alpha,
        (drafter, verifier),
        tokens,
        jax.random.fold_in(batch_key, depth) if kind.has_depths else batch_key,
        drawing=drawing,
        verification=verification,
        max_children=max_children,
        greedy=point.is_greedy,
      )
      of_rows = np.moveaxis(of_rows[: here.stop - here.start], (2, 3), (0, 1))
      rates[depth, :, :, here] = of_rows
  return _where_drafted(rates, study, texts)


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
  """Returns the rates of a batch of texts, [B, T, K, K]."""
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
  """Returns the chances that each child is accepted and is the text's token."""
  # The steps are those of `tree_steps.tree_token_verify`. A drawn child is
  # averaged over its own draw, so that only draws before it matter.
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


def shares_of_optimum(
  study: Study,
  point: Point,
  nums: Collection[int],
  rates: np.ndarray,
  texts: Decoded,
  drawing: Drawing,
) -> dict[int, float]:
  """Returns the acceptance at the first place of a block over the largest one.

  It is the mean over places of the first texts.

  Args:
    study: the pair, and the sources of the texts.
    point: the method and its sampling.
    nums: the numbers of drafts at the first place.
    rates: what `rank_rates_along` returns.
    texts: the texts of the rates.
    drawing: how several drafts are chosen.

  Returns:
    The share by the number of drafts. It is empty at temperature 0, where every
    way of drawing and verifying is one, and where nothing is drafted.
  """
  if point.is_greedy:
    return {}
  here, _, (drafter, *_), verifier = next(
    laws_along(study, point.sampling, texts)
  )
  lengths = np.asarray(texts.lengths)[here]
  first = least_place(0, study.pair.first_block_drafts)
  places = [
    (row, t) for row, length in enumerate(lengths) for t in range(first, length)
  ]
  if not places:
    return {}
  chosen = np.linspace(0, len(places) - 1, min(_NUM_PLACES, len(places)))
  rows, columns = np.array([places[int(i)] for i in chosen]).T
  (q1, q), (p1, p) = [
    [np.asarray(law)[rows, columns] for law in model]
    for model in (drafter, verifier)
  ]
  pi = point.spec.target.probs(
    q1, p1, alpha=point.decoder_alpha, sampled=(q, p)
  )
  shares = {}
  for num in nums:
    optimum = draft_acceptance.optimal_acceptance(
      q, np.asarray(pi), num, IID if num == 1 else drawing, plain=q1
    )
    accepted = rates[0, num - 1][:, here][:, rows, columns].sum(axis=0)
    shares[num] = float(min(1, accepted.mean() / optimum.mean()))
  return shares
