"""Alpha by phase, as a user writes it: `ByPhase`, and the settings of a point.

A marker in an output, such as "</think>" or "####", ends its first phase. One
alpha holds before the marker, another one after it, and a phase may be "exact".
"""

import dataclasses
from typing import Any, Literal

from speccascade.decoding.laws.phases import EXACT, PHASES
from speccascade.settings import fields

BEFORE, AFTER = PHASES
Marker = tuple[fields.Content | int, ...]
AlphaOrExact = float | Literal["exact"]


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseSettings:
  """In which phase of an output alpha holds, and what holds in the other one.

  Attributes:
    marker: strings and ids of tokens; the first of them that is complete in an
      output ends its first phase. The prompt is not searched, and the tokens of
      the marker are of the first phase. None: alpha holds everywhere.
    alpha_phase: the phase in which alpha holds, "before" the marker or "after"
      it. A sweep over alpha is over the alpha of this phase.
    other_alpha: alpha in the other phase. With "exact" the target there is the
      verifier, whatever the rule.
  """

  marker: Marker | None = None
  alpha_phase: Literal["before", "after"] = BEFORE
  other_alpha: AlphaOrExact = EXACT

  @property
  def other_phase_in_words(self) -> str:
    """What holds where alpha does not, as in "exact after '####'"."""
    assert self.marker is not None
    other = AFTER if self.alpha_phase == BEFORE else BEFORE
    value = self.other_alpha
    alpha = value if isinstance(value, str) else f"alpha {value:g}"
    return f"{alpha} {other} {' or '.join(map(repr, self.marker))}"


def check(settings: PhaseSettings):
  """Raises SettingError where the settings of a phase do not fit."""
  if settings.marker is None:
    for name in ("alpha_phase", "other_alpha"):
      value = getattr(settings, name)
      if value != getattr(PhaseSettings, name):
        fault = f" is {value!r}, without a marker; set one, or leave it out"
        raise fields.SettingError(name, fault)
    return
  if not settings.marker or "" in settings.marker:
    fault = " is empty, which is everywhere; give a string or the id of a token"
    raise fields.SettingError("marker", fault)
  for token in settings.marker:
    if isinstance(token, int) and token < 0:
      fault = f" has the id {token}; wanted ids from 0, or strings"
      raise fields.SettingError("marker", fault)


@fields.checked
@dataclasses.dataclass(frozen=True)
class ByPhase:
  """An alpha for each phase of an output.

    alpha = sc.ByPhase(before=0.3, after="exact", marker="</think>")
    pair.generate(text, "spec_cascade_opt", alpha=alpha)

  Attributes:
    before: alpha until the marker is complete in the output; or "exact", where
      the target is the verifier, whatever the rule.
    after: the same, from the token after the marker on.
    marker: as in `PhaseSettings`: a string, or several strings and ids.

  Raises:
    ValueError: a setting is of the wrong kind, or both phases are exact.
  """

  before: AlphaOrExact
  after: AlphaOrExact
  marker: Marker

  def __post_init__(self):
    if self.before == self.after == EXACT:
      raise ValueError(
        "before and after are both 'exact', which is lossless: use spec_decode"
      )

  @property
  def settings(self) -> dict[str, Any]:
    """The same as settings of a point, alpha among them."""
    is_after = self.before == EXACT
    return {
      "alpha": self.after if is_after else self.before,
      "alpha_phase": AFTER if is_after else BEFORE,
      "other_alpha": self.before if is_after else self.after,
      "marker": self.marker,
    }
