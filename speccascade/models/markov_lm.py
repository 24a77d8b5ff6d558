"""A language model that is a table: exact, tiny, and a `LanguageModel`.

Its laws are known in closed form, so that the tokens that a decoder emits can
be compared with the law that they should have. A bigram or trigram table over a
small vocabulary is such a model, too.

Axes: B rows, N fed tokens, R read positions, L token slots, V vocabulary, K
tables.
"""

from collections.abc import Sequence

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.loops import prompts
from speccascade.decoding.types import Output, State

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


class FiniteContext:
  """A `LanguageModel` that looks at the last `order` tokens alone.

  A subclass has `order` and `look_up`. Before the first token the context is 0.

  Attributes:
    prompted: whether the inputs are prompts, which are part of the context.
  """

  prompted: bool

  @property
  def order(self) -> int:
    """How many of the last tokens the law depends on."""
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
    """Feeds a block to each row at its own length. See `LanguageModel`."""
    num = tokens.shape[1]
    steps = jnp.arange(num)
    # A plain block is a tree in which each token sees all before it.
    if depth is None:
      depth = jnp.broadcast_to(steps[None], tokens.shape)
    if ancestors is None:
      ancestors = jnp.broadcast_to(
        (steps[:, None] >= steps[None])[None], (tokens.shape[0], num, num)
      )
    num_held = state.offset + state.length
    fed = jax.vmap(jax.lax.dynamic_update_slice)(
      state.tokens, tokens, num_held[:, None]
    )
    context = [
      self._back(fed, num_held, tokens, depth, ancestors, back)
      for back in reversed(range(self.order))
    ]
    if read is not None:
      context = [jnp.take_along_axis(x, read, axis=1) for x in context]
    logits = self.look_up(state.source, context)
    state = state.replace(tokens=fed, length=state.length + count)
    return state, Output(logits=logits)

  def _back(
    self,
    fed: Array,
    num_held: Array,
    tokens: Array,
    depth: Array,
    ancestors: Array,
    back: int,
  ) -> Array:
    """Returns [B, N], the token `back` places before each fed token.

    It is an ancestor in the block, or a token held before, or 0 where the row
    begins. With 5 tokens held, the token 2 places before a node of depth 1 is
    at depth -1: it is held in slot 5 - 1 = 4.
    """
    wanted = depth - back
    # Of a node's ancestors, itself included, one has each depth.
    hit = ancestors & (depth[:, None, :] == wanted[:, :, None])
    inside = jnp.sum(jnp.where(hit, tokens[:, None, :], 0), axis=-1)
    slot = num_held[:, None] + wanted
    cached = jnp.take_along_axis(fed, jnp.maximum(slot, 0), axis=1)
    return jnp.where(wanted >= 0, inside, jnp.where(slot >= 0, cached, 0))

  def rewind(self, state: State, length: Array) -> State:
    """Lowers the lengths to `length` [B]. See `LanguageModel`."""
    return state.replace(length=jnp.minimum(state.length, length))

  def keep(
    self, state: State, start: Array, path: Array, count: Array
  ) -> State:
    """Moves one path of a fed tree to the front. See `LanguageModel`."""
    at = (state.offset + start)[:, None]
    # Nodes count from the start of the tree, slots from the start of the row.
    along = jnp.take_along_axis(state.tokens, at + path, axis=1)
    tokens = jax.vmap(jax.lax.dynamic_update_slice)(state.tokens, along, at)
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
