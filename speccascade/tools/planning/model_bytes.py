"""The bytes of each kind of draft model: `BYTES`.

Draft heads
have neither layers nor caches, so `footprint` cannot count what a step stores
of them. Look-ahead embeddings take the layers and the cache of their verifier.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, NamedTuple

from speccascade.decoding.programs.draft_models import PerKind
from speccascade.decoding.records.drafter import Exit, Heads, Lookahead
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.records.readers import ReadsStates
from speccascade.models import architectures
from speccascade.models.draft_heads import MEDUSA, HeadsConfig
from speccascade.models.parameters import Config
from speccascade.models.reader_config import StateReaderConfig
from speccascade.models.sharding.partitioning import Layout
from speccascade.models.taught_exit import ExitConfig
from speccascade.tools.planning import footprint

# States that a state reader holds of each row, with blocks of five drafts.
_HELD_STATES = 12


class DecodeSizes(NamedTuple):
  """What the state of a model in a decode depends on.

  Attributes:
    verifier: the architecture of the verifier; None where there is none.
    layout: where the model lies.
    inputs: (rows, source or prompt tokens of a row).
    capacity: slots of a cache after the prompt.
  """

  verifier: Config | None
  layout: Layout
  inputs: tuple[int, int]
  capacity: int


class BatchSizes(NamedTuple):
  """What a step of training depends on.

  Attributes:
    verifier: the architecture of the teacher, which is the verifier of heads;
      None where there is none.
    layout: where the model lies.
    rows: rows of a part of the batch that is fed at a time.
    width: tokens of a row that the loss reads.
    lengths: {"inputs": ..., "targets": ...}, tokens of a row.
    remat: which activations are computed again, see `layers.REMAT`.
  """

  verifier: Any
  layout: Layout
  rows: int
  width: int
  lengths: Mapping[str, int]
  remat: str | None

  def activations(self, config: Config) -> float:
    """Returns the bytes that a language model stores for its gradient."""
    return footprint.activations(
      config, self.layout, self.rows, self.lengths, self.remat
    )


class StepNumbers(NamedTuple):
  """What a step of training computes.

  Attributes:
    activations: bytes that the step stores for the gradient, on each device.
    num_laws: distributions of the model.
    num_taught: distributions of its teacher.
    num_verified: distributions of a verifier that learns with the model.
  """

  activations: float
  num_laws: int
  num_taught: int
  num_verified: int


@dataclasses.dataclass(frozen=True)
class ModelBytes:
  """What a plan asks of a kind of draft model.

  Attributes:
    state: a function from an architecture and a `DecodeSizes` to the bytes that
      a model holds between two blocks, on each device.
    step: a function from an architecture and a `BatchSizes` to a `StepNumbers`.
    has_kernel_dtype: whether its kernels are stored as a language model's.
  """

  state: Callable[[Any, DecodeSizes], float]
  step: Callable[[Any, BatchSizes], StepNumbers]
  has_kernel_dtype: bool = False


def check_layout(config: Config, layout: Layout) -> None:
  """Raises ValueError where draft heads are to lie on several devices.

  A model that is made for one verifier lies on one device, in float32.
  """
  is_split = any(x > 1 for x in layout.sizes.values())
  if is_split and not architectures.drafts_alone(config):
    raise ValueError(
      f"{architectures.words_of(config)} lie on one device, and a mesh is"
      " set: leave MESH out"
    )


def shaped(config: Config, verifier: Config | None) -> Config:
  """Returns an architecture with the shape of its verifier, if it has one.

  Raises:
    ValueError: there is no verifier, or it is not a language model.
  """
  if architectures.drafts_alone(config):
    return config
  if verifier is None or not architectures.drafts_alone(verifier):
    raise ValueError(
      f"{architectures.words_of(config)} need a TEACHER_CHECKPOINT, which is"
      " the verifier and a language model: set it"
    )
  return config.shaped_like(verifier)


def _caches(config: Config, decode: DecodeSizes) -> float:
  model, (_, *of_decode) = architectures.row_of(config).model, decode
  return footprint.caches(model, config, *of_decode)


def _model_step(config: Config, batch: BatchSizes) -> StepNumbers:
  positions = batch.rows * batch.width
  return StepNumbers(batch.activations(config), positions, positions, positions)


def _hidden_states(config: HeadsConfig, decode: DecodeSizes) -> float:
  # Of each row a hidden state in float32, and a counter.
  return decode.inputs[0] * (4.0 * config.emb_dim + 4)


def _heads_step(config: HeadsConfig, batch: BatchSizes) -> StepNumbers:
  positions, num_heads = batch.rows * batch.width, config.num_heads
  # The verifier's hidden state, which all heads read; and of each head the
  # products before its nonlinearity, and the state that is projected. A
  # blockwise head stores the layer after its nonlinearity, too.
  inner = config.emb_dim if config.kind == MEDUSA else 2 * config.mlp_dim
  numbers = config.emb_dim + num_heads * (inner + config.emb_dim)
  stored = 4.0 * positions * numbers
  return StepNumbers(stored, num_heads * positions, positions, positions)


def _embeddings_state(config: HeadsConfig, decode: DecodeSizes) -> float:
  # The verifier's network reads the embeddings, with another cache.
  if decode.verifier is None:
    return _hidden_states(config, decode)
  return _caches(decode.verifier, decode)


def _embeddings_step(config: HeadsConfig, batch: BatchSizes) -> StepNumbers:
  # The gradient goes through the verifier, which reads the embeddings. Each row
  # is cut once, and has logits at its embeddings alone.
  num_laws = batch.rows * config.num_heads
  stored = batch.activations(batch.verifier)
  return StepNumbers(stored, num_laws, num_laws, batch.rows)


def _exit_step(config: ExitConfig, batch: BatchSizes) -> StepNumbers:
  # The gradient goes no further back than the first new layer.
  positions = batch.rows * batch.width
  changes: dict[str, Any] = {
    "num_decoder_layers": max(config.num_new_layers, 1)
  }
  own = dataclasses.replace(config.whole, **changes)
  return StepNumbers(batch.activations(own), positions, positions, positions)


def _reader_state(config: StateReaderConfig, decode: DecodeSizes) -> float:
  # The caches of one layer, and the states of a few tokens.
  states = decode.inputs[0] * 4.0 * _HELD_STATES * config.emb_dim
  return _caches(config.layer, decode) + states


def _reader_step(config: StateReaderConfig, batch: BatchSizes) -> StepNumbers:
  # Each reading stores what a model of one layer does.
  positions, num = batch.rows * batch.width, config.num_steps
  stored = num * batch.activations(config.layer)
  return StepNumbers(stored, num * positions, positions, positions)


BYTES = PerKind[ModelBytes](__name__, "BYTES", "how many bytes are held")
BYTES.register(LanguageModel, ModelBytes(_caches, _model_step, True))
BYTES.register(Heads, ModelBytes(_hidden_states, _heads_step))
BYTES.register(Lookahead, ModelBytes(_embeddings_state, _embeddings_step))
BYTES.register(
  Exit,
  ModelBytes(
    lambda config, decode: _caches(config.whole, decode), _exit_step, True
  ),
)
BYTES.register(ReadsStates, ModelBytes(_reader_state, _reader_step, True))


def row_of(config: Config) -> ModelBytes:
  """Returns what a plan asks of an architecture."""
  return BYTES[architectures.kind_of(config)]
