"""The loop of every execution: rounds that write tokens until all ended."""

from collections.abc import Callable
import dataclasses

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.drafting import feeding
from speccascade.decoding.loops import emission, prompts, tracing
from speccascade.decoding.loops.emission import Prefix
from speccascade.decoding.loops.execution import LoopSettings
from speccascade.decoding.types import Decoded, LogProbs, Stats, Trace

Array = jax.Array

TURN_WIDTH = 128  # what others wrote is read by so many tokens at a time


@struct.dataclass
class Carry:
  """State of every loop. L = buffer size.

  Attributes:
    tokens: [B, L] int32, start token (or a prompt's last) first.
    length: [B] int32, tokens written; finished rows keep it.
    begun: [B] int32, the length at which this turn began, 1 in the first.
    done: [B] bool.
    bad_step: [B] int32, -1 where all is well.
    models: the states of the models, a tuple. Of a speculative loop those of
      drafter and verifier; the verifier's holds `length - 1` tokens.
    stats: counters.
    trace: buffers aligned with `tokens`, or None.
    log_probs: likewise.
  """

  tokens: Array
  length: Array
  begun: Array
  done: Array
  bad_step: Array
  models: tuple
  stats: Stats
  trace: Trace | None
  log_probs: LogProbs | None

  @property
  def prefix(self) -> Prefix:
    return Prefix(self.tokens, self.length, ~self.done)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
  """What an execution is while it is traced: its rounds, ready to be run.

  Attributes:
    round_: (Carry) -> Carry, writes some tokens of every row that is not done.
    parts: the models and drafters whose states `Carry.models` begins with; the
      last one knows where rows start.
    prefill: () -> `Carry.models` before any round; None is that of the parts.
    inputs: [B, S] int32; None for a loop that only goes on.
    settings: `LoopSettings`.
    width: static, as what follows; gamma, 0 for methods without blocks.
    num_models: language models inside the drafter.
    done: [B] bool, rows that are not decoded at all; None means none.
  """

  round_: Callable[[Carry], Carry]
  parts: tuple
  inputs: Array | None
  settings: LoopSettings
  prefill: Callable[[], tuple] | None = None
  width: int = 0
  num_models: int = 1
  done: Array | None = None

  def run(self) -> Decoded:
    """Writes tokens until every row met EOS, a fault or the length limit."""
    return self.decoded(self.advance(self.begin()))

  def begin(self) -> Carry:
    """Returns the state before the first round."""
    settings, rows = self.settings, self.inputs.shape[0]
    size = settings.buffer_size(self.width)
    start = prompts.start(self.parts[-1], self.inputs)
    done = jnp.zeros((rows,), bool) if self.done is None else self.done
    of_part = lambda part: part.prefill(self.inputs, capacity=size)
    prefill = self.prefill or (lambda: tuple(map(of_part, self.parts)))
    trace = log_probs = None
    if settings.trace:
      trace = tracing.empty(rows, size, self.parts[-1].vocab_size)
    if settings.log_probs:
      log_probs = tracing.no_log_probs(rows, size)
    return Carry(
      tokens=emission.start_tokens(start, size),
      length=jnp.ones((rows,), jnp.int32),
      begun=jnp.ones((rows,), jnp.int32),
      done=done | (settings.max_decode_len < 1),
      bad_step=jnp.full((rows,), -1, jnp.int32),
      models=prefill(),
      stats=Stats.zeros(rows, self.width, self.num_models),
      trace=trace,
      log_probs=log_probs,
    )

  def advance(self, carry: Carry, rounds=None, going=0) -> Carry:
    """Runs rounds.

    Args:
      carry: where it begins.
      rounds: int32 [], most of them; None is no limit.
      going: int32 [], rows that may still go on when it stops.
    """
    shapes = jax.eval_shape(_counted, carry)
    is_on = lambda packed: jnp.sum(~_unpack(packed, shapes).done) > going
    step = lambda packed: _pack(self.round_(_unpack(packed, shapes)))
    if rounds is None:
      packed = jax.lax.while_loop(is_on, step, _pack(carry))
    else:
      _, packed = jax.lax.while_loop(
        lambda counted: (counted[0] < rounds) & is_on(counted[1]),
        lambda counted: (counted[0] + 1, step(counted[1])),
        (jnp.int32(0), _pack(carry)),
      )
    return _unpack(packed, shapes)

  def turn(self, carry: Carry, new: Array) -> Carry:
    """Returns the state before the first round of another turn.

    What others wrote follows what stands, as if a prompt had ended with it; all
    models read it but for its last token.

    Args:
      carry: rows that are still going stop where they are.
      new: [B, N] int32 tokens of others, `prompts.PAD` at either end. A row
        without any, or one that met a fault, has no turn: it stays done.
    """
    count = jnp.where(carry.bad_step < 0, prompts.lengths(new), 0)
    length, has_turn = carry.length + count, count > 0
    new = jnp.maximum(prompts.aligned(new), 0)
    tokens = emission.write_block(carry.tokens, new, carry.length)
    upto = jnp.where(has_turn, length - 1, 0)
    wide = min(new.shape[1], TURN_WIDTH)
    states = [
      feeding.catch_up(part, state, tokens, upto, wide=wide)
      for part, state in zip(self.parts, carry.models)
    ]
    return carry.replace(
      tokens=tokens,
      length=length,
      begun=length,
      done=~has_turn,
      models=(*states, *carry.models[len(states) :]),
      stats=jax.tree.map(jnp.zeros_like, carry.stats),
    )

  def decoded(self, carry: Carry) -> Decoded:
    """Returns what this turn wrote so far, 0 after EOS."""
    limit = self.settings.max_decode_len
    emitted = carry.length - carry.begun
    of_row = lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, limit)
    tokens, trace, log_probs = jax.tree.map(
      lambda x: jax.vmap(of_row)(x, carry.begun),
      (carry.tokens, carry.trace, carry.log_probs),
    )
    inside = jnp.arange(limit)[None] < emitted[:, None]
    tokens = jnp.where(inside, tokens, 0)
    if log_probs is not None:
      log_probs = tracing.known(log_probs, inside, self.settings.has_target)
    return Decoded(
      tokens, emitted, carry.stats, trace, carry.bad_step, log_probs
    )


