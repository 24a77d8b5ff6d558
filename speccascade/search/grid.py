"""The points of a search: methods, alphas, block sizes, temperatures, seeds.

A sweep and advice name methods and the values of their settings. Which
combinations of these are points is decided here, once for both.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import itertools
from typing import TypeVar

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.programs import methods
from speccascade.inference.points.point import Point
from speccascade.search.alpha_grids import Grid

_T = TypeVar("_T")


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
    temperatures: 0 is greedy.
    gammas: block sizes.
    seeds: seeds of the keys.

  Raises:
    ValueError: a setting is out of range.
  """
  by_base = {}
  axes = (temperatures, seeds, gammas, dict.fromkeys(names))
  for temperature, seed, gamma, name in itertools.product(*axes):
    method, greedy = methods.find(name), Sampling.create(temperature).greedy
    if (
      (method.greedy_only and not greedy)
      or (greedy and seed != seeds[0])
      or (not method.has_blocks and gamma != gammas[0])
    ):
      continue
    base = common.of(name, gamma=gamma, temperature=temperature)
    by_base[base, seed] = Curve(base, seed, grid_of(base))
  return list(by_base.values())


def in_turns(lists: Iterable[Sequence[_T]]) -> list[_T]:
  """Returns the items of several lists, neighbours being of different lists.

  >>> in_turns([["a1", "a2", "a3"], ["b1"], ["c1", "c2"]])
  ['a1', 'b1', 'c1', 'a2', 'c2', 'a3']
  """
  turns = itertools.zip_longest(*lists)
  return [item for turn in turns for item in turn if item is not None]
