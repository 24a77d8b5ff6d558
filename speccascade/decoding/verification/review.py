"""The steps of speculative execution on one block: draft, score, verify.

Two loops take these steps. The speculative loop commits the tokens of each
block. A `VerticalDrafter`, a drafter that is itself a reviewed pair, repeats
the steps until its own proposal is full.
"""

from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws, kernel_laws, numerics
from speccascade.decoding.laws.numerics import check_shape
from speccascade.decoding.records import feeding, token_buffers
from speccascade.decoding.records.block_records import (
  Branches,
  Output,
  Proposal,
  Verdict,
)
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.phased_alpha import alpha_at
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.decoding.verification import kernel_reviews, tree_steps
from speccascade.decoding.verification.review_records import (
  BlockSettings,
  Review,
  ScoredBlock,
)

Array = jax.Array


@jax.named_scope("draft")
def draft(
  drafter: Drafter,
  state: State,
  prefix: Prefix,
  rngs: Array,
  settings: BlockSettings,
) -> tuple[State, Proposal]:
  """Returns the drafter's state and its proposal, with shapes checked.

  Args:
    drafter: proposes the block.
    state: the drafter's state.
    prefix: the tokens so far.
    rngs: [B] typed keys of this round.
    settings: `BlockSettings`.

  Raises:
    ValueError: the proposal has an array of a wrong shape.
  """
  state, proposal = drafter.propose(
    state,
    prefix,
    draws.fold_in(rngs, draws.DRAFT_TAG),
    settings.sampling,
    needs_bonus_law=settings.needs_bonus_law,
  )
  rows, width = prefix.length.shape[0], drafter.width
  laws = (rows, width + 1, drafter.vocab_size)
  for name, wanted in (
    ("tokens", (rows, width)),
    ("count", (rows,)),
    ("q", laws),
    ("q1", laws),
    ("copied", laws[:2]),
    ("bad", laws[:2]),
  ):
    check_shape(f"{name} of a proposal", getattr(proposal, name), wanted)
  return state, proposal


@jax.named_scope("score")
def score(
  verifier: LanguageModel, state: State, prefix: Prefix, proposal: Proposal
) -> tuple[State, Output]:
  """Feeds a verifier the last token of the prefix, and the block after it.

  The verifier's cache must lack the last token of the prefix alone.

  Args:
    verifier: the language model.
    state: the verifier's state.
    prefix: the tokens so far.
    proposal: the block.

  Returns:
    The verifier's state with every draft fed, which the caller rewinds, and the
    verifier's `Output` after the last token and after each draft, N + 1 of
    them.
  """
  count = jnp.where(prefix.active, 1 + proposal.count, 0)
  if proposal.branches is not None:
    return feeding.feed_tree(
      verifier,
      state,
      prefix.last,
      proposal.tokens,
      proposal.branches.tree,
      count,
    )
  block = jnp.concatenate([prefix.last, proposal.tokens], axis=1)
  return verifier.extend(state, block, count)


@jax.named_scope("score")
def score_and_catch_up(
  verifier: LanguageModel,
  state: State,
  prefix: Prefix,
  proposal: Proposal,
  *,
  behind: int,
) -> tuple[State, Array, Array]:
  """Feeds a verifier what its cache lacks of the prefix, and the block.

  Args:
    verifier: the language model.
    state: the verifier's state.
    prefix: the tokens so far, in a buffer with space for the block.
    proposal: the block.
    behind: static, tokens that the cache may lack besides the last one while
      one pass is enough.

  Returns:
    The verifier's state with every draft fed, which the caller rewinds; the
    logits [B, G+1, V] after the last token and after each draft; and [B] int32
    passes.
  """
  # The block is written after the prefix, and the verifier is fed up to its
  # end. The logits after the last token of the prefix (index length - 1) and
  # after each draft are read: G+1 of them. A cache that lacks the last token
  # alone takes a pass of 1 + G tokens.
  width = proposal.tokens.shape[1]
  return feeding.feed_to(
    verifier,
    state,
    token_buffers.write_block(prefix.tokens, proposal.tokens, prefix.length),
    jnp.where(prefix.active, prefix.length + proposal.count, 0),
    first=prefix.length - 1,
    read=width + 1,
    narrow=width + 1,
    wide=width + 1 + behind,
  )


