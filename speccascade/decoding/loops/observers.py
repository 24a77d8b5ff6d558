"""Counters and records that a speculative loop has only for some drafters.

An `Observer` adds counters to `Stats.extra`, columns to `Trace.extra`, or
buffers to `Decoded.extra`, under names of its own. The loop itself knows none
of them: `observers_of` lists those of a drafter.

Axes: B rows, G depth of a block, N drafts, R ranks of siblings, V vocabulary.
"""

from collections.abc import Iterable
import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.adaptive import AdaptiveDrafter
from speccascade.decoding.laws import optimum
from speccascade.decoding.laws.phases import BY_PHASE, PHASES
from speccascade.decoding.loops import tracing
from speccascade.decoding.loops.execution import LoopSettings
from speccascade.decoding.records.block_records import (
  FORCED_PLACES,
  PAST_WINDOW,
  Branches,
  Proposal,
)
from speccascade.decoding.records.decode_settings import TREES
from speccascade.decoding.records.draft_tree import (
  GREEDY_AND_RANDOM,
  IID,
  TOP_K,
)
from speccascade.decoding.records.drafter import Drafter, block_depth
from speccascade.decoding.verification.review_records import Review

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Round:
  """A round, as observers see it.

  Attributes:
    proposal: what the drafter proposed.
    review: what the verifier made of it.
    block: [B] int32, the number of the block.
    active: [B] bool, rows that had not ended before the round.
    emitted: [B] int32, the tokens that were written.
    is_examined: [B, G] bool, drafts that count as examined.
    is_accepted: [B, G] bool, drafts that count as accepted.
  """

  proposal: Proposal
  review: Review
  block: Array
  active: Array
  emitted: Array
  is_examined: Array
  is_accepted: Array


class Observer:
  """Counts or records something of each round; each method has a default."""

  def begin_counts(self, rows: int) -> dict[str, Array]:
    """Returns counters [rows, ...] of int32 or float32 before any round."""
    return {}

  def counts(self, seen: Round) -> dict[str, Array]:
    """Returns what a round adds to the counters, for rows that are done too.

    Nothing may be added for a row that emitted no token and examined no draft.
    """
    return {}

  def begin_columns(self, rows: int, size: int) -> dict[str, Array]:
    """Returns columns [rows, size] of a trace before any round."""
    return {}

  def columns(self, seen: Round) -> dict[str, Array]:
    """Returns the columns [B, G+1] of the tokens of a round."""
    return {}

  def begin_buffers(self, rows: int) -> dict[str, Any]:
    """Returns buffers, pytrees of [rows, ...], before any round."""
    return {}

  def write(self, buffers: dict[str, Any], seen: Round) -> dict[str, Any]:
    """Returns the observer's buffers with a round written."""
    return {}


class ForcedTokens(Observer):
  """Counts `forced`, [B] int32: emitted tokens that a mask forced.

  Forced tokens are neither drafted nor rejectable, so no other counter has
  them.
  """

  def begin_counts(self, rows: int) -> dict[str, Array]:
    return {"forced": jnp.zeros((rows,), jnp.int32)}

  def counts(self, seen: Round) -> dict[str, Array]:
    forced = seen.proposal.extra[FORCED_PLACES]
    step = jnp.arange(forced.shape[1])[None]
    return {"forced": jnp.sum(forced & (step < seen.emitted[:, None]), axis=1)}


class PastWindow(Observer):
  """Counts `past_window`, [B] int32: blocks past the window of the drafter."""

  def begin_counts(self, rows: int) -> dict[str, Array]:
    return {"past_window": jnp.zeros((rows,), jnp.int32)}

  def counts(self, seen: Round) -> dict[str, Array]:
    return {"past_window": seen.proposal.extra[PAST_WINDOW] & seen.active}


@dataclasses.dataclass(frozen=True)
class Ranks(Observer):
  """Counts `accepted_by_rank`, [B, G, R] int32, of a tree.

  An entry is the number of blocks that accepted at this depth the child of this
  rank, which is its place among its siblings. Of equal siblings the first one
  counts.

  Attributes:
    depth: G.
    num_ranks: R.
  """

  depth: int
  num_ranks: int

  def begin_counts(self, rows: int) -> dict[str, Array]:
    shape = rows, self.depth, self.num_ranks
    return {"accepted_by_rank": jnp.zeros(shape, jnp.int32)}

  def counts(self, seen: Round) -> dict[str, Array]:
    branches = cast(Branches, seen.proposal.branches)
    rank = branches.ranks_of(cast(Array, seen.review.verdict.path))
    ranks = jnp.arange(self.num_ranks, dtype=jnp.int32)[None, None]
    is_rank = rank[..., None] == ranks
    return {"accepted_by_rank": seen.is_accepted[..., None] & is_rank}


