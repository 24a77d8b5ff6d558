"""Automata over tokens: what a text may continue with, and where it ends.

An automaton reads the tokens of a text one after another. Its state after a
token says which tokens may follow, and whether the text ends there. A grammar,
a set of banned tokens and a least length are automata that allow some tokens; a
stop string is one that ends texts.

Axes: B rows, N tokens, V vocabulary, S states, C classes of tokens, K kinds of
tokens.
"""

from flax import struct
import jax
import jax.numpy as jnp

Array = jax.Array

START = 0  # the state before the first token of every text
# The few steps of a block are unrolled, and fused. External tokens between
# two turns is a chain of many more.
_UNROLLED = 16


class TokenAutomaton(struct.PyTreeNode):
  """A deterministic automaton over tokens. All of its tables are traced.

  Tokens that lead to the same state from every state are of one class, so that
  the tables have few columns. The state before a text is `START`.

  Attributes:
    classes: [V] int32, the class of each token.
    moves: [S, C] int16 or int32, the state after a token of each class; [S, K]
      where there are `kinds`. A token that is not allowed has a state after it,
      too: models are fed drafts that a verifier then rejects.
    allowed: [S, C] bool, whether a token of the class may follow. At least one
      token may follow in each state.
    ends: [S] bool, whether a text ends in the state.
    forced: [S] int32, the only token that may follow in the state; -1 where
      several may. None where several may follow in every state.
    kinds: [V] int32, the kind of each token, by which it moves; None where the
      classes are the kinds. A search for many strings has few classes of tokens
      that complete one from the same states, and few kinds of tokens that lead
      alike where they complete none, but very many pairs of both.
    halt: [] int32, the state after a token that `allowed` excludes, for an
      automaton of stops; None where `moves` has all states.
  """

  classes: Array
  moves: Array
  allowed: Array
  ends: Array
  forced: Array | None = None
  kinds: Array | None = None
  halt: Array | None = None

  def step(self, state: Array, token: Array) -> Array:
    """Returns the state [...] int32 after a token [...] int32."""
    return self._move(state, *self._places(token))

  def _places(self, token: Array) -> tuple[Array, Array]:
    """Returns the class and the kind of tokens."""
    place = self.classes[token]
    return place, place if self.kinds is None else self.kinds[token]

  def _move(self, state: Array, place: Array, kind: Array) -> Array:
    """Returns the state after tokens of some classes and kinds."""
    after = self.moves[state, kind].astype(jnp.int32)
    if self.halt is None:
      return after
    return jnp.where(self.allowed[state, place], after, self.halt)

  def follow(
    self, state: Array, tokens: Array, is_text: Array | None = None
  ) -> Array:
    """Returns the states after each token of a chain.

    Args:
      state: [B] int32, the state before the first token.
      tokens: [B, N] int32.
      is_text: [B, N] bool, whether a token is part of the text; any other one
        leaves the automaton at its start. None: all of them are.

    Returns:
      [B, N] int32.
    """

    def step(
      state: Array, token: tuple[tuple[Array, Array], Array | None]
    ) -> tuple[Array, Array]:
      places, is_text = token
      after = self._move(state, *places)
      if is_text is not None:
        after = jnp.where(is_text, after, START)
      return after, after

    by_place = (self._places(tokens), is_text)
    by_place = jax.tree.map(jnp.transpose, by_place)
    _, states = jax.lax.scan(step, state, by_place, unroll=_UNROLLED)
    return states.T

  def mask(self, state: Array) -> Array:
    """Returns [..., V] bool, the tokens that may follow in states [...]."""
    return jnp.take(self.allowed[state], self.classes, axis=-1)


class Constraints(struct.PyTreeNode):
  """What the texts of a decode are held to.

  Attributes:
    mask: the automaton of the tokens that may be written. Both models are
      masked, see `MaskedModel`. None allows every token.
    stops: the automaton that ends a text, which masks nothing. None ends texts
      at an EOS and at the length limit alone.
    begins: [B] int32, the state of `stops` before each row's text, so that rows
      have stops of their own in one automaton. None is `START`.
  """

  mask: TokenAutomaton | None = None
  stops: TokenAutomaton | None = None
  begins: Array | None = None


NONE = Constraints()
