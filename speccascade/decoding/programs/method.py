"""What a row of the table of methods is, and what it says of itself."""

from collections.abc import Callable
import dataclasses
from typing import Any

from speccascade.decoding.laws.fitted import FittedAlpha, number_of
from speccascade.decoding.laws.interval import Interval
from speccascade.decoding.laws.numerics import as_float32
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.loops.execution import Execution
from speccascade.decoding.records.decode_settings import FIXED
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.records.phased_alpha import PhasedAlpha
from speccascade.settings import fields

# (models, gamma, alpha) -> the `Drafter` of a speculative loop.
Compose = Callable[[tuple[LanguageModel, ...], int, Any], Drafter]


@dataclasses.dataclass(frozen=True)
class Method:
  """A row of the table.

  Attributes:
    execution: the loop that makes the tokens.
    target: the distribution that tokens are sampled from; None for an execution
      whose distribution is not that of a chain of targets (sequence cascade,
      BiLD).
    label: the name in the papers.
    greedy_only: whether the method is defined at temperature 0 alone.
    compose: a function from `(models, gamma, alpha)` to the `Drafter` of the
      speculative loop; None for an autoregressive drafter of one model.
    num_drafters: the least number of neural drafters that `compose` takes,
      largest first.
    most_drafters: the most of them; None for any number.
  """

  execution: Execution
  target: Target | None
  label: str
  greedy_only: bool = False
  compose: Compose | None = None
  num_drafters: int = 1
  most_drafters: int | None = None

  def __repr__(self) -> str:
    parts = [self.execution.label, *filter(None, [self.law])]
    if self.greedy_only:
      parts.append("greedy only")
    return f"<Method {self.label}: {', '.join(parts)}>"

  @property
  def alpha_interval(self) -> Interval:
    """The range of alpha: the target's, or without a target the execution's."""
    return (self.target or self.execution).interval

  @property
  def default_alpha(self) -> float:
    """An alpha for quick looks, not tuned."""
    return self.alpha_interval.default

  @property
  def is_lossless(self) -> bool:
    """Whether the output is distributed as that of one model alone."""
    return self.target is not None and self.target.is_lossless

  @property
  def uses_alpha(self) -> bool:
    """Whether alpha changes anything."""
    return not self.is_lossless

  @property
  def takes_phases(self) -> bool:
    """Whether alpha may differ by phase: whether each token has a target.

    Sequence cascades decide on whole texts, and BiLD on blocks.
    """
    return self.uses_alpha and self.target is not None

  def check_takes_phases(self) -> None:
    """Raises ValueError where the method has no alpha of each token."""
    if self.takes_phases:
      return
    fault = "takes no alpha"
    if self.uses_alpha:
      fault = f"decides on {self.execution.unit}, not on tokens"
    raise ValueError(
      f"alpha is given by phase, and {self.label} {fault}; give one alpha,"
      " or use a speculative cascade"
    )

  @property
  def has_parameters(self) -> bool:
    """Whether the rule or the target has parameters that are fitted to text."""
    return self.target is not None and self.target.kind is not None

  @property
  def has_blocks(self) -> bool:
    """Whether the method drafts blocks of gamma tokens."""
    return self.execution.has_blocks

  @property
  def continues_alone(self) -> bool:
    """Whether the distribution is the same where a block has no drafts."""
    target = self.target
    drafts = self.has_blocks and self.compose is None
    return drafts and target is not None and not target.uses_q

  @property
  def draft_lengths(self) -> tuple[str, ...]:
    """The policies of `DraftLength` that the method can run."""
    return self.execution.draft_lengths if self.compose is None else (FIXED,)

  @property
  def uses_bonus(self) -> bool:
    """Whether the two values of `bonus` draw from different distributions."""
    target = self.target
    return self.has_blocks and target is not None and target.uses_q

  @property
  def settings(self) -> dict[str, tuple[str, ...]]:
    """The values that the method takes of settings that some methods ignore.

    The default comes first. For `draft_length` the values are policies.
    """
    return {
      "draft_length": self.draft_lengths,
      "verification": self.execution.verifications,
    }

  def check_settings(self, **settings: str) -> None:
    """Raises SettingError where the method would ignore one of `settings`.

    Args:
      **settings: values of the settings in `Method.settings`.
    """
    for name, value in settings.items():
      if value not in self.settings[name]:
        wanted = " or ".join(map(repr, self.settings[name]))
        fault = (
          f" is {value!r}; {self.label} takes {wanted} alone: leave it out, or"
          " set another method"
        )
        raise fields.SettingError(name, fault)

  @property
  def takes_trees(self) -> bool:
    """Whether a block may be a tree of drafts."""
    return self.has_blocks and self.compose is None

  def check_takes_trees(self) -> None:
    """Raises SettingError where the method drafts in a way of its own.

    A method that drafts nothing uses none of the settings of a block, and
    leaves them aside. BiLD drafts, in blocks that end where the drafter is
    unsure.
    """
    drafts = self.has_blocks or len(self.draft_lengths) > 1
    if drafts and not self.takes_trees:
      fault = (
        f" is given, and {self.label} drafts chains; leave it out, or set"
        " another method"
      )
      raise fields.SettingError("tree", fault)

  @property
  def law(self) -> str:
    """What the method samples from, in a few words."""
    if self.execution.law or self.target is None:
      return self.execution.law
    known = {
      "lossless": "p",
      "ensemble": "alpha q + (1 - alpha) p, at temperature 0 too",
    }
    return known.get(self.target.name, f"T[{self.target.name}](q, p)")

  def check_alpha(
    self, alpha: float | FittedAlpha | PhasedAlpha, vocab_size: int
  ) -> None:
    """Raises ValueError where alpha is outside the range.

    Args:
      alpha: as the user gives it, perhaps with the parameters of the rule, or
        by phase.
      vocab_size: V; the range of some rules depends on it.
    """
    if isinstance(alpha, PhasedAlpha):
      self.check_takes_phases()
      for name, each in alpha.used.items():
        self._check_alpha(each, vocab_size, f"alpha {name} the marker")
    else:
      self._check_alpha(alpha, vocab_size, "alpha")

  def _check_alpha(
    self, alpha: float | FittedAlpha, vocab_size: int, name: str
  ) -> None:
    """Does the work of `check_alpha` for one alpha, which messages name."""
    interval = self.alpha_interval
    if self.target is not None and self.target.kind is not None:
      self.target.kind.check(alpha, self.label)
    elif isinstance(alpha, FittedAlpha):
      raise ValueError(
        f"{self.label} has no parameters, and was given some; pass alpha as a"
        " number"
      )
    number = number_of(alpha)
    if self.is_lossless or interval.contains(number, vocab_size):
      return
    # Programs see alpha in float32, where it may be outside the range although
    # the user's number is inside: the message then shows both.
    exact, used = f"{number:.12g}", f"{as_float32(number):.7g}"
    rounded = "" if float(exact) == float(used) else f", {used} in float32"
    raise ValueError(
      f"{name} is {exact}{rounded}; {self.label} takes"
      f" {interval.describe(vocab_size)}"
    )
