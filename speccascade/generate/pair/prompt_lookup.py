"""The configuration of a drafter that only copies: `PromptLookup`."""

from collections.abc import Sequence
import dataclasses

from speccascade.decoding import Drafter, MaxGramDrafter
from speccascade.decoding.records.decode_settings import BlockSize
from speccascade.settings import fields


@fields.checked
@dataclasses.dataclass(frozen=True)
class PromptLookup:
  """Drafts what followed the longest repeated suffix of the text so far.

  No model drafts, so that a block costs no more than its pass of the verifier.
  An encoder-decoder copies from its source, and from what it wrote. Where
  nothing is repeated, a block has no drafts. It takes the place of a `Cascade`
  in a `PairSpec`, and of a drafter in `api.load_pair`.

  Methods that read the confidence of a drafter refuse it.

  Attributes:
    num_copied: the most tokens that a block copies, its gamma.

  Raises:
    ValueError: the number is out of range.
  """

  num_copied: BlockSize = 5

  @property
  def label(self) -> str:
    """The name of the drafter, for rows."""
    return f"prompt lookup {self.num_copied}"

  def num_drafts(self, num_drafters: int) -> int:
    """Returns the drafts of a block."""
    return self.num_copied

  def build(
    self,
    lms: Sequence,
    vocab_size: int,
    vocabulary_sha256: str | None = None,
    *,
    prompted: bool = False,
  ) -> Drafter:
    """Returns the drafter; see `Cascade.build`.

    Raises:
      ValueError: there are models to draft.
    """
    if lms:
      raise ValueError(
        f"DRAFTER_CHECKPOINT names {len(lms)} drafters, and prompt lookup is"
        " the drafter: leave it out, or set a CASCADE of both"
      )
    return MaxGramDrafter.create(
      None, width=self.num_copied, vocab_size=vocab_size, prompted=prompted
    )
