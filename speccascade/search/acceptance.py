"""How likely drafts are accepted along given texts, for every rule at once.

Both models read the texts once. Each target distribution is a function of the
two models' distributions, so the acceptance of every rule and alpha follows
without decoding with it. A text that a target's own chain wrote tells the
target's acceptance exactly, see `analysis.speedup`. Along the verifier's texts
the acceptance is estimated by sum_v min(q, pi), which is the chance that a
draft is accepted after a prefix that the verifier wrote.
"""

from collections.abc import Iterator, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records import prompts
from speccascade.decoding.records.block_records import Decoded, Output
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point

_MOST = 2**23  # probabilities of one model that are in memory at once


def rates_along(
  study: Study, points: Sequence[Point], texts: Decoded, *, is_own: bool
) -> np.ndarray:
  """Returns how likely the draft of each token of each text is accepted.

  Args:
    study: the pair of models, and the N sources.
    points: A methods with a target; all points have one sampling.
    texts: the texts that were written for the sources, of T tokens at most.
    is_own: whether the texts were written by the chain of the points' target.
      The verifier's texts always are texts of a lossless method's chain.

  Returns:
    [A, N, T] float64 in [0, 1]; 0 after the end of a text.
  """
  rates = np.zeros((len(points), *texts.tokens.shape))
  for here, tokens, laws in laws_along(study, points[0].sampling, texts):
    # Every target is a function of the two models' distributions.
    for target, places, alphas in group_by_target(points):
      of_rows = target_rates(
        target, is_own or target.is_lossless, alphas, laws, tokens
      )
      rates[places, here] = of_rows[:, : here.stop - here.start]
  return np.where(is_inside(texts), np.clip(rates, 0, 1), 0)


def group_by_target(
  points: Sequence[Point],
) -> list[tuple[Target, list[int], Any]]:
  """Returns each target of some points, with its points and their alphas.

  Returns:
    For each target the places of its points, and their alphas as
    `target_rates` takes them.
  """
  places_by_target = {}
  for place, point in enumerate(points):
    places_by_target.setdefault(point.spec.target, []).append(place)
  groups = []
  for target, places in places_by_target.items():
    # The alphas of a learned rule share its parameters.
    stacked = [points[i].decoder_alpha for i in places]
    alphas = jax.tree.map(
      lambda *each: jnp.asarray(each, jnp.float32), *stacked
    )
    groups.append((target, places, alphas))
  return groups


def is_inside(texts: Decoded) -> np.ndarray:
  """Returns [N, T] bool, the places that hold a token of a text."""
  index = np.arange(texts.tokens.shape[1])
  return index < np.asarray(texts.lengths)[:, None]


def laws_along(
  study: Study, sampling: Sampling, texts: Decoded
) -> Iterator[tuple[slice, np.ndarray, list]]:
  """Yields the distributions of both models before each token of texts.

  Args:
    study: the pair of models, and the N sources.
    sampling: how logits become distributions.
    texts: the texts that were written for the sources, of T tokens at most.

  Yields:
    The rows of a batch as a slice of the N; their tokens [B, T] int32, where
    the last batch is filled up with rows that mean nothing; and what `_laws`
    returns for the drafter and for the verifier.
  """
  pair, length = study.pair, texts.tokens.shape[1]
  for here, batch, tokens in batches_along(study, texts):
    models = (pair.drafter_of(batch, length), pair.verifier_lm)
    yield here, tokens, [_laws(m, sampling, batch, tokens) for m in models]


def batches_along(
  study: Study, texts: Decoded, num_laws: int = 1
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
  """Yields texts in batches that models read at once.

  Args:
    study: the pair of models, and the N sources.
    texts: the texts that were written for the sources, of T tokens at most.
    num_laws: how many distributions of each token are in memory at once.

  Yields:
    The rows of a batch as a slice of the N, the inputs [B, S] int32 and the
    tokens [B, T] int32. The last batch is filled up with rows that mean
    nothing.
  """
  pair, examples = study.pair, study.examples
  num, length = texts.tokens.shape
  size = length * pair.verifier_lm.vocab_size * num_laws
  rows = min(num, max(1, _MOST // size))
  for start in range(0, num, rows):
    # The last batch is filled up to `rows` texts, so that one program reads all
    # batches.
    here = slice(start, min(num, start + rows))
    batch = study.pad_examples(examples[here], rows, study.lengths[-1:])
    tokens = np.zeros((rows, length), np.int32)
    tokens[: here.stop - start] = texts.tokens[here]
    yield here, batch, tokens


@jax.jit
def _laws(model, sampling, inputs, tokens):
  """Returns a model's distributions before each token; see `Sampling.laws`.

  Args:
    model: a `LanguageModel`.
    sampling: how logits become distributions.
    inputs: [B, S] int32, the sources.
    tokens: [B, T] int32, the texts.

  Returns:
    Two arrays [B, T, V]: at temperature 1, and as they are drawn from.
  """
  return sampling.laws(forced(model, inputs, tokens).logits)


def forced(
  model: LanguageModel, inputs: jax.Array, tokens: jax.Array
) -> Output:
  """Returns what a model gives before each token of texts that it reads.

  Args:
    model: the model.
    inputs: [B, S] int32, the sources.
    tokens: [B, T] int32, the texts.

  Returns:
    The `Output` of a block of T tokens: place t is before token t.
  """
  rows, length = tokens.shape
  state = model.prefill(inputs, capacity=length)
  fed = fed_tokens(model, inputs, tokens)
  _, out = model.extend(state, fed, jnp.full((rows,), length, jnp.int32))
  return out


def fed_tokens(
  model: LanguageModel, inputs: jax.Array, tokens: jax.Array
) -> jax.Array:
  """Returns [B, T] int32, the tokens that a model reads for texts.

  The token that is fed is the one before: logits 0 come from the start token
  and tell of text token 0, logits 1 come from token 0, and so on.

  Args:
    model: the model.
    inputs: [B, S] int32, the sources.
    tokens: [B, T] int32, the texts.
  """
  first = prompts.start(model, inputs)[:, None]
  return jnp.concatenate([first, tokens[:, :-1]], axis=1)


@functools.partial(jax.jit, static_argnums=(0, 1))
def target_rates(target, is_own, alphas, laws, tokens):
  """Returns the acceptance [A, B, T] of one target at each of its alphas.

  Args:
    target: the target; static.
    is_own: whether the target's chain wrote the texts; static.
    alphas: [A] float32; or a `FittedAlpha` whose leaves have A as axis 0.
    laws: what `_laws` returns, for the drafter and for the verifier.
    tokens: [B, T] int32, the texts.
  """
  (q1, q), (p1, p) = laws

  def rates_at(alpha):
    pi = target.probs(q1, p1, alpha=alpha, sampled=(q, p))
    if not is_own:
      return numerics.overlap(q, pi)
    # min(q, pi)(x) / pi(x): given that x was written, the chance that x is a
    # draft that was accepted.
    both = numerics.of_token(jnp.minimum(q, pi), tokens)
    return numerics.ratio(both, numerics.of_token(pi, tokens))

  return jax.lax.map(rates_at, alphas)
