"""What a kernel for a GPU reviews a chain of drafts by.

Axes: B rows, G drafts, V vocabulary.
"""

from typing import Any

from flax import struct
import jax

from speccascade.native.gpu.chain_review import DraftScores

Array = jax.Array


class BlockScores(struct.PyTreeNode):
  """The scores of a chain's drafts, and the block that they are of.

  Attributes:
    drafts: `DraftScores`.
    tokens: as in the `Proposal` that was drafted with them.
    count: as in that `Proposal`.
    q: as in that `Proposal`.
    q1: as in that `Proposal`.
  """

  drafts: DraftScores
  tokens: Array
  count: Array
  q: Array
  q1: Array

  def are_of(self, proposal: Any) -> bool:
    """Whether a proposal is the block, in which nothing was changed since."""
    return (
      self.tokens is proposal.tokens
      and self.count is proposal.count
      and self.q is proposal.q
      and self.q1 is proposal.q1
    )
