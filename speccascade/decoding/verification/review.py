"""The steps of speculative execution on one block: draft, score, verify.

Two loops take these steps. The speculative loop commits the tokens of each
block. A `VerticalDrafter`, a drafter that is itself a reviewed pair, repeats
the steps until its own proposal is full.
"""

from typing import Any, cast

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws, numerics
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
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.decoding.verification import tree_steps
from speccascade.decoding.verification.block_settings import BlockSettings

Array = jax.Array


class Review(struct.PyTreeNode):
  """What a review decided on a block. G = the depth of a block.

  A tree of drafts is reviewed along its accepted path: every field is that of a
  chain, the path, and of the token after it.

  Attributes:
    verdict: the decision of the verifier step.
    block: the reviewed chain: the proposal itself, or the accepted path of a
      tree, with the first draft after the path where there is one.
    new: [B, G+1] int32: the accepted drafts, the token after them, then 0.
    p1: [B, G+1, V] the verifier at temperature 1.
    p: [B, G+1, V] the verifier as sampled.
    pi: [B, G+1, V] the target. Its bonus row is what the bonus was drawn from.
    known_q: [B, G+1] bool, where the drafter was asked and has a distribution.
    is_mix: [B, G+1] bool, where pi is the target of both distributions.
      Elsewhere pi is p, whatever the target: at a bonus that is drawn from the
      verifier, and at a copied token that is reviewed without lenience.
    left: [B, G+1] the left side of the rule at the drafts, and at the bonus
      position where q is known there. A token rule has no side at the bonus
      position. NaN elsewhere, and without a rule.
    right: [B, G+1] the right side of the rule, where `left` is known.
    fault: [B] int32, the first token of `new` that rests on a position at which
      a model gave no distribution; G+1 where none does. A fault at a position
      that the verifier step did not read does not count.
  """

  verdict: Verdict
  block: Proposal
  new: Array
  p1: Array
  p: Array
  pi: Array
  known_q: Array
  is_mix: Array
  left: Array
  right: Array
  fault: Array


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
    bonus_law=settings.bonus_law,
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
    prefix: the tokens so far, in a buffer with room for the block.
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
  spare_copies: bool = False,
) -> Review:
  """Makes pi of q and p, and verifies the drafts against pi.

  Args:
    proposal: the block.
    logits: [B, G+1, V] of the verifier, after the prefix and each draft.
    rngs: [B] typed keys of this round.
    settings: `BlockSettings`.
    spare_copies: static; whether pi is p at copied tokens, so that they are
      reviewed without lenience.

  Raises:
    ValueError: the logits or the verdict have an array of a wrong shape.
  """
  check_shape("logits of the verifier", logits, proposal.q.shape)
  if proposal.branches is not None:
    return _verify_tree(proposal, logits, rngs, settings)
  target, width = settings.target, proposal.tokens.shape[1]
  step = jnp.arange(width + 1, dtype=jnp.int32)[None]
  drafts = jnp.pad(proposal.tokens, ((0, 0), (0, 1)))
  # Both models' distributions make pi. The bonus position has no draft, and a
  # token rule is read at token 0 there; nobody looks at that.
  p1, p, _, is_law = settings.sampling.step(logits)
  pi, left, right = target.at(
    proposal.q1, p1, drafts, alpha=settings.alpha, sampled=(proposal.q, p)
  )
  # A bool where it is the same for all rows; [B] for drafters that may have no
  # distribution at the bonus position. Where q is unknown, pi is p; if q is
  # known everywhere (True) there is nothing to replace.
  knows_bonus = settings.bonus_law and proposal.knows_bonus
  known_q = (step < proposal.count[:, None]) | jnp.reshape(knows_bonus, (-1, 1))
  is_mix = known_q & ~proposal.copied if spare_copies else known_q
  if target.uses_q and (spare_copies or knows_bonus is not True):
    pi = jnp.where(is_mix[..., None], pi, p)
  # Verify. Accepting and drawing have uniforms of their own.
  u_accept = draws.uniforms(draws.fold_in(rngs, draws.ACCEPT_TAG), width)
  u_draw = draws.uniforms(draws.fold_in(rngs, draws.DRAW_TAG), 1)
  verdict = settings.verifier_step(
    proposal.tokens, proposal.count, proposal.q, pi, u_accept, u_draw[:, 0]
  )
  # A fault at or before the end spoils the token at its own index. One after it
  # was read only by a step that weighs whole blocks: it spoils the last token.
  bad = (~is_law | proposal.bad) & (step < verdict.read[:, None])
  end = verdict.num_accepted[:, None]
  place = jnp.where(bad, jnp.minimum(step, end), width + 1)
  return _review(
    verdict,
    proposal,
    target,
    laws=(p1, p, pi),
    sides=(left, right),
    known_q=known_q,
    is_mix=is_mix,
    fault=jnp.min(place, axis=1),
  )


