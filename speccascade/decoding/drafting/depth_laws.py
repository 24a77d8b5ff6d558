"""Blocks whose drafts at one depth have one distribution, whatever came before.

Draft heads and look-ahead embeddings propose such blocks: they know the
distributions of all depths before they draw the first draft.

Axes: B rows, G depth of a block, N drafts, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.children import branches_of, draw_level
from speccascade.decoding.drafting.kept_tokens import ColumnReader
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records.block_records import Branches, Proposal
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.records.draft_tree import (
  NO_NODE,
  DraftTree,
  Drawing,
)
from speccascade.decoding.records.drafter import Drafter

Array = jax.Array


class DepthDrafter(Drafter):
  """Base of drafters whose drafts at one depth have one distribution.

  A drafter that inherits it has these fields, and calls `draft` in `propose`.

  Attributes:
    depth: static, the drafts of a chain; the depth of a tree, if there is one.
    tree: static, the shape of a block; None drafts a chain.
    drawing: static, how the children of a node are chosen, where a block is a
      tree; see `draft_tree.DRAWINGS`.
  """

  depth: int
  tree: DraftTree | None
  drawing: Drawing

  @property
  def width(self) -> int:
    return self.depth if self.tree is None else self.tree.num_drafts

  def check_review(
    self, target: Target | None, settings: ReviewSettings
  ) -> None:
    """Raises ValueError where a review has no distribution with such blocks."""
    check_review(target, settings)

  @property
  def most_children(self) -> int:
    """The most drafts that follow one node of a block."""
    return 1 if self.tree is None else max(self.tree.num_children)

  def draft(
    self,
    logits: Array,
    rngs: Array,
    sampling: Sampling,
    known: Array,
    reader: ColumnReader,
  ) -> Proposal:
    """Returns a block of independent drafts.

    Each draft is drawn from the distribution of its depth, which is the
    distribution that the proposal states. So the verification is exact.

    Args:
      logits: [B, G or G+1, V], of each depth; the last of G + 1 are those at
        the position after the last draft. They are over the columns of
        `reader`.
      rngs: [B] typed keys.
      sampling: how logits become distributions.
      known: [B] bool, rows that propose anything.
      reader: what gave the logits.
    """
    tree, depth = self.tree, self.depth
    has_bonus = logits.shape[1] > depth
    u = draws.uniforms(rngs, self.width)
    if tree is None:
      drawn = jnp.pad(u, ((0, 0), (0, has_bonus)))[..., None]
      q1, q, drafts, is_law = sampling.step(logits, drawn)
      drafts = drafts[:, :depth]
    else:
      q1, q, _, is_law = sampling.step(logits)
    if not has_bonus:
      q1, q = (jnp.pad(x, ((0, 0), (0, 1), (0, 0))) for x in (q1, q))
      is_law = jnp.pad(is_law, ((0, 0), (0, 1)), constant_values=True)
    bad = ~is_law & known[:, None]
    branches = None
    if tree is not None:
      drafts, branches = _draw_tree(
        tree, self.drawing, q, q1, known, u, sampling
      )
      depths = tree.node_depths
      q, q1, bad = q[:, depths], q1[:, depths], bad[:, depths]
    calls = known.astype(jnp.int32)
    return Proposal(
      tokens=reader.token(drafts),
      count=self.width * calls,
      q=reader.spread(q),
      q1=reader.spread(q1),
      copied=jnp.zeros_like(bad),
      calls=calls[:, None],
      bad=bad,
      has_bonus_law=known if has_bonus else False,
      branches=branches,
    )


def _draw_tree(
  tree: DraftTree,
  drawing: Drawing,
  q: Array,
  q1: Array,
  known: Array,
  u: Array,
  sampling: Sampling,
) -> tuple[Array, Branches]:
  """Draws a tree whose nodes of one depth have one distribution."""
  depths = tree.node_depths

  def laws(nodes: Sequence[int]) -> tuple[Array, Array]:

    def at(x: Array) -> Array:
      return jnp.stack([x[:, depths[node]] for node in nodes], axis=1)

    return at(q), at(q1)

  drawn = [
    draw_level(level, tree, laws, u, drawing, greedy=sampling.greedy)
    for level in tree.levels
  ]
  drafts, certain = (jnp.concatenate(x, axis=1) for x in zip(*drawn))
  branches = branches_of(drafts, certain, tree, drawing, greedy=sampling.greedy)
  # The drafts of a row that proposes nothing follow no node.
  parents = jnp.where(known[:, None], branches.parents, NO_NODE)
  return drafts, branches.replace(parents=parents)


def check_review(target: Target | None, settings: ReviewSettings) -> None:
  """Checks that a review has a stated distribution with such blocks.

  Which distribution a draft has depends on where the draft's block began, and
  so does a target that uses the drafter's distribution. A verification that
  weighs whole blocks is exact only where the target does not depend on the
  block.

  Args:
    target: a `Target`.
    settings: `ReviewSettings`.

  Raises:
    ValueError: the distribution would not be a stated one.
  """
  uses_q = target is None or target.uses_q
  if uses_q and settings.verification in ("block", "traversal"):
    raise ValueError(
      f"verification is {settings.verification!r}, and the target uses the"
      " distribution of each draft, which depends on where a block begins: the"
      " output would have no stated distribution; set verification 'token', or"
      " use a method whose target is the verifier"
    )
