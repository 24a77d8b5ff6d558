"""Speculative execution: draft a block, score it in one pass, verify it.

The output has the law of the chain of the target, whatever the drafter proposes
(with `bonus="target"`; see `LoopSettings` for the other). One compiled loop
serves speculative decoding, lossless and lossy, and speculative cascades.
"""

import jax
import jax.numpy as jnp

from speccascade.decoding import emission, numerics, tracing
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.deferral import defers
from speccascade.decoding.emission import Carry
from speccascade.decoding.execution import LoopSettings, execution
from speccascade.decoding.review import Review, review
from speccascade.decoding.types import (
  BONUS,
  DRAFT,
  RESIDUAL,
  Decoded,
  Drafter,
  LanguageModel,
  Stats,
)

Array = jax.Array


@execution("speculative", has_blocks=True)
def speculative(
  drafter: Drafter,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
) -> Decoded:
  """Decodes a batch; rows advance by their own number of tokens each round.

  Args:
    drafter: proposes blocks of up to `drafter.width` tokens.
    verifier: the large model.
    inputs: [B, S] int32 source tokens, 0 is padding.
    rngs: [B] typed keys, one for each row; see `sampling.row_keys`.
    settings: `LoopSettings`.

  Source: Narasimhan et al. (arXiv 2405.19261), Algorithms 1, 4 and 5; Leviathan
  et al. (arXiv 2211.17192), Algorithm 1.
  """
  rows, width = inputs.shape[0], drafter.width
  size = emission.buffer_size(settings.max_decode_len, width)

  def round_(carry: Carry) -> Carry:
    # Draft a block and verify it.
    states, block = review(
      drafter,
      verifier,
      carry.models,
      carry.tokens,
      carry.length,
      ~carry.done,
      sampling_lib.fold_in(rngs, carry.stats.num_blocks),
      target=settings.target,
      alpha=settings.alpha,
      sampling=settings.sampling,
      bonus=settings.bonus,
      verify=settings.verify,
    )
    # Commit the accepted drafts and one more token.
    num = block.verdict.num_accepted + 1
    after, emitted = emission.commit(
      carry, block.new, num, block.fault, settings
    )
    # Forget what was not accepted.
    held = after.length - 1
    models = (drafter.rewind(states[0], held), verifier.rewind(states[1], held))
    # Count, and record.
    asked = _asked(block, settings)
    deferred = defers(block.left, block.right) & asked
    deferred &= jnp.arange(width + 1)[None] < emitted[:, None]
    stats = _count(carry.stats, block, emitted, ~carry.done, deferred)
    trace = carry.trace
    if settings.trace:
      trace = _record(carry, block, asked, deferred, settings)
    return after.replace(models=models, stats=stats, trace=trace)

  trace = None
  if settings.trace:
    trace = tracing.empty(rows, size, verifier.vocab_size)
  carry = emission.start(
    rows,
    size,
    (
      drafter.prefill(inputs, capacity=size),
      verifier.prefill(inputs, capacity=size),
    ),
    emission.zero_stats(rows, width, drafter.num_models),
    trace,
    jnp.full((rows,), settings.max_decode_len < 1),
  )
  carry = jax.lax.while_loop(lambda c: ~jnp.all(c.done), round_, carry)
  return emission.finish(carry, settings.max_decode_len)


def _known_q(block: Review, settings: LoopSettings) -> tuple[Array, Array]:
  """Returns [B, G+1] bools: where a draft is, where the drafter's law is known.

  The law is known at the drafts, and after them where the bonus needs it.
  """
  step = jnp.arange(block.drafts.shape[1])[None]
  is_draft = step < block.proposal.count[:, None]
  bonus_law = settings.target.uses_q and settings.bonus == "target"
  return is_draft, bonus_law | is_draft


def _asked(block: Review, settings: LoopSettings) -> Array:
  """Returns [B, G+1] bool, where the rule was asked: a token rule at drafts."""
  is_draft, known_q = _known_q(block, settings)
  return jnp.where(settings.target.reads_tokens, is_draft, known_q)


def _record(carry: Carry, block: Review, asked, deferred, settings):
  """Returns the trace with one round's tokens written after `carry`'s."""
  proposal, accepted = block.proposal, block.verdict.num_accepted
  _, known_q = _known_q(block, settings)
  step = jnp.arange(block.drafts.shape[1])[None]
  last_source = jnp.where(accepted == proposal.count, BONUS, RESIDUAL)
  return tracing.record(
    carry.trace,
    carry.length,
    source=jnp.where(step < accepted[:, None], DRAFT, last_source[:, None]),
    deferred=deferred,
    left=jnp.where(asked, block.left, jnp.nan),
    right=jnp.where(asked, block.right, jnp.nan),
    block=carry.stats.num_blocks,
    q1=proposal.q1,
    p1=block.p1,
    q=proposal.q,
    p=block.p,
    known_q=known_q,
    known_q1=known_q & ~proposal.copied,
  )


def _count(stats: Stats, block: Review, emitted, active, deferred) -> Stats:
  """Adds one round to the counters; see `Stats` for what counts after a cut.

  Args:
    stats: so far.
    block: what the round decided.
    emitted: [B] int32 tokens emitted this round.
    active: [B] bool, rows that were still going.
    deferred: [B, G+1] bool, emitted positions at which the rule deferred.
  """
  proposal, width = block.proposal, block.proposal.tokens.shape[1]
  one = active.astype(jnp.int32)
  accepted = jnp.minimum(block.verdict.num_accepted, emitted)
  examined = jnp.minimum(block.verdict.examined, emitted)
  step = jnp.arange(width)[None]
  is_examined = step < examined[:, None]
  is_accepted = step < accepted[:, None]
  chance = numerics.overlap(proposal.q[:, :width], block.pi[:, :width])
  expected = jnp.sum(jnp.where(is_examined, chance, 0), axis=1)
  histogram = jnp.arange(width + 1)[None] == accepted[:, None]
  calls = one[:, None] * proposal.calls
  return stats.replace(
    num_blocks=stats.num_blocks + one,
    drafted=stats.drafted + one * proposal.count,
    examined=stats.examined + examined,
    accepted=stats.accepted + accepted,
    deferred=stats.deferred + jnp.sum(deferred, axis=1, dtype=jnp.int32),
    drafter_calls=stats.drafter_calls + jnp.sum(calls, axis=1),
    calls_by_model=stats.calls_by_model + calls,
    verifier_calls=stats.verifier_calls + one,
    verifier_extends=stats.verifier_extends + one,
    expected_acceptance=stats.expected_acceptance
    + expected.astype(jnp.float32),
    accepted_at=stats.accepted_at + histogram.astype(jnp.int32) * one[:, None],
    examined_by_position=stats.examined_by_position
    + is_examined.astype(jnp.int32),
    accepted_by_position=stats.accepted_by_position
    + is_accepted.astype(jnp.int32),
  )
