"""Speculative execution: draft a block, score it in one pass, verify it.

Each token of the output has the target distribution pi given the tokens before
it, whatever the drafter proposes. That holds with `bonus="target"`;
`ReviewSettings` says what `bonus="verifier"` changes. One compiled loop serves
speculative decoding, lossless and lossy, and speculative cascades.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.adaptive import AdaptiveDrafter
from speccascade.decoding.laws import draws, numerics, optimum
from speccascade.decoding.laws.rules import defers
from speccascade.decoding.loops import rounds, tracing
from speccascade.decoding.loops.carry import (
  Carry,
  counted_shapes,
  pack,
  unpack,
)
from speccascade.decoding.loops.execution import LoopSettings, execution
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.loops.tracing import Record
from speccascade.decoding.records.block_records import (
  BONUS,
  DRAFT,
  FORCED,
  RESIDUAL,
  Branches,
  Proposal,
  Stats,
)
from speccascade.decoding.records.decode_settings import (
  FIXED,
  MAX_PROB,
  TOKEN_PROB,
)
from speccascade.decoding.records.draft_tree import (
  GREEDY_AND_RANDOM,
  IID,
  NO_NODE,
  TOP_K,
)
from speccascade.decoding.records.drafter import Drafter, block_depth, is_reader
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.verification import steps
from speccascade.decoding.verification.review import draft, score, verify
from speccascade.decoding.verification.review_records import Review

Array = jax.Array


@execution(
  "speculative",
  has_blocks=True,
  draft_lengths=(FIXED, MAX_PROB, TOKEN_PROB),
  verifications=tuple(steps.VERIFY),
)
def speculative(
  drafter: Drafter,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
) -> Loop:
  """Returns the loop of draft and verification.

  A round writes 1 to G+1 tokens of each row: the accepted drafts, and the
  residual or bonus token after them. Rows advance independently. G is the
  depth of the drafter's tree; a chain of G drafts is as deep.

  Args:
    drafter: a `Drafter`, proposes blocks of up to `drafter.width` tokens.
    verifier: a `LanguageModel`, the large one.
    inputs: [B, S] int32, as the models' `prefill` takes them.
    rngs: [B] typed keys, one for each row; see `draws.row_keys`.
    settings: `LoopSettings`.

  Source: Narasimhan et al. (arXiv 2405.19261), Algorithms 1, 4 and 5; Leviathan
  et al. (arXiv 2211.17192), Algorithm 1.
  """

  is_adaptive = isinstance(drafter, AdaptiveDrafter)

  def round_of(drafter: Drafter, carry: Carry) -> Carry:
    drafting, verifying = carry.models
    keys = draws.fold_in(rngs, carry.stats.num_blocks)
    # Draft: the drafter proposes up to G tokens.
    drafting, proposal = draft(drafter, drafting, carry.prefix, keys, settings)
    # Verify: the verifier scores the block in one pass, q and p make pi, a
    # prefix of the block is accepted, and one more token is drawn.
    verifying, out = score(verifier, verifying, carry.prefix, proposal)
    block = verify(proposal, out.logits, keys, settings)
    # Commit: the new tokens are written, cut at EOS and at the length limit.
    # The caches hold every draft; they are rewound to all tokens but the last
    # one, which the next round feeds. With 7 tokens and 2 new ones, 8 are held.
    num = block.verdict.num_accepted + 1
    after, emitted = rounds.commit(carry, block.new, num, block.fault, settings)
    held = after.length - 1
    # Where the last token that they keep stands among the tokens that were fed.
    node = jnp.maximum(emitted - 1, 0)
    if proposal.branches is None:
      drafting = drafter.rewind(drafting, held)
      verifying = verifier.rewind(verifying, held)
    else:
      # Of a tree the caches keep the accepted path. The verifier was fed the
      # last token of the prefix, and then the drafts.
      path = cast(Array, block.verdict.path)
      fed = jnp.pad(path + 1, ((0, 0), (1, 0)))
      node = numerics.of_token(fed, node)
      drafting = drafter.keep(drafting, carry.length, path, emitted - 1)
      verifying = verifier.keep(verifying, carry.length - 1, fed, emitted)
    if is_reader(drafter):
      drafting = drafter.observe(drafting, cast(Array, out.hidden), node, held)
    # Count and record; only positions that were emitted count as deferred.
    deferred = defers(block.left, block.right)
    deferred &= jnp.arange(block.new.shape[1])[None] < emitted[:, None]
    stats = _count(carry, proposal, block, emitted, deferred)
    recorded: dict[str, Any] = {}
    if settings.records:
      new = _record(block, deferred, is_adaptive=is_adaptive)
      recorded = tracing.record(carry, new, block.new, carry.stats.num_blocks)
    if carry.trees is not None:
      recorded["trees"] = tracing.record_trees(
        carry.trees,
        proposal.tokens,
        cast(Branches, proposal.branches),
        cast(Array, block.verdict.path),
        jnp.minimum(block.verdict.num_accepted, emitted),
        carry.stats.num_blocks,
      )
    return after.replace(models=(drafting, verifying), stats=stats, **recorded)

  def round_of_widest(drafter: AdaptiveDrafter, carry: Carry) -> Carry:
    # Rows that are not going ask for no width.
    drafting, verifying = carry.models
    drafting, gamma = drafter.choose(drafting, carry.prefix)
    widest = jnp.max(jnp.where(carry.done, 0, gamma))
    carry = carry.replace(models=(drafting, verifying))

    # The round of one size is run; without drafts several, up to where a row
    # asks again. XLA copies the caches into and out of the branches of a
    # `switch`, and updates those of a loop in place: so each size is a loop.
    shapes = counted_shapes(carry)

    def is_next(size: int, state: tuple) -> Array:
      return state[0] == size

    def run(size: int, state: tuple) -> tuple:
      before = unpack(state[1], shapes)
      after = round_of(drafter.of_width(size), before)
      again = jnp.array(False)
      if not size:
        again = drafter.is_idle(after.models[0], after.prefix)
      return jnp.where(again, jnp.int32(size), jnp.int32(-1)), pack(after)

    state = widest, pack(carry)
    for size in drafter.sizes:
      state = jax.lax.while_loop(
        functools.partial(is_next, size), functools.partial(run, size), state
      )
    return unpack(state[1], shapes)

  if isinstance(drafter, AdaptiveDrafter):
    round_ = functools.partial(round_of_widest, drafter)
  else:
    round_ = functools.partial(round_of, drafter)
  return Loop(
    round_=round_,
    parts=(drafter, verifier),
    inputs=inputs,
    settings=settings,
    width=block_depth(drafter),
    num_drafts=drafter.width,
    num_ranks=0 if drafter.tree is None else drafter.tree.num_ranks,
    num_models=len(drafter.models),
    has_gammas=is_adaptive,
    own_counts=drafter.own_counts,
  )


@jax.named_scope("count")
def _count(
  carry: Carry,
  proposal: Proposal,
  block: Review,
  emitted: Array,
  deferred: Array,
) -> Stats:
  """Returns the counters with one round added; see `Stats`."""
  going = (~carry.done).astype(jnp.int32)
  calls = going[:, None] * proposal.calls
  # With 3 drafts accepted of 5 and an EOS as the second token, 2 tokens were
  # emitted: 2 drafts count as examined and accepted.
  accepted = jnp.minimum(block.verdict.num_accepted, emitted)
  examined = jnp.minimum(block.verdict.examined, emitted)
  step = jnp.arange(block.new.shape[1])[None]
  is_accepted = (step < accepted[:, None])[:, :-1]
  is_examined = (step < examined[:, None])[:, :-1]
  chance = numerics.overlap(block.block.q, block.pi)[:, :-1]
  others: dict[str, Array] = {}
  drafted = proposal.count
  if (forced := proposal.forced) is not None:
    # Nobody drafted a forced token, and nobody could have refused it.
    is_drafted = (step < drafted[:, None]) & ~forced
    is_accepted &= is_drafted[:, :-1]
    is_examined &= is_drafted[:, :-1]
    drafted, accepted, examined = (
      jnp.sum(places, axis=1, dtype=jnp.int32)
      for places in (is_drafted, is_accepted, is_examined)
    )
    others["forced"] = jnp.sum(forced & (step < emitted[:, None]), axis=1)
  if proposal.past_window is not None:
    others["past_window"] = ~carry.done & proposal.past_window
  if proposal.branches is not None:
    is_drafted = proposal.branches.parents != NO_NODE
    num = jnp.sum(is_drafted, axis=1, dtype=jnp.int32)
    drafted = jnp.minimum(drafted, num)
    rank = proposal.branches.ranks_of(cast(Array, block.verdict.path))
    totals = cast(Array, carry.stats.accepted_by_rank)
    ranks = jnp.arange(totals.shape[2], dtype=jnp.int32)[None, None]
    is_rank = rank[..., None] == ranks
    others["accepted_by_rank"] = is_accepted[..., None] & is_rank
  if carry.stats.optimal_acceptance is not None:
    most = _optimum(proposal, block.pi[:, 0])
    others["optimal_acceptance"] = jnp.where(is_examined[:, 0], most, 0)
  return carry.stats.add(
    num_blocks=going,
    drafted=going * drafted,
    examined=examined,
    accepted=accepted,
    deferred=jnp.sum(deferred, axis=1),
    drafter_calls=jnp.sum(calls, axis=1),
    calls_by_model=calls,
    verifier_calls=going,
    verifier_extends=going,
    expected_acceptance=jnp.sum(jnp.where(is_examined, chance, 0), axis=1),
    accepted_at=(step == accepted[:, None]) & ~carry.done[:, None],
    examined_by_position=is_examined,
    accepted_by_position=is_accepted,
    **others,
  )


def _optimum(proposal: Proposal, pi: Array) -> Array:
  """Returns the optimum of a tree's first drafts, [B]; 0 if unknown."""
  branches, q = cast(Branches, proposal.branches), proposal.q[:, 0]
  num = branches.tree.num_children[0]
  tokens, certain = proposal.tokens[:, :num], branches.is_certain[:, :num]
  unknown = jnp.zeros(pi.shape[:1], pi.dtype)
  if branches.laws is not None:
    return unknown
  if branches.drawing in (GREEDY_AND_RANDOM, TOP_K):
    return optimum.of_drafts(q, pi, tokens, certain)
  if branches.drawing == IID or num == 1:
    return optimum.of_draws(q, pi, num)
  if num > 2:
    return unknown
  # Where one stands in for a draw, the other is the only token of q.
  is_all = jnp.any(certain, axis=1)
  return jnp.where(
    is_all,
    optimum.of_drafts(q, pi, tokens, jnp.ones_like(certain)),
    optimum.of_two_without_replacement(q, pi),
  )


@jax.named_scope("record")
def _record(block: Review, deferred: Array, *, is_adaptive: bool) -> Record:
  """Returns the `Record` of the [B, G+1] positions of a round."""
  drafts = block.block
  accepted, count = block.verdict.num_accepted[:, None], drafts.count[:, None]
  step = jnp.arange(block.new.shape[1])[None]
  last_source = jnp.where(accepted == count, BONUS, RESIDUAL)
  source = jnp.where(step < accepted, DRAFT, last_source)
  if drafts.forced is not None:
    source = jnp.where(drafts.forced, FORCED, source)
  return Record(
    source=source,
    deferred=deferred,
    left=block.left,
    right=block.right,
    q1=drafts.q1,
    p1=block.p1,
    q=drafts.q,
    p=block.p,
    pi=block.pi,
    known_q=block.known_q,
    known_q1=block.known_q & ~drafts.copied,
    writer=drafts.writer,
    gamma=drafts.count if is_adaptive else None,
  )
