"""Continuous batching: a row that ended makes room for one that waits.

Rows of a batch do not see each other, so that the tokens of each are those that
it has in any other batch.
"""

from collections.abc import Iterator
import functools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.programs.decoders import Decoder
from speccascade.decoding.types import Array, Decoded


def decode_continuously(
  decoder: Decoder,
  drafter,
  verifier,
  inputs: np.ndarray,
  rngs: Array,
  alpha: float,
  sampling: Sampling,
  *,
  rows: int,
  refill: int | None = None,
) -> Iterator[tuple[np.ndarray, Decoded]]:
  """Decodes many rows, a few of them side by side.

  Two programs are compiled, whatever the number of inputs: one reads `refill`
  of them and puts them in the places of rows that ended, the other runs rounds
  until so many more ended, or all.

  Arguments as in a call of the decoder, of N rows, and:

  Args:
    rows: R, decoded side by side; static.
    refill: inputs read at a time, 1 to R; static. None takes a quarter of R.

  Yields:
    places [n] of `inputs`, each once, and their `Decoded`, n rows of NumPy
    arrays, as they end.

  Raises:
    ValueError: as a call does; or the method is no single loop.
  """
  if not decoder.method.execution.is_one_loop:
    raise ValueError(
      f"{decoder.method.label} may write a sequence again from its start, and"
      " its rows cannot be replaced one by one; decode whole batches"
    )
  program, *arguments = decoder.call(
    drafter, verifier, inputs, rngs, alpha, sampling
  )
  refill = min(refill or -(-rows // 4), rows)

  def some(places) -> tuple:
    """The arguments of these of the inputs; the last is there again."""
    at = np.resize(places, refill)
    at[len(places) :] = places[-1]
    return (*arguments[:2], inputs[at], rngs[at], *arguments[4:])

  first = jax.eval_shape(functools.partial(_begin, program), some([0]))
  carry = jax.tree.map(
    lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), first
  )
  state = carry.replace(done=jnp.ones((rows,), bool)), rngs[np.zeros(rows, int)]
  owner, waiting = np.full(rows, -1), np.arange(len(inputs))
  while len(waiting) or np.any(owner >= 0):
    free = np.flatnonzero(owner < 0)
    while len(waiting) and len(free):
      num = min(refill, len(free), len(waiting))
      owner[free[:num]], places = waiting[:num], np.full(refill, rows)
      places[:num] = free[:num]
      state = _fill(program, some(waiting[:num]), state, places)
      free, waiting = free[num:], waiting[num:]
    going = rows - refill if len(waiting) else 0
    settings = (*arguments[:2], *arguments[4:])
    state, decoded = _advance(program, settings, state, np.int32(going))
    ended = np.flatnonzero(np.asarray(state[0].done) & (owner >= 0))
    yield (
      owner[ended],
      jax.tree.map(lambda x, at=ended: x[at], jax.device_get(decoded)),
    )
    owner[ended] = -1


def _begin(program, arguments):
  return program.start(*arguments).begin()


# Caches are large: a state is given up for the next one.


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _fill(program, arguments, state, places):
  """Begins rows at these places of the state; one past its end is none."""
  put = lambda x, new: x.at[places].set(new, mode="drop")
  return jax.tree.map(put, state, (_begin(program, arguments), arguments[3]))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _advance(program, settings, state, going):
  """Runs rounds until at most `going` rows go on."""
  carry, rngs = state
  loop = program.start(*settings[:2], None, rngs, *settings[2:])
  carry = loop.advance(carry, going=going)
  return (carry, rngs), loop.decoded(carry)
