"""One model alone: the reference that the others are tested against."""

import jax
import jax.numpy as jnp

from speccascade.decoding import emission, numerics
from speccascade.decoding.execution import LoopSettings, execution
from speccascade.decoding.executions.stepwise import stepwise
from speccascade.decoding.tracing import Record
from speccascade.decoding.types import (
  SEQUENTIAL_P,
  SEQUENTIAL_Q,
  Decoded,
  LanguageModel,
)

Array = jax.Array


@execution("autoregressive", law="q", needs_verifier=False)
def drafter_alone(drafter, verifier, inputs, rngs, settings) -> Decoded:
  """Samples from the drafter; there is no verifier. See `sample`."""
  return sample(drafter, inputs, rngs, settings, is_drafter=True)[0]


@execution("autoregressive", needs_drafter=False)
def verifier_alone(drafter, verifier, inputs, rngs, settings) -> Decoded:
  """Samples from the verifier; there is no drafter. See `sample`."""
  return sample(verifier, inputs, rngs, settings, is_drafter=False)[0]


def sample(
  model: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
  *,
  is_drafter: bool,
  done: Array | None = None,
) -> tuple[Decoded, Array]:
  """Samples from one model until EOS or the length limit.

  Args:
    model: the language model.
    inputs: [B, S] int32 source tokens, 0 is padding.
    rngs: [B] typed keys.
    settings: `LoopSettings`; one model has one law, its target is not asked.
    is_drafter: static, whether calls and records are the drafter's.
    done: [B] bool, rows that are not decoded at all; None means none.

  Returns:
    The result, and [B] float32, the log-probability of each row's tokens at
    temperature 1, EOS included.
  """

  def advance(models, prefix, u, stats):
    state, score = models
    calls = prefix.active.astype(jnp.int32)
    state, out = model.extend(state, prefix.last, calls)
    plain, law, token, is_law = settings.sampling.step(out.logits, u[..., None])
    prob = numerics.of_token(plain, token)[:, 0]
    score += jnp.where(prefix.active, jnp.log(prob), 0).astype(score.dtype)
    deferred = jnp.zeros(token.shape, bool)
    if is_drafter:
      stats = stats.add(drafter_calls=calls, calls_by_model=calls[:, None])
      source = jnp.full_like(token, SEQUENTIAL_Q)
      record = Record(source, deferred, q1=plain, q=law, pi=law)
    else:
      stats = stats.add(verifier_calls=calls, verifier_extends=calls)
      source = jnp.full_like(token, SEQUENTIAL_P)
      record = Record(source, deferred, p1=plain, p=law, pi=law)
    return (state, score), stats, token, ~is_law, record

  size = emission.buffer_size(settings.max_decode_len, 0)
  score = jnp.zeros(inputs.shape[:1], jnp.float32)
  decoded, (_, score) = stepwise(
    advance,
    (model.prefill(inputs, capacity=size), score),
    rngs,
    settings,
    vocab_size=model.vocab_size,
    done=done,
  )
  return decoded, score
