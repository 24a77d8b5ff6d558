"""Reads one model of a pair from its checkpoint: `Model`, `load_model`."""

from collections.abc import Mapping
import dataclasses
import math
import os
import pathlib
from typing import Any

from absl import logging
import jax

from speccascade import checkpoints
from speccascade.checkpoints import (
  generation_settings,
  hub,
  hub_names,
  storage,
)
from speccascade.decoding.programs import draft_models
from speccascade.decoding.records.drafter import Exit
from speccascade.generate.pair import drafter_kernels
from speccascade.generate.pair.pair_checks import PairError, cut_rows
from speccascade.models import architectures, intersection
from speccascade.models.cached_lm import CachedLM
from speccascade.models.draft_heads import fingerprint
from speccascade.models.exit_model import TrainedExit
from speccascade.models.heads_model import TrainedHeads
from speccascade.models.parameters import Config
from speccascade.models.reader_model import StateReader
from speccascade.models.sharding.partitioning import Layout
from speccascade.runtime import memory
from speccascade.text import prompting, vocabulary_paths


@dataclasses.dataclass(frozen=True)
class Model:
  """A language model, together with the checkpoint that it was read from.

  Attributes:
    lm: the language model; or draft heads, look-ahead embeddings or a state
      reader, in a drafter's place; or an early exit that was taught, of which a
      pair makes a language model.
    name: the name of the checkpoint and its step, for tables and rows.
    path: the path of the checkpoint; "" for a model made in memory.
    vocabulary: the identity {"path", "sha256"} of the vocabulary file that the
      checkpoint records, or that is stored with it. None where it is unknown.
    num_parameters: the number of parameters in the checkpoint, or None for a
      model made in memory.
    fingerprint: what `draft_heads.fingerprint` says of a verifier's parameters;
      "" where it is unknown.
    tuned_verifier: of draft heads that were trained together with their
      verifier, the path of that verifier; "" otherwise.
    setting: what names the model in DRAFTER_CHECKPOINT where that is not its
      path, as of an early exit; "" otherwise.
  """

  lm: (
    CachedLM
    | TrainedHeads
    | TrainedExit
    | StateReader
    | intersection.IntersectionLM
  )
  name: str
  path: str
  vocabulary: Mapping[str, str] | None = None
  num_parameters: int | None = None
  fingerprint: str = ""
  tuned_verifier: str = ""
  setting: str = ""

  @property
  def source(self) -> str:
    """The path as records have it: "org/name@commit" of a model of the hub."""
    return hub.recorded(self.path)

  @property
  def drafts_alone(self) -> bool:
    """Whether the model writes a text without a verifier."""
    return draft_models.row_of(self.lm).drafts_alone

  @property
  def words(self) -> str:
    """What messages call the kind of the model."""
    return draft_models.row_of(self.lm).words

  @property
  def kind(self) -> str:
    """What rows call the kind of the model, such as "state reader"."""
    if getattr(self.lm, "num_shared", 0):  # made of its verifier
      return draft_models.DRAFT_MODELS[Exit].name
    return draft_models.row_of(self.lm).name

  @property
  def prompted(self) -> bool:
    """Whether the model is decoder-only and continues a prompt."""
    return self.lm.prompted

  @property
  def window(self) -> float:
    """The most tokens of a text; a prompt and its output are one text.

    Models without a limit, such as T5 with its relative positions, have an
    infinite window.
    """
    # Models that are not neural networks have no module.
    config = getattr(getattr(self.lm, "module", None), "config", None)
    return getattr(config, "longest_text", math.inf)


def load_model(
  role: str,
  checkpoint: str | os.PathLike | None,
  config: Config | None = None,
  dtype: str | None = None,
  *,
  kernel_dtype: str = "float32",
  rows: int | None = None,
  layout: Layout | None = None,
) -> Model:
  """Reads one model for decoding.

  Args:
    role: "drafter" or "verifier", for messages.
    checkpoint: the path of a checkpoint in any layout of `checkpoints.load`.
    config: the architecture. None takes the architecture that the checkpoint
      records, or the one that its arrays show.
    dtype: the type of the activations. None keeps the architecture's type.
    kernel_dtype: the type of the kernels; see `T5LM.create`.
    rows: the number of vocabulary rows of the pair. A model with more of them
      keeps the first ones; one with fewer never draws the others. None leaves
      the model as it is. See `pair_checks.verifier_rows`.
    layout: the devices that hold the arrays. Each device reads only its own
      part of an array. None reads whole arrays, one after another.

  Raises:
    PairError: no checkpoint is given.
    CheckpointError: the checkpoint cannot be read, or does not fit the
      architecture.
    ValueError: the mesh does not divide the architecture.
  """
  if not checkpoint:
    raise PairError(f"the method needs a {role}: set {role.upper()}_CHECKPOINT")
  stored = checkpoints.load(checkpoint, config=config, lazy=True)
  # Counted before the parameters are donated, and before rows are cut.
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(stored.params))
  config, params = stored.require_config(), stored.params
  check_role(config, role, stored.path)
  drafter_kernels.check_quantised(kernel_dtype, config, stored.path, layout)
  if stored.layout != "gguf":
    directory = storage.Directory(stored.path)
    if line := generation_settings.describe_unapplied(directory):
      logging.warning("%s", line)
  digest = fingerprint(params) if role == "verifier" else ""
  if rows is not None and rows < config.vocab_size:
    config, params = cut_rows(config, params, rows)
  if layout is not None:
    layout.check(config, role.upper())
  # Donated parameters are freed one by one as they are packed, so that memory
  # need not hold the checkpoint and the model at the same time.
  lm = architectures.row_of(config).model.create(
    config, params, dtype, kernel_dtype=kernel_dtype, donate=True, layout=layout
  )
  if rows is not None and rows > config.vocab_size:
    lm = lm.replace(rows=rows)
  jax.block_until_ready(lm)
  memory.give_back()
  _log_sizes(stored.path, lm)
  return Model(
    lm,
    name=_checkpoint_name(stored),
    path=stored.path,
    vocabulary=_vocabulary_identity(stored, lm),
    num_parameters=num_parameters,
    fingerprint=digest,
    tuned_verifier=_tuned_verifier(stored),
  )


