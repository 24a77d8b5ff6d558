"""A point of a trade-off: a method and its settings, and how it is run."""

import dataclasses
import functools
import os
from typing import Annotated, Literal

from speccascade import fields
from speccascade.decoding import decoders, methods
from speccascade.decoding.decoders import Decoder, DraftLength
from speccascade.decoding.methods import Method
from speccascade.decoding.sampling import Sampling
from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Costs, Counts
from speccascade.inference.results import Settings

AUTO = "auto"
BlockSize = Annotated[int, fields.Bounds(1, 1024)]
_OF_BLOCKS = ("gamma", "bonus", "verification")


@fields.checked
@dataclasses.dataclass(frozen=True)
class Point:
  """A method and its settings, checked when made.

  Attributes:
    method: name in `METHODS`.
    alpha: None takes the method's default.
    gamma: block size; not used by methods without blocks. "auto" is what
      `advice` says, once `inference.advice.resolved` has looked.
    temperature: 0 is greedy.
    top_k: None keeps all.
    top_p: None keeps all.
    bonus: "target" or "verifier".
    verification: "token" or "block".
    draft_length: "fixed", or (policy, threshold); see `DraftLength`.
    advice: OUTPUT_DIR of `speccascade.advise`, or its JSON file.

  Raises:
    ValueError: a setting is unknown or out of range.
  """

  method: Annotated[str, methods.find]
  alpha: float | None = None
  gamma: BlockSize | Literal["auto"] = 5
  temperature: Annotated[float, fields.Bounds(0)] = 1.0
  top_k: fields.NonNegative | None = None
  top_p: Annotated[float, fields.Bounds(0, 1, low_open=True)] | None = None
  bonus: Literal["target", "verifier"] = "target"
  verification: Literal["token", "block"] = "token"
  draft_length: (
    Literal["fixed"] | tuple[Literal["max_prob", "token_prob"], fields.Share]
  ) = "fixed"
  advice: str | os.PathLike | None = None

  def __post_init__(self):
    if self.alpha is None:
      object.__setattr__(self, "alpha", self.spec.default_alpha)
    try:
      _ = self.sampling
    except ValueError as error:
      name, _, fault = str(error).partition(" ")
      raise fields.SettingError(name, f" {fault}", Point) from error
    if self.spec.greedy_only and not self.sampling.greedy:
      raise ValueError(
        f"{self.method} is defined at temperature 0 only; TEMPERATURE is"
        f" {self.temperature:g}"
      )

  def check_alpha_is_used(self):
    """Raises SettingError where a method is given an alpha that has none."""
    if not self.spec.uses_alpha:
      fault = f" is {self.alpha:g}; {self.spec.label} takes none: leave it out"
      raise fields.SettingError("alpha", fault, Point)

  @property
  def spec(self) -> Method:
    return methods.find(self.method)

  @functools.cached_property
  def sampling(self) -> Sampling:
    return Sampling.create(self.temperature, self.top_k, self.top_p)

  @property
  def sampled(self) -> dict[str, float | None]:
    """How tokens are drawn; what filters nothing is None."""
    return {
      "temperature": 0.0 if self.sampling.greedy else self.temperature,
      "top_k": self.top_k or None,
      "top_p": None if self.top_p == 1 else self.top_p,
    }

  @property
  def policy(self) -> DraftLength:
    if isinstance(self.draft_length, str):
      return DraftLength(self.draft_length)
    return DraftLength(*self.draft_length)

  def decoder(self, **run) -> Decoder:
    """Returns the decoder.

    Args:
      **run: the fields of `Decoder` that are not the point's own.
    """
    return decoders.decoder(
      self.method,
      gamma=self.gamma,
      bonus=self.bonus,
      verification=self.verification,
      draft_length=self.policy,
      **run,
    )

  def settings(self, **run) -> Settings:
    """Returns the row's settings; what the method does not use is None.

    Args:
      **run: the fields of `Settings` that are not the point's own.
    """
    values = {
      **vars(self),
      **self.sampled,
      "draft_length": self.policy.policy,
      "draft_threshold": self.policy.threshold,
    }
    if not self.spec.uses_alpha:
      values["alpha"] = None
    if not self.spec.has_blocks:
      values |= dict.fromkeys(_OF_BLOCKS)
    if not self._has_draft_length:
      values |= {"draft_length": None, "draft_threshold": 0.0}
    names = {field.name for field in dataclasses.fields(Settings)}
    known = {name: value for name, value in values.items() if name in names}
    return Settings(**known, **run)

  @property
  def _has_draft_length(self) -> bool:
    """Whether there is a draft length; "fixed" is none without blocks."""
    is_fixed = self.policy.policy == "fixed"
    uses = self.spec.execution.uses_draft_length
    return uses and (self.spec.has_blocks or not is_fixed)

  @property
  def verify_width(self) -> int:
    """Tokens that one verifier pass feeds."""
    if self.spec.has_blocks:
      return self.gamma + 1
    return self.spec.execution.pass_width

  @property
  def is_predictable(self) -> bool:
    """Whether counts and costs tell its speed.

    They do not where calls are of several widths: where the drafter is a
    cascade itself, and in BiLD.
    """
    return self.spec.compose is None and self.spec.execution.is_predictable

  @property
  def folds(self) -> bool:
    """Whether the drafter's catch-up folds into its next call."""
    return (
      self.spec.has_blocks
      and self.policy.policy == "fixed"
      and (not self.spec.target.uses_q or self.bonus == "verifier")
    )

  def predicted_speedup(self, counts: Counts, costs: Costs) -> float | None:
    """Returns the factor that counts and costs predict; None if they cannot."""
    if not self.is_predictable:
      return None
    return efficiency.predicted_speedup(
      counts, costs, width=self.verify_width, folds=self.folds
    )
