"""One round of speculative execution: draft, score, verify.

The speculative loop commits what a round gives; a drafter that is itself a
reviewed pair collects rounds until its proposal is full.
"""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding import emission, feeding, rejection
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.types import Drafter, LanguageModel, Proposal, Verdict

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
    q1: [B, G+1, V] the drafter's laws at temperature 1; a proposal that has
      none is its own confidence (a method that would read it refuses such a
      drafter; inner reviews do not).
    new: [B, G+1] int32, accepted drafts and the token behind them, then 0.
    p1: [B, G+1, V] the verifier's laws at temperature 1.
    p: [B, G+1, V] as sampled.
    pi: [B, G+1, V] the target's, the bonus row as the bonus was drawn.
    passes: [B] int32, forward passes of the verifier.
    bad: [B] bool, where some law was no distribution.
  """

  proposal: Proposal
  verdict: Verdict
  drafts: Array
  new: Array
  q1: Array
  p1: Array
  p: Array
  pi: Array
  passes: Array
  bad: Array


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
  verify=rejection.token_verify,
  score=score,
) -> tuple[tuple, Review]:
  """Drafts a block behind `tokens[b, :length[b]]` and has it verified.

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

  verifier_state, logits, passes = score(
    verifier, states[1], tokens, length, proposal, active
  )
  p1, p = sampling.laws(logits)
  q1 = proposal.q if proposal.q1 is None else proposal.q1
  pi = target(q1, p1, alpha=alpha, sampled=(proposal.q, p))
  if target.uses_q and bonus == "verifier":
    at_bonus = step == proposal.count[:, None]
    pi = jnp.where(at_bonus[..., None], p, pi)

  # Verify.
  u_accept = sampling_lib.uniforms(
    sampling_lib.fold_in(rngs, ACCEPT_TAG), width
  )
  u_draw = sampling_lib.uniforms(sampling_lib.fold_in(rngs, DRAW_TAG), 1)
  verdict = verify(
    proposal.tokens, proposal.count, proposal.q, pi, u_accept, u_draw[:, 0]
  )
  drafts = jnp.pad(proposal.tokens, ((0, 0), (0, 1)))
  end = verdict.num_accepted[:, None]
  new = jnp.where(step < end, drafts, 0)
  new = jnp.where(step == end, verdict.token[:, None], new)
  read = step <= proposal.count[:, None]
  bad_law = jnp.any(read & ~sampling_lib.is_law(logits), axis=1)
  return (draft_state, verifier_state), Review(
    proposal=proposal,
    verdict=verdict,
    drafts=drafts,
    new=new,
    q1=q1,
    p1=p1,
    p=p,
    pi=pi,
    passes=passes,
    bad=proposal.bad | bad_law,
  )
