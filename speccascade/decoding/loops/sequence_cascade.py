"""Sequence cascade: the drafter writes a whole output, which may be discarded.

Where the drafter's output is not likely enough to the drafter itself, the
verifier writes the output again from its start.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws
from speccascade.decoding.laws.interval import LOG_REST, Interval
from speccascade.decoding.loops.execution import Execution, LoopSettings
from speccascade.decoding.loops.stepwise import sample
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.language_model import LanguageModel

Array = jax.Array

# Folded into the keys of the rewrite. No step has this number, so the rewrite
# does not use the uniforms of the discarded draft again.
REWRITE_TAG = 2**31 - 1


def _host_alpha(alpha: float) -> float:
  """Returns the log threshold log(1 - alpha), in float64."""
  # A sequence of 30 tokens has a probability of about exp(-20) = 2e-9. In
  # float32 an alpha of 1 - 2e-9 would be 1, and nothing would be discarded.
  return math.log1p(-alpha) if alpha < 1 else -math.inf


def _decode(
  drafter: LanguageModel,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
  *,
  per_token: bool = False,
) -> Decoded:
  """Returns the drafter's sequences, or the verifier's where they are unlikely.

  A row defers where sum log q, at temperature 1 and with the EOS, is below the
  threshold.

  Args:
    drafter: a `LanguageModel`, the small one.
    verifier: a `LanguageModel`, the large one.
    inputs: as in `speculative`.
    rngs: as in `speculative`.
    settings: `LoopSettings`; `alpha` is the log threshold, see `_host_alpha`.
    per_token: static; compares the mean of log q over the tokens instead.

  Returns:
    The `Decoded`. `Stats.deferred` counts every token of a rewritten row.

  Source: Narasimhan et al. (arXiv 2405.19261), Eq. (1) on the sequence
  probability.
  """
  # Draft.
  draft, score = sample(drafter, inputs, rngs, settings, is_drafter=True)
  if per_token:
    score = score / jnp.maximum(draft.lengths, 1).astype(score.dtype)
  # A row in which the drafter gave no distribution ends with that fault: it is
  # not silently written again.
  is_bad = draft.bad_step >= 0
  keep = (score >= settings.alpha) | is_bad
  # Write the other rows again.
  rewrite, _ = sample(
    verifier,
    inputs,
    draws.fold_in(rngs, REWRITE_TAG),
    settings,
    is_drafter=False,
    done=keep,
  )

  def choose(first: Array, second: Array) -> Array:
    # [B, 1, ...] against [B, ...], whatever the number of axes.
    mask = jnp.expand_dims(keep, tuple(range(1, first.ndim)))
    return jnp.where(mask, first, second)

  # Both passes were paid for, whichever output a row has.
  stats = jax.tree.map(jnp.add, draft.stats, rewrite.stats)
  stats = stats.replace(deferred=jnp.where(keep, 0, rewrite.lengths))
  chosen = jax.tree.map(choose, draft, rewrite).replace(stats=stats)
  if not settings.trace:
    return chosen
  # The rule looked at the whole sequence: its sides are the same at each token.
  trace, shape = chosen.trace, chosen.tokens.shape
  trace = trace.replace(
    deferred=jnp.broadcast_to(~keep[:, None], shape),
    left=jnp.broadcast_to(score[:, None], shape),
    right=jnp.full(shape, settings.alpha, jnp.float32),
  )
  return chosen.replace(trace=trace)


# A whole output has a probability of exp(-1) to exp(-30), so the alphas of the
# sequence cascade crowd below 1.
sequence_cascade = Execution(
  _decode,
  "sequence",
  law="q's sequence, or p's where it defers",
  interval=Interval(
    0,
    1,
    default=0.999,
    grid=tuple(LOG_REST.back(-nats) for nats in (1, 3, 6, 10, 15, 22, 30)),
    scale=LOG_REST,
  ),
  host_alpha=_host_alpha,
  unit="whole texts",
  is_one_loop=False,
)
per_token_sequence = dataclasses.replace(
  sequence_cascade,
  run=functools.partial(_decode, per_token=True),
  interval=Interval(
    0, 1, default=0.3, grid=(0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
  ),
)
