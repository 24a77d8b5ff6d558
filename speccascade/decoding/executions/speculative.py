"""Speculative execution: draft a block, score it in one pass, verify it.

The output has the law of the chain of `target`, whatever the drafter proposes
(with `bonus="target"`; see there for the other). One compiled loop serves
speculative decoding, lossless and lossy, and speculative cascades.
"""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding import emission, numerics, rejection, tracing
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.review import Review, review
from speccascade.decoding.types import (
  BONUS,
  DRAFT,
  RESIDUAL,
  Decoded,
  Drafter,
  LanguageModel,
  Stats,
  Trace,
)

Array = jax.Array


@struct.dataclass
class Carry:
  """State of the loop. L = buffer size.

  Attributes:
    tokens: [B, L] int32, start token first.
    length: [B] int32, tokens written; finished rows keep it.
    done: [B] bool.
    bad_step: [B] int32, -1 where all is well.
    drafter: the drafter's state.
    verifier: the verifier's; it holds `length - 1` tokens between rounds.
    stats: counters.
    trace: buffers aligned with `tokens`, or None.
  """

  tokens: Array
  length: Array
  done: Array
  bad_step: Array
  drafter: object
  verifier: object
  stats: Stats
  trace: Trace | None


def speculative(
  drafter: Drafter,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  *,
  target,
  alpha: Array,
  sampling: sampling_lib.Sampling,
  max_decode_len: int,
  eos_id: int,
  bonus: str = "target",
  verify=rejection.token_verify,
  trace: bool = False,
) -> Decoded:
  """Decodes a batch; rows advance by their own number of tokens each round.

  Args:
    drafter: proposes blocks of up to `drafter.width` tokens.
    verifier: the large model.
    inputs: [B, S] int32 source tokens, 0 is padding.
    rngs: [B] typed keys, one for each row; see `sampling.row_keys`.
    target: a `Target`.
    alpha: scalar, traced.
    sampling: how logits become laws.
    max_decode_len: static, most tokens of a row, EOS counted.
    eos_id: static, the id that ends a row.
    bonus: static; "target" draws the token after a fully accepted block from
      the target, which is exact; "verifier" from p, as Algorithm 4 prints it,
      which changes the law of every target but the lossless one.
    verify: a verifier step of `rejection`.
    trace: static, whether to record `Trace`.

  Source: Narasimhan et al., Algorithms 1, 4 and 5; Leviathan et al.,
  Algorithm 1.
  """
  rows, width = inputs.shape[0], drafter.width
  size = emission.buffer_size(max_decode_len, width)
  bonus_law = target.uses_q and bonus == "target"
  step = jnp.arange(width + 1)[None]

  def going(carry: Carry):
    return ~jnp.all(carry.done)

  def round_(carry: Carry) -> Carry:
    active = ~carry.done
    states, block = review(
      drafter,
      verifier,
      (carry.drafter, carry.verifier),
      carry.tokens,
      carry.length,
      active,
      sampling_lib.fold_in(rngs, carry.stats.num_blocks),
      target=target,
      alpha=alpha,
      sampling=sampling,
      bonus=bonus,
      verify=verify,
    )
    proposal, new = block.proposal, block.new

    # Commit: the accepted drafts and one more token, cut at EOS and the limit.
    num_accepted = block.verdict.num_accepted
    room = max_decode_len + 1 - carry.length
    whole = jnp.minimum(num_accepted + 1, block.fault)
    emitted, ended = emission.cut(new, whole, room, eos_id)
    bad = active & ~ended & (block.fault <= num_accepted)
    emitted = jnp.where(active, emitted, 0)
    stats = _count(carry.stats, block, emitted, active)
    # The drafter's law is known at the drafts, and behind them if asked for. A
    # token rule is read at the draft, so it says nothing of the bonus position.
    is_draft = step < proposal.count[:, None]
    known_q = bonus_law | is_draft
    left, right = tracing.sides(
      target, proposal.q1, block.p1, proposal.q, block.p, block.drafts, alpha
    )
    asked = jnp.where(tracing.reads_tokens(target), is_draft, known_q)
    deferred = (left < right) & asked & (step < emitted[:, None])
    stats = stats.replace(
      deferred=stats.deferred + jnp.sum(deferred, axis=1, dtype=jnp.int32)
    )
    records = carry.trace
    if trace:
      last_source = jnp.where(num_accepted == proposal.count, BONUS, RESIDUAL)
      records = tracing.record(
        records,
        carry.length,
        source=jnp.where(
          step < num_accepted[:, None], DRAFT, last_source[:, None]
        ),
        deferred=deferred,
        left=jnp.where(asked, left, jnp.nan),
        right=jnp.where(asked, right, jnp.nan),
        block=carry.stats.num_blocks,
        q1=proposal.q1,
        p1=block.p1,
        q=proposal.q,
        p=block.p,
        known_q=known_q,
        known_q1=known_q & ~proposal.copied,
      )
    length = carry.length + emitted
    return Carry(
      tokens=emission.write_block(carry.tokens, new, carry.length),
      length=length,
      done=carry.done | ended | bad,
      bad_step=jnp.where(bad, length - 1, carry.bad_step),
      drafter=drafter.rewind(states[0], length - 1),
      verifier=verifier.rewind(states[1], length - 1),
      stats=stats,
      trace=records,
    )

  carry = Carry(
    tokens=emission.start_tokens(rows, size),
    length=jnp.ones((rows,), jnp.int32),
    done=jnp.full((rows,), max_decode_len < 1),
    bad_step=jnp.full((rows,), -1, jnp.int32),
    drafter=drafter.prefill(inputs, capacity=size),
    verifier=verifier.prefill(inputs, capacity=size),
    stats=emission.zero_stats(rows, width, drafter.num_models),
    trace=tracing.empty(rows, size, verifier.vocab_size) if trace else None,
  )
  carry = jax.lax.while_loop(going, round_, carry)
  return emission.finish(
    carry.tokens,
    carry.length,
    carry.stats,
    carry.trace,
    carry.bad_step,
    max_decode_len,
  )


def _count(stats: Stats, block: Review, emitted, active) -> Stats:
  """Adds one round to the counters; see `Stats` for what counts behind a cut.

  Args:
    stats: so far.
    block: what the round decided.
    emitted: [B] int32 tokens emitted this round.
    active: [B] bool, rows that were still going.
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
