"""A masked language model that drafts, and runs ahead over forced tokens.

A token is *forced* where the mask allows no other, as the braces and the keys
of a JSON schema are. It has probability 1 under the masked models and under
every target of them, so a review accepts it with certainty, and the
distribution of a text is the same whether it was drafted or not. Here it is
written into the block without a pass. The pass that draws the next draft reads
it, along with the other tokens that the model's cache lacks.
"""

import functools
from typing import Any, TypeGuard, cast

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws, numerics
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records import feeding, token_buffers
from speccascade.decoding.records.automaton import START
from speccascade.decoding.records.block_records import (
  FORCED_PLACES as FORCED,
)
from speccascade.decoding.records.block_records import (
  Proposal,
)
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.language_model import State
from speccascade.decoding.records.masked_model import MaskedModel
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class _Reading(struct.PyTreeNode):
  """How far the automaton has read a text, and the model would have alone."""

  length: Array  # [B] int32, tokens of the prefix that the automaton has read
  after: Array  # [B] int32, its state after them
  held: Array  # [B] int32, tokens in the model's cache if the row were alone


class _Place(struct.PyTreeNode):
  """The values at one place of a block, [B, ...], or at all, [B, G+1, ...]."""

  token: Array  # int32; index G, if there is one, holds no token
  q: Array  # this and the others as in `Proposal`
  q1: Array
  bad: Array
  forced: Array


class FastForwardDrafter(Drafter, struct.PyTreeNode):
  """Drafts `width` tokens, of which forced ones cost no pass.

  A draft is drawn with the uniform of its place, so that a block has the tokens
  that it would have if every token of it were drafted.

  Attributes:
    model: the masked language model, whose automaton forces some tokens.
    width: static, gamma.
  """

  model: MaskedModel
  width: int = struct.field(pytree_node=False)

  own_counts = (FORCED,)

  @staticmethod
  def takes(model: Any) -> TypeGuard[MaskedModel]:
    """Whether a model is masked by an automaton that forces some tokens."""
    is_masked = isinstance(model, MaskedModel)
    return is_masked and model.automaton.forced is not None

  @property
  def parts(self) -> tuple[MaskedModel]:
    return (self.model,)

  @property
  def spare_slots(self) -> int:
    return self.width + self._wide

  @property
  def _wide(self) -> int:
    # A block, and the token that the verifier wrote after it.
    return self.width + 2

  def prefill(self, inputs: Array, *, capacity: int) -> State:
    """Returns the state before any decoder token. See `Part`."""
    [held] = super().prefill(inputs, capacity=capacity)
    first = jnp.ones_like(held.length)
    return held, _Reading(first, jnp.full_like(first, START), 0 * first)

  def catch_up(
    self, state: State, tokens: Array, upto: Array, *, wide: int
  ) -> State:
    """Reads external tokens before another turn. See `Drafter`."""
    held, reading = super().catch_up(state, tokens, upto, wide=wide)
    # A new text follows the token at index `upto`.
    begins = upto > 0
    length = jnp.where(begins, upto + 1, reading.length)
    after = jnp.where(begins, START, reading.after)
    return held, _Reading(length, after, jnp.maximum(reading.held, upto))

  def propose(
    self,
    state: State,
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[State, Proposal]:
    """Drafts where several tokens may follow. See `Drafter`."""
    held, reading = state
    Carry = tuple[State, Array, Array, Array, Array]
    mask = self.model.automaton
    forced_in = cast(Array, mask.forced)
    reading = self._read(reading, prefix)

    def at_place(
      narrow: int, carry: Carry, at: tuple[Array, Array]
    ) -> tuple[Carry, _Place]:
      held, tokens, after, alone, calls = carry
      place, u = at
      end = prefix.length + place
      only = forced_in[after]
      forced = only >= 0
      # One pass reads all tokens so far that the caches lack. Where some row
      # draws, those that do not are read along: later they would take a pass
      # that is wide for all rows.
      draws_here = prefix.active & ~forced
      is_read = prefix.active & jnp.any(draws_here)
      held, logits, _ = feeding.feed_to(
        self.model,
        held,
        tokens,
        jnp.where(is_read, end, 0),
        first=end - 1,
        read=1,
        narrow=narrow,
        wide=self._wide,
      )
      # Counted are the passes that the row takes alone.
      passes = -((alone - end) // self._wide)
      calls += jnp.where(draws_here, passes, 0)
      alone = jnp.where(draws_here, end, alone)
      q1, q, token, is_law = sampling.step(logits[:, 0], u[:, None])
      token = jnp.where(forced, only, token)
      certain = jax.nn.one_hot(only, q.shape[-1], dtype=q.dtype)
      here = _Place(
        token=token,
        q=jnp.where(forced[:, None], certain, q),
        q1=jnp.where(forced[:, None], certain, q1),
        bad=~is_law & ~forced,
        forced=forced,
      )
      tokens = token_buffers.write_block(tokens, token[:, None], end)
      after = mask.step(after, token)
      return (held, tokens, after, alone, calls), here

    # The bonus position is a place without a token.
    u = draws.uniforms(rngs, self.width)
    num = self.width + int(needs_bonus_law)
    u = jnp.pad(u, ((0, 0), (0, num - self.width)))
    no_calls = jnp.zeros_like(prefix.length)
    carry = held, prefix.tokens, reading.after, reading.held, no_calls
    places = jnp.arange(num, dtype=jnp.int32), u.T
    # The first place may lack two tokens after a block that was accepted whole.
    carry, first = at_place(2, carry, (places[0][0], places[1][0]))
    carry, others = jax.lax.scan(
      functools.partial(at_place, 1),
      carry,
      jax.tree.map(lambda x: x[1:], places),
    )
    held, _, after, alone, calls = carry
    reading = reading.replace(held=alone)
    block = jax.tree.map(
      lambda x, xs: jnp.swapaxes(jnp.concatenate([x[None], xs]), 0, 1),
      first,
      others,
    )
    if not needs_bonus_law:
      block = jax.tree.map(_pad_places, block)
      is_last = jnp.arange(self.width + 1)[None] == self.width
      forced = forced_in[after] >= 0
      block = block.replace(forced=block.forced | (forced[:, None] & is_last))
    return (held, reading), Proposal(
      tokens=block.token[:, : self.width],
      count=jnp.full_like(prefix.length, self.width),
      q=block.q,
      q1=block.q1,
      copied=jnp.zeros_like(block.bad),
      calls=calls[:, None],
      bad=block.bad,
      extra={FORCED: block.forced},
    )

  def _read(self, reading: _Reading, prefix: Prefix) -> _Reading:
    """Returns the reading of a prefix, which is up to G+1 tokens longer."""
    index = reading.length[:, None] + jnp.arange(self.width + 1)[None]
    index = jnp.minimum(index, prefix.tokens.shape[1] - 1)
    tokens = jnp.take_along_axis(prefix.tokens, index, axis=1)
    states = self.model.automaton.follow(reading.after, tokens)
    num = prefix.length - reading.length
    last = numerics.of_token(states, jnp.maximum(num - 1, 0))
    after = jnp.where(num > 0, last, reading.after)
    # The cache was rewound to all tokens but the last one.
    held = jnp.minimum(reading.held, prefix.length - 1)
    return _Reading(prefix.length, after, held)


def _pad_places(values: Array) -> Array:
  """Returns values [B, G, ...] with zeros at a place after them."""
  more = [(0, 0)] * values.ndim
  more[1] = (0, 1)
  return jnp.pad(values, more)
