"""The draft vocabularies that advice tries: `DraftVocabularies`.

A drafter whose head keeps some tokens is one more drafter in question, with
costs and an acceptance of its own. Which tokens it keeps is counted in a file
beside the drafter, or here, in texts that the verifier writes for other inputs
than those that are measured. Counted on the measured texts themselves, the
tokens would fit them better than any others.
"""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib

import numpy as np

from speccascade.decoding.records.block_records import Decoded
from speccascade.generate.pair import draft_vocabulary
from speccascade.generate.pair.pair_checks import PairError
from speccascade.generate.pair.pairs import PairSpec
from speccascade.runtime import processes
from speccascade.study.measuring.study import Study
from speccascade.study.search.wanted import Wanted
from speccascade.tasks.inputs import Inputs
from speccascade.text import frequent_tokens

# Sizes that are tried where none are asked for, if there are counts for them.
SIZES = (2048, 8192, 32768)


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
  """A drafter whose head keeps some tokens.

  Attributes:
    study: of this drafter alone with the verifier.
    setting: what DRAFT_VOCABULARY is set to for it.
    num_kept: the number of tokens.
  """

  study: Study
  setting: int | str
  num_kept: int


@dataclasses.dataclass
class DraftVocabularies:
  """What advice tries of draft vocabularies.

  Attributes:
    sizes: the numbers of tokens to try; None is `SIZES`; empty is nothing.
    folder: OUTPUT_DIR, where a counted draft vocabulary is written.
    others: the study of inputs whose texts are counted; None where files beside
      the drafters have the counts.
    ids: the most frequent tokens of these texts, once they are counted.
  """

  sizes: Sequence[int] | None
  folder: pathlib.Path
  others: Study | None = None
  ids: Sequence[int] = ()

  def __post_init__(self):
    self._cuts: dict[Study, list[Cut]] = {}

  @classmethod
  def of(
    cls, pair: PairSpec, inputs: Inputs, wanted: Wanted, study: Study
  ) -> "DraftVocabularies":
    """Returns what is tried, checked.

    Args:
      pair: the models, as they are configured.
      inputs: the examples, as they are configured.
      wanted: what the user asks.
      study: the study of the examples that are measured.

    Raises:
      ValueError: the pair has a draft vocabulary already, or no further inputs
        are there to be counted.
    """
    sizes, folder = wanted.draft_vocabularies, study.run.folder
    if pair.draft_vocabulary is not None:
      if sizes or wanted.num_counted:
        raise ValueError(
          "DRAFT_VOCABULARY is set, and DRAFT_VOCABULARIES or NUM_COUNTED asks"
          " to try others: leave one of them out"
        )
      return cls((), folder)
    if not wanted.num_counted or sizes == ():
      return cls(sizes, folder)
    return cls(sizes, folder, _further(inputs, pair, wanted, study))

  @property
  def num_counts(self) -> int:
    """How often texts are decoded to be counted: 0 or 1."""
    return int(self.others is not None)

  def num_planned(self, study: Study) -> int:
    """Returns the most sizes that are tried of a drafter; see `cuts_of`."""
    if self.others is None:
      return len(self.cuts_of(study))
    return len(SIZES if self.sizes is None else self.sizes)

  def count(self, decode: Callable[[Study], Decoded]) -> None:
    """Counts the texts of the verifier for the other inputs.

    Args:
      decode: returns what the verifier writes for the examples of a study.
    """
    assert self.others is not None
    decoded = decode(self.others)
    texts = [
      np.asarray(tokens[:length]).tolist()
      for tokens, length in zip(decoded.tokens, decoded.lengths)
    ]
    found = frequent_tokens.count(
      texts[: len(self.others.examples)],
      self.others.sources.vocabulary,
      max(SIZES if self.sizes is None else self.sizes),
      fill=True,
    )
    self.ids = found.ids

  def cuts_of(self, study: Study) -> list[Cut]:
    """Returns a drafter's cuts, the smallest first.

    Args:
      study: the study of the drafter, whole.

    Raises:
      PairError: a size is asked for, and there are no counts for it.
    """
    if study not in self._cuts:
      self._cuts[study] = self._cut(study)
    return self._cuts[study]

  def _cut(self, study: Study) -> list[Cut]:
    sizes, [drafter] = self.sizes, study.pair.drafters
    ids, vocabulary = self.ids, study.sources.vocabulary
    if self.others is None and sizes is None:
      ids = draft_vocabulary.counted_beside(drafter, vocabulary)
    if self.others is not None or sizes is None:
      most = min(len(ids), study.pair.verifier_lm.vocab_size - 1)
      asked = SIZES if sizes is None else sizes
      sizes = sorted({min(size, most) for size in asked}) if most else ()
    cuts: dict[str, Cut] = {}
    for size in sorted(sizes or ()):
      kept = tuple(ids[:size]) if self.others is not None else size
      try:
        pair = draft_vocabulary.cut_drafters(study.pair, kept, vocabulary)
      except PairError as error:
        raise PairError(f"DRAFT_VOCABULARIES has {size}: {error}") from error
      setting = size if self.others is None else self._write(ids[:size])
      cut = Cut(study.with_session(pair=pair), setting, size)
      cuts.setdefault(pair.drafter_name, cut)
    return [*cuts.values()]

  def _write(self, ids: Sequence[int]) -> str:
    """Writes counted tokens to OUTPUT_DIR; returns the path."""
    assert self.others is not None
    path = self.folder / f"draft_vocabulary_{len(ids)}.json"
    if processes.is_first():
      frequent_tokens.save(path, ids, self.others.sources.vocabulary)
    return str(path)


def _further(
  inputs: Inputs, pair: PairSpec, wanted: Wanted, study: Study
) -> Study:
  """Returns the study of inputs after those that are measured."""
  num, measured = wanted.num_counted, len(study.examples)
  more = dataclasses.replace(inputs, num_examples=measured + num)
  sources = more.read(pair.vocabulary_path)
  rest = sources.examples[measured:]
  if not rest:
    raise ValueError(
      f"NUM_COUNTED is {num}, and all {measured} inputs are measured: set"
      " NUM_EXAMPLES to fewer, or give more inputs"
    )
  sources = dataclasses.replace(sources, examples=rest).fit_padding()
  return study.with_session(sources=sources)
