"""A language model that reads a state with each token, and looks the state up.

Axes: B rows, N fed tokens, R read positions, G depth of a block, C states that
are held, D width of a state.
"""

from typing import Any, Self

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records import feeding, token_buffers
from speccascade.decoding.records.block_records import DraftedChain, Output
from speccascade.decoding.records.language_model import (
  CutModel,
  State,
  is_cut_model,
  prefill_with_states,
)
from speccascade.decoding.records.masked_model import begin_text
from speccascade.decoding.records.readers import (
  ReadingModel,
  is_chain_reader,
)
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class FollowerState(struct.PyTreeNode):
  """What a `Follower` remembers of each row. Every leaf has axis 0 = B.

  Attributes:
    inner: the state of the model.
    states: [B, C, D], the states at tokens `first`, `first + 1`, ....
    first: [B] int32, the token of the first of these states. It is -1 before
      any round: the token before the first decoder token.
    known: [B] int32, how many decoder tokens have a state of the verifier. The
      states at later tokens are the model's own.
  """

  inner: Any
  states: Array
  first: Array
  known: Array

  @property
  def length(self) -> Array:
    """[B] int32, how many tokens the model's cache holds."""
    return self.inner.length


class Follower(struct.PyTreeNode):
  """A `ReadingModel` as a `LanguageModel`: it looks up the states.

  Each token is read with the state at the token before it: at its parent, in a
  tree. It is the verifier's where the verifier has read that token, and else
  the model's own output there.

  With n tokens in a row the verifier has left states at tokens 0 to n - 2, as
  it drew token n - 1 itself. The model reads token n - 1 with the state at n -
  2, and its output gives a distribution of token n. It reads draft n with its
  own state at n - 1. After the round the verifier has read the accepted drafts,
  and its states at them are better: so all drafts are forgotten, and read again
  with these. A row holds at most `known` + 1 tokens after a `rewind`.

  Attributes:
    model: the model that reads states.
    depth: static, G, the depth of a block.
    width: static, the drafts of a block.
    lag: static, how many tokens the model may leave unread besides those of a
      block, with their states held; 0 where it reads them all each round.
  """

  model: ReadingModel
  depth: int = struct.field(pytree_node=False)
  width: int = struct.field(pytree_node=False)
  lag: int = struct.field(pytree_node=False, default=0)

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.model.vocab_size

  @property
  def prompted(self) -> bool:
    """Static: whether a row continues from its own prompt."""
    return self.model.prompted

  @property
  def kept_ids(self) -> Array | None:
    """[N] int32, the tokens of a cut head. See `CutModel`."""
    return self.model.kept_ids if is_cut_model(self.model) else None

  def columns(self) -> Array:
    """Returns [V] int32, the column of each token. See `CutModel`."""
    return self._cut.columns()

  def with_columns(self) -> Self:
    """Returns the model with `columns` at hand. See `CutModel`."""
    if self.kept_ids is None:
      return self
    return self.replace(model=self._cut.with_columns())

  def over_kept(self) -> Self:
    """Returns the model over the kept tokens alone. See `CutModel`."""
    return self.replace(model=self._cut.over_kept())

  @property
  def _cut(self) -> CutModel:
    """The model, some of whose tokens are kept."""
    model: Any = self.model
    return model

  def begin_with(
    self, verifier: Any, inputs: Array, *, capacity: int, spare_slots: int
  ) -> tuple[FollowerState, State]:
    """Returns the states of the follower and of the verifier after a prompt.

    Args:
      verifier: leaves what the model reads of the prompt.
      inputs: as of `LanguageModel.prefill`.
      capacity: the verifier's; static.
      spare_slots: how many more the follower has; static.
    """
    verifying, seen = prefill_with_states(
      verifier, inputs, capacity=capacity, reader=self.model
    )
    held = self.begin(inputs, seen, capacity=capacity + spare_slots)
    return held, verifying

  def begin(self, inputs: Array, seen: Any, *, capacity: int) -> FollowerState:
    """Returns the state before any round; see `ReadingModel.prefill`."""
    inner, last = self.model.prefill(inputs, seen, capacity=capacity)
    # The verifier's states of a round, and the model's own at the token that
    # the verifier drew and at the drafts.
    num_later = self.depth + 1 + self.width + self.lag
    zero = jnp.zeros(last.shape[:1], jnp.int32)
    return FollowerState(
      inner=inner,
      states=jnp.pad(last[:, None], ((0, 0), (0, num_later), (0, 0))),
      first=zero - 1,
      known=zero,
    )

  def extend(
    self,
    state: FollowerState,
    tokens: Array,
    count: Array,
    *,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
  ) -> tuple[FollowerState, Output]:
    """Feeds a block to each row. See `LanguageModel`."""
    start = state.length[:, None]
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    if depth is None or ancestors is None:
      before = start + place - 1
    else:
      before = start + feeding.parents(depth, ancestors)
    inner, out = self.model.extend(
      state.inner,
      tokens,
      count,
      states=self._at(state, before),
      read=read,
      depth=depth,
      ancestors=ancestors,
    )
    fed = start + (place if read is None else read)
    states = self._with_own(state, out.hidden, fed)
    return state.replace(inner=inner, states=states), out

  def draft_chain(
    self,
    state: FollowerState,
    prefix: Prefix,
    u: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[FollowerState, DraftedChain] | None:
    """Drafts a chain in one call. See `language_model.ChainModel`.

    Nothing reads the model's own states at the drafts afterwards: drafts are
    forgotten, and the verifier leaves states at those that it accepts.
    """
    if not is_chain_reader(self.model):
      return None
    place = jnp.arange(self.depth + 1, dtype=jnp.int32)[None]
    drafted = self.model.draft_chain(
      state.inner,
      prefix,
      u,
      sampling,
      states=self._at(state, state.length[:, None] + place - 1),
      needs_bonus_law=needs_bonus_law,
    )
    if drafted is None:
      return None
    inner, chain = drafted
    return state.replace(inner=inner), chain

  def _read(
    self, state: FollowerState, tokens: Array, upto: Array
  ) -> FollowerState:
    """Feeds tokens [B, L] before `upto` [B], whose states are all there."""
    width = self.depth + 1
    nothing = jnp.zeros((len(upto), 0), jnp.int32)

    def some(state: FollowerState) -> FollowerState:
      count = jnp.clip(upto - state.length, 0, width)
      block = token_buffers.read_block(tokens, state.length, width)
      return self.extend(state, block, count, read=nothing)[0]

    lacks = lambda state: jnp.any(state.length < upto)
    return jax.lax.while_loop(lacks, some, state)

  def _at(self, state: FollowerState, tokens: Array) -> Array:
    """Returns the states [B, N, D] at tokens [B, N]."""
    index = tokens - state.first[:, None]
    index = jnp.clip(index, 0, state.states.shape[1] - 1)
    return jnp.take_along_axis(state.states, index[..., None], axis=1)

  def _with_own(self, state: FollowerState, own: Array, tokens: Array) -> Array:
    """Returns the held states with the model's own at tokens [B, R]."""
    if not tokens.shape[1]:
      return state.states
    held = jnp.arange(state.states.shape[1], dtype=jnp.int32)[None]
    held = held + state.first[:, None]
    is_own = held[:, :, None] == tokens[:, None]
    is_own &= (held >= state.known[:, None])[..., None]
    index = jnp.argmax(is_own, axis=2).astype(jnp.int32)
    new = jnp.take_along_axis(own, index[..., None], axis=1)
    return jnp.where(
      jnp.any(is_own, axis=2)[..., None],
      new.astype(state.states.dtype),
      state.states,
    )

  def rewind(self, state: FollowerState, length: Array) -> FollowerState:
    """Lowers the lengths, and forgets all drafts. See `LanguageModel`."""
    length = jnp.minimum(length, state.known + 1)
    return state.replace(inner=self.model.rewind(state.inner, length))

  def keep(
    self, state: FollowerState, start: Array, path: Array, count: Array
  ) -> FollowerState:
    """Forgets all drafts, those of the path as well. See `LanguageModel`."""
    return self.rewind(state, start)

  def observe(
    self,
    state: FollowerState,
    hidden: Array,
    path: Array,
    count: Array,
    length: Array,
  ) -> FollowerState:
    """Takes the verifier's states of a round. See `Reader`.

    Raises:
      ValueError: the verifier leaves no hidden states.
    """
    if hidden is None:
      raise ValueError(
        "the verifier leaves no hidden states, which a state reader reads; give"
        " a drafter of its own"
      )
    new = jnp.take_along_axis(hidden, path[..., None], axis=1)
    new = self.model.states_of(new)
    return self._observed(state, new, count, length)

  def _observed(
    self, state: FollowerState, new: Array, count: Array, length: Array
  ) -> FollowerState:
    """Returns the state with new states of the verifier, [B, K, D]."""
    new, first = new.astype(state.states.dtype), length - count
    if not self.lag:
      new = state.states.at[:, : new.shape[1]].set(new)
    else:
      # The states before tokens that are not read yet stay.
      begin = jnp.minimum(first, state.length - 1)
      place = jnp.arange(state.states.shape[1], dtype=jnp.int32)[None]
      tokens = begin[:, None] + place
      index = jnp.clip(tokens - first[:, None], 0, new.shape[1] - 1)
      new = jnp.where(
        (tokens < first[:, None])[..., None],
        self._at(state, tokens),
        jnp.take_along_axis(new, index[..., None], axis=1),
      )
      first = begin
    # A row that is done keeps the states that it had.
    is_new = count > 0
    return state.replace(
      states=jnp.where(is_new[:, None, None], new, state.states),
      first=jnp.where(is_new, first, state.first),
      known=jnp.where(is_new, length, state.known),
    )

  def catch_up(
    self,
    verifier: Any,
    state: FollowerState,
    verifying: State,
    tokens: Array,
    upto: Array,
    *,
    wide: int,
  ) -> tuple[FollowerState, State]:
    """Reads external tokens together with the verifier.

    See `PromptReader.catch_up_with`.
    """
    rows = len(upto)
    nothing = jnp.zeros((rows, 0), jnp.int32)
    # Up to the tokens that the verifier holds, all states are there.
    has_turn = verifying.length < upto
    state = self._read(state, tokens, jnp.where(has_turn, verifying.length, 0))
    last = self._at(state, verifying.length[:, None] - 1)

    def lacks(carry: tuple[State, State, Array]) -> Array:
      return jnp.any(carry[1].length < upto)

    def read(
      carry: tuple[State, State, Array],
    ) -> tuple[State, State, Array]:
      inner, verifying, last = carry
      start = verifying.length
      count = jnp.clip(upto - start, 0, wide)
      block = token_buffers.read_block(tokens, start, wide)
      verifying, out = verifier.extend(verifying, block, count)
      new = self.model.states_of(out.hidden).astype(last.dtype)
      after = jnp.concatenate([last, new], axis=1)
      inner, _ = self.model.extend(
        inner, block, count, states=after[:, :-1], read=nothing
      )
      last = jnp.take_along_axis(after, count[:, None, None], axis=1)
      return inner, verifying, last

    inner, verifying, last = jax.lax.while_loop(
      lacks, read, (state.inner, verifying, last)
    )
    state = self._observed(
      state.replace(inner=inner), last, has_turn.astype(jnp.int32), upto
    )
    return state, begin_text(verifier, verifying, upto)
