"""The range of alpha that a rule declares, and which alphas are worth trying.

A rule, a target, or an execution without a target declares one `Interval`: all
that the rest of the package knows of its alpha.
"""

from collections.abc import Callable
import dataclasses
import math

from speccascade.decoding.laws.numerics import as_float32

FINITE = math.inf  # as an open end: any finite number


@dataclasses.dataclass(frozen=True)
class Scale:
  """The scale on which a sweep halves the gap between two alphas.

  Attributes:
    to: maps an alpha to its place on the scale.
    back: maps a place on the scale to its alpha, in few digits.
  """

  to: Callable[[float], float]
  back: Callable[[float], float]

  def middle(self, low: float, high: float) -> float:
    """Returns the alpha half-way between two alphas, in few digits."""
    return self.back((self.to(low) + self.to(high)) / 2)


def _round(x: float) -> float:
  return float(f"{x:.4g}")


LINEAR = Scale(to=float, back=_round)
# For alphas that matter by their ratios. Alpha 0 is at the place of 1e-6.
LOG = Scale(
  to=lambda alpha: math.log(max(alpha, 1e-6)),
  back=lambda place: _round(math.exp(place)),
)
# For alphas next to 1, where 1 - alpha is the probability of a whole sequence.
LOG_REST = Scale(
  to=lambda alpha: math.log1p(-min(alpha, 1 - 1e-15)),
  back=lambda place: 1 - _round(math.exp(place)),
)


@dataclasses.dataclass(frozen=True)
class Interval:
  """The range of alpha; an end may depend on the vocabulary size.

  Infinite ends are open.

  Attributes:
    low: number, or a function of V.
    high: number, or a function of V.
    default: an alpha for quick looks; it is not tuned.
    low_open: whether `low` itself is outside.
    high_open: whether `high` itself is outside.
    grid: alphas that a sweep tries, ascending: from where the rule hardly ever
      defers to where it nearly always does, or the other way. Alphas that are
      outside the range at some V are left out there. Empty: seven alphas spread
      evenly over the range.
    scale: the scale on which a sweep looks between the alphas of the grid.
  """

  low: float | Callable[[int], float] = -FINITE
  high: float | Callable[[int], float] = FINITE
  default: float = 0.0
  low_open: bool = False
  high_open: bool = False
  grid: tuple[float, ...] = ()
  scale: Scale = LINEAR

  def ends(self, vocab_size: int) -> tuple[float, float]:
    """Returns (low, high) as numbers."""

    def number(end: float | Callable[[int], float]) -> float:
      return end(vocab_size) if callable(end) else end

    return number(self.low), number(self.high)

  def contains(self, alpha: float, vocab_size: int) -> bool:
    """Whether alpha is a finite number in the range, in float32 as well.

    Programs use float32: a number next to an open end must not become that end.
    With `high` 1 open, 1 - 1e-9 is outside, since it is 1 in float32.
    """
    low, high = self.ends(vocab_size)
    used = as_float32(alpha)
    above = used > as_float32(low) if self.low_open else alpha >= low
    below = used < as_float32(high) if self.high_open else alpha <= high
    return math.isfinite(used) and above and below

  def describe(self, vocab_size: int) -> str:
    """Returns the range in words, as in "[0, 1)" or "any finite number"."""
    low, high = self.ends(vocab_size)
    if math.isinf(low) and math.isinf(high):
      return "any finite number"
    if math.isinf(high):
      return f"more than {low:g}" if self.low_open else f"{low:g} or more"
    left = "(" if self.low_open or math.isinf(low) else "["
    right = ")" if self.high_open else "]"
    return f"{left}{low:.6g}, {high:.6g}{right}"


ANY = Interval()
