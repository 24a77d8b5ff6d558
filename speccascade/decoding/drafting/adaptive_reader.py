"""Drafters that read the verifier's states, and draft as many tokens as pay.

While a row drafts nothing, the verifier's states of its tokens are held, and
read in passes of several tokens without a head: the row lacks few tokens when
it drafts again.
"""

from typing import Any, Self

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.adaptive import AdaptiveDrafter
from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.drafting.draft_pace import (
  CATCH_UP_WIDTH,
  Pace,
  PaceCosts,
)
from speccascade.decoding.drafting.follower import Follower
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records import feeding, readers
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.readers import ReadingModel
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class AdaptiveReader(AdaptiveDrafter):
  """An `AdaptiveDrafter` whose model reads states; make one with `of`.

  Its `model` is a `Follower`. After a block all drafts are forgotten, so that a
  chain's first pass may read as many tokens as the widest block writes. What a
  row lacks beyond these is read before its gamma is chosen, whether it drafts
  or not, and is not a part of what drafting costs.
  """

  @classmethod
  def of(cls, model: Any, costs: PaceCosts, sizes: tuple[int, ...]) -> Self:
    """Returns the drafter of a `ReadingModel`; see `AdaptiveDrafter.of`."""
    widest = sizes[-1]
    follower: Any = Follower(model, widest, widest, lag=2 * CATCH_UP_WIDTH)
    costs = costs.replace(catch_up=jnp.zeros((), jnp.float32))
    return cls(follower, costs, sizes, widest)

  @property
  def _chain(self) -> AutoregressiveDrafter:
    return AutoregressiveDrafter(
      self.model, self.width, behind=0, rereads=self.sizes[-1] + 1
    )

  @property
  def _follower(self) -> Follower:
    follower: Any = self.model
    return follower

  @property
  def spare_slots(self) -> int:
    return self.sizes[-1] + max(CATCH_UP_WIDTH, self._first_width)

  def check_review(
    self, target: Target | None, settings: ReviewSettings
  ) -> None:
    """See `Drafter`. A draft's q depends on where its block begins."""
    if target is None or target.uses_q:
      raise ValueError(
        "gamma is 'adaptive', and the target reads the distribution of a state"
        " reader, which depends on where a block begins: the output would"
        " depend on the gammas; set gamma to a number, or use spec_decode"
      )
    super().check_review(target, settings)

  def prefill(self, inputs: Array, *, capacity: int) -> State:
    """Raises ValueError: without the verifier there are no states to read."""
    readers.refuse_alone()

  def prefill_with(
    self, verifier: LanguageModel, inputs: Array, *, capacity: int
  ) -> tuple[State, State]:
    """Returns the states of both. See `PromptReader`."""
    held, verifying = self._follower.begin_with(
      verifier, inputs, capacity=capacity, spare_slots=self.spare_slots
    )
    return (held, Pace.zeros(len(inputs))), verifying

  def catch_up_with(
    self,
    verifier: LanguageModel,
    states: tuple[State, State],
    tokens: Array,
    upto: Array,
    *,
    wide: int,
  ) -> tuple[State, State]:
    """Reads external tokens with the verifier. See `PromptReader`."""
    (held, pace), verifying = states
    held, verifying = self._follower.catch_up(
      verifier, held, verifying, tokens, upto, wide=wide
    )
    return (held, pace.begin_turn(upto)), verifying

  def observe(
    self,
    state: State,
    hidden: Array,
    path: Array,
    count: Array,
    length: Array,
  ) -> State:
    """Takes the verifier's states of a round. See `Reader`."""
    held, pace = state
    return self._follower.observe(held, hidden, path, count, length), pace

  def choose(self, state: State, prefix: Prefix) -> tuple[State, Array]:
    """See `AdaptiveDrafter`."""
    held, pace = state
    return super().choose((self._read_along(held, prefix), pace), prefix)

  def _read_missed(self, model: State, prefix: Prefix, drafts: Array) -> State:
    """Returns the model: `choose` has read what rows lack."""
    return model

  def _read_along(self, held: State, prefix: Prefix) -> State:
    """Feeds rows what they lack beyond what a chain's first pass reads."""

    def late(held: State) -> Array:
      return prefix.active & (prefix.length - held.length > self._first_width)

    def read(held: State) -> State:
      missing = prefix.length - 1 - held.length
      count = jnp.where(late(held), jnp.minimum(missing, CATCH_UP_WIDTH), 0)
      held, _ = feeding.feed_block(
        self.model,
        held,
        prefix.tokens,
        count,
        prefix.length,
        width=CATCH_UP_WIDTH,
        read=0,
      )
      return held

    return jax.lax.while_loop(lambda held: jnp.any(late(held)), read, held)


class ChoosingReader(struct.PyTreeNode):
  """A state reader whose rows choose their gammas: a `ReadsStates`.

  Attributes:
    reader: a `ReadsStates`.
    costs: `PaceCosts` of the sizes.
    sizes: static, the block sizes, ascending.
  """

  reader: Any
  costs: PaceCosts
  sizes: tuple[int, ...] = struct.field(pytree_node=False)

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.reader.vocab_size

  def reading_model(self, verifier: LanguageModel) -> ReadingModel:
    """Returns the language model that reads states. See `ReadsStates`."""
    return self.reader.reading_model(verifier)

  def verifier_read(self, verifier: LanguageModel) -> LanguageModel:
    """Returns the verifier as it hands out states. See `ReadsStates`."""
    return self.reader.verifier_read(verifier)

  def drafter(self, verifier: LanguageModel) -> AdaptiveReader:
    """Returns the drafter for a verifier."""
    model = self.reading_model(verifier)
    return AdaptiveReader.of(model, self.costs, self.sizes)

  def check_review(
    self, target: Target | None, settings: ReviewSettings
  ) -> None:
    """See `AdaptiveReader`, which needs no verifier for it."""
    drafter = AdaptiveReader.of(self.reader, self.costs, self.sizes)
    drafter.check_review(target, settings)
