"""Which kind of draft model an architecture describes."""

from speccascade.decoding.records.drafter import Heads, Lookahead
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.models.draft_heads import LOOKAHEAD, HeadsConfig
from speccascade.models.parameters import Config


def kind_of(config: Config) -> type:
  """Returns the kind of the models of an architecture.

  It is the kind that `decoding.programs.draft_models.kind_of` finds for such a
  model, without the model.
  """
  if not isinstance(config, HeadsConfig):
    return LanguageModel
  return Lookahead if config.kind == LOOKAHEAD else Heads
