"""A language model that is a table: exact, tiny, and as a decoder sees it.

Its laws are known in closed form, so that what a decoder emits can be compared
with what it should emit; a bigram or trigram table over a small vocabulary is
the same thing.
"""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.loops import prompts
from speccascade.decoding.types import Output

Array = jax.Array


@struct.dataclass
class MarkovState:
  """Attributes:
  tokens: [B, L] int32, what was fed; slots past the end mean nothing.
  length: [B] int32, decoder tokens.
  offset: [B] int32, tokens of the prompt that stand before them.
  source: [B] int32, the first token of the source, or of the prompt, which may
    choose a table.
  """

  tokens: Array
  length: Array
  offset: Array
  source: Array


class FiniteContext:
  """The door of a model that looks at the last `order` tokens alone.

  A subclass has `order`, `look_up(source, context)`, the logits after the last
  tokens, oldest first, and `prompted`, whether a prompt is part of the context.
  Before the first token the context is 0.
  """

  def prefill(self, inputs: Array, *, capacity: int) -> MarkovState:
    length = jnp.zeros(inputs.shape[:1], jnp.int32)
    tokens, offset = inputs[:, :0], length
    if self.prompted:
      (tokens, offset), inputs = (
        prompts.prefill_tokens(inputs),
        prompts.align(inputs),
      )
    tokens = jnp.pad(tokens, ((0, 0), (0, capacity)))
    return MarkovState(tokens, length, offset, source=inputs[:, 0])

  def extend(
    self, state, tokens, count, *, read=None, depth=None, ancestors=None
  ):
    num = tokens.shape[1]
    steps = jnp.arange(num)
    if depth is None:
      depth = jnp.broadcast_to(steps[None], tokens.shape)
    if ancestors is None:
      ancestors = jnp.broadcast_to(
        (steps[:, None] >= steps[None])[None], (tokens.shape[0], num, num)
      )
    held = state.offset + state.length
    fed = jax.vmap(jax.lax.dynamic_update_slice)(
      state.tokens, tokens, held[:, None]
    )
    context = [
      self._back(fed, held, tokens, depth, ancestors, back)
      for back in reversed(range(self.order))
    ]
    if read is not None:
      context = [jnp.take_along_axis(c, read, axis=1) for c in context]
    logits = self.look_up(state.source, context)
    state = state.replace(tokens=fed, length=state.length + count)
    return state, Output(logits=logits)

  def _back(self, fed, held, tokens, depth, ancestors, back):
    """Returns [B, N], the token `back` places before each fed token."""
    wanted = depth - back
    # An ancestor in the block, or a cached token, or the start of all things.
    hit = ancestors & (depth[:, None, :] == wanted[:, :, None])
    inside = jnp.sum(jnp.where(hit, tokens[:, None, :], 0), axis=-1)
    slot = held[:, None] + wanted
    cached = jnp.take_along_axis(fed, jnp.maximum(slot, 0), axis=1)
    return jnp.where(wanted >= 0, inside, jnp.where(slot >= 0, cached, 0))

  def rewind(self, state, length):
    return state.replace(length=jnp.minimum(state.length, length))

  def keep(self, state, start, path, count):
    at = (state.offset + start)[:, None]
    kept = jnp.take_along_axis(state.tokens, at + path, axis=1)
    tokens = jax.vmap(jax.lax.dynamic_update_slice)(state.tokens, kept, at)
    return state.replace(tokens=tokens, length=start + count)


@struct.dataclass
class MarkovLM(FiniteContext):
  """Next-token logits looked up by the last n tokens.

  Attributes:
    table: [K, V, ..., V, V] float logits, n context axes (oldest first) and the
      next token. A row reads table number `inputs[b, 0] % K`, which stands for
      the source text.
    prompted: static; whether the inputs are prompts.
  """

  table: Array
  prompted: bool = struct.field(pytree_node=False, default=False)

  @property
  def vocab_size(self) -> int:
    return self.table.shape[-1]

  @property
  def order(self) -> int:
    return self.table.ndim - 2

  def look_up(self, source: Array, context: list[Array]) -> Array:
    """Returns [B, N, V] for source [B] and `order` arrays [B, N]."""
    return self.table[(source % self.table.shape[0])[:, None], *context]
