"""Sequence cascade: the drafter writes all, the verifier may start again."""

import jax
import jax.numpy as jnp

from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.executions import autoregressive
from speccascade.decoding.types import Decoded

# A number that no step has: the discarded draft's randomness is not used again.
REWRITE_TAG = 2**31 - 1


def sequence_cascade(
  drafter,
  verifier,
  inputs,
  rngs,
  *,
  target,
  alpha,
  sampling,
  max_decode_len,
  eos_id,
  trace=False,
  per_token: bool = False,
) -> Decoded:
  """Keeps the drafter's sequence if it is likely enough, else starts again.

  Defers where sum log q, at temperature 1 and with the EOS, is below the
  threshold. Arguments as in `speculative`, but both models are language models,
  and:

  Args:
    alpha: the log threshold, log1p(-alpha) made on the host in float64: in
      float32 1 - alpha would lose every sequence of ordinary length.
    per_token: static; compare the mean of log q over the tokens instead.

  Returns:
    The sequences; `deferred` counts every token of a rewritten row.

  Source: Narasimhan et al., Eq. (1) on the sequence probability.
  """
  settings = {
    "sampling": sampling,
    "max_decode_len": max_decode_len,
    "eos_id": eos_id,
    "trace": trace,
  }
  draft, score = autoregressive.sample(
    drafter, inputs, rngs, is_drafter=True, **settings
  )
  if per_token:
    score = score / jnp.maximum(draft.lengths, 1).astype(score.dtype)
  is_bad = draft.bad_step >= 0
  keep = (score >= alpha) | is_bad
  rewrite, _ = autoregressive.sample(
    verifier,
    inputs,
    sampling_lib.fold_in(rngs, REWRITE_TAG),
    is_drafter=False,
    done=keep,
    **settings,
  )

  def choose(kept, rewritten):
    mask = keep.reshape(-1, *[1] * (kept.ndim - 1))
    return jnp.where(mask, kept, rewritten)

  stats = jax.tree.map(jnp.add, draft.stats, rewrite.stats)
  stats = stats.replace(deferred=jnp.where(keep, 0, rewrite.lengths))
  chosen = jax.tree.map(
    choose, draft.replace(stats=None), rewrite.replace(stats=None)
  )
  if trace:
    deferred = ~keep[:, None] & jnp.ones_like(chosen.trace.deferred)
    sides = {
      "left": jnp.broadcast_to(score[:, None], deferred.shape),
      "right": jnp.full(deferred.shape, alpha, jnp.float32),
    }
    chosen = chosen.replace(
      trace=chosen.trace.replace(deferred=deferred, **sides)
    )
  return chosen.replace(stats=stats)
