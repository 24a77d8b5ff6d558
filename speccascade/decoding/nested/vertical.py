"""A reviewed pair as a drafter: the vertical cascade.

A small drafter drafts, a medium model reviews, and the reviewed tokens are the
drafts that a large verifier gets. The inner pair takes the steps of speculative
execution: draft, review, commit, until the proposal is full.
"""

import functools
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws, numerics, targets
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records import token_buffers
from speccascade.decoding.records.block_records import Proposal, VerifyFunction
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.records.drafter import Drafter, refuse_tree
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.phased_alpha import PhasedAlpha, alpha_at
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.decoding.verification.review import (
  draft,
  score_and_catch_up,
  verify,
)
from speccascade.decoding.verification.review_records import (
  BlockSettings,
  Review,
)
from speccascade.settings.fields import values_of

Array = jax.Array


_static = functools.partial(struct.field, pytree_node=False)


@struct.dataclass(frozen=True)
class VerticalDrafter(Drafter, ReviewSettings):
  """Proposes the tokens that a smaller speculative pair decodes.

  The inner pair runs round after round until every row has `width` tokens. Each
  token is proposed with the distribution that it was drawn from: the inner
  target, or the reviewer itself for the token after a fully accepted block with
  `bonus="verifier"`. So the outer review is exact in sampling, whatever the
  inner target is.

  The last round may write more than `width` tokens. The tokens past `width` are
  cut by their index, and are drawn afresh by the next proposal. A cut that
  looked at the tokens would bias the output.

  Tokens that the inner drafter copied are reviewed without lenience, pi = p.

  The static settings of `ReviewSettings` say how the reviewer reviews a block
  of the inner drafter. The bonus "verifier" costs the inner drafter no further
  pass. With block verification it has no stated distribution, unless the target
  is the reviewer itself.

  Attributes:
    drafter: the inner drafter.
    reviewer: the language model that reviews the inner drafter.
    alpha: scalar, the alpha of the inner target; or a `PhasedAlpha`, whose
      phases are those of the whole text.
    width: static, tokens of a proposal.
    target: static, the inner `Target`; the lossless one is without lenience.
    greedy_target: static, the inner target at temperature 0, where lenience
      needs a rule of its own. The confidence in a token is then the reviewer's,
      as Algorithm 1 of Chen et al. (arXiv 2312.11462) returns it. None takes
      `target`, and the confidence is the inner target at temperature 1.
    verify: static, an inner verifier step of the caller's own; None takes the
      step that `verification` names.
    behind: static, tokens of other models that the reviewer's cache may lack
      while the pass of the next review still reads them all.
  """

  drafter: Drafter
  reviewer: LanguageModel
  alpha: Any
  width: int = _static()
  target: targets.Target = _static(default=targets.lossless)
  greedy_target: targets.Target | None = _static(default=None)
  verify: VerifyFunction | None = _static(default=None)
  behind: int = _static(default=8)

  has_confidence = True  # the reviewer's, whatever drafts for it

  @property
  def parts(self) -> tuple[LanguageModel, Drafter]:
    return (self.reviewer, self.drafter)

  @property
  def _room(self) -> int:
    """Slots of the buffers of a proposal."""
    # A round begins with at most `width` tokens (with the bonus position, one
    # token more than the width is needed), and writes a block of the inner
    # drafter and one more token. A row that waits writes a block, too, which is
    # moved to the end of the buffer if it does not fit. It begins at index
    # `width` + 1 at the earliest, after the positions that a proposal reads.
    return self.width + self.drafter.width + 2

  @property
  def spare_slots(self) -> int:
    # What a proposal may write before it is cut, and one pass of the reviewer
    # after that: what it catches up with, and a block.
    return self._room + self.drafter.width + 1 + self.behind

  def propose(
    self,
    state: tuple[State, ...],
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[tuple[State, ...], Proposal]:
    """Repeats the rounds of the inner pair until the proposal is full.

    To state the distribution at the bonus position, the inner pair draws one
    more token, which is then cut.
    """
    refuse_tree(self.drafter, "a vertical cascade")
    length, need = prefix.length, self.width + bool(needs_bonus_law)
    rows = length.shape[0]
    is_lenient = sampling.greedy and self.greedy_target is not None
    settings = BlockSettings(
      **values_of(self, ReviewSettings),
      sampling=sampling,
      target=self.greedy_target if is_lenient else self.target,
      alpha=self.alpha,
      verify=self.verify,
    )

    # `count` is the number of tokens that a row has proposed so far. Rows reach
    # `need` after different numbers of rounds; a row that has them waits.
    def lacks(carry: dict[str, Any]) -> Array:
      return jnp.any(carry["count"] < need)

    def round_(carry: dict[str, Any]) -> dict[str, Any]:
      # Draft after the prefix and the tokens proposed so far, with keys of this
      # round's own.
      count, (reviewing, drafting) = carry["count"], carry["state"]
      so_far = Prefix(
        carry["tokens"], length + count, count < need, carry["phase_state"]
      )
      keys = draws.fold_in(rngs, carry["round"])
      drafting, proposal = draft(self.drafter, drafting, so_far, keys, settings)
      # Review. The reviewer may lack tokens that other models wrote since it
      # was last asked, and reads them in the same pass.
      reviewing, logits, passes = score_and_catch_up(
        self.reviewer, reviewing, so_far, proposal, behind=self.behind
      )
      block = verify(
        proposal,
        logits,
        keys,
        settings,
        phase_state=so_far.phase_state,
        exact_copies=True,
      )
      # Count the passes of rows that take part: the reviewer's, then those of
      # the inner drafter's models.
      going = so_far.active.astype(jnp.int32)
      calls = going[:, None] * proposal.calls
      calls = jnp.concatenate([passes[:, None], calls], axis=1)
      confidence = block.p1
      if not is_lenient:
        # What pi would be at temperature 1: p where pi is p.
        alpha = alpha_at(self.alpha, block.phase)
        plain = self.target.probs(proposal.q1, block.p1, alpha=alpha)
        confidence = jnp.where(block.is_mix[..., None], plain, block.p1)
      step = jnp.arange(block.new.shape[1])[None]
      bad = block.fault[:, None] == step
      num_accepted = block.verdict.num_accepted
      # Model 0 of this drafter is the reviewer, which writes the token after
      # the accepted drafts; the models of the inner drafter follow it.
      inner = proposal.writers(1)
      writer = jnp.where(step < num_accepted[:, None], inner, 0)
      drafts = (block.pi, confidence, bad, writer)
      # Commit the accepted drafts and the token after them. All of them but the
      # last stay in the caches: with a prefix of 7 tokens, 2 proposed before
      # and 3 new ones, the caches hold 11. A row that waits is rewound to where
      # it was, and what is written after its count is undefined.
      total = count + going * (num_accepted + 1)
      state = (reviewing, drafting)
      return {
        "state": self.rewind(state, length + total - 1),
        "tokens": token_buffers.write_block(
          so_far.tokens, block.new, so_far.length
        ),
        "count": total,
        "phase_state": _state_after(settings.phased, so_far, block),
        "drafts": token_buffers.write_block(carry["drafts"], drafts, count),
        "calls": carry["calls"] + calls,
        "round": carry["round"] + 1,
      }

    probs = jnp.zeros((rows, self._room, self.vocab_size), jnp.float32)
    places = jnp.zeros(probs.shape[:2], jnp.int32)
    carry = jax.lax.while_loop(
      lacks,
      round_,
      {
        "state": state,
        "tokens": jnp.pad(prefix.tokens, ((0, 0), (0, self._room))),
        "count": jnp.where(prefix.active, 0, jnp.full_like(length, need)),
        "phase_state": None if settings.phased is None else prefix.phase_state,
        "drafts": (probs, probs, places > 0, places),
        "calls": jnp.zeros((rows, len(self.models)), jnp.int32),
        "round": jnp.int32(0),
      },
    )
    # Cut to the width, and to the bonus position after it.
    q, q1, bad, writer = (x[:, : self.width + 1] for x in carry["drafts"])
    index = length[:, None] + jnp.arange(self.width)[None]
    in_use = jnp.arange(self.width + 1)[None] < need
    # Rewind past the cut tokens: another drafter may overwrite those slots.
    return self.rewind(carry["state"], length + self.width), Proposal(
      tokens=jnp.take_along_axis(carry["tokens"], index, axis=1),
      count=jnp.full_like(length, self.width),
      q=q,
      q1=q1,
      copied=jnp.zeros_like(bad),
      calls=carry["calls"],
      bad=bad & in_use,
      writer=writer,
    )


def _state_after(
  phased: PhasedAlpha | None, so_far: Prefix, block: Review
) -> Array | None:
  """Returns the state [B] of alpha's phases after a reviewed block."""
  if phased is None:
    return None
  # A row that waits is not read again.
  assert so_far.phase_state is not None
  states = phased.marker.follow(so_far.phase_state, block.new)
  return numerics.of_token(states, block.verdict.num_accepted)
