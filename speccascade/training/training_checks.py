"""Checks whether the settings of a training run belong together.

Each check is of settings that are right by themselves, and wrong for the model
that is trained.
"""

from speccascade.models.architectures import (
  drafts_alone,
  is_prompted,
  words_of,
)
from speccascade.models.parameters import Config
from speccascade.models.sharding.partitioning import Layout
from speccascade.settings import fields
from speccascade.training.kinds import kind_of
from speccascade.training.objectives import Objective
from speccascade.training.training_data import TrainingData


def check_kind(model: Config, data: TrainingData, objective: Objective) -> None:
  """Checks that the settings are for the kind of model that is trained.

  Args:
    model: the architecture, or draft heads.
    data: says which texts are read besides those of the data.
    objective: says whether the verifier of draft heads is tuned.

  Raises:
    SettingError: draft heads have a setting of a language model, or a language
      model or look-ahead embeddings have a setting of other draft heads.
  """
  kind = kind_of(model)
  if kind.no_tuning and objective.tuning is not None:
    raise fields.SettingError("tuning", kind.no_tuning, Objective)
  words = words_of(model)
  for name in ("student_text", "earlier_drafters"):
    if not drafts_alone(model) and getattr(data, name):
      raise fields.SettingError(
        name,
        f" is for drafters that are models; leave it out for {words}, and set"
        " TEACHER_TEXT for the verifier's own text",
        TrainingData,
      )


def check_verifier(
  model: Config, data: TrainingData, layout: Layout | None
) -> None:
  """Raises ValueError where what drafts has no verifier, or has a mesh.

  Args:
    model: the architecture of draft heads or of an early exit.
    data: names the verifier.
    layout: where the model lies; None on one device.
  """
  if not data.teacher_checkpoint or layout is not None:
    raise ValueError(
      f"{words_of(model)} need a TEACHER_CHECKPOINT, which is their verifier,"
      " and one device: set it, and leave MESH out"
    )


def check_texts(vocabulary, model: Config, data: TrainingData) -> None:
  """Checks that the model can read the texts.

  Args:
    vocabulary: the vocabulary in use.
    model: the architecture; or draft heads, with the shape of their verifier.
    data: says how texts become prompts.

  Raises:
    ValueError: the vocabulary has more tokens than the model has rows, or the
      prompts are for another kind of model.
  """
  from speccascade.text import vocabularies

  vocabularies.check_fits(vocabulary, model.vocab_size, "MODEL")
  data.prompting.check_fits(prompted=is_prompted(model))
  if data.teacher_cache_dir and not data.prompting.prompted:
    raise ValueError("TEACHER_CACHE_DIR is for decoder-only models")
