"""Sequential cascades: the verifier is called only where the rule defers."""

import jax
import jax.numpy as jnp

from speccascade.decoding.drafting import feeding
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.deferral import defers
from speccascade.decoding.loops.emission import Prefix
from speccascade.decoding.loops.execution import LoopSettings, execution
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.loops.stepwise import NextToken, stepwise
from speccascade.decoding.loops.tracing import Record
from speccascade.decoding.types import (
  SEQUENTIAL_P,
  SEQUENTIAL_Q,
  LanguageModel,
  Stats,
)

Array = jax.Array

CATCH_UP = 4  # tokens the verifier reads at once of those it has not seen


@execution("sequential", pass_width=CATCH_UP)
def sequential_cascade(
  drafter: LanguageModel,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
) -> Loop:
  """Drafts one token at a time; where the rule of q defers, p writes it.

  The verifier reads the tokens that it has not seen in blocks, not one by one,
  and only when it is asked. `verifier_calls` counts the positions deferred,
  `verifier_extends` the passes made. Arguments as in `speculative`, but both
  models are language models.

  Source: Narasimhan et al. (arXiv 2405.19261), Algorithm 2.
  """

  def advance(
    models: tuple, prefix: Prefix, u: Array, stats: Stats
  ) -> NextToken:
    small, large = models
    calls = prefix.active.astype(jnp.int32)
    small, q_out = drafter.extend(small, prefix.last, calls)
    q1, q, _, is_q = settings.sampling.step(q_out.logits)
    left, right = settings.target.early(q1, settings.alpha)
    deferred = defers(left, right) & prefix.active[:, None]
    large, p_logits, passes = feeding.feed_to(
      verifier,
      large,
      prefix.tokens,
      jnp.where(deferred[:, 0], prefix.length, 0),
      first=prefix.length - 1,
      read=1,
      narrow=CATCH_UP,
      wide=CATCH_UP,
    )
    p1, p, _, is_p = settings.sampling.step(p_logits)
    pi = jnp.where(deferred[..., None], p, q)
    token = draws.draw(pi, u)
    stats = stats.add(
      drafter_calls=calls,
      calls_by_model=calls[:, None],
      verifier_calls=deferred[:, 0],
      verifier_extends=passes,
    )
    source = jnp.where(deferred, SEQUENTIAL_P, SEQUENTIAL_Q)
    record = Record(
      source, deferred, left, right, q1, p1, q, p, pi, known_p=deferred
    )
    bad = ~is_q
    # A row that did not defer read no distribution of the verifier.
    bad |= deferred & ~is_p
    return NextToken((small, large), stats, token, bad, record)

  def prefill() -> tuple:
    size = settings.buffer_size(CATCH_UP)
    small = drafter.prefill(inputs, capacity=size)
    return small, verifier.prefill(inputs, capacity=size + CATCH_UP)

  return stepwise(
    advance,
    parts=(drafter, verifier),
    inputs=inputs,
    rngs=rngs,
    settings=settings,
    prefill=prefill,
  )
