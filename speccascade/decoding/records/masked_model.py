"""A language model whose texts an automaton allows: `MaskedModel`.

A masked model gives, after each prefix, the model's own distribution over the
tokens that may follow, and no mass to any other token. That is an ordinary
conditional distribution of the prefix, q' or p'. Drafters, targets and verifier
steps need nothing else of a model, so everything true of q and p holds
for q' and p'. It is not the model conditioned on the whole text being allowed.

Axes: B rows, N fed tokens, W window of a tree, R read positions, L token slots,
V vocabulary.
"""

from typing import Any, cast

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.sampling import is_law
from speccascade.decoding.records import prompts, token_buffers
from speccascade.decoding.records.automaton import START, TokenAutomaton
from speccascade.decoding.records.block_records import Output
from speccascade.decoding.records.language_model import (
  LanguageModel,
  State,
  prefill_with_states,
)

Array = jax.Array


class MaskedState(struct.PyTreeNode):
  """The state of a `MaskedModel`. Every leaf has axis 0 = B.

  Attributes:
    inner: the state of the model.
    after: [B, L] int32, the automaton's state after the token in each slot;
      slots past the length are undefined.
    begun: [B] int32, the slot of the token that the text follows: the start
      token, the last token of a prompt, or the last token of an external
      turn. The automaton is in its start state there.
  """

  inner: Any
  after: Array
  begun: Array

  @property
  def length(self) -> Array:
    """[B] int32, how many tokens the model's cache holds."""
    return self.inner.length


class MaskedModel(struct.PyTreeNode):
  """A `LanguageModel` over the tokens that an automaton allows.

  Where the model gives no mass to any allowed token, as one of a cut vocabulary
  may, its distribution is uniform over the allowed tokens.

  Attributes:
    model: the language model.
    automaton: what it is held to.
  """

  model: LanguageModel
  automaton: TokenAutomaton

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.model.vocab_size

  @property
  def prompted(self) -> bool:
    """Static: whether a row continues from its own prompt."""
    return self.model.prompted

  @property
  def start_id(self) -> int:
    """Static: the token that a row without a prompt begins with."""
    return prompts.start_id(self.model)

  def prefill(self, inputs: Array, *, capacity: int) -> MaskedState:
    """Returns the state before any decoder token. See `LanguageModel`."""
    return self._begun(self.model.prefill(inputs, capacity=capacity), capacity)

  def prefill_with_states(
    self, inputs: Array, *, capacity: int, reader: Any
  ) -> tuple[MaskedState, Any]:
    """Returns the model's state, and what a reader reads. See `StatesModel`."""
    inner, seen = prefill_with_states(
      self.model, inputs, capacity=capacity, reader=reader
    )
    return self._begun(inner, capacity), seen

  def _begun(self, inner: Any, capacity: int) -> MaskedState:
    """Returns the state of a text that is about to begin."""
    rows = inner.length.shape[0]
    return MaskedState(
      inner=inner,
      after=jnp.full((rows, capacity), START, jnp.int32),
      begun=jnp.zeros((rows,), jnp.int32),
    )

  def extend(
    self,
    state: MaskedState,
    tokens: Array,
    count: Array,
    *,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
  ) -> tuple[MaskedState, Output]:
    """Feeds a block, and masks what follows it. See `LanguageModel`."""
    start = state.length
    inner, out = self.model.extend(
      state.inner, tokens, count, read=read, depth=depth, ancestors=ancestors
    )
    if depth is None or ancestors is None:
      after = self._follow(state, tokens, start)
    else:
      after = self._follow_tree(state, tokens, start, depth, ancestors)
    held = token_buffers.write_block(state.after, after, start)
    if read is not None:
      after = jnp.take_along_axis(after, read, axis=1)
    logits = _masked(out.logits, self.automaton.mask(after))
    return state.replace(inner=inner, after=held), out.replace(logits=logits)

  def rewind(self, state: MaskedState, length: Array) -> MaskedState:
    """Lowers the lengths to `length` [B]. See `LanguageModel`."""
    return state.replace(inner=self.model.rewind(state.inner, length))

  def keep(
    self, state: MaskedState, start: Array, path: Array, count: Array
  ) -> MaskedState:
    """Keeps one path of a fed tree. See `LanguageModel`."""
    inner = self.model.keep(state.inner, start, path, count)
    slots = jnp.minimum(start[:, None] + path, state.after.shape[1] - 1)
    kept = jnp.take_along_axis(state.after, slots, axis=1)
    after = token_buffers.write_block(state.after, kept, start)
    return state.replace(inner=inner, after=after)

  def begin_text(self, state: MaskedState, begun: Array) -> MaskedState:
    """Returns the state in which a new text follows slot `begun` [B] int32."""
    return state.replace(begun=begun)

  def _follow(self, state: MaskedState, tokens: Array, start: Array) -> Array:
    """Returns the states [B, N] after a chain that begins at slot `start`."""
    # The token that the text follows leaves the automaton at its start.
    places = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    slots = start[:, None] + places
    is_text = slots > state.begun[:, None]
    return self.automaton.follow(self._before(state, start), tokens, is_text)

  def _follow_tree(
    self,
    state: MaskedState,
    tokens: Array,
    start: Array,
    depth: Array,
    ancestors: Array,
  ) -> Array:
    """Returns the states [B, N] after the tokens of a tree."""
    num = tokens.shape[1]
    width = depth.shape[1]
    first = start - (width - num)  # the slot of the window's first column
    column = jnp.arange(width, dtype=jnp.int32)[None]
    # Tokens of the tree that earlier calls fed come before those of this one.
    slots = jnp.clip(first[:, None] + column, 0, state.after.shape[1] - 1)
    window = jnp.take_along_axis(state.after, slots, axis=1)
    root = self._before(state, first)
    own = jnp.arange(num, dtype=jnp.int32)[None, :, None] + (width - num)
    # The parent of a token is the deepest of the other tokens that it sees.
    sees = ancestors & (column[:, None] != own)
    reach = jnp.where(sees, depth[:, None], -1)
    parents = jnp.argmax(reach, axis=2).astype(jnp.int32)
    is_root = jnp.max(reach, axis=2) < 0
    slot = first[:, None] + depth[:, width - num :]
    is_text = slot > state.begun[:, None]

    def step(place: Array, window: Array) -> Array:
      parent = numerics.of_token(window, parents[:, place])
      last = jnp.where(is_root[:, place], root, parent)
      last = self.automaton.step(last, tokens[:, place])
      last = jnp.where(is_text[:, place], last, START)
      return window.at[:, width - num + place].set(last)

    window = jax.lax.fori_loop(0, num, step, window)
    return window[:, width - num :]

  def _before(self, state: MaskedState, slot: Array) -> Array:
    """Returns the state [B] before the token at a slot [B]."""
    last = jnp.maximum(slot - 1, 0)[:, None]
    return jnp.take_along_axis(state.after, last, axis=1)[:, 0]


