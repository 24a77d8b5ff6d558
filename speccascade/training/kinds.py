"""How each kind of draft model is trained: `KINDS`.

A new kind registers its `Kind`, and has a module that says what it learns: the
functions of `head_losses`, `lookahead_losses` and `reader_losses` are such
functions.
"""

from collections.abc import Callable
import dataclasses
import itertools
from typing import Any

from speccascade.decoding.programs.draft_models import PerKind
from speccascade.decoding.records.drafter import Exit, Heads, Lookahead
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.records.readers import ReadsStates
from speccascade.models import (
  architectures,
  draft_heads,
  state_reader,
  taught_exit,
)
from speccascade.models.parameters import Config
from speccascade.training import (
  exit_losses,
  head_losses,
  lesson,
  lookahead_losses,
  reader_losses,
  states,
)
from speccascade.training.lesson import (
  DEPTH_NAMES,
  Metrics,
  Reading,
  next_tokens,
)
from speccascade.training.objectives import Objective
from speccascade.training.row_parts import PART


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
  """How one kind of model is trained and measured.

  Attributes:
    summed: the loss of a batch, summed over its target tokens.
    measure: the metrics of a batch.
    metric_names: the names of these metrics, of (config, whether there is a
      teacher, whether the verifier is tuned).
    num_vectors: how many vectors of logits a row has in memory at a time, of
      (number of target places of a row, config, objective).
    reads_hidden: whether each step reads the verifier's hidden states of the
      data's texts, whatever the loss.
    reads_prompts: whether it reads those at prompts too, and not at the places
      that are learned alone.
    cuts_head: whether it may learn the tokens of a draft vocabulary alone.
    draws: whether each step draws random numbers besides those of dropout.
    initial: in words, what a new run starts from without a checkpoint.
    initial_params: a function from (config, verifier's network, verifier's
      parameters) to the parameters before training; None where they are random
      and need no verifier.
    no_tuning: why the verifier cannot be tuned; None where it can.
  """

  summed: Callable[[Reading], states.Sums]
  measure: Callable[[Reading], Metrics]
  metric_names: Callable[[Config, bool, bool], tuple[str, ...]]
  num_vectors: Callable[[int, Config, Objective], int]
  reads_hidden: bool = False
  reads_prompts: bool = False
  cuts_head: bool = False
  draws: bool = False
  initial: str = "random parameters"
  initial_params: Callable[[Any, Any, Any], Any] | None = None
  no_tuning: str | None = None


# A language model learns its own next tokens.


def _model_names(config, has_teacher, is_tuned) -> tuple[str, ...]:
  taught = ("divergence", "acceptance") if has_teacher else ()
  return ("loss", "accuracy", *taught)


_MODEL = Kind(
  summed=lambda reading: lesson.summed(
    [next_tokens(reading)], reading.objective
  ),
  measure=lambda reading: lesson.measured(next_tokens(reading)),
  metric_names=_model_names,
  num_vectors=lambda width, config, objective: (
    (1 + objective.needs_teacher) * width
  ),
  no_tuning=" is for draft heads, and MODEL is a language model: leave it out",
)


# An early exit learns what a language model does, of its verifier.
_EXIT = dataclasses.replace(
  _MODEL,
  summed=lambda reading: _MODEL.summed(exit_losses.of_whole(reading)),
  measure=lambda reading: _MODEL.measure(exit_losses.of_whole(reading)),
  initial="the verifier's next layers and its norm",
  initial_params=taught_exit.initial_params,
  no_tuning=(
    " is for draft heads over hidden states; the verifier of an early exit"
    " stays as it is: leave it out"
  ),
)

# Draft heads and look-ahead embeddings learn the tokens at several depths.


def _depth_names(config, has_teacher, is_tuned) -> tuple[str, ...]:
  depths = range(1, config.num_heads + 1)
  names = [f"{name}_{k}" for k, name in itertools.product(depths, DEPTH_NAMES)]
  tuned = head_losses.VERIFIER_NAMES if is_tuned else ()
  return ("loss", "accuracy", *names, *tuned)


def _vectors_of_heads(width, config, objective) -> int:
  if objective.tuning is not None:
    # A verifier that is tuned has a loss of its own.
    return (config.num_heads + 1 + objective.needs_teacher) * width
  whole = objective.needs_teacher * width
  return config.num_heads * min(width, PART) + whole


_HEADS = Kind(
  summed=head_losses.summed,
  measure=head_losses.measure,
  metric_names=_depth_names,
  num_vectors=_vectors_of_heads,
  reads_hidden=True,
  initial="the verifier's own distribution",
  initial_params=draft_heads.initial_params,
)
_LOOKAHEAD = Kind(
  summed=lookahead_losses.summed,
  measure=lookahead_losses.measure,
  metric_names=_depth_names,
  # Logits are computed at one cut of each row.
  num_vectors=lambda width, config, objective: (
    (1 + objective.needs_teacher) * config.num_heads
  ),
  draws=True,
  initial="random look-ahead embeddings",
  initial_params=draft_heads.initial_params,
  no_tuning=(
    " is for draft heads over hidden states; the verifier of look-ahead"
    " embeddings stays as it is: leave it out"
  ),
)


# A state reader learns each draft from its reading of the text.


def _reader_names(config, has_teacher, is_tuned) -> tuple[str, ...]:
  depths = range(1, config.num_steps + 1)
  names = [f"{name}_{k}" for k, name in itertools.product(depths, DEPTH_NAMES)]
  return ("loss", "accuracy", *names)


_READER = Kind(
  summed=reader_losses.summed,
  measure=reader_losses.measure,
  metric_names=_reader_names,
  num_vectors=lambda width, config, objective: (
    (config.num_steps + objective.needs_teacher) * width
  ),
  reads_hidden=True,
  reads_prompts=True,
  cuts_head=True,
  initial="the verifier's last layer",
  initial_params=state_reader.initial_params,
  no_tuning=(
    " is for draft heads over hidden states; the verifier of a state reader"
    " stays as it is: leave it out"
  ),
)

KINDS = PerKind[Kind](__name__, "KINDS", "how they are trained")
KINDS.register(LanguageModel, _MODEL)
KINDS.register(Heads, _HEADS)
KINDS.register(Lookahead, _LOOKAHEAD)
KINDS.register(Exit, _EXIT)
KINDS.register(ReadsStates, _READER)


def kind_of(config: Config) -> Kind:
  """Returns how a model is trained."""
  return KINDS[architectures.kind_of(config)]


def input_names(config: Config) -> tuple[str, ...]:
  """Returns the names of the token arrays that a model's batches must have."""
  return states.CAUSAL if architectures.is_prompted(config) else states.INPUTS
