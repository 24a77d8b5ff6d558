"""A point of a trade-off: a method and its settings, and how it is run."""

import dataclasses
import functools

from speccascade.decoding import decoders, methods
from speccascade.decoding.decoders import Decoder, DraftLength
from speccascade.decoding.methods import Method
from speccascade.decoding.sampling import Sampling
from speccascade.decoding.verification import VERIFY
from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Costs, Counts
from speccascade.fields import at_least
from speccascade.inference.results import Settings

BONUS = ("target", "verifier")


@dataclasses.dataclass(frozen=True)
class Point:
  """A method and its settings, checked when made.

  Attributes:
    method: name in `METHODS`.
    alpha: None takes the method's default.
    gamma: block size; not used by methods without blocks.
    temperature: 0 is greedy.
    top_k: None keeps all.
    top_p: None keeps all.
    bonus: "target" or "verifier".
    verification: "token" or "block".
    draft_length: "fixed", or (policy, threshold); see `DraftLength`.

  Raises:
    ValueError: a setting is unknown or out of range.
  """

  method: str
  alpha: float | None = None
  gamma: int = 5
  temperature: float = 1.0
  top_k: int | None = None
  top_p: float | None = None
  bonus: str = "target"
  verification: str = "token"
  draft_length: str | tuple[str, float] = "fixed"

  def __post_init__(self):
    if self.alpha is None:
      object.__setattr__(self, "alpha", self.spec.default_alpha)
    if isinstance(self.draft_length, list):  # which cannot be a key
      object.__setattr__(self, "draft_length", tuple(self.draft_length))
    at_least(1, gamma=self.gamma)
    for name, known in (("bonus", BONUS), ("verification", tuple(VERIFY))):
      value = getattr(self, name)
      if value not in known:
        raise ValueError(
          f"{name} is {value!r}; wanted one of {', '.join(known)}"
        )
    _ = self.policy  # which checks itself, as `sampling` does
    if self.spec.greedy_only and not self.sampling.greedy:
      raise ValueError(
        f"{self.method} is defined at temperature 0 only; TEMPERATURE is"
        f" {self.temperature:g}"
      )

  @property
  def spec(self) -> Method:
    return methods.find(self.method)

  @functools.cached_property
  def sampling(self) -> Sampling:
    return Sampling.create(self.temperature, self.top_k, self.top_p)

  @property
  def policy(self) -> DraftLength:
    if isinstance(self.draft_length, str):
      return DraftLength(self.draft_length)
    return DraftLength(*self.draft_length)

  def decoder(
    self,
    *,
    max_decode_len: int,
    eos_id: int,
    trace: bool = False,
    shared: bool = False,
  ) -> Decoder:
    """Returns the decoder; arguments as fields of `Decoder`."""
    return decoders.decoder(
      self.method,
      gamma=self.gamma,
      max_decode_len=max_decode_len,
      eos_id=eos_id,
      bonus=self.bonus,
      verification=self.verification,
      draft_length=self.policy,
      trace=trace,
      shared=shared,
    )

  def settings(self, **run) -> Settings:
    """Returns the row's settings; what the method does not use is None.

    Args:
      **run: the fields of `Settings` that are not the point's own.
    """
    spec, has_blocks = self.spec, self.spec.has_blocks
    return Settings(
      method=self.method,
      alpha=self.alpha if spec.uses_alpha else None,
      gamma=self.gamma if has_blocks else None,
      temperature=0.0 if self.sampling.greedy else self.temperature,
      top_k=self.top_k or None,
      top_p=None if self.top_p == 1 else self.top_p,
      bonus=self.bonus if has_blocks else None,
      verification=self.verification if has_blocks else None,
      draft_length=self.policy.policy if has_blocks else None,
      draft_threshold=self.policy.threshold,
      **run,
    )

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

  def predicted_speedup(self, counts: Counts, costs: Costs) -> float | None:
    """Returns the factor that counts and costs predict; None if they cannot."""
    if not self.is_predictable:
      return None
    target = self.spec.target
    folds = (
      self.spec.has_blocks
      and self.policy.policy == "fixed"
      and (not target.uses_q or self.bonus == "verifier")
    )
    return efficiency.predicted_speedup(
      counts, costs, width=self.verify_width, folds=folds
    )
