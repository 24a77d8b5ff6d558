"""What look-ahead embeddings learn at random cuts of the texts.

A step cuts each text of a batch at a random place, and puts the look-ahead
embeddings in the place of the tokens after the cut. The verifier reads the cut
texts, and its outputs at the embeddings learn the tokens that the text
continues with. The verifier stays as it is.

Axes: B rows, T target length, K look-ahead embeddings, V vocabulary.
"""

from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from speccascade.training import lesson, states
from speccascade.training.lesson import Lesson, Reading, ahead_weights

Array = jax.Array


class CutBatch(NamedTuple):
  """A batch whose texts continue with look-ahead embeddings after a random
  place.

  Attributes:
    batch: the batch, with ids V to V + K - 1 in the cut texts; see `states`.
    places: [B, K] int32, where in a text each embedding is; the last place
      of the text for embeddings that would come after it.
    targets: [B, K] int32, the target at each embedding.
    weights: [B, K] float32, the weight of each target. It is the number of
      places at which the row could have been cut, times the target's own
      weight, so that the sum over the targets of one cut has the sum over all
      cuts as its mean. It is 0 where the text has no such target.
  """

  batch: Mapping
  places: Array
  targets: Array
  weights: Array


def cut(
  batch: Mapping, weights: Array, rng: Array, *, num: int, vocab_size: int
) -> CutBatch:
  """Returns the batch with each text cut at a random place.

  A text of a row may be cut after each token at which the model predicts a
  target with a weight, where one more such target follows in the text. With K =
  2, V = 100 and the inputs 0 7 8 9 5 of the targets 7 8 9 5 1, a cut after the
  token 7 gives the inputs 0 7 100 101 5. The targets of the embeddings are 9
  and 5.

  Args:
    batch: see the module `states`.
    weights: [B, T], of the targets.
    rng: a key.
    num: K.
    vocab_size: V.
  """
  tokens, targets = (
    batch["decoder_input_tokens"],
    batch["decoder_target_tokens"],
  )
  later = jnp.stack(
    [ahead_weights(batch, weights, k + 1) for k in range(num)], axis=-1
  )
  is_place = later[..., 0] > 0
  u = jax.random.uniform(rng, is_place.shape)
  place = jnp.argmax(jnp.where(is_place, u, -1.0), axis=1)[:, None]
  ahead = jnp.arange(tokens.shape[1])[None] - place - 1
  is_ahead = (ahead >= 0) & (ahead < num)
  places = place + 1 + jnp.arange(num)[None]
  places = jnp.minimum(places, tokens.shape[1] - 1)
  num_places = jnp.sum(is_place, axis=1, keepdims=True).astype(jnp.float32)
  return CutBatch(
    batch={
      **batch,
      "decoder_input_tokens": jnp.where(is_ahead, vocab_size + ahead, tokens),
    },
    places=places,
    targets=jnp.take_along_axis(targets, places, axis=1),
    weights=num_places
    * jnp.take_along_axis(later, place[..., None], axis=1)[:, 0],
  )


def lessons(reading: Reading) -> list[Lesson]:
  """Returns what the embeddings learn at one cut of each row.

  Embedding k learns at depth k, the target that head k of draft heads learns,
  and the weight of a target is multiplied by the number of places at which the
  row could have been cut. So the mean of the loss over the cuts is the loss of
  embeddings at all places of all texts.

  Source: Monea et al., "PaSS" (arXiv 2311.13581), for embeddings that alone are
  trained. Where the paper cuts texts, and how it weighs the embeddings, is not
  known here.
  """
  cfg, verifier = reading.module.config, reading.teacher
  cuts = cut(
    reading.batch,
    reading.weights,
    reading.rng,
    num=cfg.num_heads,
    vocab_size=cfg.vocab_size,
  )
  logits, p_logits = _logits(reading, cuts), None
  if reading.needs_teacher:
    hidden = verifier.hidden(reading.batch)
    p_logits = _project(verifier, hidden, cuts)
  return [
    Lesson(
      logits[:, k],
      cuts.targets[:, k],
      cuts.weights[:, k],
      reading.step,
      None if p_logits is None else p_logits[:, k],
      depth=k + 1,
    )
    for k in range(cfg.num_heads)
  ]


def _logits(reading: Reading, cuts: CutBatch) -> Array:
  """Returns the verifier's logits [B, K, V] at look-ahead embeddings."""
  verifier = reading.teacher
  table = {
    **verifier.params["token_embedder"],
    "lookahead": reading.params["embedding"],
  }
  hidden = states.apply(
    verifier.module.clone(remat=reading.module.remat),
    {**verifier.params, "token_embedder": table},
    cuts.batch,
    method="hidden",
  )
  return _project(verifier, hidden, cuts)


def _project(verifier: states.Teacher, hidden: Array, cuts: CutBatch) -> Array:
  """Returns the logits [B, K, V] of hidden states [B, T, E] at the places."""
  hidden = jnp.take_along_axis(hidden, cuts.places[..., None], axis=1)
  return verifier.project(hidden.astype(jnp.float32))


def summed(reading: Reading) -> states.Sums:
  """Returns the loss of a batch at one random cut of each row."""
  return lesson.summed(lessons(reading), reading.objective)


def measure(reading: Reading) -> lesson.Metrics:
  """Returns what is measured of embeddings, see `lesson.by_depth`.

  It is measured on one cut of each row. Batches of one shape are always cut at
  the same random places, so that evaluations can be compared.
  """
  rng = jax.random.key(0, impl="threefry2x32")
  return lesson.by_depth(lessons(dataclasses.replace(reading, rng=rng)))
