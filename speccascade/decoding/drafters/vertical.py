"""A reviewed pair as a drafter: the vertical cascade."""

import functools

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding import emission, feeding, verification
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding import target as targets
from speccascade.decoding.review import review, score_and_catch_up
from speccascade.decoding.types import Drafter, LanguageModel, Proposal

Array = jax.Array


@struct.dataclass
class VerticalState:
  """Attributes:
  drafter: the inner drafter's state.
  reviewer: the reviewer, and how much of the prefix it holds.
  """

  drafter: object
  reviewer: feeding.Fed


@struct.dataclass
class VerticalDrafter:
  """Proposes what a smaller speculative pair decodes.

  The inner pair runs round after round until every row has `width` tokens. Each
  of them states the law that it was drawn from, that of the inner target (with
  `bonus="verifier"` the reviewer's own after a fully accepted block): the outer
  review is exact in sampling, whatever the inner target is. What a round writes
  past `width` is cut by index, which looks at no token, and is drawn afresh
  next time.

  Tokens that the inner drafter copied are reviewed without lenience, pi = p.

  Attributes:
    drafter: the inner drafter.
    reviewer: the language model that reviews it.
    alpha: scalar, of the inner target.
    width: static, tokens of a proposal.
    target: static, the inner `Target`; lossless without lenience.
    greedy_target: static, the inner target at temperature 0, where lenience
      needs a rule of its own; the confidence of a token is then the reviewer's,
      as Algorithm 1 of Chen et al. returns it. None takes `target`, and the
      confidence is its law at temperature 1.
    verify: static, the inner verifier step.
    bonus: static, "target" or "verifier" as in `speculative`. The verifier's
      costs the inner drafter no further pass; with block verification it has no
      stated law unless the target is the reviewer's.
    behind: static; where the reviewer lacks up to so many tokens that others
      wrote, it reads them in the pass of its next review.
  """

  drafter: Drafter
  reviewer: LanguageModel
  alpha: Array
  width: int = struct.field(pytree_node=False)
  target: targets.Target = struct.field(
    pytree_node=False, default=targets.lossless
  )
  greedy_target: targets.Target | None = struct.field(
    pytree_node=False, default=None
  )
  verify: object = struct.field(
    pytree_node=False, default=verification.token_verify
  )
  bonus: str = struct.field(pytree_node=False, default="target")
  behind: int = struct.field(pytree_node=False, default=8)

  @property
  def vocab_size(self) -> int:
    return self.reviewer.vocab_size

  @property
  def has_confidence(self) -> bool:
    """The reviewer's law is a real one, whatever drafts for it."""
    return True

  @property
  def models(self) -> tuple:
    """Of each column of `Proposal.calls`; a model may be in several places."""
    return (self.reviewer, *self.drafter.models)

  @property
  def num_models(self) -> int:
    return len(self.models)

  @property
  def _room(self) -> int:
    """Tokens that the last round may reach, the bonus law's included."""
    return self.width + self.drafter.width + 2

  def prefill(self, inputs: Array, *, capacity: int) -> VerticalState:
    capacity += self._room + self.drafter.width + 1 + self.behind
    return VerticalState(
      self.drafter.prefill(inputs, capacity=capacity),
      feeding.start(self.reviewer, inputs, capacity=capacity),
    )

  def rewind(self, state: VerticalState, length: Array) -> VerticalState:
    return VerticalState(
      self.drafter.rewind(state.drafter, length),
      feeding.rewind(self.reviewer, state.reviewer, length),
    )

  def propose(
    self, state, tokens, length, rngs, sampling, *, bonus_law: bool, active
  ) -> tuple[VerticalState, Proposal]:
    """See `types.Drafter`.

    The law at the bonus position is that of one token more, which is drawn and
    cut.
    """
    rows, need = length.shape[0], self.width + bool(bonus_law)
    is_lenient = sampling.greedy and self.greedy_target is not None
    target = self.greedy_target if is_lenient else self.target
    score = functools.partial(score_and_catch_up, behind=self.behind)
    law = jnp.zeros((rows, self._room, self.vocab_size), jnp.float32)
    num_inner = self.drafter.num_models

    def lacks(carry):
      return jnp.any(carry["count"] < need)

    def round_(carry):
      count = carry["count"]
      going, at = count < need, length + count
      states, block = review(
        self.drafter,
        self.reviewer,
        (carry["drafter"], carry["reviewer"]),
        carry["tokens"],
        at,
        going,
        sampling_lib.fold_in(rngs, carry["round"]),
        target=target,
        alpha=self.alpha,
        sampling=sampling,
        bonus=self.bonus,
        verify=self.verify,
        spare_copies=True,
        score=score,
      )
      one = going.astype(jnp.int32)
      count += one * (block.verdict.num_accepted + 1)
      held = length + count - 1
      # What the law would be at temperature 1.
      plain = (block.proposal.q1, block.p1)
      confidence = block.p1
      if not is_lenient:
        confidence = target.probs(*plain, alpha=self.alpha, sampled=plain)
      bad = block.fault[:, None] == jnp.arange(block.new.shape[1])[None]
      return {
        "drafter": self.drafter.rewind(states[0], held),
        "reviewer": feeding.rewind(self.reviewer, states[1], held),
        "tokens": emission.write_block(carry["tokens"], block.new, at),
        "count": count,
        "q": emission.write_block(carry["q"], block.pi, at - length),
        "q1": emission.write_block(carry["q1"], confidence, at - length),
        "reviews": carry["reviews"] + block.passes,
        "calls": carry["calls"] + one[:, None] * block.proposal.calls,
        "bad": emission.write_block(carry["bad"], bad, at - length),
        "round": carry["round"] + 1,
      }

    carry = jax.lax.while_loop(
      lacks,
      round_,
      {
        "drafter": state.drafter,
        "reviewer": state.reviewer,
        "tokens": jnp.pad(tokens, ((0, 0), (0, self._room))),
        "count": jnp.where(active, 0, jnp.full_like(length, need)),
        "q": law,
        "q1": law,
        "reviews": jnp.zeros_like(length),
        "calls": jnp.zeros((rows, num_inner), jnp.int32),
        "bad": jnp.zeros(law.shape[:2], bool),
        "round": jnp.int32(0),
      },
    )
    index = length[:, None] + jnp.arange(self.width)[None]
    in_use = jnp.arange(self.width + 1)[None]
    calls = jnp.concatenate([carry["reviews"][:, None], carry["calls"]], axis=1)
    # What was cut is forgotten: somebody else may write there next.
    state = VerticalState(carry["drafter"], carry["reviewer"])
    return self.rewind(state, length + self.width), Proposal(
      tokens=jnp.take_along_axis(carry["tokens"], index, axis=1),
      count=jnp.full_like(length, self.width),
      q=carry["q"][:, : self.width + 1],
      q1=carry["q1"][:, : self.width + 1],
      copied=jnp.zeros((rows, self.width + 1), bool),
      calls=calls,
      bad=carry["bad"][:, : self.width + 1] & (in_use < need),
    )
