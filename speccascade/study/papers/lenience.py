"""One parameter, six spellings: how the papers write lenient acceptance.

In the letters of Narasimhan et al. (arXiv:2405.19261), with the drafter's q and
the verifier's p, lenient acceptance keeps a drafted token x with probability
min(1, p(x) / ((1 - alpha) q(x))). Other papers write 1 - alpha differently.
`KNOBS` maps each spelling to 1 - alpha and back.

| key                | symbol         | 1 - alpha | accepts with probability  |
| ------------------ | -------------- | --------- | ------------------------- |
| `narasimhan`       | alpha in [0,1) | 1 - alpha | min(1, p/((1-alpha) q))   |
| `leviathan`        | l in (0,1]     | l         | min(1, p/(l q))           |
| `cs_drafting`      | l in [1,inf)   | 1/l       | min(1, l p/q)             |
| `distillspec_lin`  | eps in (0,1]   | eps       | min(1, p/(eps q))         |
| `distillspec_sq`   | eps in (0,1]   | eps^2     | min(1, p/(eps^2 q))       |
| `tran_thien`       | alpha in (0,1] | alpha     | min(1, p/(alpha q))       |

Leviathan et al.'s l = 0, by which every draft is accepted, would be alpha = 1,
which is outside the half-open range of alpha. DistillSpec's third form,
f_exp = p^eps, is not a multiple of p, so no alpha equals it.

Sources: Leviathan et al. (arXiv:2211.17192), A.5; Chen et al.
(arXiv:2312.11462); DistillSpec (arXiv:2310.08461); Tran-Thien's text on
mentored decoding.

At temperature 0 the papers have four different lenient rules, which are not
spellings of one parameter. One of them has a misprint: Leviathan et al. (A.5)
print the acceptance test "p(x) <= l max p", which would refuse the argmax
itself; the sign must be ">=".
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from speccascade.settings.fields import Bounds


def _same(value: float) -> float:
  return value


class Knob(NamedTuple):
  """One paper's spelling of lenience.

  Attributes:
    symbol: the paper's letter.
    range: the values that the paper allows.
    to_divisor: a function from the paper's value to 1 - alpha, by which the
      acceptance divides q.
    from_divisor: the inverse function.
  """

  symbol: str
  range: Bounds
  to_divisor: Callable[[float], float] = _same
  from_divisor: Callable[[float], float] = _same

  def describe(self) -> str:
    """Returns the letter and its range, e.g. "l in (0, 1]"."""
    bounds = self.range
    left = "(" if bounds.low_open else "["
    right = ")" if bounds.high_open else "]"
    return f"{self.symbol} in {left}{bounds.low:g}, {bounds.high:g}{right}"


_ABOVE_0_TO_1 = Bounds(0, 1, low_open=True)
_0_TO_BELOW_1 = Bounds(0, 1, high_open=True)
_FROM_1 = Bounds(1, high_open=True)
KNOBS = {
  "narasimhan": Knob("alpha", _0_TO_BELOW_1, lambda a: 1 - a, lambda d: 1 - d),
  "leviathan": Knob("l", _ABOVE_0_TO_1),
  "cs_drafting": Knob("l", _FROM_1, lambda l: 1 / l, lambda d: 1 / d),
  "distillspec_lin": Knob("eps", _ABOVE_0_TO_1),
  "distillspec_sq": Knob("eps", _ABOVE_0_TO_1, lambda e: e**2, np.sqrt),
  "tran_thien": Knob("alpha", _ABOVE_0_TO_1),
}


def convert(value: float, source: str, to: str) -> float:
  """Returns a lenience as another paper writes it.

  Args:
    value: the number as the paper `source` writes it.
    source: a key of `KNOBS`.
    to: a key of `KNOBS`.

  Raises:
    ValueError: a key is unknown, or the value is outside the range of the paper
      `source`.

  >>> convert(5, "cs_drafting", "narasimhan")
  0.8
  """
  for key in (source, to):
    if key not in KNOBS:
      raise ValueError(
        f"lenience of {key!r} is unknown; known are {', '.join(KNOBS)}"
      )
  knob = KNOBS[source]
  if not knob.range.holds(value):
    raise ValueError(
      f"lenience {value} is outside the range of {source}, {knob.describe()}"
    )
  return float(KNOBS[to].from_divisor(knob.to_divisor(value)))


def acceptance_rate(q, p, *, alpha: float):
  """Returns the chance that a draft of q is accepted at lenience alpha; [...].

  Args:
    q: [..., V] drafter probabilities.
    p: [..., V] verifier probabilities.
    alpha: in [0, 1), as Narasimhan et al. write it.

  Source: Leviathan et al., A.5: sum_x min(p(x)/l, q(x)), l = 1 - alpha.
  """
  l = convert(alpha, "narasimhan", "leviathan")
  return np.sum(np.minimum(np.asarray(p) / l, np.asarray(q)), axis=-1)
