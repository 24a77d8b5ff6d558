"""Random numbers from a script: what code asks for, and what it is answered.

Code that draws by itself is run again and again. In each run the first answers
are chosen, and the later ones come from one of a few fixed futures. Every
number that is asked for is a coordinate:

- a "unit" is a uniform in [0, 1). A draw from given weights is a unit, too,
  which knows its cells;
- a "race" is a row of exponential noise, of which usually the index with the
  largest weight / noise wins.

Whoever asks names the state of its generator. A state that was seen before in
the run gives the coordinates that it gave then: as with real generators, a
generator that is seeded again repeats itself.
"""

from collections.abc import Hashable, Sequence
import functools

import numpy as np

MOST_NUMBERS = 10_000  # of a run
_GENERATOR = np.random.Generator  # The real one, while others are replaced.
LOW, HIGH = 2.0**-30, 1 - 2.0**-24  # futures that say yes, and no, to tests
SMALL_NOISE, LARGE_NOISE = 1e-30, 1e30
# -log u of the largest float32 uniform below 1, and of a small one.
SMALL_LOG, LARGE_LOG = 2.0**-23, 80.0


class NotCoveredError(ValueError):
  """The code draws in a way that cannot be enumerated; sample it instead."""


def equal_weights(num: int) -> np.ndarray:
  """Returns the weights [num] of a draw from a range.

  Raises:
    NotCoveredError: there are too many outcomes to go through.
  """
  if num > MOST_NUMBERS:
    raise NotCoveredError(
      f"a draw has {num:,} outcomes, as that of a seed has; draw the seed"
      " outside, or sample the code"
    )
  return np.ones(num)


@functools.lru_cache(maxsize=4096)
def _future(number: int) -> np.ndarray:
  """Returns the uniforms of a future, which repeat after 64."""
  if number < 2:
    return np.full(64, (LOW, HIGH)[number])
  return _GENERATOR(np.random.PCG64(number)).random(64)


class Coordinate:
  """A random number, or a row of noise, that was asked for.

  Attributes:
    kind: "unit" or "race".
    value: a uniform, or a tuple of exponential noise.
    weights: of a unit that draws from weights; None of others.
    uses: how often it was asked for.
    as_uniforms: of a race: whether the code saw uniforms exp(-noise).
  """

  __slots__ = ("as_uniforms", "kind", "uses", "value", "weights")

  def __init__(self, kind, value, weights=None, as_uniforms=False):
    self.kind, self.value, self.weights = kind, value, weights
    self.uses, self.as_uniforms = 1, as_uniforms


class Script:
  """The answers of one run.

  Attributes:
    coordinates: what was asked for so far, in order.
  """

  def __init__(self, chosen: Sequence = (), future: int = 2):
    """Takes the values of the first coordinates, and the number of a future.

    Futures 0 and 1 answer every unit with a uniform next to 0, and next to 1.
    The others are random.
    """
    self._chosen, self._future = chosen, future
    self._of_state: dict[Hashable, list[Coordinate]] = {}
    self.coordinates: list[Coordinate] = []

  def units(self, state: Hashable, num: int) -> list[float]:
    """Returns `num` uniforms for a state of a generator."""
    mine = self._of_state.setdefault((state, "unit"), [])
    for coordinate in mine[:num]:
      coordinate.uses += 1
    while len(mine) < num:
      mine.append(self._new("unit"))
    return [coordinate.value for coordinate in mine[:num]]

  def choice(self, state: Hashable, weights: Sequence[float], at: int = 0):
    """Returns an index that is drawn from weights; see `units`.

    Args:
      state: of the generator.
      weights: they need not sum to 1.
      at: how many numbers the same request has drawn before.

    Raises:
      ValueError: the weights are not a distribution, as libraries say it.
    """
    total = float(sum(weights))
    if not (0 < total < np.inf) or min(weights) < 0:
      raise ValueError("the weights of a draw have no positive, finite sum")
    mine = self._of_state.setdefault((state, "unit"), [])
    if at < len(mine):
      mine[at].uses += 1
    while len(mine) <= at:
      mine.append(self._new("unit", tuple(w / total for w in weights)))
    return index_of(mine[at].value, weights, total)

  def race(self, state: Hashable, size: int, as_uniforms: bool = False):
    """Returns a row of exponential noise; see `units`."""
    mine = self._of_state.setdefault((state, "race"), [])
    if mine:
      mine[0].uses += 1
    else:
      mine.append(self._new("race", size=size, as_uniforms=as_uniforms))
    return np.array(mine[0].value[:size])

  def _new(self, kind, weights=None, size=0, as_uniforms=False) -> Coordinate:
    place = len(self.coordinates)
    if place >= MOST_NUMBERS:
      raise NotCoveredError(
        f"a run asks for more than {MOST_NUMBERS:,} random numbers: it may loop"
        " until it draws a certain one; sample the code instead"
      )
    if place < len(self._chosen):
      value = self._chosen[place]
    elif kind == "unit":
      value = float(_future(self._future)[place % 64])
    else:
      row = _future(self._future + 2)
      value = tuple(-np.log1p(-np.roll(row, -7 * place)[:size]))
    coordinate = Coordinate(kind, value, weights, as_uniforms)
    self.coordinates.append(coordinate)
    return coordinate


def index_of(u: float, weights: Sequence[float], total: float) -> int:
  """Returns the index that a uniform draws: the first sum above u * total."""
  reach, last = 0.0, 0
  for index, weight in enumerate(weights):
    if weight > 0:
      reach, last = reach + weight, index
      if reach > u * total:
        return index
  return last


class RandomSource:
  """Stands for all generators while code runs; see `replaced`.

  Attributes:
    active: whether a run is in progress; otherwise replaced functions are the
      real ones.
    script: of the run.
    race_width: uniforms of this many columns are taken as the noise of races;
      None takes no uniforms so.
  """

  def __init__(self):
    self.active = False
    self.script = Script()
    self.race_width: int | None = None

  def uniforms(self, state: Hashable, shape: Sequence[int]) -> np.ndarray:
    """Returns uniforms in float64."""
    shape = tuple(int(n) for n in shape)
    if shape and shape[-1] == self.race_width:
      noise = self._races(state, shape, as_uniforms=True)
      return np.exp(-noise)
    num = int(np.prod(shape))
    return np.array(self.script.units(state, num)).reshape(shape)

  def exponentials(self, state: Hashable, shape: Sequence[int]) -> np.ndarray:
    """Returns exponential noise in float64; a race for each row."""
    return self._races(state, tuple(int(n) for n in shape))

  def _races(self, state, shape, as_uniforms=False):
    size = shape[-1] if shape else 1
    num = int(np.prod(shape[:-1]))
    rows = [self.script.race((state, i), size, as_uniforms) for i in range(num)]
    return np.array(rows).reshape(shape)

  def choices(
    self, state: Hashable, weights: np.ndarray, num: int = 1, replace=True
  ) -> np.ndarray:
    """Returns [..., num] draws from [..., V] weights."""
    weights = np.asarray(weights, np.float64)
    rows = weights.reshape(-1, weights.shape[-1])
    drawn = []
    for row in rows:
      left = row.copy()
      for _ in range(num):
        drawn.append(self.script.choice(state, left.tolist(), len(drawn)))
        if not replace:
          left[drawn[-1]] = 0
    return np.array(drawn).reshape(*weights.shape[:-1], num)
