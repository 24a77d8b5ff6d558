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

# One fixed tag for each use of a round's key.
DRAFT_TAG, ACCEPT_TAG, DRAW_TAG = range(3)


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
    keys = sampling_lib.fold_in(rngs, carry.stats.num_blocks)

    # Draft.
    drafter_state, proposal = drafter.propose(
      carry.drafter,
      carry.tokens,
      carry.length,
      sampling_lib.fold_in(keys, DRAFT_TAG),
      sampling,
      bonus_law=bonus_law,
    )

    # Score: the last token and the drafts, in one pass.
    last = jnp.take_along_axis(carry.tokens, carry.length[:, None] - 1, axis=1)
    block = jnp.concatenate([last, proposal.tokens], axis=1)
    verifier_state, out = verifier.extend(
      carry.verifier, block, jnp.where(active, 1 + proposal.count, 0)
    )
    p1, p = sampling.laws(out.logits)
    q1, q = proposal.q1, proposal.q
    pi = target(q1, p1, alpha=alpha, sampled=(q, p))
    if target.uses_q and bonus == "verifier":
      at_bonus = step == proposal.count[:, None]
      pi = jnp.where(at_bonus[..., None], p, pi)

    # Verify.
    u_accept = sampling_lib.uniforms(
      sampling_lib.fold_in(keys, ACCEPT_TAG), width
    )
    u_draw = sampling_lib.uniforms(sampling_lib.fold_in(keys, DRAW_TAG), 1)
    verdict = verify(
      proposal.tokens, proposal.count, q, pi, u_accept, u_draw[:, 0]
    )

    # Commit: the accepted drafts and one more token, cut at EOS and the limit.
    drafts = jnp.pad(proposal.tokens, ((0, 0), (0, 1)))
    num_accepted = verdict.num_accepted
    new = jnp.where(step < num_accepted[:, None], drafts, 0)
    new = jnp.where(step == num_accepted[:, None], verdict.token[:, None], new)
    room = max_decode_len + 1 - carry.length
    emitted, ended = emission.cut(new, num_accepted + 1, room, eos_id)
    read = step <= proposal.count[:, None]
    bad = proposal.bad | jnp.any(
      read & ~sampling_lib.is_law(out.logits), axis=1
    )
    emitted = jnp.where(active & ~bad, emitted, 0)
    stats = _count(carry.stats, proposal, verdict, q, pi, emitted, active)
    # The drafter's law is known at the drafts, and behind them if asked for. A
    # token rule is read at the draft, so it says nothing of the bonus position.
    is_draft = step < proposal.count[:, None]
    known_q = bonus_law | is_draft
    left, right = tracing.sides(target, q1, p1, q, p, drafts, alpha)
    per_token = target.rule is not None and target.rule.per_token
    asked = is_draft if per_token else known_q
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
        q1=q1,
        p1=p1,
        q=q,
        p=p,
        known_q=known_q,
      )
    length = carry.length + emitted
    return Carry(
      tokens=emission.write_block(carry.tokens, new, carry.length),
      length=length,
      done=carry.done | ended | bad,
      bad_step=jnp.where(active & bad, carry.length - 1, carry.bad_step),
      drafter=drafter.rewind(drafter_state, length - 1),
      verifier=verifier.rewind(verifier_state, length - 1),
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
    stats=emission.zero_stats(rows, width),
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


def _count(stats, proposal, verdict, q, pi, emitted, active) -> Stats:
  """Adds one round to the counters; see `Stats` for what counts behind a cut.

  Args:
    stats: `Stats` so far.
    proposal: the drafted block.
    verdict: the verifier step's decision.
    q: [B, G+1, V] law of the drafts.
    pi: [B, G+1, V] target.
    emitted: [B] int32 tokens emitted this round.
    active: [B] bool, rows that were still going.
  """
  width = proposal.tokens.shape[1]
  one = active.astype(jnp.int32)
  accepted = jnp.minimum(verdict.num_accepted, emitted)
  examined = jnp.minimum(verdict.examined, emitted)
  step = jnp.arange(width)[None]
  is_examined = step < examined[:, None]
  is_accepted = step < accepted[:, None]
  expected = jnp.where(
    is_examined, numerics.overlap(q[:, :width], pi[:, :width]), 0
  )
  histogram = jnp.arange(width + 1)[None] == accepted[:, None]
  return stats.replace(
    num_blocks=stats.num_blocks + one,
    drafted=stats.drafted + one * proposal.count,
    examined=stats.examined + examined,
    accepted=stats.accepted + accepted,
    drafter_calls=stats.drafter_calls + one * proposal.calls,
    verifier_calls=stats.verifier_calls + one,
    verifier_extends=stats.verifier_extends + one,
    expected_acceptance=stats.expected_acceptance
    + jnp.sum(expected, axis=1).astype(jnp.float32),
    accepted_at=stats.accepted_at + histogram * one[:, None],
    examined_by_position=stats.examined_by_position + is_examined,
    accepted_by_position=stats.accepted_by_position + is_accepted,
  )
