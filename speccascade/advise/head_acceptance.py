"""How likely the drafts of draft heads are accepted, along given texts.

Head j drafts token t of a text from the hidden state that the verifier left j
tokens earlier. So each token of a text has a distribution for each draft of a
block that it may be. The verifier reads the texts once, and the heads read its
hidden states.

For a target that is the verifier the acceptance is exact, because the verifier
wrote the texts. A target that uses the heads' distribution writes other texts
for other beginnings of blocks; its acceptance along the verifier's texts is an
estimate.
"""

from collections.abc import Iterator, Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.advise.acceptance import (
  batches_along,
  forced,
  group_by_target,
  is_inside,
  target_rates,
)
from speccascade.decoding.block_records import Decoded
from speccascade.decoding.laws.sampling import Sampling
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point


def head_rates_along(
  study: Study, points: Sequence[Point], texts: Decoded, num_heads: int
) -> np.ndarray:
  """Returns how likely each token of texts is accepted as each draft.

  Args:
    study: the verifier with its draft heads, and the N sources.
    points: A methods with a target; all points have one sampling.
    texts: the texts that the verifier wrote, of T tokens at most.
    num_heads: K, how many heads are asked, the first ones.

  Returns:
    [A, K, N, T] float64 in [0, 1]: at [a, j, n, t] the chance that token t of
    text n is accepted, if it is draft j + 1 of a block. It is 0 after the end
    of a text, and for the first j + 1 tokens, which no such draft reaches.
  """
  rates = np.zeros((len(points), num_heads, *texts.tokens.shape))
  for here, tokens, by_head, verifier in head_laws_along(
    study, points[0].sampling, texts, num_heads
  ):
    for target, places, alphas in group_by_target(points):
      for j, drafter in enumerate(by_head):
        of_rows = target_rates(
          target, target.is_lossless, alphas, [drafter, verifier], tokens
        )
        rates[places, j, here] = of_rows[:, : here.stop - here.start]
  for j in range(num_heads):
    rates[:, j, :, : j + 1] = 0
  return np.where(is_inside(texts), np.clip(rates, 0, 1), 0)


def head_laws_along(
  study: Study, sampling: Sampling, texts: Decoded, num_heads: int
) -> Iterator[tuple[slice, np.ndarray, list, list]]:
  """Yields the distributions of heads and verifier at each token of texts.

  Args:
    study: the verifier with its draft heads, and the N sources.
    sampling: how logits become distributions.
    texts: the texts that were written for the sources, of T tokens at most.
    num_heads: K, how many heads are asked, the first ones.

  Yields:
    The rows of a batch as a slice of the N; their tokens [B, T] int32; for each
    of the K heads the distributions that it drafts each token from, and those
    of the verifier: two arrays [B, T, V] each, at temperature 1 and as they are
    drawn from. What head j says of the first j tokens means nothing.
  """
  pair = study.pair
  for here, batch, tokens in batches_along(study, texts, num_laws=num_heads):
    by_head, verifier = _head_laws(
      pair.drafter_lm, pair.verifier_lm, sampling, num_heads, batch, tokens
    )
    yield here, tokens, by_head, verifier


@functools.partial(jax.jit, static_argnums=3)
def _head_laws(heads, verifier, sampling, num, inputs, tokens):
  """Returns what `head_laws_along` yields of a batch, heads first."""
  rows, length = tokens.shape
  out = forced(verifier, inputs, tokens)
  # Hidden state i is of the token before text token i, so head j drafts text
  # token t from state t - j: the states of head 1 move one place to the right.
  states = out.hidden.reshape(rows * length, -1).astype(jnp.float32)
  logits = heads.head_logits(verifier, states, num)
  logits = logits.reshape(rows, length, num, -1)
  by_head = [
    sampling.laws(jnp.roll(logits[:, :, j], j + 1, axis=1)) for j in range(num)
  ]
  return by_head, sampling.laws(out.logits)
