"""A language model that drafts one token after another."""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting import feeding
from speccascade.decoding.laws import draws, numerics
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.types import LanguageModel, Proposal, State

Array = jax.Array


class StopPolicy(struct.PyTreeNode):
  """When to stop drafting before the block is full.

  A policy may look at the law before a draw (the pending token is then never
  drawn), or at a drawn token (which is then kept and verified). Dropping a
  drawn token because of its own probability would bias the output.

  Attributes:
    below: scalar, traced: the threshold.
    before_draw: static. True: stop where max q < below, as BiLD falls back.
      False: stop after a token whose sampled probability is < below, as
      assisted generation does.
  """

  below: Array
  before_draw: bool = struct.field(pytree_node=False)


class AutoregressiveDrafter(struct.PyTreeNode):
  """Drafts up to `width` tokens from a language model.

  Attributes:
    model: the language model.
    width: static, gamma.
    stop: a `StopPolicy`, or None to fill the block.
    behind: static; others may write parts of the prefix, of which so many
      tokens are read in one pass. 0: every block is this drafter's own, as in a
      plain speculative loop, and the cache lacks at most two tokens (after a
      fully accepted block the last draft and the bonus token).
  """

  model: LanguageModel
  width: int = struct.field(pytree_node=False)
  stop: StopPolicy | None = None
  behind: int = struct.field(pytree_node=False, default=8)

  has_confidence = True

  @property
  def vocab_size(self) -> int:
    return self.model.vocab_size

  @property
  def models(self) -> tuple[LanguageModel, ...]:
    return (self.model,)

  def prefill(self, inputs: Array, *, capacity: int) -> State:
    # A block is written whole, whatever its count: leave room after the end.
    capacity += self.width + max(self.behind, 2)
    return self.model.prefill(inputs, capacity=capacity)

  def rewind(self, state: State, length: Array) -> State:
    return self.model.rewind(state, length)

  def catch_up(
    self, state: State, tokens: Array, upto: Array, *, wide: int
  ) -> State:
    return feeding.catch_up(self.model, state, tokens, upto, wide=wide)

  def propose(
    self,
    state: State,
    tokens: Array,
    length: Array,
    rngs: Array,
    sampling: Sampling,
    *,
    bonus_law: bool,
    active: Array,
  ) -> tuple[State, Proposal]:
    """See `types.Drafter`. Without `bonus_law` the last draft is not fed."""
    u = draws.uniforms(rngs, self.width)
    state, logits, calls = self._catch_up(
      state, tokens, length, bonus_law, active
    )
    if self.stop is None:
      state, count, fed, (tokens, q, q1, bad) = self._fill(
        state, logits, u, sampling, active, bonus_law
      )
    else:
      state, count, fed, (tokens, q, q1, bad) = self._until_stop(
        self.stop, state, logits, u, sampling, active, bonus_law
      )
    return state, Proposal(
      tokens=tokens[:, : self.width],
      count=count,
      q=q,
      q1=q1,
      copied=jnp.zeros_like(bad),
      calls=(calls + fed)[:, None],
      bad=bad,
    )

  def _fill(self, state, logits, u, sampling, active, bonus_law):
    """Drafts the whole block; returns state, count, calls, and what is drafted.

    That is (tokens, q, q1, bad), [B, G+1, ...] each.
    """
    active = active.astype(jnp.int32)
    drafts, fed = [], jnp.zeros_like(active)
    for step in range(self.width):
      q1, q, token, is_law = sampling.step(logits, u, step)
      drafts.append((token, q, q1, ~is_law))
      if bonus_law or step + 1 < self.width:
        state, logits = feeding.feed(self.model, state, token, active)
        fed += active
    last = jax.tree.map(jnp.zeros_like, drafts[-1])
    if bonus_law:
      q1, q, _, is_law = sampling.step(logits)
      last = (last[0], q, q1, ~is_law)
    drafts = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *drafts, last)
    return state, jnp.full_like(fed, self.width), fed, drafts

  def _until_stop(
    self, stop: StopPolicy, state, logits, u, sampling, active, bonus_law
  ):
    """Drafts while any row goes on, as `_fill`; every drawn token is fed."""
    rows, vocab = logits.shape
    place = jnp.zeros((rows, self.width + 1), jnp.int32)
    probs = jnp.zeros(
      (*place.shape, vocab), numerics.at_least_float32(logits).dtype
    )

    def is_going(carry):
      step, active = carry[:2]
      return (step < self.width) & jnp.any(active)

    def draft(carry):
      step, active, state, logits, count, drafts = carry
      u_t = jax.lax.dynamic_slice_in_dim(u, step, 1, axis=1)
      q1, q, token, is_law = sampling.step(logits, u_t)
      if stop.before_draw:
        active &= numerics.max_prob(q1) >= stop.below
      fed = active.astype(jnp.int32)
      state, after = feeding.feed(self.model, state, token, fed)
      # A row that stopped keeps the law of its bonus position.
      logits = jnp.where(active[:, None], after, logits)
      drafts = jax.tree.map(
        lambda buffer, x: buffer.at[:, step].set(x),
        drafts,
        (jnp.where(active, token, 0), q, q1, ~is_law),
      )
      if not stop.before_draw:
        active &= numerics.of_token(q, token) >= stop.below
      return step + 1, active, state, logits, count + fed, drafts

    drafts = (place, probs, probs, place > 0)
    carry = (0, active, state, logits, place[:, 0], drafts)
    carry = jax.lax.while_loop(is_going, draft, carry)
    _, _, state, logits, count, (tokens, q, q1, bad) = carry
    # Rows stand at different positions: write each one's bonus law at `count`.
    last_q1, last_q, _, is_law = sampling.step(logits)
    here = jnp.arange(self.width + 1)[None] == count[:, None]
    # Before a draw the policy itself reads the law that ends a block.
    was_read = bonus_law | ((count < self.width) & stop.before_draw)
    is_bad = (was_read & ~is_law)[:, None]
    q = jnp.where(here[..., None], last_q[:, None], q)
    q1 = jnp.where(here[..., None], last_q1[:, None], q1)
    return state, count, count, (tokens, q, q1, jnp.where(here, is_bad, bad))

  def _catch_up(self, state, tokens, length, bonus_law, active):
    """Feeds what is missing of the prefix; logits are those after its end."""
    if self.behind:
      state, logits, calls = feeding.feed_to(
        self.model,
        state,
        tokens,
        jnp.where(active, length, 0),
        first=length - 1,
        read=1,
        narrow=min(2, self.behind),
        wide=self.behind,
      )
      return state, logits[:, 0], calls
    # Where every draft is fed one token is missing, else one or two.
    width = 1 if bonus_law or self.stop is not None else 2
    state, logits = feeding.feed_block(
      self.model, state, tokens, length - state.length, length - 1, width=width
    )
    return state, logits[:, 0], jnp.ones_like(length)
