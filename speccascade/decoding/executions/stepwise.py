"""The loop of every method that writes one token at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from speccascade.decoding import draws, rounds, tracing
from speccascade.decoding.execution import LoopSettings
from speccascade.decoding.rounds import Carry
from speccascade.decoding.types import Decoded

Array = jax.Array


def stepwise(
  advance: Callable,
  models,
  rngs: Array,
  settings: LoopSettings,
  *,
  vocab_size: int,
  done: Array | None = None,
) -> tuple[Decoded, object]:
  """Writes token after token until EOS or the length limit.

  Args:
    advance: `(models, prefix, u, stats) -> (models, stats, token, bad, record)`
      with u [B, 1] uniforms, token [B, 1] int32, bad [B, 1] bool, where a law
      was no distribution, and the token's `Record`; it must leave the counters
      of inactive rows alone.
    models: the method's own state, a pytree.
    rngs: [B] typed keys.
    settings: `LoopSettings`.
    vocab_size: static.
    done: [B] bool, rows that are not decoded at all; None means none.

  Returns:
    The result, and the method's state at the end.
  """

  def write_one(carry: Carry) -> Carry:
    keys = draws.fold_in(rngs, carry.length - 1)
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
      recorded = tracing.record(carry, record, token, carry.length - 1)
    stats = stats.add(deferred=deferred[:, 0])
    return after.replace(models=models, stats=stats, **recorded)

  rows = rngs.shape[0]
  return rounds.run(
    write_one, models, rows, settings, vocab_size=vocab_size, done=done
  )
