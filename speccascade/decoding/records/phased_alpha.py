"""Alpha by phase: one until a marker is complete in a text, and another after.

An automaton over tokens says which phase a text is in, as one says where a stop
is complete. A loop has its state in each row. A review follows it over the
drafts: over a chain, and along every path of a tree. So each draft, and the
token after a whole block, has the alpha of its own prefix, and a rejected draft
leaves no trace: the state of a row is that after its emitted tokens.

Axes: B rows, N drafts, V vocabulary.
"""

from typing import Any, Literal, cast

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws.phases import EXACT, PHASES, PlacedAlpha
from speccascade.decoding.records.automaton import START, TokenAutomaton
from speccascade.decoding.records.block_records import Proposal

Array = jax.Array


class PhasedAlpha(struct.PyTreeNode):
  """The alphas of two phases, and the automaton that says which phase it is.

  Everything in it is traced: other alphas compile nothing.

  Attributes:
    before: a number or a `FittedAlpha`, while the automaton is in no end.
    after: the same, in the states that are ends.
    exact: [2] bool, the phases whose target is the verifier itself. The alpha
      of such a phase is in the method's range, and is not used.
    marker: reads the tokens of a text from its start; `ends` are the states in
      which the next token is of the second phase. It masks nothing.
  """

  before: Any
  after: Any
  exact: Array
  marker: TokenAutomaton

  @classmethod
  def of(
    cls,
    before: Any | Literal["exact"],
    after: Any | Literal["exact"],
    marker: TokenAutomaton,
  ) -> "PhasedAlpha":
    """Returns the alpha of two phases, one of which may be "exact".

    Args:
      before: a number, a `FittedAlpha`, or "exact".
      after: the same.
      marker: as in `PhasedAlpha`.

    Raises:
      ValueError: both phases are exact.
    """
    exact = [isinstance(x, str) and x == EXACT for x in (before, after)]
    if all(exact):
      raise ValueError(
        "both phases are 'exact', which is lossless: use spec_decode"
      )
    return cls(
      before=after if exact[0] else before,
      after=before if exact[1] else after,
      exact=cast(Array, np.array(exact)),
      marker=marker,
    )

  @property
  def used(self) -> dict[str, Any]:
    """The alphas of the phases that are not exact, by the phase's name."""
    alphas = (self.before, self.after)
    return {
      name: alpha
      for name, alpha, is_exact in zip(PHASES, alphas, self.exact)
      if not is_exact
    }

  def begin(self, rows: int) -> Array:
    """Returns the states [rows] before a text."""
    return jnp.full((rows,), START, jnp.int32)

  def phase(self, state: Array) -> Array:
    """Returns the phase [...] int32 of the token after states [...]."""
    return self.marker.ends[state].astype(jnp.int32)

  def phases_at(self, before: Array, proposal: Proposal) -> Array:
    """Returns the phase [B, N+1] at each place of a chain, or node of a tree.

    Args:
      before: [B] int32, the states after the prefix.
      proposal: the drafts after it.
    """
    root, tokens = before[:, None], proposal.tokens
    if proposal.branches is None:
      after = self.marker.follow(before, tokens)
      return self.phase(jnp.concatenate([root, after], axis=1))
    # Node 0 is the root. A parent is less deep than its child, so each turn
    # makes the states of one more depth right.
    parents = jnp.maximum(proposal.branches.parents, 0)
    states = jnp.broadcast_to(root, (len(tokens), tokens.shape[1] + 1))
    for _ in range(proposal.branches.tree.depth):
      last = jnp.take_along_axis(states, parents, axis=1)
      after = self.marker.step(last, tokens)
      states = jnp.concatenate([root, after], axis=1)
    return self.phase(states)

  def at(self, phase: Array) -> PlacedAlpha:
    """Returns the alpha of places, by their phase [...] int32."""
    return PlacedAlpha(self.before, self.after, self.exact, phase)


def alpha_at(alpha: Any, phase: Array | None) -> Any:
  """Returns alpha as the target of some places takes it.

  Args:
    alpha: a number, a `FittedAlpha`, or a `PhasedAlpha`.
    phase: [...] int32; None where alpha is not by phase.
  """
  if not isinstance(alpha, PhasedAlpha):
    return alpha
  assert phase is not None, "the phase of a place is not known"
  return alpha.at(phase)
