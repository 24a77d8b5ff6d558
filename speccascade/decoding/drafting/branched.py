"""A chain of drafts with siblings next to its first draft."""

import functools
from typing import Any, ClassVar

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.drafting.children import (
  check_num_children,
  draw_children,
)
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records.block_records import Branches, Proposal
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.records.draft_tree import (
  NO_NODE,
  ROOT,
  WITHOUT_REPLACEMENT,
  DraftTree,
  Drawing,
)
from speccascade.decoding.records.drafter import Drafter, refuse_tree
from speccascade.decoding.records.language_model import State
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array
_SIBLING_TAG = 2**30  # beside the keys of the chain, which count from 0
_NO_LAW = (
  "a BranchedDrafter has no distribution after the siblings of its first draft;"
  " use a method whose target is the verifier, or the bonus 'verifier'"
)


@functools.cache
def _tree(num_first: int, length: int) -> DraftTree:
  """Returns the shape of a chain with siblings next to its first draft."""
  # The first draft is the chain's, then its siblings, then the chain.
  rest = length - 1
  chain = [0, *range(num_first, num_first + rest - 1)][:rest]
  return DraftTree((ROOT,) * num_first + tuple(chain))


class BranchedDrafter(Drafter, struct.PyTreeNode):
  """Drafts a chain, and further tokens for the place of its first draft.

  The first token of a block is rejected more often than any other one is
  reached, and a rejected first draft loses the whole block. Its siblings cost
  no pass of a drafter. They are drawn from the distribution of the first draft
  without the tokens drawn before. At temperature 0 they are the likeliest other
  tokens.

  Nothing follows a sibling, and the drafter has no distribution there. So the
  target there is the verifier: methods whose target uses the drafter's
  distribution take this drafter with the bonus "verifier" alone.

  Attributes:
    drafter: drafts chains; a cascade of drafters, for example.
    num_first: static, the number of drafts for the first place, 2 or more.

  Source: Chen et al., "Cascade Speculative Drafting" (arXiv 2312.11462), with
  more than one token on the leading node.
  """

  drafter: Drafter
  num_first: int = struct.field(pytree_node=False)

  drawing: ClassVar[Drawing] = WITHOUT_REPLACEMENT

  @property
  def parts(self) -> tuple[Drafter]:
    return (self.drafter,)

  @property
  def tree(self) -> DraftTree:
    return _tree(self.num_first, self.drafter.width)

  @property
  def width(self) -> int:
    return self.drafter.width + self.num_first - 1

  def check_review(
    self, target: Target | None, settings: ReviewSettings
  ) -> None:
    """Raises ValueError where a distribution or a sibling would be missed."""
    if (target is None or target.uses_q) and settings.bonus == "target":
      raise ValueError(_NO_LAW)
    chain = self.drafter
    if (
      isinstance(chain, AutoregressiveDrafter)
      and chain.stop is not None
      and chain.behind < 1
    ):
      # Its pass reads the last token alone, and after a sibling two are new.
      raise ValueError(
        "the chain of a BranchedDrafter stops early and has behind=0, which"
        " does not read an accepted sibling; give the chain behind=2"
      )

  def keep(
    self, state: tuple[State], length: Array, path: Array, count: Array
  ) -> tuple[State]:
    """Keeps nothing of the chain where a sibling was accepted."""
    is_chain = path[:, 0] == 0
    return self.rewind(state, length + jnp.where(is_chain, count, 0))

  def propose(
    self,
    state: tuple[State],
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[tuple[State], Proposal]:
    """Drafts the chain, then siblings of its first draft.

    Raises:
      ValueError: the drafter drafts trees, a distribution is asked for where a
        sibling was drafted, or there are fewer tokens than first drafts.
    """
    refuse_tree(self.drafter, "a BranchedDrafter")
    if needs_bonus_law:
      raise ValueError(_NO_LAW)
    held, chain = self.drafter.propose(
      state[0], prefix, rngs, sampling, needs_bonus_law=False
    )
    siblings, is_certain = self._draw_siblings(chain, rngs, sampling)
    num, tree = self.num_first, self.tree
    drafts = jnp.arange(tree.num_drafts, dtype=jnp.int32)[None]

    def by_draft(first: Any, others: Any, rest: Any) -> Array:
      return jnp.concatenate([first, others, rest], axis=1)

    def by_node(values: Array) -> Array:
      """Returns values [B, N+1, ...] of the chain's [B, G+1, ...]."""
      # The siblings' nodes have none.
      none = jnp.zeros((values.shape[0], num - 1, *values.shape[2:]))
      return by_draft(values[:, :2], none.astype(values.dtype), values[:, 2:])

    # A row with an empty block has no siblings either. Later drafts that a row
    # lacks are at its end, as in a chain.
    count = jnp.where(chain.count > 0, chain.count + num - 1, 0)
    parents = jnp.asarray(np.array(tree.parents, np.int32) + 1)[None]
    writer = chain.writers()
    beside = jnp.broadcast_to(writer[:, :1], (writer.shape[0], num - 1))
    is_drawn = jnp.zeros(chain.tokens.shape, bool)
    return (held,), Proposal(
      tokens=by_draft(chain.tokens[:, :1], siblings, chain.tokens[:, 1:]),
      count=count,
      q=by_node(chain.q),
      q1=by_node(chain.q1),
      copied=by_node(chain.copied),
      calls=chain.calls,
      bad=by_node(chain.bad),
      writer=by_draft(writer[:, :1], beside, writer[:, 1:]),
      branches=Branches(
        tree=tree,
        drawing=WITHOUT_REPLACEMENT,
        parents=jnp.where(drafts < count[:, None], parents, NO_NODE),
        is_certain=by_draft(is_drawn[:, :1], is_certain, is_drawn[:, 1:]),
      ),
    )

  def _draw_siblings(
    self, chain: Proposal, rngs: Array, sampling: Sampling
  ) -> tuple[Array, Array]:
    """Returns tokens [B, K-1] int32, and [B, K-1] bool whether certain."""
    q, confidence, first = chain.q[:, 0], chain.q1[:, 0], chain.tokens[:, :1]
    if not sampling.greedy:
      check_num_children(self.num_first, self.drawing, q.shape[-1])
    is_first = jax.lax.broadcasted_iota(jnp.int32, q.shape, 1) == first
    u = draws.uniforms(draws.fold_in(rngs, _SIBLING_TAG), self.num_first - 1)
    tokens, is_certain = draw_children(
      jnp.where(is_first, 0, q)[:, None],
      jnp.where(is_first, -jnp.inf, confidence)[:, None],
      u[:, None],
      WITHOUT_REPLACEMENT,
      greedy=sampling.greedy,
    )
    return tokens[:, 0], is_certain[:, 0]
