"""A point of a trade-off: a method and its settings, and how it is run."""

from collections.abc import Iterable
import dataclasses
import functools
import os
from typing import Annotated, Literal, Self

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.loops.execution import FIXED, MAX_PROB
from speccascade.decoding.programs import decoders, methods
from speccascade.decoding.programs.decoders import Decoder, DraftLength
from speccascade.decoding.programs.methods import Method
from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Costs, Counts
from speccascade.inference.rows.results import Settings
from speccascade.settings import fields

AUTO = "auto"
BlockSize = Annotated[int, fields.Bounds(1, 1024)]


@fields.checked
@dataclasses.dataclass(frozen=True)
class Point:
  """A method and its settings, checked when made.

  A verification or a draft length that the method would ignore is refused. The
  configuration of a figure sets gamma and bonus for all of its methods, so a
  method that does not use them leaves them aside.

  Attributes:
    method: name in `METHODS`.
    alpha: None takes the method's default.
    gamma: block size; methods without blocks do not use it. "auto" is what
      `advice` says, once `inference.advice.resolved` has looked.
    temperature: 0 is greedy.
    top_k: None keeps all.
    top_p: None keeps all.
    bonus: "target" or "verifier"; see `Decoder`.
    verification: "token" or "block".
    draft_length: "fixed", or (policy, threshold); see `DraftLength`.
    advice: OUTPUT_DIR of `speccascade.advise`, or its JSON file.

  Raises:
    ValueError: a setting is unknown or out of range, or the method ignores it.
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
      self.spec.check_settings(**self._optional)
    except ValueError as error:
      name, _, fault = str(error).partition(" ")
      raise fields.SettingError(name, f" {fault}", Point) from error
    if self.spec.greedy_only and not self.sampling.greedy:
      raise ValueError(
        f"{self.method} is defined at temperature 0 only; TEMPERATURE is"
        f" {self.temperature:g}"
      )

  @property
  def _optional(self) -> dict[str, str]:
    """The values of the settings in `Method.settings`."""
    length = self.draft_length
    policy = length if isinstance(length, str) else length[0]
    return {"draft_length": policy, "verification": self.verification}

  def of(self, method: str, **changes) -> Self:
    """Returns the point of another method that has its settings in common.

    A draft length or verification that the method does not use is left out.

    Args:
      method: its name.
      **changes: fields of the point; alpha is the method's own without it.
    """
    taken = methods.find(method).settings
    unused = {
      name: taken[name][0]
      for name, value in self._optional.items()
      if value not in taken[name]
    }
    changes = {"alpha": None} | unused | changes
    return dataclasses.replace(self, method=method, **changes)

  def check_shared(self, names: Iterable[str]):
    """Raises SettingError where none of several methods uses a setting.

    Args:
      names: of the methods that have the point's settings in common.
    """
    several = [methods.find(name) for name in dict.fromkeys(names)]
    for name, value in self._optional.items():
      if not any(value in method.settings[name] for method in several):
        labels = ", ".join(method.label for method in several)
        fault = f" is {value!r}; none of {labels} uses it: leave it out"
        raise fields.SettingError(name, fault, Point)

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
    if self.sampling.greedy:
      return {"temperature": 0.0, "top_k": None, "top_p": None}
    return {
      "temperature": self.temperature,
      "top_k": self.top_k or None,
      "top_p": None if self.top_p == 1 else self.top_p,
    }

  @property
  def policy(self) -> DraftLength:
    """The draft length; "fixed" where the threshold is what that means."""
    if isinstance(self.draft_length, str):
      return DraftLength(self.draft_length)
    if self.draft_length == (MAX_PROB, self.spec.execution.fallback):
      return DraftLength(FIXED)
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
    spec, policy = self.spec, self.policy
    values = {
      **vars(self),
      **self.sampled,
      "draft_length": policy.policy,
      "draft_threshold": policy.threshold,
    }
    if not spec.uses_alpha:
      values["alpha"] = None
    if not spec.uses_bonus:
      values["bonus"] = "target"
    if not spec.has_blocks:
      values |= dict.fromkeys(("gamma", "bonus", "verification"))
      if policy.policy == FIXED:
        values["draft_length"] = None
    names = {field.name for field in dataclasses.fields(Settings)}
    known = {name: value for name, value in values.items() if name in names}
    return Settings(**known, **run)

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
