"""How the drafters of a pair become one: `Cascade`, `SideBySide`.

Either takes the place of a pair's drafter under any speculative method. The
method above it may be lossless, as in Cascade Speculative Drafting, or itself a
speculative cascade.
"""

from collections.abc import Sequence
import dataclasses
import os
from typing import Annotated, Literal

from speccascade.decoding import (
  AutoregressiveDrafter,
  BranchedDrafter,
  Drafter,
  MaxGramDrafter,
  SeveralDrafters,
  cascade_drafter,
)
from speccascade.decoding.nested.cascade import increments
from speccascade.decoding.records.decode_settings import (
  BlockSize,
  ChainVerification,
)
from speccascade.decoding.verification.steps import VERIFY
from speccascade.models import bigram_table
from speccascade.models.ngram_lm import NgramLM
from speccascade.settings import fields


@fields.checked
@dataclasses.dataclass(frozen=True)
class Cascade:
  """How the drafters of a pair are combined into one.

  The fields are checked when the object is made.

  Attributes:
    k: the matrix K, with one row and one column for each drafter. The pair's
      neural drafters come first, the largest of them before the others, then
      the n-gram model if `ngrams` names one, then Max-Gram if `max_gram` is
      set.
    meaning: what an entry of K counts. "increments" means the tokens that a
      drafter adds, as in the code of Chen et al. (arXiv 2312.11462).
      "cumulative" means the length of the block after the drafter has written,
      as in the tables of their paper.
    lenience: 1 or more. A larger lenience lets the inner reviews accept more
      drafts, both in greedy decoding and in sampling.
    max_gram: whether the last drafter is Max-Gram, which copies tokens from the
      text so far.
    bigrams: path of a bigram table, from which Max-Gram drafts where it finds
      nothing to copy. None lets Max-Gram draft copies only.
    ngrams: path of an n-gram model, or None for no such drafter.
    verification: how the inner reviews verify a block, "token" or "block".
    first_children: the number of drafts for the first place of a block; more
      than 1 make it a tree, see `BranchedDrafter`.

  Raises:
    ValueError: K is not a square matrix of the stated meaning, or a bigram
      table comes without Max-Gram.
  """

  k: Sequence[Sequence[Annotated[int, fields.Bounds(0, 1024)]]]
  meaning: Literal["increments", "cumulative"] = "increments"
  lenience: Annotated[float, fields.Bounds(1)] = 1.0
  max_gram: bool = True
  bigrams: fields.Path | None = None
  ngrams: fields.Path | None = None
  verification: ChainVerification = "token"
  first_children: Annotated[int, fields.Bounds(1, 256)] = 1

  def __post_init__(self):
    try:
      increments(self.k, meaning=self.meaning)
    except ValueError as error:
      raise fields.SettingError("k", f": {error}", Cascade) from error
    if self.bigrams is not None and not self.max_gram:
      raise ValueError(
        "a bigram table is given, but max_gram is False and nothing reads it"
      )

  @property
  def label(self) -> str:
    """The settings of the cascade in one line.

    The label is part of a row's drafter name, so two cascades that decode
    differently have different labels.
    """
    steps = increments(self.k, meaning=self.meaning)
    rows = ",".join("-".join(map(str, row)) for row in steps)
    parts = [f"K={rows}", f"l={self.lenience:g}"]
    if self.max_gram:
      parts.append("max_gram")
    for name in ("bigrams", "ngrams"):
      if (path := getattr(self, name)) is not None:
        parts.append(f"{name}={os.path.basename(os.fspath(path))}")
    if self.verification != "token":
      parts.append(self.verification)
    if self.first_children > 1:
      parts.append(f"{self.first_children} first")
    return " ".join(parts)

  def num_drafts(self, num_drafters: int) -> int:
    """Returns the drafts of a block, however many neural drafters there are."""
    first_row = increments(self.k, meaning=self.meaning)[0]
    return sum(first_row) + self.first_children - 1

  def build(
    self,
    lms: Sequence,
    vocab_size: int,
    vocabulary_sha256: str | None = None,
    *,
    prompted: bool = False,
  ) -> Drafter:
    """Returns the drafter that combines the models.

    Args:
      lms: the neural drafters, largest first.
      vocab_size: number of rows of the models' vocabulary.
      vocabulary_sha256: hash of the vocabulary file in use, None where it is
        unknown.
      prompted: whether the models are decoder-only. The n-gram model and
        Max-Gram then read the prompt, too.

    Raises:
      ValueError: K does not fit the number of drafters, or the n-gram model or
        the bigram table does not fit the vocabulary.
    """
    lms = list(lms)
    if self.ngrams is not None:
      lm = NgramLM.load(self.ngrams)
      # Counts, or a vocabulary, without a file have no hash to compare.
      both_known = lm.vocabulary and vocabulary_sha256
      if both_known and lm.vocabulary != vocabulary_sha256:
        raise ValueError(
          f"{self.ngrams} was counted with another vocabulary (sha256"
          f" {lm.vocabulary[:12]}) than the one in use"
          f" ({vocabulary_sha256[:12]}); count it again"
        )
      lms.append(lm.padded(vocab_size).replace(prompted=prompted))
    bottom = None
    if self.max_gram:
      table = None if self.bigrams is None else bigram_table.read(self.bigrams)
      # `cascade_drafter` replaces this width by the entries of K.
      bottom = MaxGramDrafter.create(
        table, width=1, vocab_size=vocab_size, prompted=prompted
      )
    drafter = cascade_drafter(
      lms,
      bottom,
      self.k,
      meaning=self.meaning,
      lenience=self.lenience,
      verify=VERIFY[self.verification],
    )
    if self.first_children == 1:
      return drafter
    if self.first_children > vocab_size:
      raise ValueError(
        f"first_children is {self.first_children}; the vocabulary has"
        f" {vocab_size} tokens"
      )
    return BranchedDrafter(drafter, self.first_children)


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
    # A drafter reads the tokens of the other drafters: a path, and one more.
    behind = self.length + 1
    return SeveralDrafters(
      tuple(
        AutoregressiveDrafter(lm, self.length, behind=behind) for lm in lms
      ),
      self.designated,
    )


def calls_by_drafter(
  drafter: Drafter, calls_by_model: Sequence[int], lms: Sequence
) -> list[int]:
  """Returns the number of calls of each model, summed over its places.

  One model may stand in several places of a cascade: it reviews on one level
  and drafts on another.

  Args:
    drafter: the cascade.
    calls_by_model: the number of calls of each place, in the order of
      `drafter.models`.
    lms: the models that the cascade was made of.

  Returns:
    One number for each of `lms`, in their order.
  """
  calls = [0] * len(lms)
  # A model is known by identity: equality would compare its arrays.
  for owner, number in zip(drafter.models, calls_by_model):
    calls[next(i for i, lm in enumerate(lms) if lm is owner)] += int(number)
  return calls
