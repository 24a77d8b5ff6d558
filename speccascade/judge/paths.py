"""The exact distribution of what code returns that draws by itself.

The code is a tree: at each coordinate that it asks for (see `scripted`) it goes
one of a few ways. A uniform is bisected into the intervals in which all that
follows is the same. A draw from weights branches over its support. Of a race
the weights are measured: the noise of two indices is moved until the other one
wins. Random runs at the end check that the tree predicts what the code returns.

What is not covered: a decision that compares several uniforms with each other,
such as a rejection inside a circle; normal noise; noise that is added to more
than one set of weights.
"""

import bisect
from collections.abc import Callable, Hashable
import dataclasses
import functools
import itertools
from typing import Any

import numpy as np

from speccascade.judge import scripted
from speccascade.judge.scripted import NotCoveredError, Script

FUTURES = (2, 0, 1, 3)
# Uniforms at which the first future is tried, and the other ones.
GRID = (scripted.LOW, 0.1, 0.26, 0.42, 0.58, 0.74, 0.9, scripted.HIGH)
COARSE = (scripted.LOW, 0.35, 0.67, scripted.HIGH)
# Two more futures, in which no new threshold may appear: where each future has
# its own, a decision compares this uniform with a later one.
TESTS = (4, 5)
BISECTIONS = 28
NEAR = 2e-7  # from a threshold, about the spacing of float32 next to 1
NARROW = 1e-9  # cells that are not followed
MOST_CELLS = 64
PROBES = 100
_FIRST_PROBE = 1000
_REPEATS = 30
_WRONG_WAY = object()
_NOT_REPLACED = (
  "two runs with the same random numbers differ: the code draws from a"
  " generator or a function that it held before the judge began; see"
  " docs/judge.md"
)
_COMPARES = (
  "a decision compares several random numbers with each other; sample the code"
  " instead"
)

Run = Callable[[Script], Hashable]


@dataclasses.dataclass(frozen=True)
class EnumeratedLaw:
  """The distribution of what code returns.

  Attributes:
    probs: the probability of each outcome.
    num_runs: how often the code ran.
    at_zero: outcomes that need a uniform of exactly 0, or next to it, which
      generators do return: with a chance of 2**-24 in float32.
    repeated: whether a state of a generator served twice in a run.
  """

  probs: dict[Any, float]
  num_runs: int
  at_zero: frozenset
  repeated: bool


@dataclasses.dataclass
class _Node:
  """A coordinate with the ways from it."""

  # Of a unit, where its inner cells end.
  edges: list[float] = dataclasses.field(default_factory=list)
  # Of a race, and the way of each index.
  weights: np.ndarray | None = None
  ways: list[int] = dataclasses.field(default_factory=list)
  # Nodes, or outcomes in tuples of one.
  children: list = dataclasses.field(default_factory=list)


def enumerate_law(run: Run, max_runs: int = 400_000) -> EnumeratedLaw:
  """Returns the distribution of `run`.

  Args:
    run: from a script to an outcome; asks the script for all random numbers.
    max_runs: at most so many runs.

  Raises:
    NotCoveredError: the code cannot be enumerated.

  >>> law = enumerate_law(lambda script: script.units("state", 1)[0] < 0.3)
  >>> round(law.probs[True], 9)
  0.3
  """
  walk = _Enumeration(run, max_runs)
  walk.check_that_runs_repeat()
  wrong = walk.wrong_probes(walk.visit((), 1.0))
  if walk.repeated:
    # A number that serves twice may change what follows inside the cells that
    # the weights of its first use give: every cell is bisected.
    walk = _Enumeration(run, max_runs, trusts_weights=False)
    wrong = walk.wrong_probes(walk.visit((), 1.0))
  if wrong:
    raise NotCoveredError(
      f"{wrong} of {PROBES} random runs returned something else: {_COMPARES}"
    )
  return EnumeratedLaw(
    walk.law, walk.num_runs, frozenset(walk.at_zero), walk.repeated
  )


