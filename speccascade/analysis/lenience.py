"""One knob, five names: how the papers write the lenience of acceptance.

All but DistillSpec's exponential form accept a drafted x with probability
min(1, p(x) / ((1 - alpha) q(x))) in the letters of Narasimhan et al.
(arXiv:2405.19261), q the drafter and p the verifier. `KNOBS` maps each spelling
to alpha and back.

| key                | symbol         | 1 - alpha | accepts with probability  |
| ------------------ | -------------- | --------- | ------------------------- |
| `narasimhan`       | alpha in [0,1) | 1 - alpha | min(1, p/((1-alpha) q))   |
| `leviathan`        | l in (0,1]     | l         | min(1, p/(l q))           |
| `cs_drafting`      | l in [1,inf)   | 1/l       | min(1, l p/q)             |
| `distillspec_lin`  | eps in (0,1]   | eps       | min(1, p/(eps q))         |
| `distillspec_sq`   | eps in (0,1]   | eps^2     | min(1, p/(eps^2 q))       |
| `tran_thien`       | alpha in (0,1] | alpha     | min(1, p/(alpha q))       |

Leviathan's l = 0 (everything is accepted) is alpha = 1, the drafter alone, and
no alpha of the half-open range. DistillSpec's f_exp = p^eps is no multiple of
p, so it has no alpha. Sources: Leviathan et al. (arXiv:2211.17192), A.5; Chen
et al. (arXiv:2312.11462); DistillSpec (arXiv:2310.08461); Tran-Thien's text on
mentored decoding.

Greedy lenience is four different rules that share none of this; one slip is
worth knowing: Leviathan et al. (A.5) print "p(x) <= l max p" as the acceptance
test, which would refuse the argmax itself; the sign must be ">=".
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from speccascade.settings.fields import Bounds


class Knob(NamedTuple):
  """One paper's spelling: its range, and the map to 1 - alpha and back."""

  symbol: str
  range: Bounds
  to_keep: Callable[[float], float] = lambda value: value
  from_keep: Callable[[float], float] = lambda keep: keep

  def describe(self) -> str:
    low, high, low_open, high_open = vars(self.range).values()
    left, right = "[("[low_open], "])"[high_open]
    return f"{self.symbol} in {left}{low:g}, {high:g}{right}"


_UNIT, _REST = Bounds(0, 1, low_open=True), Bounds(0, 1, high_open=True)
_FACTOR = Bounds(1, high_open=True)
KNOBS = {
  "narasimhan": Knob("alpha", _REST, lambda a: 1 - a, lambda k: 1 - k),
  "leviathan": Knob("l", _UNIT),
  "cs_drafting": Knob("l", _FACTOR, lambda l: 1 / l, lambda k: 1 / k),
  "distillspec_lin": Knob("eps", _UNIT),
  "distillspec_sq": Knob("eps", _UNIT, lambda e: e**2, np.sqrt),
  "tran_thien": Knob("alpha", _UNIT),
}


def convert(value: float, source: str, to: str) -> float:
  """Returns the same lenience in another paper's symbol.

  Args:
    value: the number as `source` writes it.
    source: a key of `KNOBS`.
    to: a key of `KNOBS`.

  Raises:
    ValueError: an unknown key, or a value outside its paper's range.

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
  return float(KNOBS[to].from_keep(knob.to_keep(value)))


def acceptance_rate(q, p, *, alpha: float):
  """Returns the chance that a draft of q is accepted at lenience alpha; [...].

  Args:
    q: [..., V] drafter probabilities.
    p: [..., V] verifier probabilities.
    alpha: in [0, 1), Narasimhan's.

  Source: Leviathan et al., A.5: sum_x min(p(x)/l, q(x)), l = 1 - alpha.
  """
  keep = convert(alpha, "narasimhan", "leviathan")
  return np.sum(np.minimum(np.asarray(p) / keep, np.asarray(q)), axis=-1)