@jax.named_scope("verify")
def verify(
  proposal: Proposal,
  logits: Array,
  rngs: Array,
  settings: BlockSettings,
  *,
  phase_state: Array | None = None,
  exact_copies: bool = False,
) -> Review:
  """Makes pi of q and p, and verifies the drafts against pi.

  Args:
    proposal: the block.
    logits: [B, N+1, V] of the verifier, after the prefix and each draft.
    rngs: [B] typed keys of this round.
    settings: `BlockSettings`.
    phase_state: [B] int32, the state of a `PhasedAlpha` after the prefix; None
      where alpha is not by phase.
    exact_copies: static; whether pi is p at copied tokens of a chain, so that
      they are reviewed without lenience.

  Raises:
    ValueError: the logits or the proposal have an array of a wrong shape.
  """
  check_shape("logits of the verifier", logits, proposal.q.shape)
  # Accepting and drawing have uniforms of their own.
  u_accept = draws.uniforms(
    draws.fold_in(rngs, draws.ACCEPT_TAG), proposal.tokens.shape[1]
  )
  draw_rngs = draws.fold_in(rngs, draws.DRAW_TAG)
  phase = None
  if settings.phased is not None:
    assert phase_state is not None, "the phase of the prefix is not known"
    phase = settings.phased.phases_at(phase_state, proposal)
  if proposal.branches is not None:
    branches = proposal.branches
    return _verify_tree(
      proposal, branches, logits, phase, u_accept, draw_rngs, settings
    )
  u_draw = draws.uniforms(draw_rngs, 1)[:, 0]
  step = _places(proposal)
  found = kernel_reviews.find(
    proposal, logits, u_accept, u_draw, settings, exact_copies=exact_copies
  )
  scored, sides = _mix(
    proposal,
    logits,
    _padded_drafts(proposal),
    step < proposal.count[:, None],
    phase,
    settings,
    exact_copies=exact_copies,
    law=None if found is None else found.law,
  )
  if found is None:
    verdict = settings.verifier_step(
      proposal.tokens, proposal.count, proposal.q, scored.pi, u_accept, u_draw
    )
  else:
    verdict = found.verdict
    sides = found.sides or sides
  # A fault at or before the end spoils the token at its own index. One after it
  # was read only by a step that weighs whole blocks: it spoils the last token.
  bad = scored.bad & (step < verdict.read[:, None])
  end = verdict.num_accepted[:, None]
  place = jnp.where(bad, jnp.minimum(step, end), step.shape[1])
  fault = jnp.min(place, axis=1)
  review = _review(verdict, proposal, scored, sides, fault, settings)
  return review if found is None else review.replace(overlap=found.overlap)


def _verify_tree(
  proposal: Proposal,
  branches: Branches,
  logits: Array,
  phase: Array | None,
  u_accept: Array,
  draw_rngs: Array,
  settings: BlockSettings,
) -> Review:
  """Verifies a tree at its N + 1 nodes, and reviews the accepted path."""
  target, num = settings.target, proposal.tokens.shape[1]
  tree_steps.check_branches(settings.verification, branches)
  assert branches.has_q or not target.uses_q, "the nodes have no single q"
  for name in ("parents", "is_certain"):
    check_shape(
      f"{name} of a proposal", getattr(branches, name), proposal.tokens.shape
    )
  # Every draft has a uniform to be accepted by, and every node one to draw the
  # token there. The sides of the rule are asked along the path alone.
  u_draw = draws.uniforms(draw_rngs, num + 1)
  no_tokens = jnp.zeros(logits.shape[:2], jnp.int32)
  at_nodes, _ = _mix(
    proposal, logits, no_tokens, branches.has_children, phase, settings
  )
  verdict = settings.tree_step(
    proposal.tokens, branches, proposal.q, at_nodes.pi, u_accept, u_draw
  )
  block, scored = _along_path(proposal, branches, verdict, at_nodes)
  _, *sides = target.at(
    block.q1,
    scored.p1,
    _padded_drafts(block),
    alpha=alpha_at(settings.alpha, scored.phase),
    sampled=(block.q, scored.p),
  )
  # A fault on the path spoils the token at its own index. One next to the path
  # was read only by a step that weighs whole trees: it spoils the last token.
  step, num_accepted = _places(block), verdict.num_accepted
  is_on_path = scored.bad & (step <= num_accepted[:, None])
  place = jnp.where(is_on_path, step, step.shape[1])
  reads_all = verdict.read > num_accepted + 1
  is_beside = reads_all & jnp.any(at_nodes.bad, axis=1)
  beside = jnp.where(is_beside, num_accepted, step.shape[1])
  fault = jnp.minimum(jnp.min(place, axis=1), beside)
  return _review(verdict, block, scored, sides, fault, settings)


def _places(block: Proposal) -> Array:
  """Returns [1, G+1] int32, the places of a chain, 0 to G."""
  return jnp.arange(block.tokens.shape[1] + 1, dtype=jnp.int32)[None]


