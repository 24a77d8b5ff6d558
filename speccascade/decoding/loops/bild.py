"""BiLD as its authors' code runs it: fallback to the verifier, and rollback.

BiLD is greedy. The drafter writes while it is sure (max q >= fallback), at most
`WINDOW` tokens. Then the verifier scores these tokens and writes one more. The
first token that the verifier finds too unlikely is replaced by the verifier's
own, and the tokens after it are dropped. After such a rollback the verifier
writes one more token alone before the drafter is called again. It also writes
the very first token alone. A row ends at EOS and at the length limit, as in
every execution.

It runs as a speculative execution with two parts of its own: a drafter that
sometimes proposes nothing, and a verifier step that rolls back.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.autoregressive import (
  AutoregressiveDrafter,
  StopPolicy,
)
from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.interval import LOG, Interval
from speccascade.decoding.laws.rules import Pair
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import target
from speccascade.decoding.loops.execution import LoopSettings, execution
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.loops.speculative import speculative
from speccascade.decoding.records.block_records import Proposal, Verdict
from speccascade.decoding.records.decode_settings import FIXED, MAX_PROB
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array

WINDOW = 10  # most drafter tokens between two verifier steps
FALLBACK = 0.6  # the authors' default threshold on max q


@target(uses_q=False)
def _plain_verifier(
  q: Array, p: Array, *, alpha: Array, sampled: Pair
) -> Array:
  """The verifier at temperature 1, which the rollback reads."""
  # The sampled p is one-hot here, and would find every other token impossible.
  return p


class BildDrafter(AutoregressiveDrafter):
  """Drafts with fallback, and not at all at the start or after a rollback.

  The state ends with [B] int32, the length that the prefix will have at the
  next proposal if nothing is rolled back; -1 where no proposal was made yet. So
  a drafter detects a rollback by itself.
  """

  # A length of -1 is never that of a prefix: the first round of a turn drafts
  # nothing.

  def prefill(self, inputs: Array, *, capacity: int) -> tuple[State, Array]:
    (held,) = super().prefill(inputs, capacity=capacity)
    return held, jnp.full(inputs.shape[:1], -1, jnp.int32)

  def catch_up(
    self, state: tuple[State, Array], tokens: Array, upto: Array, *, wide: int
  ) -> tuple[State, Array]:
    held, expected = super().catch_up(state, tokens, upto, wide=wide)
    return held, jnp.full_like(expected, -1)

  def propose(
    self,
    state: Any,
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[Any, Proposal]:
    # A block of 4 drafts after a prefix of 7 tokens writes 5 tokens if all are
    # kept: the next prefix has 12. If it has fewer, there was a rollback.
    held, expected = state
    is_asked = prefix.length == expected
    propose = super().propose

    def ask(state: tuple[State]) -> tuple[tuple[State], Proposal]:
      return propose(
        state, prefix, rngs, sampling, needs_bonus_law=needs_bonus_law
      )

    def skip(state: tuple[State]) -> tuple[tuple[State], Proposal]:
      shapes = jax.eval_shape(ask, state)[1]
      return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    # Where no row asks, the model is not run at all.
    (held,), proposal = jax.lax.cond(jnp.any(is_asked), ask, skip, (held,))
    count = jnp.where(is_asked, proposal.count, 0)
    calls = jnp.where(is_asked[:, None], proposal.calls, 0)
    state = (held, prefix.length + count + 1)
    return state, proposal.replace(count=count, calls=calls)


@execution(
  "fallback and rollback",
  law="greedy, its own",
  draft_lengths=(FIXED, MAX_PROB),
  fallback=FALLBACK,
  interval=Interval(
    0, default=5.0, grid=(0.5, 1.0, 2.0, 3.0, 5.0, 8.0), scale=LOG
  ),
  unit="whole blocks",
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

  Args:
    drafter: a `LanguageModel`, the small one.
    verifier: a `LanguageModel`, the large one.
    inputs: as in `speculative`.
    rngs: as in `speculative`; greedy decoding reads them without effect.
    settings: `LoopSettings`. `alpha` is the rollback threshold on -log p(x), in
      nats; the authors' code has 5.0, and names 2 to 5 as usual. The threshold
      of `stop` on max q is the fallback; without a `stop` it is `FALLBACK`.

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
    # The first draft that the verifier finds too unlikely; G where none is.
    width = tokens.shape[1]
    index = jnp.arange(width)[None]
    prob = numerics.of_token(pi[:, :width], tokens)
    offends = (-jnp.log(prob) > alpha) & (index < count[:, None])
    first = jnp.min(jnp.where(offends, index, width), axis=1)
    # A draft may be too unlikely and still be the verifier's own choice. Then
    # nothing is rolled back, and later drafts are not looked at, as in the
    # authors' code.
    best = numerics.first_argmax(pi)
    is_best = best[:, :width] == tokens
    is_agreed = jnp.any(is_best & (index == first[:, None]), axis=1)
    num = jnp.where((first < width) & ~is_agreed, first, count)
    # The verifier's own choice, in place of that draft or after all of them.
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
