"""A drafter that is the verifier's first layers: `EarlyExit`.

There is no second checkpoint: the drafter has the verifier's arrays, tokens and
encoder. See `models.early_exit`.
"""

from collections.abc import Iterable
import dataclasses
import os
from typing import Any, cast

from speccascade.decoding.records.drafter import is_taught_exit
from speccascade.generate.pair import drafter_kernels
from speccascade.generate.pair.model_loading import Model
from speccascade.generate.pair.pair_checks import PairError
from speccascade.models import early_exit, parameters
from speccascade.models.cached_lm import CachedLM
from speccascade.models.exit_model import TrainedExit
from speccascade.models.parameters import Config
from speccascade.settings import fields

PREFIX = "early-exit:"


@fields.checked
@dataclasses.dataclass(frozen=True)
class EarlyExit:
  """Drafts with the verifier's first layers, its last norm and its head.

  It takes the place of a drafter in `load_pair`, and `str` of it, such as
  "early-exit:4", that of a DRAFTER_CHECKPOINT. The drafter is a language model
  like any other.

  Attributes:
    num_layers: k, the decoder layers that draft; with all of them the drafter
      is the verifier.

  Raises:
    ValueError: the number is not one from 1 on.
  """

  num_layers: fields.Positive

  def __str__(self) -> str:
    return f"{PREFIX}{self.num_layers}"

  def config_of(self, verifier: Config, name: str = "the verifier") -> Config:
    """Returns the architecture of the drafter.

    Args:
      verifier: the architecture of the verifier.
      name: of the verifier, for the message.

    Raises:
      PairError: the verifier has fewer layers.
    """
    try:
      return early_exit.shortened(verifier, self.num_layers)
    except ValueError as error:
      raise PairError(f"{name}: {error}") from error

  def of(self, verifier: Model | None) -> Model:
    """Returns the drafter.

    Args:
      verifier: the model whose layers draft; None where there is none.

    Raises:
      PairError: there is no verifier, or none with so many layers.
    """
    if verifier is None:
      raise PairError(
        f"{self!r} drafts with the verifier's first layers, and there is no"
        " verifier: give one"
      )
    if not isinstance(verifier.lm, CachedLM):
      raise PairError(
        f"{self!r} wants a verifier that is a T5, a T5Gemma or a Llama;"
        f" {verifier.name} is a {type(verifier.lm).__name__}"
      )
    self.config_of(verifier.lm.module.config, verifier.name)
    lm = verifier.lm.first_layers(self.num_layers)
    return dataclasses.replace(
      verifier,
      lm=lm,
      name=f"{verifier.name} exit {self.num_layers}",
      setting=str(self),
      num_parameters=parameters.num_parameters(lm.module.config),
    )


def setting_of(source: Any) -> EarlyExit | None:
  """Returns the early exit that a drafter's source names, or None.

  Raises:
    PairError: it is written as one, and the number of layers is none.
  """
  if isinstance(source, EarlyExit):
    return source
  if isinstance(source, os.PathLike):
    source = os.fspath(source)
  if not isinstance(source, str) or not source.startswith(PREFIX):
    return None
  number = source.removeprefix(PREFIX)
  is_number = number.isascii() and number.isdecimal() and len(number) < 10
  if not (is_number and int(number)):
    raise PairError(
      f"the drafter is {source!r:.60}; wanted {PREFIX}K with the number K of"
      f" the verifier's first layers, such as {PREFIX}4"
    )
  return EarlyExit(int(number))


def is_of_verifier(source: Any) -> bool:
  """Whether a drafter's source names one that is made of its verifier."""
  return drafter_kernels.names_self(source) or setting_of(source) is not None


def check_verifier(source: Any) -> None:
  """Raises PairError where a verifier's source names a drafter."""
  if is_of_verifier(source):
    raise PairError(
      f"the verifier is {str(source)!r}, which names a drafter that is made of"
      " a verifier: give it as the drafter, and a model as the verifier"
    )


def without_exits(sources: Iterable[Any]) -> list[Any]:
  """Returns the sources of drafters that are checkpoints or models."""
  return [source for source in sources if setting_of(source) is None]


def has_exits(drafters: Iterable[Model | EarlyExit]) -> bool:
  """Whether a drafter is an early exit that is not made yet."""
  return any(
    isinstance(drafter, EarlyExit) or is_taught_exit(drafter.lm)
    for drafter in drafters
  )


def made_of(
  drafters: Iterable[Model | EarlyExit], verifier: Model | None
) -> tuple[Model, ...]:
  """Returns drafters with the early exits among them made of a verifier.

  Raises:
    PairError: see `EarlyExit.of`.
  """
  made = []
  for drafter in drafters:
    if isinstance(drafter, EarlyExit):
      drafter = drafter.of(verifier)
    elif is_taught_exit(drafter.lm):
      drafter = _taught(drafter, verifier)
    made.append(drafter)
  return tuple(made)


def _taught(model: Model, verifier: Model | None) -> Model:
  """Returns a drafter of an early exit that was taught for a verifier."""
  if verifier is None:
    raise PairError(
      f"{model.name} is an early exit, which begins with its verifier's layers:"
      " give the verifier, as VERIFIER_CHECKPOINT or verifier="
    )
  lm = cast(TrainedExit, model.lm)
  wanted = lm.config.verifier_sha256
  if wanted and verifier.fingerprint and wanted != verifier.fingerprint:
    raise PairError(
      f"{model.name} is an early exit that was taught for another verifier than"
      f" {verifier.name}: give that one, or teach an exit of this one"
    )
  try:
    made = lm.language_model(verifier.lm)
  except ValueError as error:
    raise PairError(f"{model.name}: {error}") from error
  size = parameters.num_parameters(made.module.config)
  return dataclasses.replace(model, lm=made, num_parameters=size)


def check_source(
  source: drafter_kernels.DrafterSource, kernel_dtype: str
) -> None:
  """Raises PairError where an early exit is to be unlike its verifier.

  Args:
    source: of any drafter.
    kernel_dtype: of the verifier's kernels.
  """
  if setting_of(source.path) is None:
    return
  if source.config is not None:
    raise PairError(
      f"DRAFTER is given for {source.path}, which has the verifier's"
      " architecture: leave it out"
    )
  check_kernels(source.kernel_dtype, kernel_dtype)


def check_kernels(drafter_kernel_dtype: str, kernel_dtype: str) -> None:
  """Raises PairError where an early exit is to have kernels of its own."""
  if drafter_kernel_dtype != kernel_dtype:
    raise PairError(
      "an early exit has the verifier's kernels, and DRAFTER_KERNEL_DTYPE is"
      f" {drafter_kernel_dtype!r}; leave it out"
    )


def check_no_vocabulary(drafters: Iterable[Model]) -> None:
  """Raises PairError where an early exit is to have another vocabulary."""
  for model in drafters:
    if setting_of(model.setting):
      raise PairError(
        f"{model.name} is an early exit, and has the verifier's vocabulary;"
        " leave DRAFTER_VOCABULARY out"
      )
