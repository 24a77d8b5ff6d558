"""The points of a search: methods, alphas, block sizes, temperatures, seeds.

A sweep and advice name methods and the values of their settings. Which
combinations of these are points is decided here, once for both, and which
alphas each method has: the grid that it declares, and where to look next.

A grid holds the values between which a method changes, from hardly ever
deferring to nearly always, or the other way; what lies outside changes little
more. The values are defined with each rule, target or execution (see
`Interval`), and are our choice: the papers draw curves and do not list theirs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import itertools
import math
from typing import TypeVar

from speccascade.decoding.laws.interval import LINEAR, Interval, Scale
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.programs import methods
from speccascade.decoding.programs.methods import Method
from speccascade.generate.points.point import Point
from speccascade.study.rows.results import ResultRow

_NUM = 7  # values of a grid that no rule declares
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Grid:
  """The values of alpha that a search tries.

  Attributes:
    alphas: the values, ascending.
    scale: the scale on which an interval between two values is halved.
  """

  alphas: tuple[float, ...]
  scale: Scale = LINEAR


def default_grid(
  method: Method, vocab_size: int, *, greedy: bool = False
) -> Grid:
  """Returns the default alphas of a method; none if it has no alpha.

  Args:
    method: of the table, or another.
    vocab_size: some ranges end at its logarithm; what lies outside is left out.
    greedy: whether temperature is 0, where some methods need one alpha only.
  """
  if not method.uses_alpha:
    return Grid(())
  target, interval = method.target, method.alpha_interval
  if greedy and target is not None and target.is_lossless_when_greedy:
    return Grid((method.default_alpha,))
  alphas = interval.grid or _spread(interval, vocab_size)
  inside = (x for x in alphas if interval.contains(x, vocab_size))
  return Grid(tuple(inside), interval.scale)


def _spread(interval: Interval, vocab_size: int) -> tuple[float, ...]:
  """Returns alphas of a range without a grid, even over the range."""
  low, high = interval.ends(vocab_size)
  if math.isinf(low):
    low = -1.0 if math.isinf(high) else high - 2
  if math.isinf(high):
    high = low + 2
  step = (high - low) / (_NUM - 1)
  return tuple(LINEAR.back(low + i * step) for i in range(_NUM))


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
  scale = default_grid(method, vocab_size).scale
  return Grid(tuple(sorted(set(map(float, alphas)))), scale)


@dataclasses.dataclass(frozen=True)
class Curve:
  """Points of one method, block size, sampling and seed: alpha alone differs.

  Attributes:
    base: one of the points, at any alpha.
    seed: the seed of the keys.
    grid: the alphas that are planned; it is empty where the method has none.
  """

  base: Point
  seed: int
  grid: Grid

  def at(self, alpha: float) -> Point:
    """Returns the point of an alpha."""
    return dataclasses.replace(self.base, alpha=alpha)

  @property
  def points(self) -> list[Point]:
    """The planned points."""
    return [self.at(alpha) for alpha in self.grid.alphas] or [self.base]

  @property
  def middle(self) -> Point:
    """The point in the middle of the plan."""
    return self.points[len(self.points) // 2]


def curves(
  common: Point,
  names: Iterable[str],
  grid_of: Callable[[Point], Grid],
  *,
  temperatures: Sequence[float],
  gammas: Sequence[int],
  seeds: Sequence[int] = (0,),
) -> list[Curve]:
  """Returns the curves of all combinations that differ, each curve once.

  A method without blocks has one curve for all block sizes, and a method that
  is defined at temperature 0 has none above it. At temperature 0 there is one
  seed, because all seeds write the same tokens.

  Args:
    common: the settings that all points share.
    names: the names of the methods.
    grid_of: returns the alphas that are planned for a method and its settings.
    temperatures: 0 is greedy, and so are those up to 1e-4.
    gammas: block sizes.
    seeds: seeds of the keys.

  Raises:
    ValueError: a setting is out of range.
  """
  by_base = {}
  axes = (temperatures, seeds, gammas, dict.fromkeys(names))
  for temperature, seed, gamma, name in itertools.product(*axes):
    method, greedy = methods.find(name), Sampling.create(temperature).greedy
    if (method.greedy_only and not greedy) or (greedy and seed != seeds[0]):
      continue
    # Other temperatures that mean arg-max are the same point.
    base = common.of(
      name, gamma=gamma, temperature=0.0 if greedy else temperature
    )
    by_base[base, seed] = Curve(base, seed, grid_of(base))
  return list(by_base.values())


def in_turns(lists: Iterable[Sequence[_T]]) -> list[_T]:
  """Returns the items of several lists, neighbours being of different lists.

  >>> in_turns([["a1", "a2", "a3"], ["b1"], ["c1", "c2"]])
  ['a1', 'b1', 'c1', 'a2', 'c2', 'a3']
  """
  turns = itertools.zip_longest(*lists)
  return [item for turn in turns for item in turn if item is not None]
