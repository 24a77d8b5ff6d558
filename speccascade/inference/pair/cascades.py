"""Cascades of drafters as a configuration says them: `Cascade`.

A cascade stands in the place of a pair's drafter, before any speculative
method: lossless for Cascade Speculative Drafting, or a speculative cascade.
"""

from collections.abc import Sequence
import dataclasses
import os
from typing import Annotated, Literal

from speccascade.decoding import Drafter, MaxGramDrafter, cascade_drafter
from speccascade.decoding.drafting.cascade import increments
from speccascade.decoding.verification.steps import VERIFY
from speccascade.models import bigram_table
from speccascade.models.ngram_lm import NgramLM
from speccascade.settings import fields


@fields.checked
@dataclasses.dataclass(frozen=True)
class Cascade:
  """How the drafters of a pair are combined; checked when made.

  Attributes:
    k: K, a row and a column for each drafter: the pair's neural ones, largest
      first, the n-gram model if there is one, Max-Gram last if it is used.
    meaning: of K: "increments" (the code of Chen et al., arXiv 2312.11462:
      tokens that each drafter adds) or "cumulative" (their tables: how far the
      block has come).
    lenience: 1 or more, of the inner reviews; greedy and in sampling.
    max_gram: whether the last drafter copies.
    bigrams: path of a bigram table, which fills what cannot be copied; None
      drafts no more than that.
    ngrams: path of an n-gram model, or None.
    verification: of the inner reviews, "token" or "block".
  """

  k: Sequence[Sequence[Annotated[int, fields.Bounds(0, 1024)]]]
  meaning: Literal["increments", "cumulative"] = "increments"
  lenience: Annotated[float, fields.Bounds(1)] = 1.0
  max_gram: bool = True
  bigrams: fields.Path | None = None
  ngrams: fields.Path | None = None
  verification: Literal["token", "block"] = "token"

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
    """What it is, in a line; rows of results are known by it."""
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
    return " ".join(parts)

  def build(
    self,
    lms: Sequence,
    vocab_size: int,
    vocabulary_sha256: str | None = None,
    *,
    prompted: bool = False,
  ) -> Drafter:
    """Returns the drafter.

    Args:
      lms: the neural drafters, largest first.
      vocab_size: rows of the models' vocabulary.
      vocabulary_sha256: of the file in use, if known.
      prompted: whether the models go on from prompts, which n-grams and copies
        then see.

    Raises:
      ValueError: K does not fit the drafters, or a table the vocabulary.
    """
    lms = list(lms)
    if self.ngrams is not None:
      lm = NgramLM.load(self.ngrams)
      known = lm.vocabulary and vocabulary_sha256
      if known and lm.vocabulary != vocabulary_sha256:
        raise ValueError(
          f"{self.ngrams} was counted with another vocabulary (sha256"
          f" {lm.vocabulary[:12]}) than the one in use"
          f" ({vocabulary_sha256[:12]}); count it again"
        )
      lms.append(lm.padded(vocab_size).replace(prompted=prompted))
    bottom = None
    if self.max_gram:
      table = None if self.bigrams is None else bigram_table.read(self.bigrams)
      # The cascade sets its widths.
      bottom = MaxGramDrafter.create(
        table, width=1, vocab_size=vocab_size, prompted=prompted
      )
    return cascade_drafter(
      lms,
      bottom,
      self.k,
      meaning=self.meaning,
      lenience=self.lenience,
      verify=VERIFY[self.verification],
    )


def calls_by_drafter(
  drafter: Drafter, calls_by_model: Sequence[int], lms: Sequence
) -> list[int]:
  """Returns the calls of each model, wherever in the cascade it was called.

  Args:
    drafter: the cascade.
    calls_by_model: as counted, one number for each place.
    lms: the models, as the cascade was made of them.
  """
  calls = [0] * len(lms)
  for owner, number in zip(drafter.models, calls_by_model):
    calls[next(i for i, lm in enumerate(lms) if lm is owner)] += int(number)
  return calls
