"""The kinds of models that are trained: a row of `KINDS` for each.

A new kind of draft model is a row, and a module that says what it learns: the
functions of `head_losses` and of `lookahead_losses` are such functions.
"""

from collections.abc import Callable
import dataclasses
import itertools

from speccascade.models.draft_heads import (
  BLOCKWISE,
  LOOKAHEAD,
  MEDUSA,
  HeadsConfig,
)
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import Config
from speccascade.models.t5.config import T5Config
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.training import head_losses, lesson, lookahead_losses, states
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
    is_prompted: whether the model is decoder-only, or drafts for such a model.
    has_verifier: whether the model drafts for one verifier alone. The verifier
      is its teacher, and gives it its shape.
    reads_hidden: whether each step reads the verifier's hidden states of the
      data's texts, whatever the loss.
    draws: whether each step draws random numbers besides those of dropout.
    initial: in words, what a new run starts from without a checkpoint.
    no_tuning: why the verifier cannot be tuned; None where it can.
  """

  summed: Callable[[Reading], states.Sums]
  measure: Callable[[Reading], Metrics]
  metric_names: Callable[[Config, bool, bool], tuple[str, ...]]
  num_vectors: Callable[[int, Config, Objective], int]
  is_prompted: Callable[[Config], bool]
  has_verifier: bool = False
  reads_hidden: bool = False
  draws: bool = False
  initial: str = "random parameters"
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
  is_prompted=lambda config: False,
  no_tuning=" is for draft heads, and MODEL is a language model: leave it out",
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
  is_prompted=lambda config: config.prompted,
  has_verifier=True,
  reads_hidden=True,
  initial="the verifier's own law",
)
_LOOKAHEAD = Kind(
  summed=lookahead_losses.summed,
  measure=lookahead_losses.measure,
  metric_names=_depth_names,
  # Logits are computed at one cut of each row.
  num_vectors=lambda width, config, objective: (
    (1 + objective.needs_teacher) * config.num_heads
  ),
  is_prompted=lambda config: config.prompted,
  has_verifier=True,
  draws=True,
  initial="random look-ahead embeddings",
  no_tuning=(
    " is for draft heads over hidden states; the verifier of look-ahead"
    " embeddings stays as it is: leave it out"
  ),
)

KINDS = {
  T5Config: _MODEL,
  T5GemmaConfig: _MODEL,
  LlamaConfig: dataclasses.replace(_MODEL, is_prompted=lambda config: True),
  MEDUSA: _HEADS,
  BLOCKWISE: _HEADS,
  LOOKAHEAD: _LOOKAHEAD,
}


def kind_of(config: Config) -> Kind:
  """Returns how a model is trained."""
  is_heads = isinstance(config, HeadsConfig)
  return KINDS[config.kind if is_heads else type(config)]


def is_prompted(config: Config) -> bool:
  """Whether a model is decoder-only, or drafts for such a model."""
  return kind_of(config).is_prompted(config)


def input_names(config: Config) -> tuple[str, ...]:
  """Returns the names of the token arrays that a model's batches must have."""
  return states.CAUSAL if is_prompted(config) else states.INPUTS
