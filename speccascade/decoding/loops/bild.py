"""BiLD as its authors' code runs it: fallback to the verifier, and rollback.

Greedy. The drafter writes while it is sure (max q >= fallback), at most
`WINDOW` tokens; then the verifier rescores them and writes one more. The first
of them that the verifier finds too unlikely is replaced, what follows it is
dropped, and the verifier writes one more token on its own before the drafter is
asked again. It starts with a verifier step, too. Here it stops at EOS and at
the length limit like everything else.
"""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.autoregressive import (
  AutoregressiveDrafter,
  StopPolicy,
)
from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.interval import LOG, Interval
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import target
from speccascade.decoding.loops.execution import (
  FIXED,
  MAX_PROB,
  LoopSettings,
  execution,
)
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.loops.speculative import speculative
from speccascade.decoding.types import LanguageModel, Proposal, State, Verdict

Array = jax.Array

WINDOW = 10  # most drafter tokens between two verifier steps
FALLBACK = 0.6  # the authors' default threshold on max q


# The rescoring reads p at temperature 1, not the one-hot law.
@target(uses_q=False)
def _plain_verifier(q, p, *, alpha, sampled):
  return p


class BildState(struct.PyTreeNode):
  """What the drafter knows.

  Attributes:
    draft: what its model holds.
    expected: [B] int32, the length if nothing was rolled back.
  """

  draft: State
  expected: Array


class BildDrafter(AutoregressiveDrafter):
  """Drafts with fallback, and not at all at the start or after a rollback."""

  def prefill(self, inputs: Array, *, capacity: int) -> BildState:
    draft = super().prefill(inputs, capacity=capacity)
    return BildState(draft, jnp.full(inputs.shape[:1], -1, jnp.int32))

  def rewind(self, state: BildState, length: Array) -> BildState:
    return state.replace(draft=super().rewind(state.draft, length))

  def catch_up(
    self, state: BildState, tokens: Array, upto: Array, *, wide: int
  ) -> BildState:
    draft = super().catch_up(state.draft, tokens, upto, wide=wide)
    return BildState(draft, jnp.full_like(state.expected, -1))

  def propose(
    self,
    state: BildState,
    tokens: Array,
    length: Array,
    rngs: Array,
    sampling: Sampling,
    *,
    bonus_law: bool,
    active: Array,
  ) -> tuple[BildState, Proposal]:
    is_asked = length == state.expected
    propose = super().propose

    def ask(draft: State) -> tuple[State, Proposal]:
      return propose(
        draft,
        tokens,
        length,
        rngs,
        sampling,
        bonus_law=bonus_law,
        active=active,
      )

    def skip(draft: State) -> tuple[State, Proposal]:
      shapes = jax.eval_shape(ask, draft)[1]
      return draft, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    draft, proposal = jax.lax.cond(jnp.any(is_asked), ask, skip, state.draft)
    count = jnp.where(is_asked, proposal.count, 0)
    calls = jnp.where(is_asked[:, None], proposal.calls, 0)
    state = BildState(draft, length + count + 1)
    return state, proposal.replace(count=count, calls=calls)


@execution(
  "fallback and rollback",
  law="greedy, its own",
  draft_lengths=(FIXED, MAX_PROB),
  fallback=FALLBACK,
  interval=Interval(
    0, default=5.0, grid=(0.5, 1.0, 2.0, 3.0, 5.0, 8.0), scale=LOG
  ),
  is_predictable=False,
)
def bild(
  drafter: LanguageModel,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
) -> Loop:
  """Returns the loop that decodes greedily with fallback and rollback.

  Arguments as in `speculative`, but both models are language models, and:

  Args:
    settings: alpha is the rollback threshold on -log p(x), nats; the authors'
      code has 5.0, and names 2 to 5 as usual. The threshold of `stop` on max q
      is the fallback; without it, that of the authors.

  Source: Kim et al. (NeurIPS 2023, arXiv 2302.07863), and their code's
  decisions.
  """
  alpha = settings.alpha

  def rollback(
    tokens: Array,
    count: Array,
    q: Array,
    pi: Array,
    u_accept: Array,
    u_draw: Array,
  ) -> Verdict:
    width = tokens.shape[1]
    index = jnp.arange(width)[None]
    prob = numerics.of_token(pi[:, :width], tokens)
    offends = (-jnp.log(prob) > alpha) & (index < count[:, None])
    first = jnp.min(jnp.where(offends, index, width), axis=1)
    # Where the verifier's own choice is the draft there is no rollback, and
    # later offenders are not looked at.
    best = numerics.first_argmax(pi)
    is_best = best[:, :width] == tokens
    is_agreed = jnp.any(is_best & (index == first[:, None]), axis=1)
    num = jnp.where((first < width) & ~is_agreed, first, count)
    token = numerics.of_token(best, num)
    return Verdict(num, token, jnp.minimum(num + 1, count), read=num + 1)

  stop = settings.stop
  if stop is None:
    stop = StopPolicy(jnp.float32(FALLBACK), before_draw=True)
  settings = dataclasses.replace(
    settings, target=_plain_verifier, verify=rollback
  )
  return speculative.run(
    BildDrafter(drafter, WINDOW, stop, behind=4),
    verifier,
    inputs,
    rngs,
    settings,
  )