def load_drafter(
  source: drafter_kernels.DrafterSource, **options: Any
) -> Model:
  """Reads a drafter, which may be the verifier itself in int8.

  Args:
    source: where it is read from.
    **options: further arguments of `load_model`.
  """
  config, path, kernel_dtype, is_self = source
  if is_self and not path:
    raise PairError(
      f"the drafter {drafter_kernels.SELF!r} is the verifier in int8: set"
      " VERIFIER_CHECKPOINT"
    )
  model = load_model(
    "drafter", path, config, kernel_dtype=kernel_dtype, **options
  )
  return as_self(model) if is_self else model


def as_self(model: Model) -> Model:
  """Returns a verifier that drafts for itself, by its name as a drafter."""
  name = f"{model.name} in int8"
  return dataclasses.replace(model, name=name, setting=drafter_kernels.SELF)


def check_role(config: Config, role: str, path: Any) -> None:
  """Raises PairError where what drafts for a verifier is to be one.

  Args:
    config: the architecture of the model.
    role: "drafter" or "verifier".
    path: of the model's checkpoint, for the message.
  """
  if role == "verifier" and not architectures.drafts_alone(config):
    raise PairError(
      f"{path} has {architectures.words_of(config)}; the verifier must be a"
      " language model: set DRAFTER_CHECKPOINT to this path, and"
      " VERIFIER_CHECKPOINT to the verifier of the training"
    )


def _tuned_verifier(stored: checkpoints.Checkpoint) -> str:
  """Returns the path of the verifier that heads were trained with, or ""."""
  place = stored.extra.get("tuned_verifier", "")
  folder = str(stored.path).rstrip("/").rpartition("/")[0]
  return place and f"{folder}/{place}"


def _log_sizes(path: str, lm: Any):
  """Logs the bytes of a model's weights, and the memory of this process."""
  process_bytes = memory.held()
  in_memory = ""
  if process_bytes:
    in_memory = f"; this process holds {process_bytes / 1e6:.0f} MB"
  weight_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(lm))
  logging.info("%s: %.1f MB of weights%s", path, weight_bytes / 1e6, in_memory)


def _checkpoint_name(checkpoint: checkpoints.Checkpoint) -> str:
  """Returns "small-500", say, for the checkpoint out/small/checkpoint_500.

  A model of the hub is "gemma-3-1b@0a1b2c3", with the commit's first digits.
  """
  if name := hub_names.short_name_of(checkpoint.path):
    return name
  path = pathlib.PurePosixPath(str(checkpoint.path).rstrip("/"))
  if checkpoint.step is None:
    return path.name
  is_step_folder = path.name.startswith("checkpoint_")
  folder = path.parent if is_step_folder else path
  return f"{folder.name}-{checkpoint.step}"


def _vocabulary_identity(
  checkpoint: checkpoints.Checkpoint, lm: Any
) -> Mapping[str, str] | None:
  """Returns {"path", "sha256"} of a model's vocabulary; None if unknown."""
  # A checkpoint of this package records it. For another one it is the
  # vocabulary in the checkpoint's folder.
  if checkpoint.vocabulary is not None:
    return checkpoint.vocabulary
  path = vocabulary_paths.vocabulary_path_of(checkpoint.path)
  if path is None:
    return None
  from speccascade.text import vocabularies

  try:
    return prompting.identity(vocabularies.load(path))
  except (ValueError, OSError) as error:
    if lm.prompted:
      raise
    # A T5 may be given another vocabulary than the one next to it.
    logging.warning(
      "%s: the vocabulary beside it is not read, and is not compared (%s)",
      checkpoint.path,
      storage.first_line(error),
    )
    return None
