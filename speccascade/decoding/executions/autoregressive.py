"""One model alone: the reference that the others are tested against."""

import jax
import jax.numpy as jnp

from speccascade.decoding import emission
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.executions.stepwise import Step, stepwise
from speccascade.decoding.types import (
  SEQUENTIAL_P,
  SEQUENTIAL_Q,
  Decoded,
  LanguageModel,
)

Array = jax.Array


def drafter_alone(drafter, verifier, inputs, rngs, **settings) -> Decoded:
  """Samples from the drafter; the verifier is not called. See `sample`."""
  return sample(drafter, inputs, rngs, is_drafter=True, **settings)[0]


def verifier_alone(drafter, verifier, inputs, rngs, **settings) -> Decoded:
  """Samples from the verifier; the drafter is not called. See `sample`."""
  return sample(verifier, inputs, rngs, is_drafter=False, **settings)[0]


def sample(
  model: LanguageModel,
  inputs: Array,
  rngs: Array,
  *,
  sampling: sampling_lib.Sampling,
  max_decode_len: int,
  eos_id: int,
  is_drafter: bool,
  trace: bool = False,
  done: Array | None = None,
  target=None,
  alpha: Array | None = None,
) -> tuple[Decoded, Array]:
  """Samples from one model until EOS or the length limit.

  Args:
    model: the language model.
    inputs: [B, S] int32 source tokens, 0 is padding.
    rngs: [B] typed keys.
    sampling: how logits become laws.
    max_decode_len: static, most tokens of a row, EOS counted.
    eos_id: static, the id that ends a row.
    is_drafter: static, whether calls and records are the drafter's.
    trace: static, whether to record `Trace`.
    done: [B] bool, rows that are not decoded at all; None means none.
    target: not used: one model has one law.
    alpha: not used.

  Returns:
    The result, and [B] float32, the log-probability of each row's tokens at
    temperature 1, EOS included.
  """
  size = emission.buffer_size(max_decode_len, 0)

  def advance(models, prefix, u, stats):
    state, score = models
    calls = prefix.active.astype(jnp.int32)
    state, out = model.extend(state, prefix.last, calls)
    logits = out.logits[:, 0]
    plain, _, token = sampling_lib.step(sampling, logits, u)
    prob = jnp.take_along_axis(plain, token[:, None], axis=-1)[:, 0]
    score += jnp.where(prefix.active, jnp.log(prob), 0).astype(score.dtype)
    if is_drafter:
      stats = stats.replace(
        drafter_calls=stats.drafter_calls + calls,
        calls_by_model=stats.calls_by_model + calls[:, None],
      )
    else:
      stats = stats.replace(
        verifier_calls=stats.verifier_calls + calls,
        verifier_extends=stats.verifier_extends + calls,
      )
    step = Step(
      token=token,
      bad=~sampling_lib.is_law(logits),
      source=jnp.full_like(token, SEQUENTIAL_Q if is_drafter else SEQUENTIAL_P),
      deferred=jnp.zeros(token.shape, bool),
      q1=plain if is_drafter else None,
      p1=None if is_drafter else plain,
    )
    return (state, score), step, stats

  score = jnp.zeros(inputs.shape[:1], jnp.float32)
  decoded, (_, score) = stepwise(
    advance,
    (model.prefill(inputs, capacity=size), score),
    rngs,
    max_decode_len=max_decode_len,
    eos_id=eos_id,
    vocab_size=model.vocab_size,
    trace=trace,
    done=done,
  )
  return decoded, score
