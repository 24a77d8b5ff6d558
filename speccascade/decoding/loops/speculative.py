"""Speculative execution: draft a block, score it in one pass, verify it.

Each token of the output has the target distribution pi given the tokens before
it, whatever the drafter proposes. That holds with `bonus="target"`;
`ReviewSettings` says what `bonus="verifier"` changes. One compiled loop serves
speculative decoding, lossless and lossy, and speculative cascades.
"""

import functools
from typing import cast

import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.adaptive import AdaptiveDrafter
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.rules import defers
from speccascade.decoding.loops import (
  adaptive_rounds,
  counting,
  rounds,
  tracing,
)
from speccascade.decoding.loops.carry import Carry
from speccascade.decoding.loops.execution import LoopSettings, execution
from speccascade.decoding.loops.observers import (
  Observer,
  Round,
  merged,
  observers_of,
)
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.records.block_records import Proposal
from speccascade.decoding.records.decode_settings import (
  FIXED,
  MAX_PROB,
  TOKEN_PROB,
)
from speccascade.decoding.records.drafter import Drafter, block_depth
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.readers import is_reader
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
  observers = observers_of(drafter, settings)

  def round_of(drafter: Drafter, carry: Carry) -> Carry:
    drafting, verifying = carry.models
    keys = draws.fold_in(rngs, carry.stats.num_blocks)
    # Draft: the drafter proposes up to G tokens.
    drafting, proposal = draft(drafter, drafting, carry.prefix, keys, settings)
    # Verify: the verifier scores the block in one pass, q and p make pi, a
    # prefix of the block is accepted, and one more token is drawn.
    verifying, out = score(verifier, verifying, carry.prefix, proposal)
    block = verify(
      proposal,
      out.logits,
      keys,
      settings,
      phase_state=carry.phase_state,
    )
    # Commit: the new tokens are written, truncated at EOS and at the length
    # limit.
    num = block.verdict.num_accepted + 1
    after, emitted = rounds.commit(carry, block.new, num, block.fault, settings)
    # The caches hold every draft; they are rewound to all tokens but the last
    # one, which the next round feeds. With 7 tokens and 2 new ones, 8 are held.
    if proposal.branches is None:
      held = after.length - 1
      drafting = drafter.rewind(drafting, held)
      verifying = verifier.rewind(verifying, held)
      fed = jnp.arange(block.new.shape[1], dtype=jnp.int32)[None]
      fed = jnp.broadcast_to(fed, block.new.shape)
    else:
      drafting, verifying, fed = _keep_path(
        drafter, verifier, (drafting, verifying), carry, block, emitted
      )
    if is_reader(drafter):
      hidden = cast(Array, out.hidden)
      drafting = drafter.observe(
        drafting, hidden, fed, emitted, after.length - 1
      )
    after = after.replace(models=(drafting, verifying))
    return _recorded(
      carry, after, proposal, block, emitted, observers, settings
    )

  if isinstance(drafter, AdaptiveDrafter):
    round_ = adaptive_rounds.of_widest(drafter, round_of)
  else:
    round_ = functools.partial(round_of, drafter)
  return Loop(
    round_=round_,
    parts=(drafter, verifier),
    inputs=inputs,
    settings=settings,
    width=block_depth(drafter),
    num_drafts=drafter.width,
    observers=observers,
  )


def _keep_path(
  drafter: Drafter,
  verifier: LanguageModel,
  states: tuple[State, State],
  carry: Carry,
  block: Review,
  emitted: Array,
) -> tuple[State, State, Array]:
  """Keeps the accepted path of a tree in both caches.

  Returns:
    (the drafter's state, the verifier's state, [B, G+1] int32, where the tokens
    of the path stand among the tokens that the verifier was fed).
  """
  drafting, verifying = states
  # The verifier was fed the last token of the prefix, and then the drafts.
  path = cast(Array, block.verdict.path)
  fed = jnp.pad(path + 1, ((0, 0), (1, 0)))
  drafting = drafter.keep(drafting, carry.length, path, emitted - 1)
  verifying = verifier.keep(verifying, carry.length - 1, fed, emitted)
  return drafting, verifying, fed


def _recorded(
  before: Carry,
  after: Carry,
  proposal: Proposal,
  block: Review,
  emitted: Array,
  observers: tuple[Observer, ...],
  settings: LoopSettings,
) -> Carry:
  """Returns the carry with a round counted and recorded."""
  number = before.stats.num_blocks
  # Only positions that were emitted count as deferred.
  deferred = defers(block.left, block.right)
  deferred &= jnp.arange(block.new.shape[1])[None] < emitted[:, None]
  counts = counting.counts(before, proposal, block, emitted, deferred)
  seen = Round(
    proposal=proposal,
    review=block,
    block=number,
    active=~before.done,
    emitted=emitted,
    is_examined=counts["examined_by_position"],
    is_accepted=counts["accepted_by_position"],
  )
  with jax.named_scope("count"):
    counts |= merged(x.counts(seen) for x in observers)
    stats = before.stats.add(**counts)
  if settings.records:
    columns = merged(x.columns(seen) for x in observers)
    new = tracing.of_review(block, deferred, columns)
    after = after.replace(**tracing.record(before, new, block.new, number))
  buffers = merged(x.write(before.extra, seen) for x in observers)
  return after.replace(stats=stats, extra=before.extra | buffers)
