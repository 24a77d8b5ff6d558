"""The two models of a run, and whether they belong together."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib

from speccascade import checkpoints
from speccascade.checkpoints import architecture
from speccascade.decoding.types import Drafter
from speccascade.models.t5.config import T5Config
from speccascade.models.t5_lm import T5LM


class PairError(ValueError):
  """Models, or a vocabulary, that do not belong together."""


@dataclasses.dataclass(frozen=True)
class Model:
  """A model that was read, and where from.

  Attributes:
    lm: the model.
    name: of its checkpoint, with the step, for tables and rows.
    path: of its checkpoint.
    vocabulary: {"path", "sha256"} where the checkpoint says it, else None.
  """

  lm: T5LM
  name: str
  path: str
  vocabulary: Mapping[str, str] | None = None


@dataclasses.dataclass(frozen=True)
class Pair:
  """What decodes; either side may be None where a method does not need it.

  Attributes:
    drafters: largest first; one for most methods.
    verifier: the large model.
    composed: a `Drafter` made of the drafters and others, in their place.
    composed_name: of it.
  """

  drafters: tuple[Model, ...]
  verifier: Model | None
  composed: Drafter | None = None
  composed_name: str = ""

  @property
  def drafter_lm(self):
    """The drafter as a `Decoder` takes it: composed, models, or None."""
    if self.composed is not None:
      return self.composed
    lms = tuple(model.lm for model in self.drafters)
    return lms[0] if len(lms) == 1 else lms or None

  @property
  def verifier_lm(self):
    return None if self.verifier is None else self.verifier.lm

  @property
  def drafter_name(self) -> str:
    if self.composed is not None:
      return self.composed_name
    return "+".join(model.name for model in self.drafters)

  @property
  def verifier_name(self) -> str:
    return "" if self.verifier is None else self.verifier.name


def load_model(
  role: str,
  checkpoint: str | os.PathLike | None,
  config: T5Config | None = None,
  dtype: str | None = None,
  *,
  by_shape: bool = False,
) -> Model:
  """Reads one model.

  Args:
    role: "drafter" or "verifier", for messages.
    checkpoint: any layout of `checkpoints.load`.
    config: architecture; None takes the checkpoint's own.
    dtype: of the activations; None keeps the architecture's.
    by_shape: read the architecture off the arrays where nothing says it.

  Raises:
    PairError: no checkpoint is given.
    CheckpointError: it cannot be read, or does not fit the architecture.
  """
  if not checkpoint:
    raise PairError(f"the method needs a {role}: set {role.upper()}_CHECKPOINT")
  read = checkpoints.load(checkpoint, config=config)
  if by_shape and read.config is None:
    config = architecture.config_of(read.params, where=read.path)
  else:
    config = read.require_config()
  lm = T5LM.create(config, read.params, dtype=dtype)
  return Model(lm, _name(read), read.path, read.vocabulary)


def _name(read) -> str:
  """A checkpoint's name: its run directory and step."""
  path = pathlib.PurePosixPath(str(read.path).rstrip("/"))
  if read.step is None:
    return path.name
  is_step = path.name.startswith("checkpoint_")
  return f"{path.parent.name if is_step else path.name}-{read.step}"


def load_pair(
  *,
  drafter: T5Config | Sequence[T5Config] | None = None,
  verifier: T5Config | None = None,
  drafter_checkpoint: str | Sequence[str] | None = None,
  verifier_checkpoint: str | None = None,
  dtype: str | None = None,
  needs_drafter: bool = True,
  needs_verifier: bool = True,
) -> Pair:
  """Reads the models that a method needs.

  Args:
    drafter: architecture, or several, largest first; None takes the
      checkpoint's own.
    verifier: architecture, or None.
    drafter_checkpoint: one, or as many as `drafter`.
    verifier_checkpoint: the large model's.
    dtype: of the activations; None keeps the architecture's.
    needs_drafter: whether to read it at all.
    needs_verifier: whether to read it at all.

  Raises:
    PairError: a checkpoint is missing, or the vocabularies differ.
  """
  drafters = ()
  if needs_drafter:
    paths = _listed(drafter_checkpoint)
    configs = _listed(drafter) if drafter is not None else [None] * len(paths)
    if len(configs) != len(paths):
      raise PairError(
        f"DRAFTER names {len(configs)} architectures, DRAFTER_CHECKPOINT"
        f" {len(paths)}; give as many"
      )
    drafters = tuple(
      load_model("drafter", path, config, dtype)
      for path, config in zip(paths, configs)
    )
  large = None
  if needs_verifier:
    large = load_model("verifier", verifier_checkpoint, verifier, dtype)
  pair = Pair(drafters, large)
  check_models(pair)
  return pair


def _listed(value) -> list:
  return list(value) if isinstance(value, list | tuple) else [value]


def check_models(pair: Pair):
  """Checks that the models share one vocabulary.

  Raises:
    PairError: the number of rows, or the vocabulary files they were trained
      with (where both are known), differ.
  """
  models = [*pair.drafters]
  if pair.verifier is not None:
    models.append(pair.verifier)
  for model in models[1:]:
    first = models[0]
    if model.lm.vocab_size != first.lm.vocab_size:
      raise PairError(
        f"{first.name} has {first.lm.vocab_size} vocabulary rows, {model.name}"
        f" {model.lm.vocab_size}; a drafter and its verifier must share one"
        " vocabulary"
      )
    if _differ(first.vocabulary, model.vocabulary):
      raise PairError(
        f"{first.name} was trained with the vocabulary"
        f" {first.vocabulary['path']}, {model.name} with another,"
        f" {model.vocabulary['path']} (their sha256 differ); a drafter and its"
        " verifier must share one"
      )


def check_vocabulary(
  pair: Pair, vocab_size: int, identity: Mapping[str, str] | None
):
  """Checks that the vocabulary in use is the one the models were trained with.

  Args:
    pair: the models.
    vocab_size: ids that the vocabulary can produce.
    identity: {"path", "sha256"} of its file, or None where unknown.

  Raises:
    PairError: an id has no row, or a model was trained with another file.
  """
  models = [*pair.drafters]
  if pair.verifier is not None:
    models.append(pair.verifier)
  for model in models:
    if vocab_size > model.lm.vocab_size:
      raise PairError(
        f"VOCABULARY has {vocab_size} ids, {model.name} only"
        f" {model.lm.vocab_size} rows; give the vocabulary that the model was"
        " trained with"
      )
    if _differ(model.vocabulary, identity):
      raise PairError(
        f"{model.name} was trained with the vocabulary"
        f" {model.vocabulary['path']}, VOCABULARY is {identity['path']} (their"
        " sha256 differ); give the one that the model was trained with"
      )


def _differ(one, other) -> bool:
  known = one and other and one.get("sha256") and other.get("sha256")
  return bool(known) and one["sha256"] != other["sha256"]
