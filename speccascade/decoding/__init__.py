"""The core: deferral rules, targets, verifier steps and executions."""

from speccascade.decoding.drafting.adaptive import AdaptiveDrafter
from speccascade.decoding.drafting.autoregressive import (
  AutoregressiveDrafter,
  StopPolicy,
)
from speccascade.decoding.drafting.branched import BranchedDrafter
from speccascade.decoding.drafting.heads_drafter import HeadsDrafter
from speccascade.decoding.drafting.horizontal import HorizontalDrafter
from speccascade.decoding.drafting.lookahead_drafter import LookaheadDrafter
from speccascade.decoding.drafting.max_gram import MaxGramDrafter
from speccascade.decoding.drafting.several_drafters import SeveralDrafters
from speccascade.decoding.drafting.state_drafter import StateDrafter
from speccascade.decoding.drafting.tree_drafter import TreeDrafter
from speccascade.decoding.laws.deferral import RULES
from speccascade.decoding.laws.draws import row_keys
from speccascade.decoding.laws.rules import Rule, rule
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.target_checks import as_target
from speccascade.decoding.laws.targets import Target, defer, defer_tokens
from speccascade.decoding.nested.cascade import cascade_drafter
from speccascade.decoding.nested.vertical import VerticalDrafter
from speccascade.decoding.programs import methods
from speccascade.decoding.programs.continuous import decode_continuously
from speccascade.decoding.programs.decoders import Decoder, decoder
from speccascade.decoding.programs.method import Method
from speccascade.decoding.programs.methods import METHODS
from speccascade.decoding.programs.streaming import Stream
from speccascade.decoding.records import prompts
from speccascade.decoding.records.automaton import (
  Constraints,
  TokenAutomaton,
)
from speccascade.decoding.records.block_records import (
  Decoded,
  LogProbs,
  Stats,
  Trace,
)
from speccascade.decoding.records.decode_settings import DraftLength
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.records.phased_alpha import PhasedAlpha

__all__ = [
  "METHODS",
  "RULES",
  "AdaptiveDrafter",
  "AutoregressiveDrafter",
  "BranchedDrafter",
  "Constraints",
  "Decoded",
  "Decoder",
  "DraftLength",
  "DraftTree",
  "Drafter",
  "HeadsDrafter",
  "HorizontalDrafter",
  "LanguageModel",
  "LogProbs",
  "LookaheadDrafter",
  "MaxGramDrafter",
  "Method",
  "PhasedAlpha",
  "Rule",
  "Sampling",
  "SeveralDrafters",
  "StateDrafter",
  "Stats",
  "StopPolicy",
  "Stream",
  "Target",
  "TokenAutomaton",
  "Trace",
  "TreeDrafter",
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
