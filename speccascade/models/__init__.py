"""The language models that decoding drives: T5, T5Gemma and Llama."""

from speccascade.models.draft_heads import HeadsConfig, HeadsNetwork
from speccascade.models.heads_model import HeadsModel, LookaheadModel
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.network import CausalTransformer
from speccascade.models.llama_lm import LlamaLM
from speccascade.models.reader_config import StateReaderConfig
from speccascade.models.reader_model import StateReader
from speccascade.models.state_reader import StateReaderNetwork
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.network import Transformer
from speccascade.models.t5_lm import T5LM
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.models.t5gemma.network import T5GemmaTransformer
from speccascade.models.t5gemma_lm import T5GemmaLM

__all__ = [
  "T5LM",
  "CausalTransformer",
  "HeadsConfig",
  "HeadsModel",
  "HeadsNetwork",
  "LlamaConfig",
  "LlamaLM",
  "LookaheadModel",
  "StateReader",
  "StateReaderConfig",
  "StateReaderNetwork",
  "T5Config",
  "T5GemmaConfig",
  "T5GemmaLM",
  "T5GemmaTransformer",
  "Transformer",
]
