"""Counts a round of draft and verification."""

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import numerics
from speccascade.decoding.loops.carry import Carry
from speccascade.decoding.records.block_records import (
  FORCED_PLACES,
  Proposal,
)
from speccascade.decoding.records.draft_tree import NO_NODE
from speccascade.decoding.verification.review_records import Review

Array = jax.Array


@jax.named_scope("count")
def counts(
  carry: Carry,
  proposal: Proposal,
  block: Review,
  emitted: Array,
  deferred: Array,
) -> dict[str, Array]:
  """Returns what a round adds to the fields of `Stats`, by name.

  Args:
    carry: the state before the round.
    proposal: what the drafter proposed.
    block: what the verifier made of it.
    emitted: [B] int32, the tokens that were written.
    deferred: [B, G+1] bool, emitted positions at which the rule deferred.
  """
  going = (~carry.done).astype(jnp.int32)
  calls = going[:, None] * proposal.calls
  # With 3 drafts accepted of 5 and an EOS as the second token, 2 tokens were
  # emitted: 2 drafts count as examined and accepted.
  accepted = jnp.minimum(block.verdict.num_accepted, emitted)
  examined = jnp.minimum(block.verdict.examined, emitted)
  step = jnp.arange(block.new.shape[1])[None]
  is_accepted = (step < accepted[:, None])[:, :-1]
  is_examined = (step < examined[:, None])[:, :-1]
  chance = block.overlap
  if chance is None:
    chance = numerics.overlap(block.block.q, block.pi)
  chance = chance[:, :-1]
  drafted = _num_drafts(proposal)
  if (forced := proposal.extra.get(FORCED_PLACES)) is not None:
    # Forced tokens are neither drafted nor rejectable, so they are left out of
    # the rates.
    is_drafted = (step < drafted[:, None]) & ~forced
    is_accepted &= is_drafted[:, :-1]
    is_examined &= is_drafted[:, :-1]
    drafted, accepted, examined = (
      jnp.sum(places, axis=1, dtype=jnp.int32)
      for places in (is_drafted, is_accepted, is_examined)
    )
  return {
    "num_blocks": going,
    "drafted": going * drafted,
    "examined": examined,
    "accepted": accepted,
    "deferred": jnp.sum(deferred, axis=1),
    "drafter_calls": jnp.sum(calls, axis=1),
    "calls_by_model": calls,
    "verifier_calls": going,
    "verifier_extends": going,
    "expected_acceptance": jnp.sum(jnp.where(is_examined, chance, 0), axis=1),
    "accepted_at": (step == accepted[:, None]) & ~carry.done[:, None],
    "examined_by_position": is_examined,
    "accepted_by_position": is_accepted,
  }


def _num_drafts(proposal: Proposal) -> Array:
  """Returns [B] int32, the drafts that a row proposes."""
  if proposal.branches is None:
    return proposal.count
  is_drafted = proposal.branches.parents != NO_NODE
  num = jnp.sum(is_drafted, axis=1, dtype=jnp.int32)
  return jnp.minimum(proposal.count, num)
