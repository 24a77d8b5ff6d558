"""Texts that a model writes while another learns from them, or it itself.

A batch of the data becomes a batch of texts of the same shape: the sources or
prompts stay, and what follows them is sampled at temperature 1. Who writes at a
step, and what is drawn, depend on the seed and the step alone, so a resumed run
reads the texts of the unbroken run.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, Literal

import numpy as np

from speccascade.decoding.laws.draws import row_keys
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.programs import decoders
from speccascade.decoding.records import prompts
from speccascade.models import architectures
from speccascade.models.parameters import Config
from speccascade.models.sharding.partitioning import fetch, layout_of
from speccascade.settings import fields
from speccascade.training import states

Batch = Mapping[str, np.ndarray]


@fields.checked
@dataclasses.dataclass(frozen=True)
class WrittenText:
  """Who writes the texts of a run.

  Attributes:
    student_text: the share of steps whose texts the learning model writes, with
      its parameters of that step (on-policy).
    teacher_text: the share of steps whose texts the teacher writes. All other
      steps read the text of the data.
    seed: seeds the choice and the texts.
    eos_id: the token that ends a text, or several such tokens.
    teacher: the teacher; needed where it writes.

  Source: the student's share is lambda of Algorithm 1 of Agarwal et al. (GKD),
  arXiv:2306.13649, which draws it again for each batch.
  """

  student_text: fields.Share = 0.0
  teacher_text: fields.Share = 0.0
  seed: fields.NonNegative = 0
  eos_id: int | tuple[int, ...] = 1
  teacher: states.Teacher | None = None

  def __post_init__(self):
    if self.student_text + self.teacher_text > 1:
      raise ValueError(
        f"STUDENT_TEXT {self.student_text:g} and TEACHER_TEXT"
        f" {self.teacher_text:g} are shares of one run; their sum must not be"
        " more than 1"
      )
    if self.teacher_text and self.teacher is None:
      raise ValueError("TEACHER_TEXT needs a TEACHER_CHECKPOINT")

  def author(self, step: int) -> Literal["student", "teacher", "data"]:
    """Returns who writes the texts of a step."""
    u = np.random.default_rng([self.seed, step]).random()
    if u < self.student_text:
      return "student"
    if u < self.student_text + self.teacher_text:
      return "teacher"
    return "data"

  def __call__(
    self, batch: Batch, step: int, module: states.Network, params: Any
  ) -> Batch:
    """Returns the batch that a step learns from.

    Args:
      batch: a batch of the data, as `batch_checks.check_batch` returns it.
      step: the step, counted from 0.
      module: the network that learns.
      params: its parameters before the step.

    Raises:
      ValueError: a model writes, and the batch is packed or holds a teacher's
        hidden states, which belong to the text of the data.
    """
    author = self.author(step)
    if author == "data":
      return batch
    for name in ("decoder_segment_ids", "teacher_hidden"):
      if name in batch:
        raise ValueError(
          f"the batch of step {step} has {name}, and the {author} is to write"
          " its texts; leave out PACK and TEACHER_CACHE_DIR, or STUDENT_TEXT"
          " and TEACHER_TEXT"
        )
    if author == "teacher":
      assert self.teacher is not None
      module, params = self.teacher.module, self.teacher.params
    model = model_of(module.config, params)
    if model.prompted:
      return self._continued(batch, step, model)
    return self._translated(batch, step, model)

  def _translated(self, batch: Batch, step: int, model) -> Batch:
    """Returns a batch whose targets a model wrote from the sources."""
    targets = batch["decoder_target_tokens"]
    tokens, lengths = self._write(
      model, batch["encoder_input_tokens"], targets.shape[1], step
    )
    # A row without a target stays empty: such rows fill up a batch.
    lengths = np.where((targets > 0).any(axis=1), lengths, 0)
    is_text = np.arange(targets.shape[1]) < lengths[:, None]
    written = np.where(is_text, tokens, 0).astype(np.int32)
    shifted = np.pad(written, ((0, 0), (1, 0)))[:, :-1]
    return _replace(batch, shifted, written, is_text)

  def _continued(self, batch: Batch, step: int, model) -> Batch:
    """Returns a batch whose outputs a model wrote after the prompts."""
    fed, learned = batch["decoder_input_tokens"], batch["decoder_loss_weights"]
    width = fed.shape[1]
    is_row = (learned > 0).any(axis=1)
    # The first learned target follows the prompt's last token: in the weights
    # [0, 0, 1, 1, 0] the prompt is the first three tokens that are fed.
    num_prompt = np.where(is_row, (learned > 0).argmax(axis=1) + 1, 1)
    place = np.arange(width + 1)
    is_prompt = place[:-1] < num_prompt[:, None]
    tokens, lengths = self._write(
      model, np.where(is_prompt, fed, prompts.PAD), width, step
    )
    # A prompt of 2 and an output of 3 tokens in a text of 6 places:
    #   place     0 1 2 3 4 5
    #   text      p p o o o 0
    text = np.zeros((len(fed), width + 1), np.int32)
    for b, start in enumerate(num_prompt):
      output = tokens[b, : min(lengths[b], width + 1 - start)]
      text[b, :start] = fed[b, :start]
      text[b, start : start + len(output)] = output
    ends = np.minimum(num_prompt + lengths, width + 1)[:, None]
    is_output = (place >= num_prompt[:, None]) & (place < ends)
    is_output &= is_row[:, None]
    return _replace(batch, text[:, :-1], text[:, 1:], is_output[:, 1:])

  def _write(
    self, model, inputs: np.ndarray, limit: int, step: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens [B, limit] and the lengths [B] of a model's texts."""
    # The step stands for the shard of a decode: each step has keys of its own.
    keys = row_keys(self.seed, step, np.arange(len(inputs)))
    return write(
      model, inputs, keys, limit=limit, eos_id=self.eos_id, temperature=1.0
    )


def model_of(config: Config, params: Any):
  """Returns the language model of parameters, which decodes where they lie."""
  return architectures.row_of(config).model.create(
    config, params, layout=layout_of(params)
  )


def write(
  model,
  inputs: np.ndarray,
  keys,
  *,
  limit: int,
  eos_id: int | tuple[int, ...],
  temperature: float,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the tokens [B, limit] and the lengths [B] that a model writes.

  Args:
    model: a language model, as `model_of` returns it.
    inputs: [B, S] int32, sources or prompts.
    keys: [B] keys of the rows.
    limit: most tokens of a text, EOS included.
    eos_id: the token that ends a text, or several such tokens.
    temperature: 0 takes the likeliest tokens.
  """
  decode = decoders.decoder(
    "verifier", gamma=1, max_decode_len=limit, eos_id=eos_id
  )
  layout = layout_of(model.params)
  if layout is not None:
    inputs, keys = layout.rows((inputs, keys))
  sampling = Sampling.create(temperature)
  decoded = decode(None, model, inputs, keys, 0.0, sampling)
  return fetch((decoded.tokens, decoded.lengths))


def _replace(
  batch: Batch, fed: np.ndarray, targets: np.ndarray, is_text: np.ndarray
) -> Batch:
  """Returns a batch with other tokens, with the names and dtypes it had."""
  arrays = {"decoder_input_tokens": fed, "decoder_target_tokens": targets}
  if "decoder_loss_weights" in batch:
    arrays["decoder_loss_weights"] = is_text
  return {
    **batch,
    **{name: x.astype(batch[name].dtype) for name, x in arrays.items()},
  }
