"""Continuous batching: a row that ended makes way for a row that waits.

The rows of a batch do not see each other. So each row has the tokens that it
would have in any other batch.
"""

from collections.abc import Iterator, Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.loops.carry import Carry
from speccascade.decoding.programs.decoders import CallArguments, Decoder
from speccascade.decoding.programs.draft_models import DraftModels
from speccascade.decoding.records.automaton import NONE, Constraints
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.language_model import Array, LanguageModel

State = tuple[Carry, Array]  # of the rows, with their keys


def decode_continuously(
  decoder: Decoder,
  drafter: DraftModels | None,
  verifier: LanguageModel | None,
  inputs: np.ndarray,
  rngs: Array,
  alpha: float,
  sampling: Sampling,
  constraints: Constraints = NONE,
  *,
  rows: int,
  refill: int | None = None,
) -> Iterator[tuple[np.ndarray, Decoded]]:
  """Decodes many rows, a few of them at a time.

  Two programs are compiled, whatever the number of inputs. One reads `refill`
  inputs and puts them into the slots of rows that ended. The other runs rounds
  until `refill` rows more have ended; until all have ended, once no input
  waits.

  Arguments as in a call of the decoder, of N rows, and:

  Args:
    rows: R, static, the number of slots: rows that are decoded together.
    refill: static, inputs that are read at a time, 1 to R; None takes a quarter
      of R.

  Yields:
    The indices [n] of `inputs` that ended, and their `Decoded`, n rows of NumPy
    arrays. Each index comes once.

  Raises:
    ValueError: as a call does; or the method is not one loop.
  """
  if not decoder.method.execution.is_one_loop:
    raise ValueError(
      f"{decoder.method.label} may write a sequence again from its start, and"
      " its rows cannot be replaced one by one; decode whole batches"
    )
  program, arguments = decoder.call(
    drafter, verifier, inputs, rngs, alpha, sampling, constraints
  )
  refill = min(refill or -(-rows // 4), rows)

  def read(indices: Sequence[int] | np.ndarray) -> CallArguments:
    """Returns the arguments of `refill` inputs: the last index is repeated."""
    padded = np.full(refill, indices[-1])
    padded[: len(indices)] = indices
    begins = constraints.begins
    if begins is not None:
      begins = begins[padded]
    return arguments._replace(
      inputs=inputs[padded],
      rngs=rngs[padded],
      constraints=constraints.replace(begins=begins),
    )

  # Rows that continue have begun, each with keys of its own.
  going_on = arguments._replace(
    inputs=None, rngs=None, constraints=constraints.replace(begins=None)
  )
  state = _empty_state(program, read([0]), rows, rngs)
  # Slot i holds the input owner[i]; -1 is an empty slot.
  owner, waiting = np.full(rows, -1), np.arange(len(inputs))
  while len(waiting) or np.any(owner >= 0):
    # Fill empty slots, `refill` of them at a time. With 5 rows, empty slots 1,
    # 3, 4, inputs 7, 8 waiting and refill 3, the slots are [1, 3, 5]: slot 5
    # does not exist, and what is read for it is dropped.
    free = np.flatnonzero(owner < 0)
    while len(waiting) and len(free):
      num = min(refill, len(free), len(waiting))
      slots = np.full(refill, rows)
      slots[:num] = free[:num]
      owner[free[:num]] = waiting[:num]
      state = _fill(program, read(waiting[:num]), state, slots)
      free, waiting = free[num:], waiting[num:]
    # Run rounds until enough rows have ended to be worth a reading.
    going = rows - refill if len(waiting) else 0
    state, decoded = _advance(
      program,
      going_on,
      state,
      np.int32(going),
    )
    # Hand out the rows that ended, and empty their slots.
    ended = np.flatnonzero(np.asarray(state[0].done) & (owner >= 0))
    decoded = jax.device_get(decoded)
    yield (
      owner[ended],
      jax.tree.map(lambda x, ended=ended: x[ended], decoded),
    )
    owner[ended] = -1


def _empty_state(
  program: Decoder, arguments: CallArguments, rows: int, rngs: Array
) -> State:
  """Returns (carry, keys) of `rows` slots that are all done."""
  first = jax.eval_shape(functools.partial(_begin, program), arguments)
  carry = jax.tree.map(
    lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), first
  )
  done = jnp.ones((rows,), bool)
  return carry.replace(done=done), rngs[np.zeros(rows, int)]


def _begin(program: Decoder, arguments: CallArguments) -> Carry:
  return program.loop(arguments).begin()


# Caches are large, so a state is donated to the call that makes the next state.


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _fill(
  program: Decoder, arguments: CallArguments, state: State, slots: Array
) -> State:
  """Begins rows in some slots of the state; a slot past its end is dropped."""

  def put(old: Array, new: Array) -> Array:
    return old.at[slots].set(new, mode="drop")

  return jax.tree.map(put, state, (_begin(program, arguments), arguments.rngs))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _advance(
  program: Decoder, arguments: CallArguments, state: State, going: Array
) -> tuple[State, Decoded]:
  """Runs rounds until at most `going` rows are not done."""
  carry, rngs = state
  loop = program.loop(arguments._replace(rngs=rngs))
  carry = loop.advance(carry, going=going)
  return (carry, rngs), loop.decoded(carry)
