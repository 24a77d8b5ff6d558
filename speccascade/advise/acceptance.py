"""How likely drafts are accepted along texts, by every rule, without decoding.

Both models read the texts, once; each target is then a function of what they
say. A text that a target's own chain wrote tells its acceptance exactly, see
`analysis.speedup`. Along the verifier's texts sum_v min(q, pi) stands for it:
the chance that a draft is accepted after a prefix that the verifier wrote.
"""

from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws import numerics
from speccascade.decoding.loops import prompts
from speccascade.decoding.types import Decoded
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point

_MOST = 2**23  # probabilities of one model that are held at once


def rates_along(
  study: Study, points: Sequence[Point], texts: Decoded, *, is_own: bool
) -> np.ndarray:
  """Returns [A, N, T], how likely the draft of each token is accepted.

  Args:
    study: the pair, and the N sources.
    points: A methods with a target, of one sampling.
    texts: what was written for each source, T tokens at most.
    is_own: whether the points' own chain wrote them, as the verifier's is that
      of a lossless method.
  """
  pair, sampling, examples = study.pair, points[0].sampling, study.examples
  num, length = texts.tokens.shape
  rows = min(num, max(1, _MOST // (length * pair.verifier_lm.vocab_size)))
  by_target = {}
  for place, point in enumerate(points):
    by_target.setdefault(point.spec.target, []).append(place)
  rates = np.zeros((len(points), num, length))
  for start in range(0, num, rows):
    here = slice(start, min(num, start + rows))
    batch = study.padded(examples[here], rows, study.lengths[-1:])
    tokens = np.zeros((rows, length), np.int32)
    tokens[: here.stop - start] = texts.tokens[here]
    models = (pair.drafter_of(batch, length), pair.verifier_lm)
    laws = [_laws(model, sampling, batch, tokens) for model in models]
    for target, places in by_target.items():
      alphas = np.array([points[i].alpha for i in places], np.float32)
      of_rows = _rates(
        target, is_own or target.is_lossless, alphas, laws, tokens
      )
      rates[places, here] = of_rows[:, : here.stop - start]
  inside = np.arange(length) < np.asarray(texts.lengths)[:, None]
  return np.where(inside, np.clip(rates, 0, 1), 0)


@jax.jit
def _laws(model, sampling, inputs, tokens):
  """Returns both laws [B, T, V] before each token; see `Sampling.laws`."""
  rows, length = tokens.shape
  state = model.prefill(inputs, capacity=length)
  first = prompts.start(model, inputs)[:, None]
  fed = jnp.concatenate([first, tokens[:, :-1]], axis=1)
  _, out = model.extend(state, fed, jnp.full((rows,), length, jnp.int32))
  return sampling.laws(out.logits)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rates(target, is_own, alphas, laws, tokens):
  """Returns [A, B, T] for the alphas [A] of one target."""
  (q1, q), (p1, p) = laws

  def of(alpha):
    pi = target.probs(q1, p1, alpha=alpha, sampled=(q, p))
    if not is_own:
      return numerics.overlap(q, pi)
    both = numerics.of_token(jnp.minimum(q, pi), tokens)
    return numerics.ratio(both, numerics.of_token(pi, tokens))

  return jax.lax.map(of, alphas)
