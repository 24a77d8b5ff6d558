"""What an architecture is: `ARCHITECTURES`, one row for each."""

from collections.abc import Callable
import dataclasses
from typing import Any

from speccascade.decoding.programs import draft_models
from speccascade.decoding.records.drafter import Exit, Heads, Lookahead
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.records.readers import ReadsStates
from speccascade.models.draft_heads import LOOKAHEAD, HeadsConfig
from speccascade.models.exit_model import TrainedExit
from speccascade.models.heads_model import TrainedHeads
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama_lm import LlamaLM
from speccascade.models.parameters import Config
from speccascade.models.reader_config import StateReaderConfig
from speccascade.models.reader_model import StateReader
from speccascade.models.t5.config import T5Config
from speccascade.models.t5_lm import T5LM
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.models.t5gemma_lm import T5GemmaLM
from speccascade.models.taught_exit import ExitConfig


@dataclasses.dataclass(frozen=True)
class Architecture:
  """A row of the table.

  Attributes:
    name: the name that our checkpoints record.
    model: the class of its models, whose `create` takes (config, parameters).
    draft_kind: a function from a config to the key of its models in
      `decoding.programs.draft_models.DRAFT_MODELS`.
    is_prompted: a function from a config to whether the model is decoder-only,
      or drafts for such a model.
  """

  name: str
  model: Any
  draft_kind: Callable[[Any], type] = lambda config: LanguageModel
  is_prompted: Callable[[Any], bool] = lambda config: False


ARCHITECTURES: dict[type, Architecture] = {
  T5Config: Architecture("t5", T5LM),
  T5GemmaConfig: Architecture("t5gemma", T5GemmaLM),
  LlamaConfig: Architecture("llama", LlamaLM, is_prompted=lambda config: True),
  HeadsConfig: Architecture(
    "heads",
    TrainedHeads,
    lambda config: Lookahead if config.kind == LOOKAHEAD else Heads,
    lambda config: config.prompted,
  ),
  ExitConfig: Architecture(
    "early_exit",
    TrainedExit,
    lambda config: Exit,
    lambda config: config.prompted,
  ),
  StateReaderConfig: Architecture(
    "state_reader",
    StateReader,
    lambda config: ReadsStates,
    lambda config: config.prompted,
  ),
}


def row_of(config: Config) -> Architecture:
  """Returns the row of an architecture."""
  return ARCHITECTURES[type(config)]


def kind_of(config: Config) -> type:
  """Returns the key in `DRAFT_MODELS` of the models of an architecture.

  It is the kind that `draft_models.kind_of` finds for such a model, without the
  model.
  """
  return row_of(config).draft_kind(config)


def is_prompted(config: Config) -> bool:
  """Whether a model is decoder-only, or drafts for such a model."""
  return row_of(config).is_prompted(config)


def words_of(config: Config) -> str:
  """Returns what messages call the models of an architecture."""
  return draft_models.DRAFT_MODELS[kind_of(config)].words


def drafts_alone(config: Config) -> bool:
  """Whether a model writes a text without a verifier.

  Other models draft for one verifier alone, which is their teacher and gives
  them their shape.
  """
  return draft_models.DRAFT_MODELS[kind_of(config)].drafts_alone
