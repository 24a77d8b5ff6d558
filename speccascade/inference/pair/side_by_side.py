"""The configuration of several drafters that draft beside each other."""

from collections.abc import Sequence
import dataclasses

from speccascade.decoding import (
  AutoregressiveDrafter,
  Drafter,
  SeveralDrafters,
)
from speccascade.decoding.records.decode_settings import BlockSize
from speccascade.settings import fields


@fields.checked
@dataclasses.dataclass(frozen=True)
class SideBySide:
  """Each drafter of a pair drafts a path of its own, in one tree.

  It takes the place of a `Cascade` in a `PairSpec`.

  Attributes:
    length: the number of drafts of each path, which is the depth of the tree.
    designated: the index in DRAFTER_CHECKPOINT of the drafter whose
      distribution the target uses. None is for methods whose target is the
      verifier.

  Raises:
    ValueError: a setting is out of range.

  Source: Miao et al., "SpecInfer" (arXiv 2305.09781).
  """

  length: BlockSize
  designated: fields.NonNegative | None = None

  @property
  def label(self) -> str:
    """The settings in one line, a part of a row's drafter name."""
    label = f"side by side, {self.length}"
    if self.designated is not None:
      label += f", q of {self.designated}"
    return label

  def num_drafts(self, num_drafters: int) -> int:
    """Returns the drafts of a block, all paths counted."""
    return self.length * num_drafters

  def build(
    self,
    lms: Sequence,
    vocab_size: int,
    vocabulary_sha256: str | None = None,
    *,
    prompted: bool = False,
  ) -> Drafter:
    """Returns the drafter that combines the models; see `Cascade.build`.

    Raises:
      ValueError: there are fewer than two models, or the designated one is none
        of them.
    """
    if len(lms) < 2:
      raise ValueError(
        f"DRAFTER_CHECKPOINT names {len(lms)} drafters; side by side there are"
        " two or more"
      )
    if self.designated is not None and self.designated >= len(lms):
      raise ValueError(
        f"DESIGNATED_DRAFTER is {self.designated}, and DRAFTER_CHECKPOINT names"
        f" {len(lms)} drafters; wanted 0 to {len(lms) - 1}, or None"
      )
    # A drafter reads the tokens that the others wrote: a path, and one more.
    behind = self.length + 1
    return SeveralDrafters(
      tuple(
        AutoregressiveDrafter(lm, self.length, behind=behind) for lm in lms
      ),
      self.designated,
    )
