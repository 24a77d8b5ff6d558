"""The settings of a block, while a program is traced."""

import dataclasses
from typing import Any

import jax

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.block_records import VerifyFunction
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.verification import steps, tree_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSettings(ReviewSettings):
  """How a block is drafted and reviewed, while a program is traced.

  The settings of `ReviewSettings` are static, and:

  Attributes:
    sampling: how logits become the distributions that tokens are drawn from.
    target: a `Target`, or a `Choice` of several; None for an execution whose
      law is not that of a chain of targets.
    alpha: scalar, traced, as `Execution.host_alpha` made it.
    verify: static, a verifier step of the caller's own; None takes the step
      that `verification` names.
  """

  sampling: Sampling
  target: Any = None
  alpha: jax.Array | float = 0.0
  verify: VerifyFunction | None = None

  @property
  def bonus_law(self) -> bool:
    """Whether the bonus token needs the drafter's law at its position."""
    return self.target.uses_q and self.bonus == "target"

  @property
  def verifier_step(self) -> VerifyFunction:
    """The verifier step that decides which drafts of a chain are accepted."""
    return self.verify or steps.VERIFY[self.verification]

  @property
  def tree_step(self) -> tree_steps.TreeVerifyFunction:
    """The verifier step that decides which drafts of a tree are accepted.

    Raises:
      ValueError: the step is for chains alone.
    """
    if self.verify is not None or self.verification not in tree_steps.VERIFY:
      raise ValueError(
        "the drafter drafts a tree, and the verifier step is for chains; give a"
        f" drafter of chains, or a verification of {list(tree_steps.VERIFY)}"
      )
    return tree_steps.VERIFY[self.verification]
