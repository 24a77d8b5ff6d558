"""The core: deferral rules, targets, verifier steps and executions."""

from speccascade.decoding import methods, prompts
from speccascade.decoding.continuous import decode_continuously
from speccascade.decoding.decoders import Decoder, DraftLength, decoder
from speccascade.decoding.deferral import RULES, Rule, rule
from speccascade.decoding.drafters.autoregressive import (
  AutoregressiveDrafter,
  StopPolicy,
)
from speccascade.decoding.drafters.cascade import cascade_drafter
from speccascade.decoding.drafters.horizontal import HorizontalDrafter
from speccascade.decoding.drafters.max_gram import MaxGramDrafter
from speccascade.decoding.drafters.vertical import VerticalDrafter
from speccascade.decoding.draws import row_keys
from speccascade.decoding.methods import METHODS, Method
from speccascade.decoding.sampling import Sampling
from speccascade.decoding.streaming import Stream
from speccascade.decoding.target import Target, as_target, defer, defer_tokens
from speccascade.decoding.types import (
  Decoded,
  Drafter,
  LanguageModel,
  LogProbs,
  Stats,
  Trace,
)

__all__ = [
  "METHODS",
  "RULES",
  "AutoregressiveDrafter",
  "Decoded",
  "Decoder",
  "DraftLength",
  "Drafter",
  "HorizontalDrafter",
  "LanguageModel",
  "LogProbs",
  "MaxGramDrafter",
  "Method",
  "Rule",
  "Sampling",
  "Stats",
  "StopPolicy",
  "Stream",
  "Target",
  "Trace",
  "VerticalDrafter",
  "as_target",
  "cascade_drafter",
  "decode_continuously",
  "decoder",
  "defer",
  "defer_tokens",
  "methods",
  "prompts",
  "row_keys",
  "rule",
]
