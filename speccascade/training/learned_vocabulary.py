"""The draft vocabulary that a state reader learns, and the cut head."""

from collections.abc import Sequence
import hashlib
import os
from typing import Any

import numpy as np

from speccascade.checkpoints import storage
from speccascade.generate.pair import draft_vocabulary
from speccascade.models import cut_head
from speccascade.models.architectures import words_of
from speccascade.models.parameters import Config
from speccascade.settings import fields
from speccascade.text import frequent_tokens
from speccascade.training.kinds import kind_of
from speccascade.training.states import Teacher
from speccascade.training.training_data import TrainingData


def check_kind(model: Config, data: TrainingData) -> None:
  """Raises SettingError where a model cannot learn some tokens alone."""
  if data.draft_vocabulary is not None and not kind_of(model).cuts_head:
    raise fields.SettingError(
      "draft_vocabulary",
      f" is what a state reader learns to draft, and MODEL is"
      f" {words_of(model)}: leave it out here, and set it where it drafts",
      TrainingData,
    )


def ids_of(data: TrainingData, arrays: Any) -> list[int] | None:
  """Returns the ids that a run's setting names; None without a setting.

  Args:
    data: has the setting and the vocabulary.
    arrays: the training split, a `TokenArrays`, whose targets are counted where
      the setting is a number.

  Raises:
    ValueError: the file cannot be read, or was counted with another vocabulary.
  """
  setting, vocabulary = data.draft_vocabulary, data.prompting.vocabulary
  if setting is None:
    return None
  if isinstance(setting, int):
    texts = (arrays.get("targets", i).tolist() for i in range(len(arrays)))
    return frequent_tokens.count(texts, vocabulary, setting).ids
  if isinstance(setting, str | os.PathLike):
    setting = draft_vocabulary.ids_of_file(setting, vocabulary)
  return [*setting]


def with_cut_head(
  teacher: Teacher, ids: Sequence[int], vocabulary: Any
) -> Teacher:
  """Returns a verifier that also gives the logits of some tokens alone.

  Args:
    teacher: the verifier.
    ids: the tokens. Those that end a text are kept too.
    vocabulary: the vocabulary in use.

  Raises:
    ValueError: the verifier lacks a token.
  """
  vocab_size = teacher.module.config.vocab_size
  whole = draft_vocabulary.with_ends(ids, vocabulary, vocab_size)
  try:
    kept = cut_head.kept(whole, vocab_size, vocab_size, teacher.params)
  except ValueError as error:
    raise ValueError(f"DRAFT_VOCABULARY: {error}") from error
  return teacher.replace(cut=cut_head.head_of(teacher.params, kept))


def to_resume(ids: Sequence[int] | None) -> dict[str, Any]:
  """Returns what a resumed run must have in common with its first part."""
  if ids is None:
    return {}
  digest = hashlib.sha256(np.asarray(ids, np.int32).tobytes()).hexdigest()
  return {"DRAFT_VOCABULARY of sha256": digest[:16]}


def save(folder: str, ids: Sequence[int], vocabulary: Any) -> None:
  """Writes the ids beside the checkpoints of the reader that drafts them."""
  text = frequent_tokens.content(ids, vocabulary)
  storage.Directory(folder).write(frequent_tokens.FILE, text.encode())
