"""Inputs and outputs of the review of a block."""

import dataclasses
from typing import Any

from flax import struct
import jax

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.block_records import (
  Proposal,
  Verdict,
  VerifyFunction,
)
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.records.phased_alpha import PhasedAlpha
from speccascade.decoding.verification import steps, tree_steps

Array = jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSettings(ReviewSettings):
  """How a block is drafted and reviewed, while a program is traced.

  The settings of `ReviewSettings` are static, and:

  Attributes:
    sampling: how logits become the distributions that tokens are drawn from.
    target: a `Target`, or a `Choice` of several; None for an execution whose
      distribution is not that of a chain of targets.
    alpha: scalar, traced, as `Execution.host_alpha` made it; or a
      `PhasedAlpha` of two such scalars.
    verify: static, a verifier step of the caller's own; None takes the step
      that `verification` names.
  """

  sampling: Sampling
  target: Any = None
  alpha: Any = 0.0
  verify: VerifyFunction | None = None

  @property
  def phased(self) -> PhasedAlpha | None:
    """Alpha, where it is by phase."""
    return self.alpha if isinstance(self.alpha, PhasedAlpha) else None

  @property
  def needs_bonus_law(self) -> bool:
    """Whether the bonus token needs q at its position."""
    return self.target.uses_q and self.bonus == "target"

  @property
  def verifier_step(self) -> VerifyFunction:
    """The verifier step that decides which drafts of a chain are accepted."""
    return self.verify or steps.VERIFY[self.verification]

  @property
  def tree_step(self) -> tree_steps.TreeVerifyFunction:
    """The verifier step that decides which drafts of a tree are accepted."""
    assert self.verify is None, "a step of the caller's own is for chains"
    return tree_steps.TREE_VERIFY[self.verification]


class ScoredBlock(struct.PyTreeNode):
  """What both models say at every place of a chain, or node of a tree.

  Attributes:
    p1: [B, N+1, V] the verifier at temperature 1.
    p: [B, N+1, V] the verifier as sampled.
    pi: [B, N+1, V] the target. Its bonus row is what the bonus is drawn from.
    known_q: [B, N+1] bool, where the drafter was called and has a distribution.
    is_mix: [B, N+1] bool, where pi is the target of both distributions.
      Elsewhere pi is p, whatever the target: at a bonus that is drawn from the
      verifier, and at a copied token that is reviewed without lenience.
    bad: [B, N+1] bool, where a model gave no distribution.
    phase: [B, N+1] int32, as in `PlacedAlpha`; None where alpha is not by
      phase.
  """

  p1: Array
  p: Array
  pi: Array
  known_q: Array
  is_mix: Array
  bad: Array
  phase: Array | None


class Review(ScoredBlock):
  """What a review decided on a block. G = the depth of a block.

  A tree of drafts is reviewed along its accepted path: every field is that of a
  chain, the path, and of the token after it. So are the inherited fields.

  Attributes:
    verdict: the decision of the verifier step.
    block: the reviewed chain: the proposal itself, or the accepted path of a
      tree, with the first draft after the path where there is one.
    new: [B, G+1] int32: the accepted drafts, the token after them, then 0.
    left: [B, G+1] the left side of the rule at the drafts, and at the bonus
      position where q is known there. A token rule has no side at the bonus
      position. NaN elsewhere, and without a rule.
    right: [B, G+1] the right side of the rule, where `left` is known.
    fault: [B] int32, the first token of `new` that rests on a position at which
      a model gave no distribution; G+1 where none does. A fault at a position
      that the verifier step did not read does not count.
    overlap: [B, G+1], sum_v min(q, pi) at the drafts, where a kernel for a GPU
      found it; None where it is to be computed.
  """

  verdict: Verdict
  block: Proposal
  new: Array
  left: Array
  right: Array
  fault: Array
  overlap: Array | None = None
