"""How likely the drafts of draft heads are accepted, along given texts.

Head j drafts token t of a text from the hidden state that the verifier left j
tokens earlier. So each token of a text has a distribution for each draft of a
block that it may be. The verifier reads the texts once, and the heads read its
hidden states.

Look-ahead embeddings draft token t as draft j of a block from the first
t + 1 - j tokens. They are read after each beginning of a text, in one pass for
each token.

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

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.drafter import is_lookahead
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.search.acceptance import (
  batches_along,
  fed_tokens,
  forced,
  group_by_target,
  is_inside,
  target_rates,
)


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
    of a text, and for the first tokens, which no such draft reaches.
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
    rates[:, j, :, : least_place(j, study.pair.first_block_drafts)] = 0
  return np.where(is_inside(texts), np.clip(rates, 0, 1), 0)


def least_place(draft: int, first_drafts: bool) -> int:
  """Returns the first place of a text that a draft reaches.

  Args:
    draft: 0 for the first draft of a block, and so on.
    first_drafts: whether the first block of a text drafts; if not, it writes
      one token.
  """
  return draft if first_drafts else draft + 1


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
    drawn from. What is said of tokens before `least_place` means nothing.
  """
  pair = study.pair
  laws = _lookahead_laws if is_lookahead(pair.drafter_lm) else _head_laws
  for here, batch, tokens in batches_along(study, texts, num_laws=num_heads):
    by_head, verifier = laws(
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


@functools.partial(jax.jit, static_argnums=3)
def _lookahead_laws(lookahead, verifier, sampling, num, inputs, tokens):
  """Returns what `head_laws_along` yields of a batch, drafts first."""
  model = lookahead.language_model(verifier)
  state = model.prefill(inputs, capacity=tokens.shape[1] + num - 1)
  # As in `LookaheadDrafter`, embeddings follow the last token of a beginning.
  ahead = model.vocab_size + jnp.arange(num - 1, dtype=jnp.int32)
  ahead = jnp.broadcast_to(ahead, (tokens.shape[0], num - 1))
  count = jnp.full((tokens.shape[0],), num, jnp.int32)

  def read(state, token):
    """Returns the state after a token, and the logits [B, num, V] there."""
    length = state.length + 1
    block = jnp.concatenate([token[:, None], ahead], axis=1)
    state, out = model.extend(state, block, count)
    # The embeddings are forgotten.
    return model.rewind(state, length), out.logits

  fed = fed_tokens(verifier, inputs, tokens)
  _, logits = jax.lax.scan(read, state, fed.T)  # [T, B, num, V]
  logits = jnp.moveaxis(logits, 0, 1)
  # The logits of draft j + 1 at place t are of text token t + j.
  by_draft = [
    sampling.laws(jnp.roll(logits[:, :, j], j, axis=1)) for j in range(num)
  ]
  return by_draft, sampling.laws(forced(verifier, inputs, tokens).logits)