class _Enumeration:
  """Grows the tree."""

  def __init__(self, run: Run, max_runs: int, trusts_weights: bool = True):
    self._run, self._max_runs = run, max_runs
    self._trusts_weights = trusts_weights
    self.num_runs, self.repeated = 0, False
    self.law: dict[Any, float] = {}
    self.at_zero: set = set()

  def run(self, chosen: tuple, future: int) -> tuple[Script, Hashable]:
    """Returns the script of a run, and what the run returned."""
    self.num_runs += 1
    if self.num_runs > self._max_runs:
      raise NotCoveredError(
        f"more than {self._max_runs} runs; shorten the outputs, or sample"
      )
    script = Script(chosen, future)
    outcome = self._run(script)
    if any(x.uses > 1 for x in script.coordinates):
      self.repeated = True
    return script, outcome

  def check_that_runs_repeat(self):
    """Raises NotCoveredError if the same random numbers lead elsewhere.

    Otherwise what cannot be predicted would seem to compare random numbers with
    each other, or to be wrong.
    """
    for future in range(_FIRST_PROBE - _REPEATS, _FIRST_PROBE):
      if self.follows((), future) != self.follows((), future):
        raise NotCoveredError(_NOT_REPLACED)

  def follows(self, chosen: tuple, future: int) -> tuple:
    """Returns what can be seen of a run: what it drew from, and returned."""
    script, outcome = self.run(chosen, future)
    return outcome, tuple((x.kind, x.weights) for x in script.coordinates)

  def visit(self, chosen: tuple, chance: float):
    """Returns the node after chosen values, and records its outcomes."""
    runs = [self.run(chosen, future) for future in FUTURES[:2]]
    place = len(chosen)
    if all(len(script.coordinates) <= place for script, _ in runs):
      outcome = runs[0][1]
      if outcome != runs[1][1]:
        raise NotCoveredError(_NOT_REPLACED)
      self.law[outcome] = self.law.get(outcome, 0.0) + chance
      return (outcome,)
    script = max((s for s, _ in runs), key=lambda s: len(s.coordinates))
    asked = script.coordinates[place]
    if asked.kind == "race":
      return self._race(chosen, chance, asked)
    node = _Node()
    if asked.weights is not None:
      node.edges = np.cumsum(asked.weights)[:-1].tolist()
    if asked.weights is None or not self._trusts_weights:
      node.edges = self._edges(chosen, node.edges)
    for low, high in itertools.pairwise((0.0, *node.edges, 1.0)):
      child = None
      if high - low > NARROW:
        value = (low + high) / 2
        child = self.visit((*chosen, value), chance * (high - low))
      node.children.append(child)
    return node

  def _edges(self, chosen: tuple, known: list[float]) -> list[float]:
    """Returns where what follows a unit changes."""
    edges = list(known)
    moving = 0
    for future in (*FUTURES, *TESTS):
      num_known = len(edges)
      at = functools.cache(lambda u, f=future: self.follows((*chosen, u), f))
      if future == 0 and at(0.0) != at(scripted.LOW):
        self.at_zero.add(at(0.0)[0])
      points = {*(GRID if future == FUTURES[0] else COARSE)}
      for edge in edges:
        points |= {max(edge - NEAR, 0.0), min(edge + NEAR, scripted.HIGH)}
      for low, high in itertools.pairwise(sorted(points)):
        if high - low <= 2.5 * NEAR:
          continue
        while at(low) != at(high):
          below, above = low, high
          for _ in range(BISECTIONS):
            middle = (below + above) / 2
            if at(middle) == at(low):
              below = middle
            else:
              above = middle
          edges.append((below + above) / 2)
          low = above
          if len(edges) > MOST_CELLS:
            raise NotCoveredError(
              f"what follows a uniform changes more than {MOST_CELLS} times"
            )
      moving += future in TESTS and len(edges) > num_known
    if moving == len(TESTS):
      raise NotCoveredError(_COMPARES)
    edges.sort()
    return [
      edge
      for before, edge in itertools.pairwise((0.0, *edges))
      if edge - before > NARROW
    ]

  def _race(self, chosen: tuple, chance: float, asked) -> _Node:
    """Returns the node of a race."""
    size = len(asked.value)
    small, large = scripted.SMALL_NOISE, scripted.LARGE_NOISE
    if asked.as_uniforms:
      small, large = scripted.SMALL_LOG, scripted.LARGE_LOG

    def at(noise):
      return tuple(
        self.follows((*chosen, tuple(noise)), future) for future in FUTURES
      )

    def alone(index):
      noise = np.ones(size)
      noise[index] = small
      return noise

    won = [at(alone(i)) for i in range(size)]
    groups = {what: i for i, what in reversed(list(enumerate(won)))}
    node = _Node(ways=[groups[what] for what in won])
    if len(groups) == 1:  # The noise changes nothing.
      node.weights = np.ones(size)
      child = self.visit((*chosen, tuple(alone(0))), chance)
      node.children = [child] * size
      return node
    # Of the columns that lead where equal noise leads, the first that leads
    # there by itself: one without weight leads where the best one does.
    level = at(np.ones(size))
    alike = [i for i in range(size) if won[i] == level]

    def leads(index):
      noise = np.ones(size)
      noise[alike] = large
      noise[index] = small
      return at(noise) == won[index]

    best = next(filter(leads, alike), None)
    if best is None:
      raise NotCoveredError("the noise of a draw is not a race of its columns")

    def ratio(index, other, scale=1.0):
      """Returns weight of index / weight of other.

      Args:
        index: the one that is compared.
        other: its rival, which leads elsewhere.
        scale: the rival's noise, so small that no third index wins.
      """

      def wins(x):
        noise = np.full(size, large)
        noise[index], noise[other] = max(x * scale, small), scale
        return at(noise) != won[other]

      low, high = np.log(max(small, 1e-12)), np.log(min(large, 1e12))
      if not wins(np.exp(low)):
        return 0.0
      for _ in range(BISECTIONS + 10):
        middle = (low + high) / 2
        low, high = (middle, high) if wins(np.exp(middle)) else (low, middle)
      return float(np.exp((low + high) / 2))

    weights = np.zeros(size)
    weights[best] = 1
    for i in range(size):
      if node.ways[i] != node.ways[best]:
        weights[i] = ratio(i, best)
    rival = int(np.argmax(np.where(np.arange(size) == best, 0, weights)))
    for i in range(size):
      if i != best and node.ways[i] == node.ways[best]:
        scale = min(1.0, large / 2 * weights[rival])
        weights[i] = ratio(i, rival, scale) * weights[rival]
    node.weights = weights / weights.sum()
    node.children = [None] * size
    for way in groups.values():
      mass = sum(w for w, x in zip(node.weights, node.ways) if x == way)
      if mass > NARROW:
        value = tuple(alone(way))
        node.children[way] = self.visit((*chosen, value), chance * mass)
    return node

  def wrong_probes(self, tree) -> int:
    """Returns how many random runs return something else than the tree says."""
    wrong = 0
    for probe in range(_FIRST_PROBE, _FIRST_PROBE + PROBES):
      script, outcome = self.run((), probe)
      node = tree
      for coordinate in script.coordinates:
        if isinstance(node, _Node):
          node = _next(node, coordinate.value)
      wrong += node is not None and node != (outcome,)
    return wrong


def _next(node: _Node, value):
  """Returns the child that a value leads to; None next to an edge."""
  if (node.weights is None) == isinstance(value, tuple):
    return (_WRONG_WAY,)  # The tree says that something else is asked for here.
  if node.weights is not None:
    with np.errstate(divide="ignore"):
      scores = np.log(node.weights) - np.log(value)
    first, second = np.sort(scores)[::-1][:2] if len(scores) > 1 else (1, 0)
    if first - second < 1e-5:
      return None
    return node.children[node.ways[int(np.argmax(scores))]]
  if any(abs(value - edge) < 2 * NEAR for edge in node.edges):
    return None
  return node.children[bisect.bisect_right(node.edges, value)]
