"""Speculative execution's steps on one block: draft, score, verify.

The speculative loop commits what they give; a drafter that is itself a reviewed
pair goes on until its proposal is full.
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
  """What was decided on a block. G = width of the drafter.

  Attributes:
    verdict: the verifier step's decision.
    new: [B, G+1] int32, accepted drafts and the token after them, then 0.
    p1: [B, G+1, V] the verifier's laws at temperature 1.
    p: [B, G+1, V] as sampled.
    pi: [B, G+1, V] the target's, the bonus row as the bonus was drawn.
    known_q: [B, G+1] bool, where the drafter was asked and has a law.
    is_mix: [B, G+1] bool, where pi is the target of both models' laws.
      Elsewhere pi is p, whatever the target: at a bonus that is the verifier's
      own, and at a copied token that is reviewed without lenience.
    left: [B, G+1] the rule's sides at the drafts and, where its law is known,
      at the bonus position; a token rule says nothing of that. NaN elsewhere,
      and where there is no rule.
    right: [B, G+1].
    fault: [B] int32, the first token of `new` that rests on a law that is no
      distribution; G+1 where none does. A fault after a rejected draft is none.
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
  """Has a drafter propose a block, and checks its shapes.

  Args:
    drafter: proposes the block.
    state: its state.
    prefix: what stands so far.
    rngs: [B] typed keys of this round.
    settings: `BlockSettings`.
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
  """Has a verifier that lacks the last token alone read a block in one pass.

  Returns:
    Its state, with every draft fed (to be rewound), and logits [B, G+1, V].
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
  """Has a verifier read a block; what it lacks of the prefix goes first.

  Args:
    verifier: the language model.
    state: its state.
    prefix: what stands so far, with room for the block.
    proposal: the block.
    behind: static, tokens that it may lack besides the last one and still be
      done in one pass.

  Returns:
    As `score`, and [B] int32 passes.
  """
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
  """Makes pi of both models' laws, and has the drafts verified against it.

  Args:
    proposal: the block.
    logits: [B, G+1, V] the verifier's.
    rngs: [B] typed keys of this round.
    settings: `BlockSettings`.
    spare_copies: static; whether copied tokens are reviewed with the verifier
      as their target, that is without lenience.
  """
  check_shape("logits of the verifier", logits, proposal.q.shape)
  target, width = settings.target, proposal.tokens.shape[1]
  step = jnp.arange(width + 1, dtype=jnp.int32)[None]
  count = proposal.count[:, None]
  drafts = jnp.pad(proposal.tokens, ((0, 0), (0, 1)))
  p1, p, _, is_law = settings.sampling.step(logits)
  pi, left, right = target.at(
    proposal.q1, p1, drafts, alpha=settings.alpha, sampled=(proposal.q, p)
  )
  # Static, but for drafters that may have no law at the bonus.
  knows_bonus = settings.bonus_law and proposal.knows_bonus
  known_q = (step < count) | jnp.reshape(knows_bonus, (-1, 1))
  is_mix = known_q & ~proposal.copied if spare_copies else known_q
  if target.uses_q and (spare_copies or knows_bonus is not True):
    pi = jnp.where(is_mix[..., None], pi, p)
  u_accept = draws.uniforms(draws.fold_in(rngs, draws.ACCEPT_TAG), width)
  u_draw = draws.uniforms(draws.fold_in(rngs, draws.DRAW_TAG), 1)
  verdict = settings.verify(
    proposal.tokens, proposal.count, proposal.q, pi, u_accept, u_draw[:, 0]
  )
  for name in ("num_accepted", "token", "examined", "read"):
    wanted = proposal.count.shape
    check_shape(f"{name} of a verdict", getattr(verdict, name), wanted)
  end = verdict.num_accepted[:, None]
  new = jnp.where(step < end, drafts, 0)
  new = jnp.where(step == end, verdict.token[:, None], new)
  bad = ~is_law | proposal.bad
  bad &= step < verdict.read[:, None]
  place = jnp.where(bad, jnp.minimum(step, end), width + 1)
  # A token rule is read at the drafts; the others wherever q is known.
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
