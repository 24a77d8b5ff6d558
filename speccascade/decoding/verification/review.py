"""The steps of speculative execution on one block: draft, score, verify.

Two loops take these steps. The speculative loop commits the tokens of each
block. A `VerticalDrafter`, a drafter that is itself a reviewed pair, repeats
the steps until its own proposal is full.
"""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting import feeding
from speccascade.decoding.laws import draws
from speccascade.decoding.loops import emission
from speccascade.decoding.loops.emission import Prefix
from speccascade.decoding.loops.execution import BlockSettings
from speccascade.decoding.types import (
  Drafter,
  LanguageModel,
  Proposal,
  State,
  Verdict,
  check_shape,
)

Array = jax.Array


class Review(struct.PyTreeNode):
  """What a review decided on a block. G = width of the drafter.

  Attributes:
    verdict: the decision of the verifier step.
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
    prefix.tokens,
    prefix.length,
    draws.fold_in(rngs, draws.DRAFT_TAG),
    settings.sampling,
    bonus_law=settings.bonus_law,
    active=prefix.active,
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
) -> tuple[State, Array]:
  """Feeds a verifier the last token of the prefix, and the block after it.

  The verifier's cache must lack the last token of the prefix alone.

  Args:
    verifier: the language model.
    state: the verifier's state.
    prefix: the tokens so far.
    proposal: the block.

  Returns:
    The verifier's state with every draft fed, which the caller rewinds, and the
    logits [B, G+1, V] after the last token and after each draft.
  """
  block = jnp.concatenate([prefix.last, proposal.tokens], axis=1)
  count = jnp.where(prefix.active, 1 + proposal.count, 0)
  state, out = verifier.extend(state, block, count)
  return state, out.logits


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
    What `score` returns, and [B] int32 passes.
  """
  # The block is written after the prefix, and the verifier is fed up to its
  # end. The logits after the last token of the prefix (index length - 1) and
  # after each draft are read: G+1 of them. A cache that lacks the last token
  # alone takes a pass of 1 + G tokens.
  width = proposal.tokens.shape[1]
  return feeding.feed_to(
    verifier,
    state,
    emission.write_block(prefix.tokens, proposal.tokens, prefix.length),
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
  target, width = settings.target, proposal.tokens.shape[1]
  step = jnp.arange(width + 1, dtype=jnp.int32)[None]
  count = proposal.count[:, None]
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
  known_q = (step < count) | jnp.reshape(knows_bonus, (-1, 1))
  is_mix = known_q & ~proposal.copied if spare_copies else known_q
  if target.uses_q and (spare_copies or knows_bonus is not True):
    pi = jnp.where(is_mix[..., None], pi, p)
  # Verify. Accepting and drawing have uniforms of their own.
  u_accept = draws.uniforms(draws.fold_in(rngs, draws.ACCEPT_TAG), width)
  u_draw = draws.uniforms(draws.fold_in(rngs, draws.DRAW_TAG), 1)
  verdict = settings.verifier_step(
    proposal.tokens, proposal.count, proposal.q, pi, u_accept, u_draw[:, 0]
  )
  for name in ("num_accepted", "token", "examined", "read"):
    wanted = proposal.count.shape
    check_shape(f"{name} of a verdict", getattr(verdict, name), wanted)
  # The tokens: with 2 of 3 drafts 4 5 6 accepted and token 9, they are 4 5 9 0.
  end = verdict.num_accepted[:, None]
  new = jnp.where(step < end, drafts, 0)
  new = jnp.where(step == end, verdict.token[:, None], new)
  bad = ~is_law | proposal.bad
  bad &= step < verdict.read[:, None]
  # A fault at or before the end spoils the token at its own index. One after it
  # was read only by a step that weighs whole blocks: it spoils the last token.
  place = jnp.where(bad, jnp.minimum(step, end), width + 1)
  # A token rule is read at the drafts, a position rule wherever q is known.
  asked = jnp.where(target.reads_tokens, step < count, known_q)
  return Review(
    verdict=verdict,
    new=new,
    p1=p1,
    p=p,
    pi=pi,
    known_q=known_q,
    is_mix=is_mix,
    left=jnp.where(asked, left, jnp.nan),
    right=jnp.where(asked, right, jnp.nan),
    fault=jnp.min(place, axis=1),
  )
