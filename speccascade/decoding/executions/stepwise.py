"""The loop of every method that writes one token at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from speccascade.decoding import draws, rounds, tracing
from speccascade.decoding.execution import LoopSettings
from speccascade.decoding.rounds import Carry, Loop

Array = jax.Array


def stepwise(
  advance: Callable,
  rngs: Array,
  settings: LoopSettings,
  **loop,
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
    models, stats, token, bad, record = advance(
      carry.models, carry.prefix, u, carry.stats
    )
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
