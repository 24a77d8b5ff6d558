"""Drafters that draft the most frequent tokens alone: a draft vocabulary.

The drafter's head is sliced once, when a pair is loaded; see
`models.cut_head`. Its distribution, restricted to the kept tokens and
renormalised, is q. So a lossless method writes the verifier's texts, whatever
is kept, and the target of a cascade that reads q reads the restricted one.
"""

from collections.abc import Sequence
import dataclasses
import os
from typing import Annotated

import jax
import numpy as np

from speccascade.checkpoints import CheckpointError
from speccascade.generate.pair.pair_checks import PairError
from speccascade.models.cached_lm import CachedLM
from speccascade.models.heads_model import TrainedHeads
from speccascade.models.intersection import IntersectionLM
from speccascade.models.reader_model import StateReader
from speccascade.settings import fields
from speccascade.text import frequent_tokens, prompting, token_names

# N of a counted file beside the drafter; the path of a file of ids; or ids.
Setting = (
  fields.Positive
  | fields.Path
  | Annotated[Sequence[fields.NonNegative], fields.NOT_EMPTY]
  | None
)


def checked(setting):
  """Returns a draft vocabulary that a caller gives, an array as a tuple.

  Raises:
    PairError: it is of the wrong kind.
  """
  if isinstance(setting, np.ndarray | jax.Array | range):
    setting = np.asarray(setting).tolist()
  try:
    return fields.fit("draft_vocabulary", setting, Setting)
  except fields.SettingError as error:
    raise PairError(str(error)) from error


def size(setting) -> int:
  """Returns how many tokens a setting names; 0 where nothing is cut."""
  if isinstance(setting, str | os.PathLike):
    setting = _read(setting).ids
  return setting if isinstance(setting, int) else len(setting or ())


def cut_drafters(pair, setting, vocabulary):
  """Returns a pair whose drafters draft the tokens of a draft vocabulary.

  The tokens that end a text are always kept. Of drafters with a vocabulary of
  their own the tokens are kept that both vocabularies have.

  Args:
    pair: the `ModelPair`, checked.
    setting: as `PairSpec.draft_vocabulary`.
    vocabulary: the vocabulary in use.

  Raises:
    PairError: a drafter has no head that can be cut, or the setting does not
      name tokens of it.
  """
  if not pair.drafters:
    raise PairError(
      "DRAFT_VOCABULARY cuts the head of a drafter that is a model, and the"
      " pair has none; leave it out"
    )
  verifier = pair.verifier_lm
  drafters = tuple(
    _cut(model, setting, vocabulary, verifier) for model in pair.drafters
  )
  return dataclasses.replace(pair, drafters=drafters)


def _cut(model, setting, vocabulary, verifier):
  """Returns a drafter with a cut head, and a name that says so."""
  lm = model.lm
  inner = lm.model if isinstance(lm, IntersectionLM) else lm
  if not isinstance(inner, CachedLM | TrainedHeads | StateReader):
    raise PairError(
      "DRAFT_VOCABULARY cuts the head of a T5, a T5Gemma or a Llama that"
      " drafts, or their draft heads or state reader, and"
      f" {model.name} is a {type(inner).__name__}; leave it out"
    )
  ids = np.asarray(_ids(model, setting, vocabulary))
  kept = with_ends(ids, vocabulary, lm.vocab_size)
  owner = (verifier,) if isinstance(lm, TrainedHeads | StateReader) else ()
  try:
    cut = lm.cut_to(kept, *owner)
  except ValueError as error:
    raise PairError(f"DRAFT_VOCABULARY of {model.name}: {error}") from error
  num = len(kept)
  if isinstance(cut, IntersectionLM):
    num = int(cut.is_shared.sum())
  return dataclasses.replace(model, lm=cut, name=f"{model.name} cut to {num}")


def counted_beside(model, vocabulary) -> tuple[int, ...]:
  """Returns the ids of the file beside a drafter; none without a file.

  Args:
    model: the `Model` of the drafter.
    vocabulary: the vocabulary in use. A file of another one is left out.
  """
  stored = frequent_tokens.read_beside(model.path) if model.path else None
  if stored is None or _differs(stored, vocabulary):
    return ()
  return stored.ids


def _differs(stored, vocabulary) -> str | None:
  """Returns how a file's vocabulary differs from the one in use, or None."""
  return token_names.difference(
    stored.vocabulary,
    prompting.identity(vocabulary),
    read_other=lambda: vocabulary,
  )


def _read(path) -> frequent_tokens.Stored:
  """Returns the draft vocabulary of a file."""
  try:
    return frequent_tokens.read(path)
  except CheckpointError as error:
    raise PairError(f"DRAFT_VOCABULARY: {error}") from error


def ids_of_file(path: fields.Path, vocabulary) -> tuple[int, ...]:
  """Returns the ids of a file.

  Raises:
    PairError: it cannot be read, or was counted with another vocabulary.
  """
  stored = _read(path)
  _check(stored, path, vocabulary)
  return stored.ids


def _check(stored: frequent_tokens.Stored, path, vocabulary) -> None:
  """Raises PairError where a file's ids are those of another vocabulary."""
  if differs := _differs(stored, vocabulary):
    raise PairError(
      f"DRAFT_VOCABULARY {os.fspath(path)} was counted with the vocabulary"
      f" {stored.vocabulary['path']}, and another one is in use ({differs});"
      " count again with it"
    )


def with_ends(
  ids: Sequence[int] | np.ndarray, vocabulary, vocab_size: int
) -> np.ndarray:
  """Returns ids, and after them the tokens that end a text, where they lack.

  Args:
    ids: the ids.
    vocabulary: the vocabulary in use.
    vocab_size: of the model; tokens past it are left out.
  """
  ends = np.atleast_1d(prompting.eos_ids(vocabulary))
  return np.concatenate([ids, np.setdiff1d(ends[ends < vocab_size], ids)])


def _ids(model, setting, vocabulary) -> Sequence[int]:
  """Returns the ids that a setting names for a drafter."""
  if isinstance(setting, str | os.PathLike):
    return ids_of_file(setting, vocabulary)
  if not isinstance(setting, int):
    return setting
  num, stored = setting, None
  if model.path:
    stored = frequent_tokens.read_beside(model.path)
  place = frequent_tokens.file_beside(model.path or "MODEL")
  if stored is None:
    raise PairError(
      f"DRAFT_VOCABULARY is {num}, and there is no {place} that says which"
      f" {num} tokens are the most frequent: count them with python -m"
      " speccascade.draft_vocabulary, or give ids or a file of them"
    )
  _check(stored, place, vocabulary)
  if num > len(stored.ids):
    raise PairError(
      f"DRAFT_VOCABULARY is {num}, and {place} has {len(stored.ids)} tokens;"
      " give at most that number, or count more texts"
    )
  return stored.ids[:num]
