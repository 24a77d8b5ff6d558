"""A language model that is a table: exact, tiny, and a `LanguageModel`.

Its distributions are known in closed form, so that the tokens that a decoder
emits can be compared with the distribution that they should have. A bigram or
trigram table over a small vocabulary is such a model, too.

Axes: B rows, N fed tokens, R read positions, L token slots, V vocabulary, K
tables.
"""

from collections.abc import Sequence

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.records import prompts
from speccascade.decoding.records.block_records import Output
from speccascade.decoding.records.language_model import State
from speccascade.models import tree_windows

Array = jax.Array


class MarkovState(struct.PyTreeNode):
  """What a `FiniteContext` remembers. Every leaf has axis 0 = B.

  Attributes:
    tokens: [B, L] int32, the tokens fed; slots past the end mean nothing.
    length: [B] int32, number of decoder tokens.
    offset: [B] int32, number of prompt tokens before the decoder tokens.
    source: [B] int32, the first token of the source, or of the prompt, which
      may choose a table.
  """

  tokens: Array
  length: Array
  offset: Array
  source: Array


def write_tokens(held: Array, tokens: Array, start: Array) -> Array:
  """Returns held [B, L] with a block [B, N] written at slots start [B].

  Tokens past the last slot are dropped: no slot before `start` changes.
  """
  rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
  steps = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  return held.at[rows, start[:, None] + steps].set(tokens, mode="drop")


class FiniteContext:
  """A `LanguageModel` that looks at the last `order` tokens alone.

  A subclass has `order` and `look_up`. Before the first token the context is 0.

  Attributes:
    prompted: whether the inputs are prompts, which are part of the context.
  """

  prompted: bool

  @property
  def order(self) -> int:
    """How many of the last tokens the distribution depends on."""
    raise NotImplementedError

  def look_up(self, source: Array, context: Sequence[Array]) -> Array:
    """Returns the logits after a context.

    Args:
      source: [B] int32, see `MarkovState`.
      context: `order` arrays [B, N] int32, the last tokens, oldest first.

    Returns:
      [B, N, V] float32.
    """
    raise NotImplementedError

  def prefill(self, inputs: Array, *, capacity: int) -> MarkovState:
    """Returns a state that holds the prompt, if any. See `LanguageModel`."""
    length = jnp.zeros(inputs.shape[:1], jnp.int32)
    tokens, offset, source = inputs[:, :0], length, inputs[:, 0]
    if self.prompted:
      tokens, offset = prompts.prefill_tokens(inputs)
      source = prompts.align(inputs)[:, 0]
    tokens = jnp.pad(tokens, ((0, 0), (0, capacity)))
    return MarkovState(tokens, length, offset, source)

  def extend(
    self,
    state: State,
    tokens: Array,
    count: Array,
    *,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
  ) -> tuple[State, Output]:
    """Feeds a block to each row at its own length. See `LanguageModel`.

    Raises:
      ValueError: what is said of a tree does not fit; see `tree_windows.check`.
    """
    tree_windows.check(tokens, depth, ancestors)
    rows, num_fed = tokens.shape
    steps = jnp.arange(num_fed, dtype=jnp.int32)
    # A chain is a tree in which each token sees all before it.
    if depth is None or ancestors is None:
      depth = jnp.broadcast_to(steps[None], tokens.shape)
      ancestors = jnp.broadcast_to(
        (steps[:, None] >= steps[None])[None], (rows, num_fed, num_fed)
      )
    num_held = state.offset + state.length
    fed = write_tokens(state.tokens, tokens, num_held)
    first = tree_windows.first_slot(num_held, num_fed, depth)
    context = [
      self._back(fed, first, depth, ancestors, back)
      for back in reversed(range(self.order))
    ]
    if read is not None:
      context = [jnp.take_along_axis(x, read, axis=1) for x in context]
    logits = self.look_up(state.source, context)
    # What the distribution depends on stands for a hidden state: the source,
    # and the tokens of the context.
    source = jnp.broadcast_to(state.source[:, None], logits.shape[:2])
    hidden = jnp.stack([source, *context], axis=-1).astype(logits.dtype)
    state = state.replace(tokens=fed, length=state.length + count)
    return state, Output(logits=logits, hidden=hidden)

  def _back(
    self,
    fed: Array,
    first: Array,
    depth: Array,
    ancestors: Array,
    back: int,
  ) -> Array:
    """Returns [B, N], the token `back` places before each fed token."""
    # It is an ancestor in the window, or a token before the window, or 0 where
    # the row begins. With a window from slot 5 on, the token 2 places before a
    # node of depth 1 is at depth -1: it is held in slot 5 - 1 = 4.
    columns = jnp.arange(depth.shape[1], dtype=jnp.int32)[None]
    # (Slots before the row begins are not ancestors, whatever is read there.)
    slots = jnp.maximum(first[:, None] + columns, 0)
    window = jnp.take_along_axis(fed, slots, axis=1)
    wanted = tree_windows.depth_of_fed(depth, ancestors.shape[1]) - back
    # Of a node's ancestors, itself included, one has each depth.
    hit = ancestors & (depth[:, None, :] == wanted[:, :, None])
    inside = jnp.sum(jnp.where(hit, window[:, None, :], 0), axis=-1)
    slot = first[:, None] + wanted
    cached = jnp.take_along_axis(fed, jnp.maximum(slot, 0), axis=1)
    return jnp.where(wanted >= 0, inside, jnp.where(slot >= 0, cached, 0))

  def rewind(self, state: State, length: Array) -> State:
    """Lowers the lengths to `length` [B]. See `LanguageModel`."""
    return state.replace(length=jnp.minimum(state.length, length))

  def keep(
    self, state: State, start: Array, path: Array, count: Array
  ) -> State:
    """Moves one path of a fed tree to the front. See `LanguageModel`."""
    num_slots = state.tokens.shape[1]
    path = path[:, :num_slots]  # more nodes than slots are never kept
    tokens = state.tokens
    if path.shape[1]:
      # Nodes count from the start of the tree, slots from the start of the row.
      at = state.offset + start
      slots, first = tree_windows.kept_slots(num_slots, at, path, count)
      along = jnp.take_along_axis(tokens, slots, axis=1)
      tokens = write_tokens(tokens, along, first)
    return state.replace(tokens=tokens, length=start + count)


@struct.dataclass
class MarkovLM(FiniteContext):
  """Next-token logits looked up by the last n tokens.

  Attributes:
    table: [K, V, ..., V, V] float logits. The axes are the tables, the n tokens
      of the context, oldest first, and the next token. A row reads table number
      `inputs[b, 0] % K`, which stands for the source text.
    prompted: whether the inputs are prompts; static.
  """

  table: Array
  prompted: bool = struct.field(pytree_node=False, default=False)

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.table.shape[-1]

  @property
  def order(self) -> int:
    """n, tokens of the context."""
    return self.table.ndim - 2

  def look_up(self, source: Array, context: Sequence[Array]) -> Array:
    """Returns logits [B, N, V] for source [B] and `order` arrays [B, N]."""
    return self.table[(source % self.table.shape[0])[:, None], *context]
