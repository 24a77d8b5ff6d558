"""Checks the batches that models are trained and measured on."""

from collections.abc import Mapping

import numpy as np

from speccascade.models.parameters import Config
from speccascade.training import states
from speccascade.training.kinds import input_names

Batch = Mapping[str, np.ndarray]


def check_batch(batch: Batch, config: Config, number: int) -> Batch:
  """Returns a batch as a training step takes it, after checking its token ids.

  Where an encoder-decoder's batch has no decoder inputs, they are computed from
  the targets: the start token 0, then the targets without their last column.

  Args:
    batch: the arrays that the module `states` describes.
    config: the model's architecture.
    number: the batch's position in the run, for messages.

  Raises:
    ValueError: an array is missing or is not of integers, or a token id is
      outside the model's vocabulary.
  """
  batch = {name: np.asarray(leaf) for name, leaf in batch.items()}
  names = input_names(config)
  if names == states.CAUSAL and "decoder_loss_weights" not in batch:
    raise ValueError(
      f"batch {number} has no decoder_loss_weights, which say of a decoder-only"
      " model's tokens which are learned"
    )
  if (
    names == states.INPUTS
    and "decoder_target_tokens" in batch
    and "decoder_input_tokens" not in batch
  ):
    batch["decoder_input_tokens"] = _shift_right(batch, number)
  for name in names:
    if name not in batch:
      raise ValueError(
        f"batch {number} has no {name}; it has {', '.join(sorted(batch))}"
      )
    _check_tokens(name, batch[name], config.vocab_size, number)
    batch[name] = batch[name].astype(np.int32, copy=False)
  return batch


def _shift_right(batch: Batch, number: int) -> np.ndarray:
  """Returns decoder inputs [B, T]: the start token 0, then the targets."""
  # Each segment of a packed row would need a start token of its own.
  if "decoder_segment_ids" in batch:
    raise ValueError(
      f"batch {number} is packed and has no decoder_input_tokens; give them"
    )
  # Targets [5, 6, 1] become decoder inputs [0, 5, 6].
  return np.pad(batch["decoder_target_tokens"], ((0, 0), (1, 0)))[:, :-1]


def _check_tokens(name: str, tokens: np.ndarray, vocab_size: int, number: int):
  """Raises ValueError where an array is not [rows, length] token ids."""
  # A compiled step raises no error for an id out of range: it would train on
  # something else without a word.
  if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
    raise ValueError(
      f"batch {number}: {name} is {tokens.dtype}{list(tokens.shape)}, wanted "
      "int32 [rows, length]"
    )
  if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size:
    wrong = tokens.min() if tokens.min() < 0 else tokens.max()
    raise ValueError(
      f"batch {number}: {name} holds id {wrong}, the model has vocab_size "
      f"{vocab_size}: the task's vocabulary is not the model's"
    )
