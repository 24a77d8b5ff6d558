"""How the children of a node are chosen, and which of them are certain.

A child is *drawn* or *certain*. A drawn child is a random token of a known
distribution, and the verifier tries it as it tries the draft of a chain. A
certain child is a function of the prefix. It needs no trial: the verifier draws
its own token, and where that token is a certain child, the path continues
through the child.

Axes: B rows, P parents, K children of each, V vocabulary, N drafts of a tree.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.decoding.laws import draws, numerics
from speccascade.decoding.records.block_records import Branches
from speccascade.decoding.records.draft_tree import (
  DRAWINGS,
  EXACT_FOR,
  GREEDY_AND_RANDOM,
  IID,
  TOP_K,
  WITHOUT_REPLACEMENT,
  DraftTree,
  Drawing,
)
from speccascade.native.gpu import row_children

Array = jax.Array


def check_verification(verification: str, drawing: str, drafter: str) -> None:
  """Checks that a verification of trees is exact for a drawing.

  Args:
    verification: a name in `tree_steps.TREE_VERIFY`.
    drawing: one of `DRAWINGS`.
    drafter: who draws, as the message is to call it.

  Raises:
    ValueError: the output would not have the distribution of the target.
  """
  wanted = EXACT_FOR.get(verification, DRAWINGS)
  if drawing not in wanted:
    raise ValueError(
      f"verification is {verification!r}, which is exact for the drawing"
      f" {' or '.join(map(repr, wanted))} alone, and {drafter} draws by"
      f" {drawing!r}: set verification 'token' or 'traversal'"
    )


def check_num_children(num: int, drawing: str, vocab_size: int) -> None:
  """Checks that there are as many tokens as children of a node.

  Args:
    num: the children.
    drawing: one of `DRAWINGS`.
    vocab_size: V.

  Raises:
    ValueError: children would be drawn without replacement after all tokens
      have been drawn.
  """
  if drawing == WITHOUT_REPLACEMENT and num > vocab_size:
    raise ValueError(
      f"{num} drafts follow one token of a tree, drawn without replacement, and"
      f" the vocabulary has {vocab_size} tokens: draft at most {vocab_size}"
      " there"
    )


def draw_children(
  q: Array,
  confidence: Array,
  u: Array,
  drawing: Drawing,
  *,
  greedy: bool,
) -> tuple[Array, Array]:
  """Returns the children of each parent, in the order in which they are tried.

  Where q has fewer tokens than children are wanted, the tokens that are left
  become certain children, the likeliest at temperature 1 first.

  Args:
    q: [B, P, V], the distribution at each parent.
    confidence: [B, P, V], the drafter's confidence there.
    u: [B, P, K] uniforms in [0, 1), one for each child.
    drawing: static, one of `DRAWINGS`.
    greedy: static, whether at temperature 0: every child is certain then, and
      the children are the likeliest tokens.

  Returns:
    Tokens [B, P, K] int32, and [B, P, K] bool whether each is certain.

  Raises:
    ValueError: more children than the vocabulary has tokens are to be drawn
      without replacement.

  Source: independent draws, Miao et al. (SpecInfer, arXiv 2305.09781); draws
  without replacement, Jeon et al. (arXiv 2402.14160); greedy and one random, Hu
  et al. (arXiv 2502.18779).
  """
  num = u.shape[-1]
  if not greedy:
    check_num_children(num, drawing, q.shape[-1])
  if greedy or drawing == TOP_K:
    num_drawn = 0
  elif drawing == GREEDY_AND_RANDOM:
    num_drawn = 1
  else:
    num_drawn = num
  ways: dict[str, Any] = {
    "num_certain": num - num_drawn,
    "drops": drawing != IID,
    "greedy": greedy,
  }
  if native.takes(q, confidence, u):
    return native.tree_children(
      q,
      # Independent draws read the distribution alone.
      q if num_drawn == num and drawing == IID else confidence,
      u,
      **ways,
    )
  rows = [x.reshape(-1, x.shape[-1]) for x in (q, confidence, u)]
  kernel = row_children.choose(None, *rows, **ways)
  if kernel != "xla":
    children, are_certain = row_children(*rows, **ways, implementation=kernel)
    return children.reshape(u.shape), are_certain.reshape(u.shape)
  # The order in which certain children are taken: tokens of q first.
  order = confidence if greedy else jnp.where(q > 0, q, confidence - 2)
  ids = jax.lax.broadcasted_iota(jnp.int32, q.shape, q.ndim - 1)
  tokens, certain = [], []
  for _ in range(num - num_drawn):
    token = numerics.first_argmax(order)
    tokens.append(token)
    certain.append(jnp.ones(token.shape, bool))
    order = jnp.where(ids == token[..., None], -jnp.inf, order)
    q = jnp.where(ids == token[..., None], 0, q)
  for k in range(num - num_drawn, num):
    token = draws.draw(q, u[..., k].astype(q.dtype))
    is_empty = jnp.zeros(token.shape, bool)
    if drawing != IID:
      is_empty = numerics.max_prob(q) <= 0
      token = jnp.where(is_empty, numerics.first_argmax(order), token)
      order = jnp.where(ids == token[..., None], -jnp.inf, order)
      q = jnp.where(ids == token[..., None], 0, q)
    tokens.append(token)
    certain.append(is_empty)
  return jnp.stack(tokens, axis=-1), jnp.stack(certain, axis=-1)


def draw_level(
  level: tuple[int, ...],
  tree: DraftTree,
  laws: Callable[[Sequence[int]], tuple[Array, Array]],
  u: Array,
  drawing: Drawing,
  *,
  greedy: bool,
) -> tuple[Array, Array]:
  """Draws the drafts of one level of a tree.

  Args:
    level: the W drafts of the level.
    tree: static, the shape of the tree.
    laws: a function from P nodes that the level follows to (q, confidence)
      there, [B, P, V] each; see `draw_children`.
    u: [B, N] uniforms, one for each draft of the tree.
    drawing: static, one of `DRAWINGS`.
    greedy: static, whether at temperature 0.

  Returns:
    Tokens [B, W] int32 of the drafts, and [B, W] bool whether each is certain.
  """
  drafts: list[int] = []
  tokens, certain = [], []
  parents = sorted({tree.parents[draft] + 1 for draft in level})
  # Parents of as many children are taken together.
  for num in sorted({tree.num_children[node] for node in parents}):
    group = [node for node in parents if tree.num_children[node] == num]
    q, confidence = laws(group)
    members = [i for i in level if tree.parents[i] + 1 in group]
    shape = (u.shape[0], len(group), num)
    children, is_certain = draw_children(
      q, confidence, columns(u, members).reshape(shape), drawing, greedy=greedy
    )
    drafts += members
    tokens.append(children.reshape(u.shape[0], -1))
    certain.append(is_certain.reshape(u.shape[0], -1))
  order = [drafts.index(draft) for draft in level]
  return (
    columns(jnp.concatenate(tokens, axis=1), order),
    columns(jnp.concatenate(certain, axis=1), order),
  )


def columns(values: Array, index: Sequence[int]) -> Array:
  """Returns columns of values [B, N]; a slice where they stand in a row.

  XLA gathers other columns one by one.

  Args:
    values: [B, N].
    index: static, the numbers of the columns.
  """
  first, end = index[0], index[0] + len(index)
  if list(index) == list(range(first, end)):
    return values[:, first:end]
  return values[:, np.array(index)]


def branches_of(
  tokens: Array,
  is_certain: Array,
  tree: DraftTree,
  drawing: Drawing,
  *,
  greedy: bool,
) -> Branches:
  """Returns the tree that the drafts of all levels form.

  Args:
    tokens: [B, N] int32 drafts, as `draw_level` returns them.
    is_certain: [B, N] bool, as `draw_level` returns them.
    tree: static, their shape.
    drawing: static, how they were chosen.
    greedy: static, whether at temperature 0.
  """
  if drawing == IID and not greedy:
    parents = merge_siblings(tokens, tree)
  else:
    constant = np.array(tree.parents, np.int32) + 1
    parents = jnp.broadcast_to(jnp.asarray(constant)[None], tokens.shape)
  return Branches(
    tree=tree, drawing=drawing, parents=parents, is_certain=is_certain
  )


def merge_siblings(tokens: Array, tree: DraftTree) -> Array:
  """Returns the nodes that drafts follow once equal siblings are one.

  Independent draws may repeat a token. The draws stay drafts of their own,
  since the verifier tries each of them. What follows the later ones is given to
  the first one, at which the verifier may arrive: the children of equal
  siblings are all draws of one distribution.

  Args:
    tokens: [B, N] int32 drafts.
    tree: static, their shape.

  Returns:
    [B, N] int32 nodes: 0 is the root, and i + 1 is draft i.
  """
  rows = tokens.shape[0]
  # Of each draft so far: the node that it follows, and the node that it is
  # merged into.
  followed = jnp.zeros((rows, 0), jnp.int32)
  merged = jnp.zeros((rows, 0), jnp.int32)
  for level in tree.levels:
    parents = np.array([tree.parents[draft] for draft in level])
    if parents[0] < 0:
      nodes = jnp.zeros((rows, len(level)), jnp.int32)
    else:
      nodes = merged[:, parents]
    drafts = tokens[:, level[0] : level[-1] + 1]
    # [b, i, j]: draft j of the level repeats draft i, or the other way round.
    same = nodes[:, :, None] == nodes[:, None, :]
    same &= drafts[:, :, None] == drafts[:, None, :]
    first = jnp.argmax(same, axis=2).astype(jnp.int32)
    followed = jnp.concatenate([followed, nodes], axis=1)
    merged = jnp.concatenate([merged, level[0] + first + 1], axis=1)
  return followed
