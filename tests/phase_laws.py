"""What a method whose alpha is by phase samples from, on a pair of chains.

An automaton beside a chain makes a larger chain, whose contexts are the pairs
of both. So the distribution of a place is a table here, too: that of one
alpha, at the alpha of the automaton's state.
"""

import dataclasses
import functools

import numpy as np

from speccascade.decoding import PhasedAlpha, TokenAutomaton
from speccascade.decoding.laws.phases import EXACT
from tests import method_laws, toy
from tests.decoding.test_constraints import automaton

# The marker is "2 0", and also "0 0 0": tokens spell it in two ways, which may
# be in one block or in several. States: none of it, 2, 0, 0 0, complete.
MARKER = automaton(
  [[2, 0, 1], [4, 0, 1], [3, 0, 1], [4, 0, 1], [4, 4, 4]], ends=[4]
)
# The phase changes with every token 2, there and back.
TURNS = automaton([[0, 0, 1], [1, 1, 0]], ends=[1])


@dataclasses.dataclass(frozen=True, eq=False)
class PhasedPair:
  """A pair of chains whose contexts hold the state of an automaton, too.

  Attributes:
    pair: the chains.
    marker: the automaton.
  """

  pair: toy.Pair
  marker: TokenAutomaton

  @property
  def vocab_size(self) -> int:
    return self.pair.vocab_size

  @property
  def num_states(self) -> int:
    return len(self.marker.ends)

  @property
  def num_contexts(self) -> int:
    return self.num_states * self.pair.num_contexts

  @functools.cached_property
  def phase(self) -> np.ndarray:
    """[S], 1 in the contexts after the marker."""
    ends = np.asarray(self.marker.ends).astype(int)
    return np.repeat(ends, self.pair.num_contexts)

  def next_context(self) -> np.ndarray:
    """Returns [S, V]; contexts of one state are side by side."""
    moves = np.asarray(self.marker.moves)[:, None, :] * self.pair.num_contexts
    return (moves + self.pair.next_context()).reshape(-1, self.vocab_size)

  @property
  def start(self) -> int:
    """The context before the first token; a prompt is no part of the text."""
    return self.pair.start

  def models(self):
    return self.pair.models()

  def inputs(self, num: int):
    return self.pair.inputs(num)

  def laws(self, target, before, after, sampling) -> method_laws.MethodLaws:
    """Returns the distributions of each context, worked out in float64.

    Args:
      target: a `Target`.
      before: alpha before the marker, or "exact".
      after: alpha after it, or "exact".
      sampling: a `Sampling`.
    """
    number = next(x for x in (before, after) if x != EXACT)
    tables = [
      method_laws.laws(self.pair, target, number if x == EXACT else x, sampling)
      for x in (before, after)
    ]
    pis = [
      law.p if x == EXACT else law.pi for law, x in zip(tables, (before, after))
    ]
    tile = lambda table: np.tile(table, (self.num_states, 1))
    is_after = self.phase[:, None] == 1
    plain = {
      name: tile(getattr(tables[0], name)) for name in ("q1", "p1", "q", "p")
    }
    pi = np.where(is_after, tile(pis[1]), tile(pis[0]))
    return method_laws.MethodLaws(**plain, pi=pi)

  def alpha(self, before, after) -> PhasedAlpha:
    """Returns both alphas, as a decoder takes them."""
    return PhasedAlpha.of(before, after, self.marker)
