"""A drafter that reads the verifier's hidden states: a language model with it.

Axes: B rows, N fed tokens, G depth of a block.
"""

from typing import Any, Self

from flax import struct
import jax

from speccascade.decoding.drafting import depth_laws
from speccascade.decoding.drafting.autoregressive import (
  AutoregressiveDrafter,
  StopPolicy,
)
from speccascade.decoding.drafting.follower import Follower
from speccascade.decoding.drafting.tree_drafter import TreeDrafter
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records import readers
from speccascade.decoding.records.block_records import Proposal
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.records.draft_tree import (
  GREEDY_AND_RANDOM,
  DraftTree,
  Drawing,
)
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.language_model import State
from speccascade.decoding.records.readers import ReadingModel
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class StateDrafter(Drafter, struct.PyTreeNode):
  """Drafts with a model that reads the verifier's states; make one with `of`.

  The model is fed token by token, as any language model that drafts: its
  distributions are conditional on all tokens before them, and are what drafts
  are drawn from. A state of the verifier is read only where the verifier has
  read the token, which is then part of the text. So q depends on the text, on
  where the block began, and on the drafts before it alone, and the verification
  is exact. A target that uses q depends on where a block began, too.

  Attributes:
    drafter: drafts a chain or a tree with the `Follower`.

  Source: Li et al., "EAGLE" (arXiv 2401.15077), whose states of drafts are the
  model's own, too; and Li et al., "EAGLE-3" (arXiv 2503.01840), which trains
  the model on them. How drafts are drawn and verified is this package's.
  """

  drafter: AutoregressiveDrafter | TreeDrafter

  @classmethod
  def of(
    cls,
    model: ReadingModel,
    gamma: int,
    stop: StopPolicy | None = None,
    tree: DraftTree | None = None,
    drawing: Drawing = GREEDY_AND_RANDOM,
  ) -> Self:
    """Returns a drafter of chains of gamma drafts, or of trees.

    Args:
      model: reads the states.
      gamma: static, drafts of a chain.
      stop: as of `AutoregressiveDrafter`.
      tree: static; None for chains.
      drawing: static, see `TreeDrafter`.
    """
    if tree is not None:
      follower: Any = Follower(model, tree.depth, tree.num_drafts)
      return cls(TreeDrafter(follower, tree, drawing, rereads=True))
    follower = Follower(model, gamma, gamma)
    return cls(
      AutoregressiveDrafter(follower, gamma, stop, behind=0, rereads=gamma + 1)
    )

  @property
  def parts(self) -> tuple[Drafter]:
    return (self.drafter,)

  @property
  def width(self) -> int:
    return self.drafter.width

  @property
  def tree(self) -> DraftTree | None:
    return self.drafter.tree

  @property
  def drawing(self) -> Drawing:
    """Static: how the children of a node are chosen; of chains unused."""
    return getattr(self.drafter, "drawing", GREEDY_AND_RANDOM)

  @property
  def _follower(self) -> Follower:
    follower: Any = self.drafter.model
    return follower

  def check_review(
    self, target: Target | None, settings: ReviewSettings
  ) -> None:
    """See `depth_laws.check_review`: the first draft reads another state."""
    depth_laws.check_review(target, settings)

  def prefill(self, inputs: Array, *, capacity: int) -> State:
    """Raises ValueError: without the verifier there are no states to read."""
    readers.refuse_alone()

  def prefill_with(
    self, verifier: Any, inputs: Array, *, capacity: int
  ) -> tuple[State, State]:
    """Returns the states of both. See `PromptReader`."""
    held, verifying = self._follower.begin_with(
      verifier,
      inputs,
      capacity=capacity,
      spare_slots=self.drafter.spare_slots,
    )
    return ((held,),), verifying

  def catch_up_with(
    self,
    verifier: Any,
    states: tuple[State, State],
    tokens: Array,
    upto: Array,
    *,
    wide: int,
  ) -> tuple[State, State]:
    """Reads external tokens with the verifier. See `PromptReader`."""
    ((held,),), verifying = states
    held, verifying = self._follower.catch_up(
      verifier, held, verifying, tokens, upto, wide=wide
    )
    return ((held,),), verifying

  def observe(
    self,
    state: State,
    hidden: Array,
    path: Array,
    count: Array,
    length: Array,
  ) -> State:
    """Takes the verifier's states of a round. See `Reader`."""
    ((held,),) = state
    return ((self._follower.observe(held, hidden, path, count, length),),)

  def keep(
    self, state: State, length: Array, path: Array, count: Array
  ) -> State:
    """Forgets the drafts; see `Follower`."""
    (inner,) = state
    return (self.drafter.keep(inner, length, path, count),)

  def propose(
    self,
    state: State,
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[State, Proposal]:
    """Drafts a block. See `Drafter`."""
    (inner,) = state
    inner, proposal = self.drafter.propose(
      inner, prefix, rngs, sampling, needs_bonus_law=needs_bonus_law
    )
    return (inner,), proposal