class Optimum(Observer):
  """Sums `optimal_acceptance`, [B] float32, over the examined blocks of a tree.

  It is the largest chance that any exact verification accepts a draft of the
  first place; 0 where the optimum is not known.
  """

  def begin_counts(self, rows: int) -> dict[str, Array]:
    return {"optimal_acceptance": jnp.zeros((rows,), jnp.float32)}

  def counts(self, seen: Round) -> dict[str, Array]:
    most = _optimum(seen.proposal, seen.review.pi[:, 0])
    most = jnp.where(seen.is_examined[:, 0], most, 0)
    return {"optimal_acceptance": most}


@dataclasses.dataclass(frozen=True)
class Trees(Observer):
  """Records `trees`, the `DraftedTrees` of all blocks.

  Attributes:
    num_blocks: the most blocks of a row.
    num_drafts: N.
  """

  num_blocks: int
  num_drafts: int

  def begin_buffers(self, rows: int) -> dict[str, Any]:
    empty = tracing.empty_trees(rows, self.num_blocks, self.num_drafts)
    return {"trees": empty}

  def write(self, buffers: dict[str, Any], seen: Round) -> dict[str, Any]:
    verdict = seen.review.verdict
    new = tracing.record_trees(
      buffers["trees"],
      seen.proposal.tokens,
      cast(Branches, seen.proposal.branches),
      cast(Array, verdict.path),
      jnp.minimum(verdict.num_accepted, seen.emitted),
      seen.block,
    )
    return {"trees": new}


class Phases(Observer):
  """Counts and records the phases of alpha.

  It counts `tokens_by_phase`, `examined_by_phase` and `accepted_by_phase`, [B,
  2] int32, and records `phase`, [B, T] int32: the phase that each token was
  drawn in. The marker's own tokens are of the phase before it.
  """

  def begin_counts(self, rows: int) -> dict[str, Array]:
    return dict.fromkeys(BY_PHASE, jnp.zeros((rows, len(PHASES)), jnp.int32))

  def counts(self, seen: Round) -> dict[str, Array]:
    phase = cast(Array, seen.review.phase)
    step = jnp.arange(phase.shape[1])[None]
    places = (step < seen.emitted[:, None], seen.is_examined, seen.is_accepted)
    return {
      name: by_phase(phase, is_counted)
      for name, is_counted in zip(BY_PHASE, places)
    }

  def begin_columns(self, rows: int, size: int) -> dict[str, Array]:
    return {"phase": jnp.zeros((rows, size), jnp.int32)}

  def columns(self, seen: Round) -> dict[str, Array]:
    return {"phase": cast(Array, seen.review.phase)}


def by_phase(phase: Array, is_counted: Array) -> Array:
  """Returns [B, 2] int32, how many places of each phase are counted.

  Args:
    phase: [B, N] int32.
    is_counted: [B, N] bool; or of the first places alone.
  """
  phase = phase[:, : is_counted.shape[1], None]
  is_phase = phase == jnp.arange(len(PHASES))[None, None]
  return jnp.sum(is_phase & is_counted[..., None], axis=1, dtype=jnp.int32)


class Gammas(Observer):
  """Records `gamma`, [B, T] int32: the gamma of the block of each token."""

  def begin_columns(self, rows: int, size: int) -> dict[str, Array]:
    return {"gamma": jnp.zeros((rows, size), jnp.int32)}

  def columns(self, seen: Round) -> dict[str, Array]:
    count = seen.review.block.count
    shape = seen.review.new.shape
    return {"gamma": jnp.broadcast_to(count[:, None], shape)}


_OF_COUNTS: dict[str, Observer] = {
  FORCED_PLACES: ForcedTokens(),
  PAST_WINDOW: PastWindow(),
}


def observers_of(
  drafter: Drafter, settings: LoopSettings
) -> tuple[Observer, ...]:
  """Returns the observers of a loop with this drafter."""
  found = [_OF_COUNTS[name] for name in drafter.own_counts]
  if isinstance(drafter, AdaptiveDrafter):
    found.append(Gammas())
  if settings.phased is not None:
    found.append(Phases())
  if drafter.tree is None:
    return tuple(found)
  found.append(Ranks(block_depth(drafter), drafter.tree.num_ranks))
  # At temperature 0 every way of drawing and verifying is one.
  if settings.log_probs and not settings.sampling.greedy:
    found.append(Optimum())
  if settings.trace == TREES:
    # A block writes one token or more, or ends its row.
    found.append(Trees(settings.max_decode_len + 1, drafter.width))
  return tuple(found)


def merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
  """Returns what several observers gave, in one dictionary."""
  return {name: value for part in parts for name, value in part.items()}


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