def _review(
  verdict: Verdict,
  block: Proposal,
  target: Any,
  *,
  laws: tuple[Array, Array, Array],
  sides: tuple[Array, Array],
  known_q: Array,
  is_mix: Array,
  fault: Array,
) -> Review:
  """Returns the review of a chain, or of the accepted path of a tree.

  Args:
    verdict: the decision of the verifier step.
    block: the chain or the path.
    target: a `Target` or a `Choice`.
    laws: p1, p and pi, [B, G+1, V] each.
    sides: the sides of the rule, [B, G+1] each.
    known_q: as in `Review`.
    is_mix: as in `Review`.
    fault: as in `Review`.
  """
  width = block.tokens.shape[1]
  step = jnp.arange(width + 1, dtype=jnp.int32)[None]
  # The tokens: with 2 of 3 drafts 4 5 6 accepted and token 9, they are 4 5 9 0.
  end = verdict.num_accepted[:, None]
  drafts = jnp.pad(block.tokens, ((0, 0), (0, 1)))
  new = jnp.where(step < end, drafts, 0)
  new = jnp.where(step == end, verdict.token[:, None], new)
  # A token rule is read at the drafts, a position rule wherever q is known.
  is_draft = step < block.count[:, None]
  asked = jnp.where(target.reads_tokens, is_draft, known_q)
  p1, p, pi = laws
  left, right = sides
  return Review(
    verdict=verdict,
    block=block,
    new=new,
    p1=p1,
    p=p,
    pi=pi,
    known_q=known_q,
    is_mix=is_mix,
    left=jnp.where(asked, left, jnp.nan),
    right=jnp.where(asked, right, jnp.nan),
    fault=fault,
  )


def _verify_tree(
  proposal: Proposal, logits: Array, rngs: Array, settings: BlockSettings
) -> Review:
  """Returns the review of a tree; arguments as in `verify`.

  The steps are those of a chain, at the N + 1 nodes. Once the accepted path is
  known, all that is known at the nodes is gathered along it. Only the sides of
  the rule are asked there anew, since a token rule is read at the drafts.
  """
  branches = cast(Branches, proposal.branches)
  target, num = settings.target, proposal.tokens.shape[1]
  tree_step = settings.tree_step
  tree_steps.check_branches(settings.verification, branches)
  if target.uses_q and not branches.has_q:
    raise ValueError(
      "the drafter has no one distribution at a node, and the target uses it;"
      " use a method whose target is the verifier"
    )
  for name in ("parents", "is_certain"):
    check_shape(
      f"{name} of a proposal", getattr(branches, name), proposal.tokens.shape
    )
  no_tokens = jnp.zeros(logits.shape[:2], jnp.int32)
  p1, p, _, is_law = settings.sampling.step(logits)
  pi, _, _ = target.at(
    proposal.q1, p1, no_tokens, alpha=settings.alpha, sampled=(proposal.q, p)
  )
  # Without a bonus law q is asked for only where drafts follow.
  has_children = branches.has_children
  has_law = proposal.knows_bonus if settings.bonus_law else False
  known_q = has_children | jnp.reshape(jnp.asarray(has_law), (-1, 1))
  if target.uses_q and has_law is not True:
    pi = jnp.where(known_q[..., None], pi, p)
  # Every draft has a uniform to be accepted by, and every node one to draw the
  # token there.
  u_accept = draws.uniforms(draws.fold_in(rngs, draws.ACCEPT_TAG), num)
  u_draw = draws.uniforms(draws.fold_in(rngs, draws.DRAW_TAG), num + 1)
  verdict = tree_step(
    proposal.tokens, branches, proposal.q, pi, u_accept, u_draw
  )
  depth, rows = branches.tree.depth, proposal.count.shape
  for name in ("num_accepted", "token", "examined", "read"):
    check_shape(f"{name} of a verdict", getattr(verdict, name), rows)
  path = cast(Array, verdict.path)
  check_shape("path of a verdict", path, (*rows, depth))
  # The nodes of the path: the root, and the place after each accepted draft.
  step = jnp.arange(depth + 1, dtype=jnp.int32)[None]
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
  is_open = numerics.of_token(has_children, last)
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
  p1, p, pi = along(p1), along(p), along(pi)
  _, left, right = target.at(
    block.q1,
    p1,
    jnp.pad(block.tokens, ((0, 0), (0, 1))),
    alpha=settings.alpha,
    sampled=(block.q, p),
  )
  # A fault on the path spoils the token at its own index. One beside the path
  # was read only by a step that weighs whole trees: it spoils the last token.
  bad = ~is_law | proposal.bad
  place = jnp.where(along(bad) & (step <= end), step, depth + 1)
  reads_all = verdict.read > verdict.num_accepted + 1
  elsewhere = jnp.where(
    reads_all & jnp.any(bad, axis=1), verdict.num_accepted, depth + 1
  )
  return _review(
    verdict,
    block,
    target,
    laws=(p1, p, pi),
    sides=(left, right),
    known_q=along(known_q),
    is_mix=along(known_q),
    fault=jnp.minimum(jnp.min(place, axis=1), elsewhere),
  )