def _masked(logits: Array, mask: Array) -> Array:
  """Returns logits with -inf where `mask` is False.

  Logits that give no distribution become NaN everywhere, so that a fault at a
  token that is not allowed is seen as well.
  """
  kept = jnp.where(mask, logits, -jnp.inf)
  has_mass = jnp.any(kept > -jnp.inf, axis=-1, keepdims=True)
  kept = jnp.where(has_mass | ~mask, kept, 0)
  return jnp.where(is_law(logits)[..., None], kept, jnp.nan)


def held_to(part: Any, automaton: TokenAutomaton | None) -> Any:
  """Returns a part of a pair with every language model in it masked.

  Draft heads and look-ahead embeddings are not language models, and a copy is
  not drawn from one. They stay as they are, and propose tokens that a masked
  verifier may reject.

  Args:
    part: a language model, a tuple of them, a `Drafter`, draft heads or
      look-ahead embeddings; or None.
    automaton: what the models are held to; None masks nothing.
  """
  if automaton is None:
    return part

  def is_model(leaf: Any) -> bool:
    return hasattr(leaf, "extend") and hasattr(leaf, "prompted")

  def is_whole(leaf: Any) -> bool:
    return is_model(leaf) or not getattr(leaf, "passes_mask", True)

  def mask(leaf: Any) -> Any:
    return MaskedModel(leaf, automaton) if is_model(leaf) else leaf

  return jax.tree.map(mask, part, is_leaf=is_whole)


def begin_text(part: LanguageModel, state: State, begun: Array) -> State:
  """Returns a model's state in which a new text follows slot `begun` [B]."""
  if isinstance(part, MaskedModel):
    return part.begin_text(cast(MaskedState, state), begun)
  return state
