"""A language model that drafts one token after another.

The block has a fixed number of tokens, or ends where a `StopPolicy` says.
"""

from typing import Any, cast

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.kept_tokens import (
  ColumnReader,
  column_reader,
)
from speccascade.decoding.laws import draws, kernel_laws, numerics
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records import feeding
from speccascade.decoding.records.block_records import Proposal
from speccascade.decoding.records.block_scores import BlockScores
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.language_model import (
  LanguageModel,
  State,
  is_chain_model,
)
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.native.gpu.chain_review import BonusScores, DraftScores
from speccascade.native.gpu.filtered_laws import FilteredLaw

Array = jax.Array


class StopPolicy(struct.PyTreeNode):
  """When to stop drafting before the block is full.

  A policy may look at the distribution before a draw; the pending token is then
  never drawn. Or it may look at a drawn token, which is then verified like any
  other. A policy that dropped a drawn token because of the token's own
  probability would bias the output: with q = [.2, .4, .3, .1] and a threshold
  of .25 only tokens 1 and 2 would reach the verifier, which takes them for
  draws of q.

  Attributes:
    below: scalar, traced: the threshold.
    before_draw: static. True stops where max q < below, as BiLD falls back.
      False stops after a token whose sampled probability is < below, as
      assisted generation does.
  """

  below: Array
  before_draw: bool = struct.field(pytree_node=False)


class _Drafts(struct.PyTreeNode):
  """Drafts at one position, [B, ...], or at all positions, [B, G+1, ...]."""

  token: Array  # int32; index G, if there is one, holds no token
  q: Array  # this and the others as in `Proposal`
  q1: Array
  bad: Array


class _Block(struct.PyTreeNode):
  """A drafted block: how many drafts, and how many passes drafted them."""

  drafts: _Drafts  # of all positions
  count: Array  # [B] int32
  calls: Array  # [B] int32
  scores: DraftScores | None = None


def _scores(
  logits: tuple[Array, ...],
  found: tuple[kernel_laws.Found, ...],
  tokens: tuple[Array, ...],
) -> DraftScores:
  """Returns what a kernel for a GPU reviews drafts by."""

  def of(name: str) -> tuple[Array, ...]:
    return tuple(getattr(each, name) for each in found)

  scores = DraftScores(
    logits,
    of("top"),
    of("total"),
    tokens,
    plain_totals=of("plain_total"),
  )
  if isinstance(found[0], FilteredLaw):
    scores = scores._replace(least=of("least"), last=of("last"))
  return scores


def _of_bonus(logits: Array, found: kernel_laws.Found) -> BonusScores:
  """Returns what a kernel knows of the rows after the last draft."""
  scores = BonusScores(logits, found.top, found.total, found.plain_total)
  if isinstance(found, FilteredLaw):
    scores = scores._replace(least=found.least, last=found.last)
  return scores


