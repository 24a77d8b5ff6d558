"""Several drafters in a row: the horizontal cascade."""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.loops import emission
from speccascade.decoding.types import Drafter, LanguageModel, Proposal

Array = jax.Array


class HorizontalDrafter(struct.PyTreeNode):
  """The first drafter writes the first tokens of a block, the next go on.

  Later tokens of a block are less likely to survive, so they may come from
  cheaper drafters.

  Attributes:
    drafters: the drafters in order of writing, each with its own width.
  """

  drafters: tuple[Drafter, ...]

  @property
  def width(self) -> int:
    return sum(drafter.width for drafter in self.drafters)

  @property
  def vocab_size(self) -> int:
    return self.drafters[0].vocab_size

  @property
  def has_confidence(self) -> bool:
    return all(drafter.has_confidence for drafter in self.drafters)

  @property
  def models(self) -> tuple[LanguageModel, ...]:
    return tuple(model for drafter in self.drafters for model in drafter.models)

  def prefill(self, inputs: Array, *, capacity: int) -> tuple:
    capacity += self.width
    return tuple(
      drafter.prefill(inputs, capacity=capacity) for drafter in self.drafters
    )

  def rewind(self, state: tuple, length: Array) -> tuple:
    return tuple(
      drafter.rewind(inner, length)
      for drafter, inner in zip(self.drafters, state)
    )

  def catch_up(
    self, state: tuple, tokens: Array, upto: Array, *, wide: int
  ) -> tuple:
    return tuple(
      drafter.catch_up(inner, tokens, upto, wide=wide)
      for drafter, inner in zip(self.drafters, state)
    )

  def propose(
    self,
    state: tuple,
    tokens: Array,
    length: Array,
    rngs: Array,
    sampling: Sampling,
    *,
    bonus_law: bool,
    active: Array,
  ) -> tuple[tuple, Proposal]:
    """See `types.Drafter`; each goes on where the one before stopped."""
    rows, width = length.shape[0], self.width
    tokens = jnp.pad(tokens, ((0, 0), (0, width)))
    probs = jnp.zeros((rows, width + 1, self.vocab_size), jnp.float32)
    flags = jnp.zeros((rows, width + 1), bool)
    count = jnp.zeros_like(length)
    drafts = {
      "q": probs,
      "q1": probs,
      "copied": flags,
      "bad": flags,
      "writer": flags.astype(jnp.int32),
    }
    states, calls, place = [], [], 0
    for i, drafter in enumerate(self.drafters):
      is_last = i + 1 == len(self.drafters)
      inner, part = drafter.propose(
        state[i],
        tokens,
        length + count,
        draws.fold_in(rngs, i),
        sampling,
        bonus_law=bonus_law and is_last,
        active=active,
      )
      tokens = emission.write_block(tokens, part.tokens, length + count)
      writer = jnp.where(part.writer < 0, -1, place + part.writer)
      writer = jnp.broadcast_to(writer, part.copied.shape)
      new = {
        "q": part.q,
        "q1": part.q1,
        "copied": part.copied,
        "bad": part.bad,
        "writer": writer,
      }
      drafts = emission.write_block(drafts, new, count)
      count += part.count
      states.append(inner)
      calls.append(part.calls)
      place += len(drafter.models)
    index = length[:, None] + jnp.arange(width)[None]
    return tuple(states), Proposal(
      tokens=jnp.take_along_axis(tokens, index, axis=1),
      count=count,
      calls=jnp.concatenate(calls, axis=1),
      knows_bonus=part.knows_bonus,
      **drafts,
    )