# What is counted is some twenty small arrays. Between rounds they are one: to
# write each would be an operation of its own, as dear as to write all.


def _counted(carry: Carry) -> dict:
  names = ("length", "done", "bad_step", "stats")
  return {name: getattr(carry, name) for name in names}


@jax.named_scope("count")
def _pack(carry: Carry) -> tuple[Array, Carry]:
  """Returns all that is counted as [B, n] int32, bit by bit, and the rest."""
  columns = [
    x.astype(jnp.int32)
    if x.dtype == bool
    else jax.lax.bitcast_convert_type(x, jnp.int32)
    for x in jax.tree.leaves(_counted(carry))
  ]
  columns = [x.reshape(x.shape[0], -1) for x in columns]
  packed = jnp.concatenate(columns, axis=1)
  return packed, carry.replace(**dict.fromkeys(_counted(carry)))


def _unpack(packed: tuple[Array, Carry], shapes: dict) -> Carry:
  """Returns what was packed; `shapes` are those of `_counted`."""
  leaves, tree = jax.tree.flatten(shapes)
  ends = np.cumsum([x.size // x.shape[0] for x in leaves])
  columns = jnp.split(packed[0], ends[:-1], axis=1)
  leaves = [
    x.reshape(like.shape) != 0
    if like.dtype == bool
    else jax.lax.bitcast_convert_type(x.reshape(like.shape), like.dtype)
    for x, like in zip(columns, leaves)
  ]
  return packed[1].replace(**tree.unflatten(leaves))


@jax.named_scope("commit")
def commit(carry, new, num, fault, settings) -> tuple[Carry, Array]:
  """Writes a block, cut at its EOS, the length limit and the first fault.

  Args:
    carry: rows that are done stay as they are.
    new: [B, N] int32 tokens.
    num: [B] int32 of them to write.
    fault: [B] int32, the first that rests on a law that is no distribution; the
      row ends there unless it ended before. N or more where none does.
    settings: `LoopSettings`.

  Returns:
    The carry, and [B] int32 tokens emitted.
  """
  active = ~carry.done
  room = settings.max_decode_len + carry.begun - carry.length
  emitted, ended = emission.cut(
    new, jnp.minimum(num, fault), room, settings.eos_id
  )
  emitted = jnp.where(active, emitted, 0)
  bad = active & ~ended & (fault < num)
  length = carry.length + emitted
  carry = carry.replace(
    tokens=emission.write_block(carry.tokens, new, carry.length),
    length=length,
    done=carry.done | ended | bad,
    bad_step=jnp.where(bad, length - carry.begun, carry.bad_step),
  )
  return carry, emitted
