"""A language model that drafts as many tokens as pay, row by row."""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.drafting.draft_pace import (
  CATCH_UP_WIDTH,
  Pace,
  PaceCosts,
)
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records import feeding
from speccascade.decoding.records.block_records import Proposal
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class AdaptiveDrafter(Drafter, struct.PyTreeNode):
  """Drafts `gamma[b]` tokens of row b, which `Pace` chooses before the round.

  The gamma of a row is a function of the row's own past and of `costs`. It is
  fixed before the round draws anything, so that a review that is exact for
  every gamma is exact here, too.

  The speculative loop asks `choose` for the gammas, and runs a round of the
  widest one: `of_width`. In it a row with a smaller gamma proposes no more
  drafts than its own gamma, and has the uniforms that it has alone.

  Attributes:
    model: the language model.
    costs: `PaceCosts` of the sizes.
    sizes: static, the block sizes, ascending.
    width: static, the tokens that `propose` drafts, one of the sizes.
  """

  model: LanguageModel
  costs: PaceCosts
  sizes: tuple[int, ...] = struct.field(pytree_node=False)
  width: int = struct.field(pytree_node=False)

  @classmethod
  def of(
    cls, model: LanguageModel, costs: PaceCosts, sizes: tuple[int, ...]
  ) -> "AdaptiveDrafter":
    """Returns the drafter, whose blocks have up to `sizes[-1]` drafts."""
    return cls(model, costs, sizes, sizes[-1])

  def of_width(self, width: int) -> "AdaptiveDrafter":
    """Returns the drafter whose `propose` drafts `width` tokens."""
    return self.replace(width=width)

  @property
  def parts(self) -> tuple[LanguageModel]:
    return (self.model,)

  @property
  def spare_slots(self) -> int:
    return self.sizes[-1] + CATCH_UP_WIDTH

  def check_review(
    self, target: Target | None, settings: ReviewSettings
  ) -> None:
    """See `Drafter`. The next gamma depends on how much was accepted."""
    if target is None or not target.is_lossless:
      if settings.bonus == "verifier":
        raise ValueError(
          "gamma is 'adaptive', and bonus 'verifier' draws the token after a"
          " whole block from another distribution, so that the output would"
          " depend on the gammas: set bonus to 'target'"
        )
      if 0 in self.sizes:
        raise ValueError(
          "gamma may be 0, and the target reads the drafter's distribution:"
          " give sizes from 1 on"
        )

  def prefill(self, inputs: Array, *, capacity: int) -> State:
    return *super().prefill(inputs, capacity=capacity), Pace.zeros(len(inputs))

  def catch_up(
    self, state: State, tokens: Array, upto: Array, *, wide: int
  ) -> State:
    model, pace = super().catch_up(state, tokens, upto, wide=wide)
    return model, pace.begin_turn(upto)

  def choose(self, state: State, prefix: Prefix) -> tuple[State, Array]:
    """Returns the state and [B] int32, the gammas of the next block."""
    model, pace = state
    chosen = pace.next(self.costs, self.sizes, prefix.length)
    # A row that is done learns nothing while other rows continue.
    pace = jax.tree.map(
      lambda old, new: jnp.where(prefix.active, new, old), pace, chosen
    )
    return (model, pace), pace.gamma

  def is_idle(self, state: State, prefix: Prefix) -> Array:
    """Returns [] bool, whether all rows continue without drafts, unasked."""
    idle = state[1].is_idle(prefix.length) | ~prefix.active
    return jnp.all(idle) & jnp.any(prefix.active)

  def propose(
    self,
    state: State,
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[State, Proposal]:
    """Drafts the gammas that `choose` put into the state. See `Drafter`."""
    model, pace = state
    if not self.width:
      return state, self._nothing(len(prefix.length))
    drafts = prefix.active & (pace.gamma > 0)
    model = self._read_missed(model, prefix, drafts)
    # A row that drafts nothing reads one of the tokens that it lacks, so that
    # the pass of the other rows has space for it.
    length = jnp.where(drafts, prefix.length, model.length + 1)
    (model,), proposal = self._chain.propose(
      (model,),
      dataclasses.replace(prefix, length=length, active=drafts),
      rngs,
      sampling,
      needs_bonus_law=needs_bonus_law,
    )
    # Counts are those of the row alone, whatever the other rows draft.
    count = jnp.minimum(pace.gamma, self.width)
    num_passes = count + int(needs_bonus_law)
    calls = pace.passes(prefix.length, self._first_width) + num_passes
    place = jnp.arange(self.width + 1, dtype=jnp.int32)[None]
    is_read = place < num_passes[:, None]
    num_kept = 0 if self._chain.rereads else num_passes - 1
    pace = pace.draft(prefix.length, jnp.asarray(num_kept))
    return (model, pace), proposal.replace(
      count=count,
      q1=jnp.where(is_read[..., None], proposal.q1, 0),
      calls=jnp.where(count > 0, calls, 0)[:, None],
      bad=proposal.bad & is_read,
    )

  @property
  def _chain(self) -> AutoregressiveDrafter:
    """Drafts a block of the width."""
    return AutoregressiveDrafter(self.model, self.width, behind=0)

  @property
  def _first_width(self) -> int:
    """Static: how many tokens the first pass of a chain may read."""
    return self._chain.rereads or 2

  def _nothing(self, rows: int) -> Proposal:
    """Returns a proposal without drafts."""
    law = jnp.zeros((rows, 1, self.vocab_size), jnp.float32)
    no = jnp.zeros((rows, 1), bool)
    count = jnp.zeros((rows,), jnp.int32)
    return Proposal(
      tokens=jnp.zeros((rows, 0), jnp.int32),
      count=count,
      q=law,
      q1=law,
      copied=no,
      calls=count[:, None],
      bad=no,
    )

  def _read_missed(self, model: State, prefix: Prefix, drafts: Array) -> State:
    """Feeds rows what they lack beyond what a chain's first pass reads."""
    is_late = drafts & (prefix.length - model.length > self._first_width)
    upto = jnp.where(is_late, prefix.length - 1, 0)

    def lacks(model: State) -> Array:
      return jnp.any(model.length < upto)

    def read(model: State) -> State:
      count = jnp.clip(upto - model.length, 0, CATCH_UP_WIDTH)
      model, _ = feeding.feed_block(
        self.model,
        model,
        prefix.tokens,
        count,
        upto,
        width=CATCH_UP_WIDTH,
        read=0,
      )
      return model

    return jax.lax.while_loop(lacks, read, model)
