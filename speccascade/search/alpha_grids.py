"""Which alphas to try: grids chosen rule by rule, and where to look next.

A grid holds the values between which a method changes, from hardly ever
deferring to nearly always, or the other way; what lies outside changes little
more. The values are our choice: the papers draw curves and do not list theirs.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import math

from speccascade.decoding.loops.bild import bild
from speccascade.decoding.loops.sequence_cascade import sequence_cascade
from speccascade.decoding.programs import methods
from speccascade.decoding.programs.methods import Method
from speccascade.inference.rows.results import ResultRow

_NUM = 7  # values of a grid


@dataclasses.dataclass(frozen=True)
class Scale:
  """The scale on which the interval between two alphas is halved.

  Attributes:
    to: maps an alpha to its place on the scale.
    back: maps a place on the scale to its alpha.
  """

  to: Callable[[float], float] = lambda alpha: alpha
  back: Callable[[float], float] = lambda place: place

  def middle(self, low: float, high: float) -> float:
    """Returns the alpha half-way between two alphas, in few digits."""
    return self.back((self.to(low) + self.to(high)) / 2)


def _rounded(x: float) -> float:
  return float(f"{x:.4g}")


LINEAR = Scale(back=_rounded)
LOG = Scale(
  lambda alpha: math.log(max(alpha, 1e-6)),
  lambda place: _rounded(math.exp(place)),
)
# 1 - alpha is the probability of a whole sequence.
LOG_REST = Scale(
  lambda alpha: math.log1p(-min(alpha, 1 - 1e-15)),
  lambda place: 1 - _rounded(math.exp(place)),
)


@dataclasses.dataclass(frozen=True)
class Grid:
  """The values of alpha that a search tries.

  Attributes:
    alphas: the values, ascending.
    scale: the scale on which an interval between two values is halved.
  """

  alphas: tuple[float, ...]
  scale: Scale = LINEAR


# By target. Where the useful range is not the declared one, the reason is said.
_GRIDS = {
  "chow": Grid((0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)),
  "diff": Grid((-0.6, -0.3, -0.1, 0.0, 0.1, 0.3, 0.6)),
  # |max p - max q| <= TV(p, q): at temperature 1 the rule defers wherever the
  # models differ at alpha <= -1, and nowhere at alpha >= 1.
  "opt": Grid((-1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9)),
  "chow_log": Grid((0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)),
  "diff_log": Grid((-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)),
  "opt_log": Grid((-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0)),
  "token_v1": Grid((-0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8)),
  # Below 0 no token is kept, whatever alpha: the method is lossless.
  "token_v2": Grid((-0.1, 0.0, 0.05, 0.1, 0.2, 0.4, 0.7)),
  # 1 - alpha is a ratio of probabilities: close to 1 it still matters.
  "token_v3": Grid((0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97)),
  "typical": Grid((0.001, 0.01, 0.03, 0.09, 0.3, 0.6, 1.0), LOG),
  "bild_tv": Grid((0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)),
  "bild_kl": Grid((0.02, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0), LOG),
  "bild_js": Grid((0.01, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6)),
  "bild_nll": Grid((0.1, 0.3, 0.7, 1.5, 2.5, 4.0, 6.0), LOG),
  "lossy": Grid((0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97)),
  "lossy_star": Grid((0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97)),
  "mentored": Grid((0.003, 0.01, 0.03, 0.1, 0.3, 1.0), LOG),
  "ensemble": Grid((0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)),
  "lenient_leviathan": Grid((0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97)),
  "lenient_cs_paper": Grid((0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97)),
  # Of two tokens one has p <= 0.5: up to alpha 0.5 only the arg-max is kept.
  "lenient_cs_code": Grid((0.0, 0.55, 0.65, 0.75, 0.85, 0.92, 0.97)),
}
# By execution, of those without a target. A whole output has a probability of
# exp(-1) to exp(-30), so the sequence cascade's alphas crowd below 1.
_NATS = (1, 3, 6, 10, 15, 22, 30)
_BY_EXECUTION = {
  sequence_cascade: Grid(tuple(LOG_REST.back(-n) for n in _NATS), LOG_REST),
  methods.per_token_sequence: Grid((0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)),
  bild: Grid((0.5, 1.0, 2.0, 3.0, 5.0, 8.0), LOG),
}
# At temperature 0 their laws are the verifier's, whatever alpha.
_LOSSLESS_IF_GREEDY = ("lossy", "lossy_star", "mentored")


def grid(method: Method, vocab_size: int, *, greedy: bool = False) -> Grid:
  """Returns the default alphas of a method; none if it has no alpha.

  Args:
    method: of the table, or another.
    vocab_size: some ranges end at its logarithm; what lies outside is left out.
    greedy: whether temperature is 0, where some methods need one alpha only.
  """
  if not method.uses_alpha:
    return Grid(())
  name = method.target.name if method.target is not None else None
  if greedy and name in _LOSSLESS_IF_GREEDY:
    return Grid((method.default_alpha,))
  whole = (
    _BY_EXECUTION.get(method.execution)
    or _GRIDS.get(name)
    or _spread(method, vocab_size)
  )
  inside = method.alpha_interval.contains
  alphas = (alpha for alpha in whole.alphas if inside(alpha, vocab_size))
  return Grid(tuple(alphas), whole.scale)


def _spread(method: Method, vocab_size: int) -> Grid:
  """A grid for a rule that is not in the list: even over its declared range."""
  interval = method.alpha_interval
  low, high = interval.ends(vocab_size)
  if math.isinf(low):
    low = -1.0 if math.isinf(high) else high - 2
  if math.isinf(high):
    high = low + 2
  step = (high - low) / (_NUM - 1)
  return Grid(tuple(_rounded(low + i * step) for i in range(_NUM)))


def coarsen(whole: Grid) -> Grid:
  """Returns the grid's ends and its middle, where an adaptive sweep starts."""
  num = len(whole.alphas)
  places = (0, num // 2, num - 1) if num > 3 else range(num)
  return Grid(tuple(whole.alphas[i] for i in places), whole.scale)


def _relative_latency(row: ResultRow) -> float | None:
  return row.latency and row.latency.relative_latency


def _deferral_rate(row: ResultRow) -> float | None:
  return row.efficiency.get("deferral_rate")


def _first_quality(row: ResultRow) -> float | None:
  return next((score["value"] for score in row.quality.values()), None)


# The figures that an adaptive sweep compares, in this order, and the least
# difference of neighbours that is worth another point between them.
_LEAST_GAPS = {
  _relative_latency: 0.04,
  _deferral_rate: 0.02,
  _first_quality: 0.3,
}


def next_alpha(
  rows: Mapping[float, ResultRow], scale: Scale = LINEAR
) -> float | None:
  """Returns the alpha that an adaptive sweep measures next.

  The alpha lies half-way, on the grid's scale, between the two neighbours that
  are farthest apart in relative latency. Where no neighbours are 0.04 apart in
  relative latency, the deferral rate decides (0.02), and after it the first
  quality metric (0.3). Of equal gaps the first is taken, so the choice depends
  on the rows alone.

  Args:
    rows: the rows of one method with one setting, by alpha.
    scale: the scale of the alphas.

  Returns:
    An alpha that is not in `rows`, or None where no two neighbours are far
    enough apart.
  """
  for figure, least_gap in _LEAST_GAPS.items():
    widest_gap, alpha = 0.0, None
    for low, high in itertools.pairwise(sorted(rows)):
      left, right = figure(rows[low]), figure(rows[high])
      if left is None or right is None:
        continue
      gap, middle = abs(left - right), scale.middle(low, high)
      # Rounded to a few digits, the middle of two close alphas may be one of
      # them, which has its row already.
      is_wide = gap >= least_gap and gap > widest_gap
      if is_wide and low < middle < high:
        widest_gap, alpha = gap, middle
    if alpha is not None:
      return alpha
  return None


def custom_grid(name: str, alphas: Sequence[float], vocab_size: int) -> Grid:
  """Returns the grid of alphas that a user wrote down, without repetitions.

  Args:
    name: the name of the method.
    alphas: the user's values, in any order.
    vocab_size: the number of tokens, at whose logarithm some ranges end.

  Raises:
    ValueError: the method takes no alpha, there are no values, or a value is
      outside the method's range.
  """
  method = methods.find(name)
  if not method.uses_alpha:
    raise ValueError(f"ALPHAS has values for {name}, which takes no alpha")
  if not alphas:
    raise ValueError(f"ALPHAS has no values for {name}; leave it out, or give")
  for alpha in alphas:
    method.check_alpha(alpha, vocab_size)
  scale = grid(method, vocab_size).scale
  return Grid(tuple(sorted(set(map(float, alphas)))), scale)
