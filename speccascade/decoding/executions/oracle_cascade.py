"""Oracle cascade: the rule sees p for free. A reference, not a fast method."""

import jax.numpy as jnp

from speccascade.decoding import emission
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.deferral import defers
from speccascade.decoding.execution import execution
from speccascade.decoding.executions.stepwise import Step, stepwise
from speccascade.decoding.types import SEQUENTIAL_P, SEQUENTIAL_Q, Decoded


@execution("oracle")
def oracle_cascade(drafter, verifier, inputs, rngs, settings) -> Decoded:
  """Draws every token from the target itself: both models run at every step.

  `verifier_calls` counts the positions that the rule deferred, as the paper's
  Figure 1 does; `verifier_extends` the passes that were really made. Arguments
  as in `speculative`, but both models are language models.

  Source: Narasimhan et al., Algorithm 3.
  """
  size = emission.buffer_size(settings.max_decode_len, 0)

  def advance(models, prefix, u, stats):
    one = prefix.active.astype(jnp.int32)
    small, q_out = drafter.extend(models[0], prefix.last, one)
    large, p_out = verifier.extend(models[1], prefix.last, one)
    q1, q = settings.sampling.laws(q_out.logits)
    p1, p = settings.sampling.laws(p_out.logits)
    draw = lambda pi: sampling_lib.draw(pi, u[:, None])
    pi, left, right = settings.target.at(
      q1, p1, draw, alpha=settings.alpha, sampled=(q, p)
    )
    token, left, right = draw(pi)[:, 0], left[:, 0], right[:, 0]
    deferred = defers(left, right) & prefix.active
    stats = stats.replace(
      drafter_calls=stats.drafter_calls + one,
      calls_by_model=stats.calls_by_model + one[:, None],
      verifier_calls=stats.verifier_calls + deferred.astype(jnp.int32),
      verifier_extends=stats.verifier_extends + one,
    )
    bad = ~(
      sampling_lib.is_law(q_out.logits) & sampling_lib.is_law(p_out.logits)
    )
    step = Step(
      token=token,
      bad=bad[:, 0],
      source=jnp.where(deferred, SEQUENTIAL_P, SEQUENTIAL_Q),
      deferred=deferred,
      left=left,
      right=right,
      q1=q1[:, 0],
      p1=p1[:, 0],
      q=q[:, 0],
      p=p[:, 0],
    )
    return (small, large), step, stats

  models = (
    drafter.prefill(inputs, capacity=size),
    verifier.prefill(inputs, capacity=size),
  )
  return stepwise(
    advance,
    models,
    rngs,
    settings,
    vocab_size=verifier.vocab_size,
  )[0]