def _padded_drafts(block: Proposal) -> Array:
  """Returns the drafts of a chain [B, G+1]; the last one is never read."""
  return jnp.pad(block.tokens, ((0, 0), (0, 1)))


def _mix(
  proposal: Proposal,
  logits: Array,
  drafts: Array,
  has_draft: Array,
  phase: Array | None,
  settings: BlockSettings,
  *,
  exact_copies: bool = False,
  law: kernel_laws.Found | None = None,
) -> tuple[ScoredBlock, tuple[Array, Array]]:
  """Returns what both models say, and the sides of the rule at the drafts."""
  target = settings.target
  p1, p, _, is_law = settings.sampling.step(logits, found=law)
  pi, *sides = target.at(
    proposal.q1,
    p1,
    drafts,
    alpha=alpha_at(settings.alpha, phase),
    sampled=(proposal.q, p),
  )
  # A bool where it is the same for all rows; [B] for drafters that may have no
  # distribution at the bonus position. Where q is unknown, pi is p; if q is
  # known everywhere (True) there is nothing to replace.
  has_bonus_law = settings.needs_bonus_law and proposal.has_bonus_law
  known_q = has_draft | jnp.reshape(has_bonus_law, (-1, 1))
  is_mix = known_q & ~proposal.copied if exact_copies else known_q
  if target.uses_q and (exact_copies or has_bonus_law is not True):
    pi = jnp.where(is_mix[..., None], pi, p)
  bad = ~is_law | proposal.bad
  scored = ScoredBlock(
    p1=p1, p=p, pi=pi, known_q=known_q, is_mix=is_mix, bad=bad, phase=phase
  )
  return scored, (sides[0], sides[1])


def _along_path(
  proposal: Proposal,
  branches: Branches,
  verdict: Verdict,
  at_nodes: ScoredBlock,
) -> tuple[Proposal, ScoredBlock]:
  """Returns the accepted path of a tree as a chain, and what is known there."""
  path, num = cast(Array, verdict.path), proposal.tokens.shape[1]
  # The nodes of the path: the root, and the place after each accepted draft.
  step = jnp.arange(branches.tree.depth + 1, dtype=jnp.int32)[None]
  end = verdict.num_accepted[:, None]
  nodes = jnp.where(step <= end, jnp.pad(path + 1, ((0, 0), (1, 0))), 0)

  def along(values: Array) -> Array:
    """Returns [B, G+1, ...] of values at the nodes, [B, N+1, ...]."""
    index = nodes.reshape(*nodes.shape, *[1] * (values.ndim - 2))
    return jnp.take_along_axis(values, index, axis=1)

  # The drafts of the path, and after them the first draft that was rejected.
  last = numerics.of_token(nodes, verdict.num_accepted)
  drafts = jnp.arange(num, dtype=jnp.int32)[None]
  follows = jnp.where(branches.parents == last[:, None], drafts, num)
  rejected = jnp.minimum(jnp.min(follows, axis=1, keepdims=True), num - 1)
  index = jnp.where(step[:, :-1] < end, path, rejected)
  is_open = numerics.of_token(branches.has_children, last)
  writer = proposal.writer
  if not isinstance(writer, int):
    writer = jnp.take_along_axis(writer, jnp.pad(index, ((0, 0), (0, 1))), 1)
  block = Proposal(
    tokens=jnp.take_along_axis(proposal.tokens, index, axis=1),
    count=verdict.num_accepted + is_open.astype(jnp.int32),
    q=along(proposal.q),
    q1=along(proposal.q1),
    copied=along(proposal.copied),
    calls=proposal.calls,
    bad=along(proposal.bad),
    writer=writer,
  )
  return block, jax.tree.map(along, at_nodes)


def _review(
  verdict: Verdict,
  block: Proposal,
  scored: ScoredBlock,
  sides: Sequence[Array],
  fault: Array,
  settings: BlockSettings,
) -> Review:
  """Returns the review of a chain, or of the accepted path of a tree."""
  # The tokens: with 2 of 3 drafts 4 5 6 accepted and token 9, they are 4 5 9 0.
  step, end = _places(block), verdict.num_accepted[:, None]
  new = jnp.where(step < end, _padded_drafts(block), 0)
  new = jnp.where(step == end, verdict.token[:, None], new)
  # A token rule is read at the drafts, a position rule wherever q is known.
  is_draft = step < block.count[:, None]
  asked = jnp.where(settings.target.reads_tokens, is_draft, scored.known_q)
  left, right = (jnp.where(asked, side, jnp.nan) for side in sides)
  return Review(
    **vars(scored),
    verdict=verdict,
    block=block,
    new=new,
    left=left,
    right=right,
    fault=fault,
  )
