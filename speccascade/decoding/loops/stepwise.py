"""One token at a time: the loop of such methods, and one model alone.

One model alone is the reference that the others are tested against.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws, numerics
from speccascade.decoding.loops import rounds, tracing
from speccascade.decoding.loops.carry import Carry
from speccascade.decoding.loops.execution import LoopSettings, execution
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.loops.tracing import Record
from speccascade.decoding.types import (
  SEQUENTIAL_P,
  SEQUENTIAL_Q,
  Decoded,
  LanguageModel,
)

Array = jax.Array


def stepwise(
  advance: Callable, rngs: Array, settings: LoopSettings, **loop
) -> Loop:
  """Returns the loop that writes token after token.

  Args:
    advance: `(models, prefix, u, stats) -> (models, stats, token, bad, record)`
      with u [B, 1] uniforms, token [B, 1] int32, bad [B, 1] bool, where a law
      was no distribution, and the token's `Record`; it must leave the counters
      of inactive rows alone.
    rngs: [B] typed keys.
    settings: `LoopSettings`.
    **loop: further fields of a `rounds.Loop`.
  """

  def write_one(carry: Carry) -> Carry:
    step = carry.length - carry.begun
    keys = draws.fold_in(rngs, step)
    u = draws.uniforms(draws.fold_in(keys, draws.DRAW_TAG), 1)
    here = (carry.models, carry.prefix, u, carry.stats)
    models, stats, token, bad, record = advance(*here)
    num = jnp.ones_like(carry.length)
    fault = jnp.where(bad[:, 0], 0, num)
    after, emitted = rounds.commit(carry, token, num, fault, settings)
    deferred = record.deferred & (emitted > 0)[:, None]
    recorded = {}
    if settings.records:
      record = record.replace(deferred=deferred)
      recorded = tracing.record(carry, record, token, step)
    stats = stats.add(deferred=deferred[:, 0])
    return after.replace(models=models, stats=stats, **recorded)

  return Loop(round_=write_one, settings=settings, **loop)


@execution("autoregressive", law="q", needs_verifier=False)
def drafter_alone(
  drafter: LanguageModel,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
) -> Loop:
  """Samples from the drafter; there is no verifier. See `sampling`."""
  return sampling(drafter, inputs, rngs, settings, is_drafter=True)


@execution("autoregressive", needs_drafter=False)
def verifier_alone(
  drafter: LanguageModel,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
) -> Loop:
  """Samples from the verifier; there is no drafter. See `sampling`."""
  return sampling(verifier, inputs, rngs, settings, is_drafter=False)


def sample(model: LanguageModel, *args, **kwargs) -> tuple[Decoded, Array]:
  """Samples from one model until EOS or the length limit; see `sampling`.

  Returns:
    The result, and [B] float32, the log-probability of each row's tokens at
    temperature 1, EOS included.
  """
  loop = sampling(model, *args, **kwargs)
  carry = loop.advance(loop.begin())
  return loop.decoded(carry), carry.models[1]


def sampling(
  model: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
  *,
  is_drafter: bool,
  done: Array | None = None,
) -> Loop:
  """Returns the loop that samples from one model; it keeps the score, too.

  Args:
    model: the language model.
    inputs: [B, S] int32, as its `prefill` takes them.
    rngs: [B] typed keys.
    settings: `LoopSettings`; one model has one law, its target is not asked.
    is_drafter: static, whether calls and records are the drafter's.
    done: [B] bool, rows that are not decoded at all; None means none.
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

  def prefill():
    state = model.prefill(inputs, capacity=settings.buffer_size(0))
    return state, jnp.zeros(inputs.shape[:1], jnp.float32)

  loop = {"parts": (model,), "inputs": inputs, "prefill": prefill, "done": done}
  return stepwise(advance, rngs, settings, **loop)
