"""Which model, and which kind of draft model, an architecture describes."""

from typing import Any

from speccascade.decoding.records.drafter import Heads, Lookahead
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.models.draft_heads import LOOKAHEAD, HeadsConfig
from speccascade.models.heads_model import TrainedHeads
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama_lm import LlamaLM
from speccascade.models.parameters import Config
from speccascade.models.t5.config import T5Config
from speccascade.models.t5_lm import T5LM
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.models.t5gemma_lm import T5GemmaLM

# Architecture -> the class of the model that it describes.
KINDS: dict[type, Any] = {
  T5Config: T5LM,
  T5GemmaConfig: T5GemmaLM,
  LlamaConfig: LlamaLM,
  HeadsConfig: TrainedHeads,
}


def kind_of(config: Config) -> type:
  """Returns the kind of the models of an architecture.

  It is the kind that `decoding.programs.draft_models.kind_of` finds for such a
  model, without the model.
  """
  if not isinstance(config, HeadsConfig):
    return LanguageModel
  return Lookahead if config.kind == LOOKAHEAD else Heads
