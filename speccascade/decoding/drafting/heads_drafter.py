"""Draft heads: a drafter inside the verifier.

The heads read the hidden state that the verifier left at the last token that it
read, and draft all places of a block at once. So there is no second model, and
no second cache.

Axes: B rows, G depth of a block, N drafts, V vocabulary, K heads, D width of a
hidden state.
"""

from collections.abc import Sequence
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.block_records import Branches, Proposal
from speccascade.decoding.drafting.children import (
  GREEDY_AND_RANDOM,
  IID,
  Drawing,
  draw_level,
  merge_siblings,
)
from speccascade.decoding.drafting.draft_tree import DraftTree
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.types import Heads, LanguageModel

Array = jax.Array

# `HeadsState.read` of a row of which the verifier has left nothing.
_NOTHING = -1


class HeadsState(struct.PyTreeNode):
  """What draft heads remember of each row.

  Attributes:
    hidden: [B, D] float32, the verifier's hidden state at a token.
    read: [B] int32, the tokens of the row up to and including that token; -1
      where nothing has been read.
  """

  hidden: Array
  read: Array


class HeadsDrafter(struct.PyTreeNode):
  """Drafts with heads over the verifier's last hidden state.

  With n tokens in a row the verifier has read n - 1 of them, since it drew the
  last token itself. Its hidden state at token n - 1 gives the law of token n by
  its own output projection, and head k gives a law of token n + k. So head 1
  drafts the first token of a block, head 2 the second one, and so on.

  Each head looks at the hidden state alone: the stated law of draft j does not
  depend on the drafts before it, nor on the last token of the row. It is the
  law that draft j is drawn from, and so the verification is exact. In a tree
  all nodes of one depth have one law.

  In the first round, and after somebody else wrote tokens, there is no hidden
  state of the last token but one. The heads then propose nothing, and the round
  writes one token, which the verifier draws.

  At the place after the last draft the heads have a law where there is one more
  head than drafts in depth; else the target at that place is the verifier.

  Attributes:
    heads: the heads.
    verifier: the language model that the heads belong to. Heads may share its
      output projection.
    tree: static, the shape of a block; None drafts a chain.
    depth: static, the drafts of a chain; the depth of a tree, if there is one.
    drawing: static, how the children of a node are chosen, where a block is a
      tree; see `children.DRAWINGS`.

  Source: Cai et al., "Medusa" (arXiv 2401.10774); Stern et al., "Blockwise
  Parallel Decoding for Deep Autoregressive Models" (NeurIPS 2018). That drafts
  are drawn from the heads, and verified by the ratio of the verifier to the
  head, follows Leviathan et al. (arXiv 2211.17192).
  """

  heads: Heads
  verifier: LanguageModel
  depth: int = struct.field(pytree_node=False)
  tree: DraftTree | None = struct.field(pytree_node=False, default=None)
  drawing: Drawing = struct.field(pytree_node=False, default=GREEDY_AND_RANDOM)

  has_confidence = True

  @property
  def width(self) -> int:
    return self.depth if self.tree is None else self.tree.num_drafts

  @property
  def vocab_size(self) -> int:
    return self.heads.vocab_size

  @property
  def models(self) -> tuple[Any, ...]:
    # Heads are counted as a model: one evaluation of them is one call.
    return (self.heads,)

  def check_review(self, target: Any, settings: Any) -> None:
    """Raises ValueError where a review has no distribution with heads."""
    check_review(target, settings)

  def prefill(self, inputs: Array, *, capacity: int) -> HeadsState:
    rows = inputs.shape[0]
    return HeadsState(
      hidden=jnp.zeros((rows, self.heads.width), jnp.float32),
      read=jnp.full((rows,), _NOTHING, jnp.int32),
    )

  def rewind(self, state: HeadsState, length: Array) -> HeadsState:
    """See `Part`. Nothing is left of a row that is cut before its token."""
    read = jnp.where(state.read > length, _NOTHING, state.read)
    return state.replace(read=read)

  def keep(
    self, state: HeadsState, length: Array, path: Array, count: Array
  ) -> HeadsState:
    """See `Drafter`. What was read is before the drafts."""
    return state

  def catch_up(
    self, state: HeadsState, tokens: Array, upto: Array, *, wide: int
  ) -> HeadsState:
    """See `Drafter`. Of what others wrote the heads have no hidden state."""
    read = jnp.where(upto > state.read, _NOTHING, state.read)
    return state.replace(read=read)

  def observe(
    self, state: HeadsState, hidden: Array, node: Array, length: Array
  ) -> HeadsState:
    """Reads the hidden state of the last accepted token. See `Reader`.

    Raises:
      ValueError: the verifier leaves no hidden states.
    """
    if hidden is None:
      raise ValueError(
        f"a {type(self.verifier).__name__} leaves no hidden states, which draft"
        " heads read; give a drafter of its own"
      )
    last = jnp.take_along_axis(hidden, node[:, None, None], axis=1)[:, 0]
    return HeadsState(last.astype(state.hidden.dtype), length)

  def propose(
    self,
    state: HeadsState,
    tokens: Array,
    length: Array,
    rngs: Array,
    sampling: Sampling,
    *,
    bonus_law: bool,
    active: Array,
  ) -> tuple[HeadsState, Proposal]:
    """See `types.Drafter`."""
    # The verifier has read all tokens but the last one.
    known = active & (state.read == length - 1)
    num = self.depth
    has_bonus = bonus_law and self.heads.num_heads > num
    logits = self.heads.head_logits(
      self.verifier, state.hidden, num + has_bonus
    )
    u = draws.uniforms(rngs, self.width)
    if self.tree is None:
      drawn = jnp.pad(u, ((0, 0), (0, has_bonus)))[..., None]
      q1, q, drafts, is_law = sampling.step(logits, drawn)
      drafts = drafts[:, :num]
    else:
      q1, q, _, is_law = sampling.step(logits)
    if not has_bonus:
      q1, q = (jnp.pad(x, ((0, 0), (0, 1), (0, 0))) for x in (q1, q))
      is_law = jnp.pad(is_law, ((0, 0), (0, 1)), constant_values=True)
    bad = ~is_law & known[:, None]
    branches = None
    if self.tree is not None:
      drafts, branches = self._draw_tree(self.tree, q, q1, known, u, sampling)
      depths = self.tree.node_depths
      q, q1, bad = q[:, depths], q1[:, depths], bad[:, depths]
    calls = known.astype(jnp.int32)
    return state, Proposal(
      tokens=drafts,
      count=self.width * calls,
      q=q,
      q1=q1,
      copied=jnp.zeros_like(bad),
      calls=calls[:, None],
      bad=bad,
      knows_bonus=known if has_bonus else False,
      branches=branches,
    )

  def _draw_tree(
    self,
    tree: DraftTree,
    q: Array,
    q1: Array,
    known: Array,
    u: Array,
    sampling: Sampling,
  ) -> tuple[Array, Branches]:
    """Draws a tree whose nodes of one depth have one law.

    Args:
      tree: static, the shape.
      q: [B, G+1, V], the law at each depth.
      q1: [B, G+1, V], the confidence at each depth.
      known: [B] bool, rows that propose anything.
      u: [B, N] uniforms, one for each draft.
      sampling: how the laws were made.

    Returns:
      The drafts [B, N] int32, and their `Branches`.
    """
    depths = tree.node_depths

    def laws(nodes: Sequence[int]) -> tuple[Array, Array]:
      at = lambda x: jnp.stack([x[:, depths[node]] for node in nodes], axis=1)
      return at(q), at(q1)

    drawn = [
      draw_level(level, tree, laws, u, self.drawing, greedy=sampling.greedy)
      for level in tree.levels
    ]
    drafts, certain = (jnp.concatenate(x, axis=1) for x in zip(*drawn))
    if self.drawing == IID and not sampling.greedy:
      parents = merge_siblings(drafts, tree)
    else:
      shape = np.array(tree.parents, np.int32) + 1
      parents = jnp.broadcast_to(jnp.asarray(shape)[None], drafts.shape)
    # A row that proposes nothing has drafts that follow no node that can be
    # reached: draft i follows node i + 1, the place after itself.
    itself = jnp.arange(1, tree.num_drafts + 1, dtype=jnp.int32)[None]
    return drafts, Branches(
      tree=tree,
      drawing=self.drawing,
      parents=jnp.where(known[:, None], parents, itself),
      is_certain=certain,
    )


def check_review(target: Any, settings: Any) -> None:
  """Checks that a review has a stated distribution with draft heads.

  Which head drafts a token depends on where the token's block began, and so
  does a target that uses the drafter's distribution. A verification that weighs
  whole blocks is exact only where the target does not depend on the block.

  Args:
    target: a `Target`.
    settings: `ReviewSettings`.

  Raises:
    ValueError: the distribution would not be a stated one.
  """
  if target.uses_q and settings.verification in ("block", "traversal"):
    raise ValueError(
      f"verification is {settings.verification!r}, and the target uses the"
      " distribution of the draft heads, which depends on where a block begins:"
      " the output would have no stated distribution; set verification 'token',"
      " or use a method whose target is the verifier"
    )
