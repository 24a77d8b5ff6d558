"""Several drafters in a row: the horizontal cascade.

The later a token is in a block, the less likely it is accepted, so
later tokens may come from cheaper drafters.
"""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records import token_buffers
from speccascade.decoding.records.block_records import Proposal
from speccascade.decoding.records.drafter import Drafter, refuse_tree
from speccascade.decoding.records.language_model import State
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class HorizontalDrafter(Drafter, struct.PyTreeNode):
  """A drafter whose block is written by several drafters, one after another.

  Attributes:
    drafters: the drafters in order of writing. Each has its own width, and the
      width of the whole is the sum.
  """

  drafters: tuple[Drafter, ...]

  @property
  def parts(self) -> tuple[Drafter, ...]:
    return self.drafters

  @property
  def width(self) -> int:
    return sum(drafter.width for drafter in self.drafters)

  @property
  def spare_slots(self) -> int:
    # A drafter may write its block after the blocks of all others.
    return self.width

  def propose(
    self,
    state: tuple[State, ...],
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[tuple[State, ...], Proposal]:
    """Drafts part after part.

    Each drafter continues where the drafter before it stopped, which may be
    before its width is full: row b of the block has no gap.
    """
    for drafter in self.drafters:
      refuse_tree(drafter, "a horizontal cascade")
    # Buffers for the whole block, with space for it after the prefix.
    length, width = prefix.length, self.width
    rows = length.shape[0]
    tokens = jnp.pad(prefix.tokens, ((0, 0), (0, width)))
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
      # Draft after the prefix and what the drafters before wrote. Each drafter
      # has uniforms of its own; only the last can state the bonus distribution.
      is_last = i + 1 == len(self.drafters)
      inner, part = drafter.propose(
        state[i],
        Prefix(tokens, length + count, prefix.active),
        draws.fold_in(rngs, i),
        sampling,
        needs_bonus_law=needs_bonus_law and is_last,
      )
      # Append the part. Index `part.count` of `part.q` is written too; the next
      # drafter overwrites it, and the last drafter's is the bonus.
      tokens = token_buffers.write_block(tokens, part.tokens, length + count)
      new = {
        "q": part.q,
        "q1": part.q1,
        "copied": part.copied,
        "bad": part.bad,
        # Its models follow those of the drafters before.
        "writer": part.writers(place),
      }
      drafts = token_buffers.write_block(drafts, new, count)
      count += part.count
      states.append(inner)
      calls.append(part.calls)
      place += len(drafter.models)
    index = length[:, None] + jnp.arange(width)[None]
    return tuple(states), Proposal(
      tokens=jnp.take_along_axis(tokens, index, axis=1),
      count=count,
      q=drafts["q"],
      q1=drafts["q1"],
      copied=drafts["copied"],
      calls=jnp.concatenate(calls, axis=1),
      bad=drafts["bad"],
      has_bonus_law=part.has_bonus_law,
      writer=drafts["writer"],
    )
