"""Sequential cascades: the verifier is called only where the rule defers."""

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws
from speccascade.decoding.laws.rules import defers
from speccascade.decoding.loops.execution import LoopSettings, execution
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.loops.stepwise import NextToken, stepwise
from speccascade.decoding.loops.tracing import Record
from speccascade.decoding.records import feeding
from speccascade.decoding.records.block_records import (
  SEQUENTIAL_P,
  SEQUENTIAL_Q,
  Stats,
)
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.readers import prefill_parts
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array

# Where the verifier is called, it first reads the tokens that the drafter wrote
# since it was last called, this many in one pass. If the rule defers at tokens
# 3 and 9, it reads tokens 0..2 in one pass, and tokens 3..8 in two.
CATCH_UP = 4


@execution("sequential", pass_width=CATCH_UP)
def sequential_cascade(
  drafter: LanguageModel,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
) -> Loop:
  """Returns the loop in which the verifier writes where the rule defers.

  The rule reads q alone, so the verifier does not run where it does not defer.
  The verifier reads the tokens that it has not seen in blocks, and only when it
  is asked. `verifier_calls` counts the positions at which the rule deferred;
  `verifier_extends` counts the passes made.

  Args:
    drafter: a `LanguageModel`, the small one.
    verifier: a `LanguageModel`, the large one.
    inputs: as in `speculative`.
    rngs: as in `speculative`.
    settings: `LoopSettings`; the target has a rule of q alone.

  Source: Narasimhan et al. (arXiv 2405.19261), Algorithm 2.
  """

  def advance(
    models: tuple[State, ...], prefix: Prefix, u: Array, stats: Stats
  ) -> NextToken:
    # The drafter reads the last token, and the rule reads the drafter.
    small, large = models
    calls = prefix.active.astype(jnp.int32)
    small, q_out = drafter.extend(small, prefix.last, calls)
    q1, q, _, is_q = settings.sampling.step(q_out.logits)
    left, right = settings.target.early(q1, settings.alpha_after(prefix))
    deferred = defers(left, right) & prefix.active[:, None]
    # Rows that do not defer feed the verifier nothing. Where no row defers the
    # verifier does not run.
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
    # Draw from the model that the rule chose.
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

  def prefill() -> tuple[State, ...]:
    size = settings.buffer_size(CATCH_UP)
    models = (drafter, verifier)
    return prefill_parts(models, inputs, size, size + CATCH_UP)

  return stepwise(
    advance,
    parts=(drafter, verifier),
    inputs=inputs,
    rngs=rngs,
    settings=settings,
    prefill=prefill,
  )
