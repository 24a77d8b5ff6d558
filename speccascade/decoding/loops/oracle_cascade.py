"""Oracle cascade: the rule sees p without paying for it.

It is a reference for other methods, and not a fast method.
"""

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import draws
from speccascade.decoding.laws.rules import defers
from speccascade.decoding.loops.execution import LoopSettings, execution
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.loops.stepwise import NextToken, stepwise
from speccascade.decoding.loops.tracing import Record
from speccascade.decoding.records.block_records import (
  SEQUENTIAL_P,
  SEQUENTIAL_Q,
  Stats,
)
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


@execution("oracle")
def oracle_cascade(
  drafter: LanguageModel,
  verifier: LanguageModel,
  inputs: Array,
  rngs: Array,
  settings: LoopSettings,
) -> Loop:
  """Returns the loop that draws every token from the target itself.

  Both models run at every step. `verifier_calls` counts the positions at which
  the rule deferred, as the paper's Figure 1 does; `verifier_extends` counts the
  passes that were really made.

  Args:
    drafter: a `LanguageModel`, the small one.
    verifier: a `LanguageModel`, the large one.
    inputs: as in `speculative`.
    rngs: as in `speculative`.
    settings: `LoopSettings`.

  Source: Narasimhan et al. (arXiv 2405.19261), Algorithm 3.
  """

  def advance(
    models: tuple[State, ...], prefix: Prefix, u: Array, stats: Stats
  ) -> NextToken:
    # Both models read the last token.
    calls = prefix.active.astype(jnp.int32)
    small, q_out = drafter.extend(models[0], prefix.last, calls)
    large, p_out = verifier.extend(models[1], prefix.last, calls)
    q1, q, _, is_q = settings.sampling.step(q_out.logits)
    p1, p, _, is_p = settings.sampling.step(p_out.logits)

    def draw(pi: Array) -> Array:
      return draws.draw(pi, u)

    # A token rule is read at the token that pi draws.
    pi, left, right = settings.target.at(
      q1, p1, draw, alpha=settings.alpha_after(prefix), sampled=(q, p)
    )
    deferred = defers(left, right) & prefix.active[:, None]
    stats = stats.add(
      drafter_calls=calls,
      calls_by_model=calls[:, None],
      verifier_calls=deferred[:, 0],
      verifier_extends=calls,
    )
    source = jnp.where(deferred, SEQUENTIAL_P, SEQUENTIAL_Q)
    record = Record(source, deferred, left, right, q1, p1, q, p, pi)
    bad = ~(is_q & is_p)
    return NextToken((small, large), stats, draw(pi), bad, record)

  return stepwise(
    advance,
    parts=(drafter, verifier),
    inputs=inputs,
    rngs=rngs,
    settings=settings,
  )
