"""Rounds of an adaptive drafter: each runs at the widest gamma of its rows."""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.adaptive import AdaptiveDrafter
from speccascade.decoding.loops.carry import (
  Carry,
  counted_shapes,
  pack,
  unpack,
)

Array = jax.Array
# The size of the next round, and what `pack` returned.
Packed = tuple[Array, tuple[Array, Carry]]


def of_widest(
  drafter: AdaptiveDrafter,
  round_of: Callable[[AdaptiveDrafter, Carry], Carry],
) -> Callable[[Carry], Carry]:
  """Returns a round that drafts as many tokens as the widest row asks for.

  Args:
    drafter: chooses the gammas of the rows.
    round_of: (drafter, `Carry`) -> `Carry`, a round with a drafter of one
      width.
  """

  def round_(carry: Carry) -> Carry:
    drafting, verifying = carry.models
    drafting, gamma = drafter.choose(drafting, carry.prefix)
    # Finished rows do not affect the width.
    widest = jnp.max(jnp.where(carry.done, 0, gamma))
    carry = carry.replace(models=(drafting, verifying))

    # Runs one round at the chosen size; at size 0, runs rounds until some row
    # is due to reconsider. XLA copies the caches into and out of the branches
    # of a `switch`, and updates those of a loop in place: so each size is a
    # loop.
    shapes = counted_shapes(carry)

    def is_next(size: int, state: Packed) -> Array:
      return state[0] == size

    def run(size: int, state: Packed) -> Packed:
      before = unpack(state[1], shapes)
      after = round_of(drafter.of_width(size), before)
      again = jnp.array(False)
      if not size:
        again = drafter.is_idle(after.models[0], after.prefix)
      return jnp.where(again, jnp.int32(size), jnp.int32(-1)), pack(after)

    state = widest, pack(carry)
    for size in drafter.sizes:
      state = jax.lax.while_loop(
        functools.partial(is_next, size), functools.partial(run, size), state
      )
    return unpack(state[1], shapes)

  return round_
