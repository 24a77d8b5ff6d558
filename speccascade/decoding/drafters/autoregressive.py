"""A language model that drafts one token after another."""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding import feeding, numerics
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.types import LanguageModel, Proposal

Array = jax.Array


@struct.dataclass
class StopPolicy:
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


@struct.dataclass
class AutoregressiveDrafter:
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

  @property
  def vocab_size(self) -> int:
    return self.model.vocab_size

  @property
  def has_confidence(self) -> bool:
    return True

  @property
  def models(self) -> tuple:
    return (self.model,)

  @property
  def num_models(self) -> int:
    return 1

  def prefill(self, inputs: Array, *, capacity: int) -> feeding.Fed:
    # A block is written whole, whatever its count: leave room behind the end.
    capacity += self.width + max(self.behind, 2)
    return feeding.start(self.model, inputs, capacity=capacity)

  def rewind(self, state: feeding.Fed, length: Array) -> feeding.Fed:
    return feeding.rewind(self.model, state, length)

  def propose(
    self, state, tokens, length, rngs, sampling, *, bonus_law: bool, active
  ) -> tuple[feeding.Fed, Proposal]:
    """See `types.Drafter`. Without `bonus_law` the last draft is not fed."""
    u = sampling_lib.uniforms(rngs, self.width)
    one = active.astype(jnp.int32)
    state, logits, calls = self._catch_up(
      state, tokens, length, bonus_law, active
    )
    if self.stop is not None:
      return self._until_stop(
        state, logits, u, sampling, calls, active, bonus_law
      )
    drafts, q1s, qs, bad = [], [], [], []
    for step in range(self.width):
      q1, q, token = sampling_lib.step(sampling, logits, u[:, step])
      bad.append(~sampling_lib.is_law(logits))
      drafts.append(token)
      q1s.append(q1)
      qs.append(q)
      if bonus_law or step + 1 < self.width:
        state, logits = feeding.feed(self.model, state, token, one)
        calls += one
    if bonus_law:
      q1, q = sampling.laws(logits)
      bad.append(~sampling_lib.is_law(logits))
    else:
      q1 = q = jnp.zeros_like(qs[-1])
      bad.append(jnp.zeros_like(bad[-1]))
    bad = jnp.stack(bad, axis=1)
    return state, Proposal(
      tokens=jnp.stack(drafts, axis=1),
      count=jnp.full_like(length, self.width),
      q=jnp.stack([*qs, q], axis=1),
      q1=jnp.stack([*q1s, q1], axis=1),
      copied=jnp.zeros_like(bad),
      calls=calls[:, None],
      bad=bad,
    )

  def _until_stop(self, state, logits, u, sampling, calls, active, bonus_law):
    """Drafts while any row goes on; every drawn token is fed."""
    rows, vocab = logits.shape
    law = jnp.zeros(
      (rows, self.width + 1, vocab), numerics.at_least_float32(logits).dtype
    )
    drafts = jnp.zeros((rows, self.width), jnp.int32)
    count = jnp.zeros((rows,), jnp.int32)

    def going(carry):
      step, active = carry[0], carry[1]
      return (step < self.width) & jnp.any(active)

    def body(carry):
      step, active, state, logits, drafts, count, q1s, qs, calls, bad = carry
      u_t = jax.lax.dynamic_index_in_dim(u, step, axis=1, keepdims=False)
      q1, q, token = sampling_lib.step(sampling, logits, u_t)
      bad = bad.at[:, step].set(~sampling_lib.is_law(logits))
      if self.stop.before_draw:
        active &= numerics.max_prob(q1) >= self.stop.below
      state, after = feeding.feed(
        self.model, state, token, active.astype(jnp.int32)
      )
      # A row that stopped keeps the law of its bonus position.
      logits = jnp.where(active[:, None], after, logits)
      drafts = drafts.at[:, step].set(jnp.where(active, token, 0))
      count += active.astype(jnp.int32)
      calls += active.astype(jnp.int32)
      q1s = q1s.at[:, step].set(q1)
      qs = qs.at[:, step].set(q)
      if not self.stop.before_draw:
        drawn = jnp.take_along_axis(q, token[:, None], axis=-1)[:, 0]
        active &= drawn >= self.stop.below
      return step + 1, active, state, logits, drafts, count, q1s, qs, calls, bad

    bad = jnp.zeros((rows, self.width + 1), bool)
    carry = (0, active, state, logits, drafts, count, law, law, calls, bad)
    carry = jax.lax.while_loop(going, body, carry)
    _, _, state, logits, drafts, count, q1s, qs, calls, bad = carry
    # Rows stand at different positions: write each one's bonus law at `count`.
    q1, q = sampling.laws(logits)
    here = jnp.arange(self.width + 1)[None] == count[:, None]
    # Before a draw the policy itself reads the law that ends a block.
    was_read = bonus_law | ((count < self.width) & self.stop.before_draw)
    is_bad = (was_read & ~sampling_lib.is_law(logits))[:, None]
    return state, Proposal(
      tokens=drafts,
      count=count,
      q=jnp.where(here[..., None], q[:, None], qs),
      q1=jnp.where(here[..., None], q1[:, None], q1s),
      copied=jnp.zeros_like(bad),
      calls=calls[:, None],
      bad=jnp.where(here, is_bad, bad),
    )

  def _catch_up(self, state, tokens, length, bonus_law, active):
    """Feeds what is missing of the prefix; logits are those behind its end."""
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
    state, logits = feeding.feed_prefix(
      self.model, state, tokens, length - state.length, width=width
    )
    return state, logits, jnp.ones_like(length)
