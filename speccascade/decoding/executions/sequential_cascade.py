"""Sequential cascades: the verifier is called only where the rule defers."""

import jax.numpy as jnp

from speccascade.decoding import emission, feeding
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.deferral import defers
from speccascade.decoding.execution import execution
from speccascade.decoding.executions.stepwise import Step, stepwise
from speccascade.decoding.types import SEQUENTIAL_P, SEQUENTIAL_Q, Decoded

CATCH_UP = 4  # tokens the verifier reads at once of those it has not seen


@execution("sequential", pass_width=CATCH_UP)
def sequential_cascade(drafter, verifier, inputs, rngs, settings) -> Decoded:
  """Drafts one token at a time; where the rule of q defers, p writes it.

  The verifier reads the tokens that it has not seen in blocks, not one by one,
  and only when it is asked. `verifier_calls` counts the positions deferred,
  `verifier_extends` the passes made. Arguments as in `speculative`, but both
  models are language models.

  Source: Narasimhan et al., Algorithm 2.
  """
  size = emission.buffer_size(settings.max_decode_len, CATCH_UP)

  def advance(models, prefix, u, stats):
    small, large = models
    one = prefix.active.astype(jnp.int32)
    small, out = drafter.extend(small, prefix.last, one)
    q_logits = out.logits[:, 0]
    q1, q = settings.sampling.laws(q_logits)
    left, right = settings.target.early(q1, settings.alpha)
    deferred = defers(left, right) & prefix.active
    large, p_logits, passes = feeding.catch_up(
      verifier,
      large,
      prefix.tokens,
      jnp.where(deferred, prefix.length, 0),
      width=CATCH_UP,
    )
    p1, p = settings.sampling.laws(p_logits)
    token = sampling_lib.draw(jnp.where(deferred[:, None], p, q), u)
    stats = stats.replace(
      drafter_calls=stats.drafter_calls + one,
      calls_by_model=stats.calls_by_model + one[:, None],
      verifier_calls=stats.verifier_calls + deferred.astype(jnp.int32),
      verifier_extends=stats.verifier_extends + passes,
    )
    bad = ~sampling_lib.is_law(q_logits)
    bad |= deferred & ~sampling_lib.is_law(p_logits)
    step = Step(
      token=token,
      bad=bad,
      source=jnp.where(deferred, SEQUENTIAL_P, SEQUENTIAL_Q),
      deferred=deferred,
      left=left,
      right=right,
      q1=q1,
      p1=p1,
      q=q,
      p=p,
      known_p=deferred,
    )
    return (small, large), step, stats

  models = (
    drafter.prefill(inputs, capacity=size),
    feeding.start(verifier, inputs, capacity=size + CATCH_UP),
  )
  return stepwise(
    advance,
    models,
    rngs,
    settings,
    vocab_size=verifier.vocab_size,
  )[0]
