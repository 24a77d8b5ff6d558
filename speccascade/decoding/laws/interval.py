"""The range of alpha that a rule or a target declares."""

from collections.abc import Callable
import dataclasses
import math

from speccascade.decoding.laws.numerics import as_float32

FINITE = math.inf  # as an open end: any finite number


@dataclasses.dataclass(frozen=True)
class Interval:
  """The range of alpha; an end may depend on the vocabulary size.

  Infinite ends are open.

  Attributes:
    low: number, or a function of V.
    high: number, or a function of V.
    default: an alpha for quick looks; not tuned.
    low_open: whether `low` itself is outside.
    high_open: whether `high` itself is outside.
  """

  low: float | Callable[[int], float] = -FINITE
  high: float | Callable[[int], float] = FINITE
  default: float = 0.0
  low_open: bool = False
  high_open: bool = False

  def ends(self, vocab_size: int) -> tuple[float, float]:
    """Returns (low, high) as numbers."""

    def number(end) -> float:
      return end(vocab_size) if callable(end) else end

    return number(self.low), number(self.high)

  def contains(self, alpha: float, vocab_size: int) -> bool:
    """Whether alpha is a finite number inside, and still is in float32.

    Programs use float32: a number next to an open end must not become it.
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