class AutoregressiveDrafter(Drafter, struct.PyTreeNode):
  """Drafts up to `width` tokens from a language model.

  Attributes:
    model: the language model.
    width: static, gamma.
    stop: a `StopPolicy`, or None to fill the block.
    behind: static, tokens of the prefix that other models wrote since the last
      proposal and that one pass can read. More tokens take more passes. 0 means
      that every block is this drafter's own, as in a plain speculative loop.
      The cache lacks at most two tokens then: the last draft and the bonus
      token, after a fully accepted block.
    rereads: static, how many tokens the first pass may read where the model
      forgets all drafts after a block, and reads the accepted ones again; 0
      where it keeps them.
  """

  model: LanguageModel
  width: int = struct.field(pytree_node=False)
  stop: StopPolicy | None = None
  behind: int = struct.field(pytree_node=False, default=8)
  rereads: int = struct.field(pytree_node=False, default=0)

  @property
  def parts(self) -> tuple[LanguageModel]:
    return (self.model,)

  @property
  def spare_slots(self) -> int:
    return self.width + max(self.behind, self.rereads or 2)

  def propose(
    self,
    state: tuple[State],
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[tuple[State], Proposal]:
    """Drafts token after token; the last is fed only for the bonus position."""
    # One uniform for each draft, then the first logits, then the block.
    u = draws.uniforms(rngs, self.width)
    [held] = state
    drafted = self._in_one_call(held, prefix, u, sampling, needs_bonus_law)
    if drafted is not None:
      held, block = drafted
    else:
      held, block = self._in_steps(held, prefix, u, sampling, needs_bonus_law)
    drafts = block.drafts
    tokens, scores = drafts.token[:, : self.width], None
    if block.scores is not None:
      scores = BlockScores(
        drafts=block.scores,
        tokens=tokens,
        count=block.count,
        q=drafts.q,
        q1=drafts.q1,
      )
    return (held,), Proposal(
      tokens=tokens,
      count=block.count,
      q=drafts.q,
      q1=drafts.q1,
      copied=jnp.zeros_like(drafts.bad),
      calls=block.calls[:, None],
      bad=drafts.bad,
      scores=scores,
    )

  def _in_one_call(
    self,
    state: State,
    prefix: Prefix,
    u: Array,
    sampling: Sampling,
    needs_bonus_law: bool,
  ) -> tuple[State, _Block] | None:
    """Returns what the steps would return, or None where the model cannot."""
    if self.behind or self.stop is not None or not is_chain_model(self.model):
      return None
    drafted = self.model.draft_chain(
      state, prefix, u, sampling, needs_bonus_law=needs_bonus_law
    )
    if drafted is None:
      return None
    state, chain = drafted
    num_passes = chain.logits.shape[1]
    no_bonus = ((0, 0), (0, self.width + 1 - num_passes), (0, 0))
    drafts = _Drafts(
      token=chain.tokens,
      q=chain.q,
      q1=jnp.pad(sampling.confidence(chain.logits), no_bonus),
      bad=chain.bad,
    )
    calls = 1 + prefix.active.astype(jnp.int32) * (num_passes - 1)
    count = jnp.full_like(calls, self.width)
    return state, _Block(drafts=drafts, count=count, calls=calls)

  def _in_steps(
    self,
    state: State,
    prefix: Prefix,
    u: Array,
    sampling: Sampling,
    needs_bonus_law: bool,
  ) -> tuple[State, _Block]:
    """Drafts step by step; with a cut head the steps are over its N tokens."""
    reader = column_reader(self.model)
    draft = self._fill if self.stop is None else self._until_stop
    state, logits, calls = self._catch_up(
      reader, state, prefix, needs_bonus_law
    )
    state, block = draft(
      reader, state, logits, u, sampling, prefix.active, needs_bonus_law
    )
    drafts = block.drafts
    drafts = drafts.replace(
      q=reader.spread(drafts.q), q1=reader.spread(drafts.q1)
    )
    return state, block.replace(drafts=drafts, calls=calls + block.calls)

  def _fill(
    self,
    reader: ColumnReader,
    state: State,
    logits: Array,
    u: Array,
    sampling: Sampling,
    active: Array,
    needs_bonus_law: bool,
  ) -> tuple[State, _Block]:
    """Drafts the whole block of every row, from the logits after the prefix."""
    # The number of steps is static: the steps are unrolled, so each of them can
    # be fused with its neighbours, and each reads its column of `u` by a static
    # index.
    fed = active.astype(jnp.int32)
    steps, scores, calls = [], [], jnp.zeros_like(fed)
    for step in range(self.width):
      found = kernel_laws.find(sampling, logits, u, step)
      q1, q, column, is_law = sampling.step(logits, u, step, found)
      token = reader.token(column)
      if found is not None:
        scores.append((logits, found, token))
      steps.append(_Drafts(token=token, q=q, q1=q1, bad=~is_law))
      if needs_bonus_law or step + 1 < self.width:
        state, logits = feeding.feed(reader.model, state, token, fed)
        calls += fed
    bonus, of_bonus = jax.tree.map(jnp.zeros_like, steps[-1]), None
    if needs_bonus_law:
      found = kernel_laws.find(sampling, logits)
      q1, q, _, is_law = sampling.step(logits, found=found)
      if found is not None:
        of_bonus = _of_bonus(logits, found)
      bonus = _Drafts(token=bonus.token, q=q, q1=q1, bad=~is_law)
    drafts = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *steps, bonus)
    count = jnp.full_like(calls, self.width)
    block = _Block(drafts=drafts, count=count, calls=calls)
    if scores:
      drawn = _scores(*zip(*scores))
      drawn = drawn._replace(columns=reader.columns, bonus=of_bonus)
      block = block.replace(scores=drawn)
    return state, block

  def _until_stop(
    self,
    reader: ColumnReader,
    state: State,
    logits: Array,
    u: Array,
    sampling: Sampling,
    active: Array,
    needs_bonus_law: bool,
  ) -> tuple[State, _Block]:
    """Drafts until the policy stopped every row; feeds every drawn token."""
    stop = cast(StopPolicy, self.stop)
    rows, num_columns = logits.shape
    place = jnp.zeros((rows, self.width + 1), jnp.int32)
    probs = jnp.zeros(
      (*place.shape, num_columns), numerics.at_least_float32(logits).dtype
    )

    def is_going(carry: dict[str, Any]) -> Array:
      return (carry["step"] < self.width) & jnp.any(carry["active"])

    def draft(carry: dict[str, Any]) -> dict[str, Any]:
      step, active = carry["step"], carry["active"]
      # Draw a token, unless the policy stops a row before it.
      u_step = jax.lax.dynamic_slice_in_dim(u, step, 1, axis=1)
      q1, q, column, is_law = sampling.step(carry["logits"], u_step)
      token = reader.token(column)
      if stop.before_draw:
        active &= numerics.max_prob(q1) >= stop.below
      # Feed it. A row that stopped keeps the logits of its bonus position.
      fed = active.astype(jnp.int32)
      state, after = feeding.feed(reader.model, carry["state"], token, fed)
      logits = jnp.where(active[:, None], after, carry["logits"])
      # Write it at this step. What is written for a row that stopped is at
      # its count or after it, where the bonus overwrites it or it is never
      # read.
      drafts = jax.tree.map(
        lambda buffer, new: buffer.at[:, step].set(new),
        carry["drafts"],
        _Drafts(token=jnp.where(active, token, 0), q=q, q1=q1, bad=~is_law),
      )
      # Or stop after it.
      if not stop.before_draw:
        active &= numerics.of_token(q, column) >= stop.below
      return {
        "step": step + 1,
        "active": active,
        "state": state,
        "logits": logits,
        "count": carry["count"] + fed,
        "drafts": drafts,
      }

    carry = jax.lax.while_loop(
      is_going,
      draft,
      {
        "step": 0,
        "active": active,
        "state": state,
        "logits": logits,
        "count": place[:, 0],
        "drafts": _Drafts(token=place, q=probs, q1=probs, bad=place > 0),
      },
    )
    count, drafts = carry["count"], carry["drafts"]
    # Rows stopped at different positions: the distribution at the bonus
    # position of row b is written at index count[b].
    q1, q, _, is_law = sampling.step(carry["logits"])
    is_bonus = jnp.arange(self.width + 1)[None] == count[:, None]
    # Before a draw the policy itself reads the distribution that ends a block.
    was_read = needs_bonus_law | ((count < self.width) & stop.before_draw)
    bonus_bad = (was_read & ~is_law)[:, None]
    drafts = drafts.replace(
      q=jnp.where(is_bonus[..., None], q[:, None], drafts.q),
      q1=jnp.where(is_bonus[..., None], q1[:, None], drafts.q1),
      bad=jnp.where(is_bonus, bonus_bad, drafts.bad),
    )
    return carry["state"], _Block(drafts=drafts, count=count, calls=count)

  def _catch_up(
    self,
    reader: ColumnReader,
    state: State,
    prefix: Prefix,
    needs_bonus_law: bool,
  ) -> tuple[State, Array, Array]:
    """Returns the state that holds the prefix, the logits after it, passes."""
    tokens, length = prefix.tokens, prefix.length
    if self.behind:
      state, logits, calls = feeding.feed_to(
        reader.model,
        state,
        tokens,
        jnp.where(prefix.active, length, 0),
        first=length - 1,
        read=1,
        narrow=min(2, self.behind),
        wide=self.behind,
      )
      return state, logits[:, 0], calls
    # If every draft was fed the cache lacks the token after the block alone. If
    # the last draft was not fed, it lacks that draft too in rows that accepted
    # all of the block.
    width = 1 if needs_bonus_law or self.stop is not None else 2
    width = self.rereads or width
    state, logits = feeding.feed_block(
      reader.model,
      state,
      tokens,
      length - state.length,
      length - 1,
      width=width,
    )
    return state, logits[:, 0], jnp.ones_like(length)
