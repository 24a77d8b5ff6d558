"""One round of speculative execution: draft, score, verify.

The speculative loop commits what a round gives; a drafter that is itself a
reviewed pair collects rounds until its proposal is full.
"""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding import emission, feeding, verification
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.types import (
  Drafter,
  LanguageModel,
  Proposal,
  ScoreFunction,
  Verdict,
  VerifyFunction,
  check_shape,
)

Array = jax.Array

# One fixed tag for each use of a round's key.
DRAFT_TAG, ACCEPT_TAG, DRAW_TAG = range(3)


@struct.dataclass
class Review:
  """What a round decided. G = width of the drafter.

  Attributes:
    proposal: the drafted block.
    verdict: the verifier step's decision.
    drafts: [B, G+1] int32, the proposal's tokens, padded by one.
    new: [B, G+1] int32, accepted drafts and the token behind them, then 0.
    p1: [B, G+1, V] the verifier's laws at temperature 1.
    p: [B, G+1, V] as sampled.
    pi: [B, G+1, V] the target's, the bonus row as the bonus was drawn.
    left: [B, G+1] the rule's sides at the drafts, NaN where there is no rule;
      a token rule says nothing of the bonus position.
    right: [B, G+1].
    passes: [B] int32, forward passes of the verifier.
    fault: [B] int32, the first token of `new` that rests on a law that is no
      distribution; G+1 where none does. A fault after a rejected draft is none.
  """

  proposal: Proposal
  verdict: Verdict
  drafts: Array
  new: Array
  p1: Array
  p: Array
  pi: Array
  left: Array
  right: Array
  passes: Array
  fault: Array


def score(
  verifier: LanguageModel,
  state,
  tokens: Array,
  length: Array,
  proposal: Proposal,
  active: Array,
) -> tuple:
  """Has a verifier that lacks the last token alone score a block.

  Returns:
    The verifier's state, its logits [B, G+1, V] and [B] int32 passes.
  """
  last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)
  block = jnp.concatenate([last, proposal.tokens], axis=1)
  state, out = verifier.extend(
    state, block, jnp.where(active, 1 + proposal.count, 0)
  )
  return state, out.logits, active.astype(jnp.int32)


def score_and_catch_up(
  verifier: LanguageModel,
  state: feeding.Fed,
  tokens: Array,
  length: Array,
  proposal: Proposal,
  active: Array,
  *,
  behind: int,
) -> tuple:
  """Has a verifier score a block; what it lacks of the prefix goes first.

  Args:
    verifier: the language model.
    state: its state, with how much it holds.
    tokens: [B, L] int32, with room for the block.
    length: [B] int32.
    proposal: the block.
    active: [B] bool.
    behind: static, tokens that it may lack besides the last one and still be
      done in one pass.

  Returns:
    As `score`.
  """
  width = proposal.tokens.shape[1]
  return feeding.feed_to(
    verifier,
    state,
    emission.write_block(tokens, proposal.tokens, length),
    jnp.where(active, length + proposal.count, 0),
    first=length - 1,
    read=width + 1,
    narrow=width + 1,
    wide=width + 1 + behind,
  )


def review(
  drafter: Drafter,
  verifier: LanguageModel,
  states: tuple,
  tokens: Array,
  length: Array,
  active: Array,
  rngs: Array,
  *,
  target,
  alpha: Array,
  sampling: sampling_lib.Sampling,
  bonus: str = "target",
  verify: VerifyFunction = verification.token_verify,
  spare_copies: bool = False,
  score: ScoreFunction = score,
) -> tuple[tuple, Review]:
  """Drafts a block after `tokens[b, :length[b]]` and has it verified.

  Args:
    drafter: proposes the block.
    verifier: scores it.
    states: (drafter's state, verifier's state); the verifier's holds exactly
      `length - 1` tokens, unless `score` sees to that.
    tokens: [B, L] int32 buffer.
    length: [B] int32.
    active: [B] bool; the others are fed nothing.
    rngs: [B] typed keys of this round.
    target: a `Target`; the rest as in `speculative`.
    spare_copies: static; whether copied tokens are reviewed with the verifier
      as their target, that is without lenience.
    score: how the verifier is fed.

  Returns:
    The states, with everything fed that was drafted (to be rewound by the
    caller), and the `Review`.
  """
  width = drafter.width
  bonus_law = target.uses_q and bonus == "target"
  step = jnp.arange(width + 1)[None]
  draft_state, proposal = drafter.propose(
    states[0],
    tokens,
    length,
    sampling_lib.fold_in(rngs, DRAFT_TAG),
    sampling,
    bonus_law=bonus_law,
    active=active,
  )

  _check_proposal(proposal, (length.shape[0], width), drafter.vocab_size)

  verifier_state, logits, passes = score(
    verifier, states[1], tokens, length, proposal, active
  )
  check_shape("logits of the verifier", logits, proposal.q.shape)
  p1, p = sampling.laws(logits)
  drafts = jnp.pad(proposal.tokens, ((0, 0), (0, 1)))
  pi, left, right = target.at(
    proposal.q1, p1, drafts, alpha=alpha, sampled=(proposal.q, p)
  )
  at_bonus = step == proposal.count[:, None]
  if target.uses_q and bonus == "verifier":
    pi = jnp.where(at_bonus[..., None], p, pi)
  if target.uses_q and spare_copies:
    pi = jnp.where(proposal.copied[..., None], p, pi)

  # Verify.
  u_accept = sampling_lib.uniforms(
    sampling_lib.fold_in(rngs, ACCEPT_TAG), width
  )
  u_draw = sampling_lib.uniforms(sampling_lib.fold_in(rngs, DRAW_TAG), 1)
  verdict = verify(
    proposal.tokens, proposal.count, proposal.q, pi, u_accept, u_draw[:, 0]
  )
  _check_verdict(verdict, length.shape)
  end = verdict.num_accepted[:, None]
  new = jnp.where(step < end, drafts, 0)
  new = jnp.where(step == end, verdict.token[:, None], new)
  bad = ~sampling_lib.is_law(logits) | proposal.bad
  bad &= step < verdict.read[:, None]
  place = jnp.where(bad, jnp.minimum(step, end), width + 1)
  return (draft_state, verifier_state), Review(
    proposal=proposal,
    verdict=verdict,
    drafts=drafts,
    new=new,
    p1=p1,
    p=p,
    pi=pi,
    left=left,
    right=right,
    passes=passes,
    fault=jnp.min(place, axis=1),
  )


def _check_proposal(proposal: Proposal, shape: tuple[int, int], size: int):
  """Checks a proposal of [B, G] tokens over V ids."""
  rows, width = shape
  for name, wanted in (
    ("tokens", shape),
    ("count", (rows,)),
    ("q", (rows, width + 1, size)),
    ("q1", (rows, width + 1, size)),
    ("copied", (rows, width + 1)),
    ("bad", (rows, width + 1)),
  ):
    check_shape(f"{name} of a proposal", getattr(proposal, name), wanted)


def _check_verdict(verdict: Verdict, shape: tuple[int]):
  for name in ("num_accepted", "token", "examined", "read"):
    check_shape(f"{name} of a verdict", getattr(verdict, name), shape)
