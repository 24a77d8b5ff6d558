"""The loop of methods that write one token at a time, and one model alone.

One model alone is the reference that the other methods are tested against.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws, numerics
from speccascade.decoding.loops import rounds, tracing
from speccascade.decoding.loops.carry import Carry
from speccascade.decoding.loops.execution import LoopSettings, execution
from speccascade.decoding.loops.observers import Phases, by_phase
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.loops.tracing import Record
from speccascade.decoding.records.block_records import (
  SEQUENTIAL_P,
  SEQUENTIAL_Q,
  Decoded,
  Stats,
)
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class NextToken(NamedTuple):
  """What a method wrote in one step, and what the step cost.

  Attributes:
    models: the states of the models after the step, as in `Carry.models`.
    stats: the counters after the step. The counters of rows that are done are
      as they were.
    token: [B, 1] int32.
    bad: [B, 1] bool, whether a model gave no distribution.
    record: the `Record` of the token.
  """

  models: tuple[Any, ...]
  stats: Stats
  token: Array
  bad: Array
  record: Record


def stepwise(
  advance: Callable[[tuple[Any, ...], Prefix, Array, Stats], NextToken],
  *,
  parts: tuple[LanguageModel, ...],
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
  prefill: Callable[[], tuple[Any, ...]] | None = None,
  done: Array | None = None,
) -> Loop:
  """Returns the loop that writes token after token.

  A round of this loop is one step, which writes one token of each row.

  Args:
    advance: `(models, prefix, u, stats) -> NextToken`, from the states of the
      models, the tokens so far, [B, 1] uniforms and the counters. It feeds
      nothing to rows that are done.
    parts: as in `rounds.Loop`.
    inputs: [B, S] int32, as in `rounds.Loop`.
    rngs: [B] typed keys, one for each row.
    settings: `LoopSettings`.
    prefill: as in `rounds.Loop`.
    done: [B] bool, as in `rounds.Loop`.
  """

  def write_one(carry: Carry) -> Carry:
    # The keys of a turn count from its own first step, so a turn does not
    # depend on the length of the turns before it.
    step = carry.length - carry.begun
    keys = draws.fold_in(rngs, step)
    u = draws.uniforms(draws.fold_in(keys, draws.DRAW_TAG), 1)
    models, stats, token, bad, record = advance(
      carry.models, carry.prefix, u, carry.stats
    )
    # Commit a block of one token. A fault at index 0 of it leaves no token.
    num = jnp.ones_like(carry.length)
    fault = jnp.where(bad[:, 0], 0, num)
    after, emitted = rounds.commit(carry, token, num, fault, settings)
    # Count and record; a token that was not written did not defer.
    is_written = (emitted > 0)[:, None]
    deferred = record.deferred & is_written
    counts, columns = {}, {}
    if settings.phased is not None:
      phase = settings.phased.phase(cast(Array, carry.phase_state))[:, None]
      counts = {"tokens_by_phase": by_phase(phase, is_written)}
      columns = {"phase": phase}
    recorded = {}
    if settings.records:
      record = record.replace(deferred=deferred, extra=columns)
      recorded = tracing.record(carry, record, token, step)
    stats = stats.add(deferred=deferred[:, 0], **counts)
    return after.replace(models=models, stats=stats, **recorded)

  return Loop(
    round_=write_one,
    parts=parts,
    inputs=inputs,
    settings=settings,
    prefill=prefill,
    observers=() if settings.phased is None else (Phases(),),
    done=done,
  )


@execution("autoregressive", law="q", needs_verifier=False)
def drafter_alone(
  drafter: LanguageModel,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
) -> Loop:
  """Returns the loop that samples from the drafter; there is no verifier."""
  return sampling_loop(drafter, inputs, rngs, settings, is_drafter=True)


@execution("autoregressive", needs_drafter=False)
def verifier_alone(
  drafter: LanguageModel,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
) -> Loop:
  """Returns the loop that samples from the verifier; there is no drafter."""
  return sampling_loop(verifier, inputs, rngs, settings, is_drafter=False)


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

  Arguments as in `sampling_loop`.

  Returns:
    The `Decoded`, and [B] float32, the log-probability of the tokens of each
    row at temperature 1, EOS included.
  """
  loop = sampling_loop(
    model, inputs, rngs, settings, is_drafter=is_drafter, done=done
  )
  carry = loop.advance(loop.begin())
  return loop.decoded(carry), carry.models[1]


def sampling_loop(
  model: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
  *,
  is_drafter: bool,
  done: Array | None = None,
) -> Loop:
  """Returns the loop that samples from one model.

  `Carry.models` is the state of the model and the score, [B] float32: the
  log-probability of the tokens so far at temperature 1.

  Args:
    model: the language model.
    inputs: [B, S] int32, as the model's `prefill` takes them.
    rngs: [B] typed keys.
    settings: `LoopSettings`. One model has one distribution, so the target is
      not used.
    is_drafter: static, whether calls and records are those of the drafter.
    done: [B] bool, rows that are not decoded at all; None decodes every row.
  """

  def advance(
    models: tuple[Any, ...], prefix: Prefix, u: Array, stats: Stats
  ) -> NextToken:
    state, score = models
    calls = prefix.active.astype(jnp.int32)
    state, out = model.extend(state, prefix.last, calls)
    plain, law, token, is_law = settings.sampling.step(out.logits, u[..., None])
    # The score is at temperature 1, whatever the token was drawn from.
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
    return NextToken((state, score), stats, token, ~is_law, record)

  def prefill() -> tuple[State, Array]:
    state = model.prefill(inputs, capacity=settings.buffer_size(0))
    return state, jnp.zeros(inputs.shape[:1], jnp.float32)

  return stepwise(
    advance,
    parts=(model,),
    inputs=inputs,
    rngs=rngs,
    settings=settings,
    prefill=prefill,
    done=done,
  )
