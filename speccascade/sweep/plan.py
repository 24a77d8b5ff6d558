"""What a sweep measures: its curves, and the points of each."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools

from speccascade.decoding import methods
from speccascade.inference.point import Point
from speccascade.sweep import grids
from speccascade.sweep.grids import Grid

# Every report compares with these two.
ALWAYS = ("drafter", "verifier")
DEFAULT, ADAPTIVE = "default", "adaptive"


@dataclasses.dataclass(frozen=True)
class Curve:
  """Points of one method, block size, sampling and seed: alpha alone differs.

  Attributes:
    base: one of them, at any alpha.
    seed: of the keys.
    grid: the alphas that are planned; empty where the method has none.
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
    return self.points[grids.middle_of(len(self.points))]


def default_methods(num_drafters: int = 1) -> list[str]:
  """Returns every method that so many drafters allow."""
  return [
    name
    for name, method in methods.METHODS.items()
    if method.num_drafters <= num_drafters
  ]


def curves(
  names: Sequence[str],
  alphas: str | Mapping[str, Sequence[float]],
  *,
  gammas: Sequence[int],
  temperatures: Sequence[float],
  seeds: Sequence[int],
  vocab_size: int,
  **settings,
) -> list[Curve]:
  """Returns the curves of a sweep, each once; `ALWAYS` are among them.

  Methods without blocks come at one gamma, those that are greedy only at
  temperature 0. There is one seed there: the others would write the same.

  Args:
    names: of methods.
    alphas: "default", "adaptive" (ends and middle of the default), or values by
      method; methods that it lacks take the default.
    gammas: block sizes.
    temperatures: 0 is greedy.
    seeds: of the keys.
    vocab_size: rows of the models' vocabulary.
    **settings: further fields of `Point`.

  Raises:
    ValueError: a method is unknown, a setting out of range or a list empty.
  """
  for label, values in (
    ("METHODS", names),
    ("GAMMAS", gammas),
    ("TEMPERATURES", temperatures),
    ("SEEDS", seeds),
  ):
    if isinstance(values, str) or not isinstance(values, Iterable):
      raise ValueError(f"{label} is {values!r}; wanted a list")
    if not list(values):
      raise ValueError(f"{label} is empty; give one or more")
  for gamma in gammas:
    Point("verifier", gamma=gamma)  # checks it, though no method may use it
  given = _given(alphas, names, vocab_size)
  names = list(dict.fromkeys([*ALWAYS, *names]))
  found = {}
  for temperature, seed, gamma, name in itertools.product(
    temperatures, seeds, gammas, names
  ):
    method, greedy = methods.find(name), _greedy(temperature)
    if (
      (method.greedy_only and not greedy)
      or (greedy and seed != seeds[0])
      or (not method.has_blocks and gamma != gammas[0])
    ):
      continue
    point = Point(name, gamma=gamma, temperature=temperature, **settings)
    made = given.get(name)
    if made is None:
      made = grids.grid(method, vocab_size, greedy=greedy)
      made = grids.coarse(made) if alphas == ADAPTIVE else made
    found[point, seed] = Curve(point, seed, made)
  return list(found.values())


def check_temperatures(names: Sequence[str], temperatures: Sequence[float]):
  """Raises ValueError where a method has no point at any temperature."""
  for name in names:
    if methods.find(name).greedy_only and not any(map(_greedy, temperatures)):
      raise ValueError(
        f"{name} is defined at temperature 0 only; TEMPERATURES has"
        f" {', '.join(f'{t:g}' for t in temperatures)}"
      )


def _greedy(temperature: float) -> bool:
  return Point("verifier", temperature=temperature).sampling.greedy


def _given(alphas, names, vocab_size) -> dict[str, Grid]:
  if alphas in (DEFAULT, ADAPTIVE):
    return {}
  if not isinstance(alphas, Mapping):
    raise ValueError(
      f"ALPHAS is {alphas!r}; wanted 'default', 'adaptive', or values by method"
      " such as {'spec_cascade_opt': [-0.5, 0, 0.5]}"
    )
  made = {
    name: grids.checked(name, values, vocab_size)
    for name, values in alphas.items()
  }
  for name in made:
    if name not in names:
      raise ValueError(
        f"ALPHAS has values for {name}, which METHODS leaves out"
      )
  return made


def in_turns(curves: Sequence[Curve]) -> list[tuple[Curve, Point]]:
  """Returns the planned points, neighbours being of different curves."""
  turns = itertools.zip_longest(*(curve.points for curve in curves))
  return [
    (curve, point)
    for turn in turns
    for curve, point in zip(curves, turn)
    if point is not None
  ]
