"""Roll-outs: what becomes of a text if the verifier's token is taken.

`rule_rollouts` says what they are for.
"""

from collections.abc import Sequence
import functools
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.rule_room import TV
from speccascade.decoding import METHODS
from speccascade.decoding.laws import draws, learned
from speccascade.decoding.laws.numerics import normalise
from speccascade.generate.batches import padding
from speccascade.generate.pair.pairs import ModelPair
from speccascade.generate.points.point import Point
from speccascade.generate.records import text_of
from speccascade.runtime import files
from speccascade.study.measuring import scoring
from speccascade.study.measuring.study import Study
from speccascade.tasks import quality
from speccascade.text.arrays import pad
from speccascade.training import token_rows

METHOD = "spec_cascade_learned"
ROWS = 64  # texts of a batch; roll-outs have twice as many
CHUNK = 128  # places between two writes


class Gains(NamedTuple):
  """What it gains to defer, at places where the models draw different tokens.

  Attributes:
    features: [N, F] float32, see `learned.features`.
    gain: [N] float32, see `rule_rollouts`.
    example: [N] int32, the number of the sentence.
  """

  features: Any
  gain: Any
  example: Any


@jax.jit
def observe(drafter, verifier, inputs, tokens, key):
  """Returns features [B, T, F] and two tokens [B, T] of texts [B, T].

  The tokens are draws of norm(max(0, q - p)) and of norm(max(0, p - q)).
  """
  q, p = (token_rows.laws(lm, inputs, tokens) for lm in (drafter, verifier))
  u = jax.random.uniform(key, (2, *tokens.shape))
  of_q = draws.draw(normalise(jnp.maximum(q - p, 0), q), u[0])
  of_p = draws.draw(normalise(jnp.maximum(p - q, 0), p), u[1])
  return learned.features(q, p), of_q, of_p


@functools.partial(jax.jit, static_argnames="eos_id")
def complete(drafter, verifier, inputs, forced, count, alpha, key, eos_id):
  """Returns texts that begin as given and continue with draws of pi.

  Rows 2 i and 2 i + 1 share their random numbers.

  Args:
    drafter: a `LanguageModel`.
    verifier: a `LanguageModel`.
    inputs: [B, S] int32 sources.
    forced: [B, T] int32; row b begins with its first `count[b]` tokens.
    count: [B] int32.
    alpha: a `FittedAlpha` of `learned.learned`.
    key: of the draws.
    eos_id: static, the token that ends a text.

  Returns:
    [B, T] int32 tokens, 0 after the end.
  """
  rows, size = forced.shape
  ones = jnp.ones((rows,), jnp.int32)
  target = METHODS[METHOD].target

  def law(lm, state, fed):
    state, out = lm.extend(state, fed[:, None], ones)
    return state, jax.nn.softmax(out.logits[:, 0])

  def continues(carry):
    step, *_, is_done = carry
    return (step < size) & ~jnp.all(is_done)

  def write(carry):
    step, small, large, fed, tokens, is_done = carry
    small, q = law(drafter, small, fed)
    large, p = law(verifier, large, fed)
    pi = target.probs(q, p, alpha=alpha, sampled=(q, p))
    u = jax.random.uniform(jax.random.fold_in(key, step), (rows // 2,))
    drawn = draws.draw(pi, jnp.repeat(u, 2))
    token = jnp.where(step < count, forced[:, step], drawn)
    token = jnp.where(is_done, 0, token)
    tokens = tokens.at[:, step].set(token)
    is_done |= token == eos_id
    return step + 1, small, large, token, tokens, is_done

  small, large = (
    lm.prefill(inputs, capacity=size) for lm in (drafter, verifier)
  )
  start = (jnp.int32(0), small, large, jnp.zeros((rows,), jnp.int32))
  carry = (*start, jnp.zeros_like(forced), jnp.zeros((rows,), bool))
  return jax.lax.while_loop(continues, write, carry)[-2]


def roll_out(
  study: Study, point: Point, num: int, seed: int, path: pathlib.Path
):
  """Writes the gains at `num` places of decodes of all examples to a file.

  Places are drawn with replacement: a place that is drawn twice has two
  roll-outs of its two tokens. The file is rewritten after every few places.
  The places before are a sample of the same kind, so a run may be stopped and
  what it has may be used.

  Args:
    study: of the training sentences.
    point: the rule that writes the prefixes and the rest of the texts.
    num: of the places.
    seed: of the places and of the roll-outs.
    path: of the file of `Gains`.
  """
  pair, examples = study.pair, study.examples
  metric = scoring.metrics_of(study)[0]
  start_s = time.monotonic()
  decoded = study.batches(point).decode_all(examples)
  texts = [row[:end] for row, end in zip(decoded.tokens, decoded.lengths)]
  print(f"decoded in {time.monotonic() - start_s:.0f} s", flush=True)
  columns, places = [], []
  for start in range(0, len(examples), ROWS):
    chosen = range(start, min(start + ROWS, len(examples)))
    inputs, tokens = _batch(study, [(i, texts[i]) for i in chosen], ROWS)
    key = jax.random.fold_in(jax.random.key(seed), start)
    seen = observe(*_models(pair), inputs, tokens, key)
    for row, i in enumerate(chosen):
      columns.append([np.asarray(x[row, : len(texts[i])]) for x in seen])
      places += [(i, step) for step in range(len(texts[i]))]
  features, of_q, of_p = map(np.concatenate, zip(*columns))
  chance = features[:, TV].astype(np.float64)
  print(f"{len(chance)} places, TV {chance.mean():.4f}", flush=True)
  rng = np.random.default_rng(seed)
  picks = rng.choice(len(chance), num, p=chance / chance.sum())
  total = _sums(study, texts, range(len(texts)), metric).sums.sum(axis=0)
  parts = []
  for start in range(0, num, CHUNK):
    chunk = picks[start : start + CHUNK]
    # Texts that are as far are written together.
    steps = [places[pick][1] for pick in chunk]
    chunk = chunk[np.argsort(steps, kind="stable")]
    begun = []
    for pick in chunk:
      i, step = places[pick]
      for token in (of_q[pick], of_p[pick]):
        begun.append((i, [*texts[i][:step], token]))
    written = _complete_all(study, point, begun, seed + 1 + start)
    numbers = np.array([i for i, _ in begun])
    ends = _sums(study, written, numbers, metric)
    scores = np.array([ends.score(total + each) for each in ends.sums])
    gain = len(texts) * (scores[1::2] - scores[::2]) / 100
    parts.append(Gains(features[chunk], gain.astype("f4"), numbers[::2]))
    gains = Gains(*map(np.concatenate, zip(*parts)))
    with files.open_whole(path, "wb") as file:
      np.savez(file, **gains._asdict())
    seconds = time.monotonic() - start_s
    print(f"{len(gains.gain)} places in {seconds:.0f} s", flush=True)


def _complete_all(
  study: Study, point: Point, begun: Sequence[tuple[int, list]], seed: int
) -> list[np.ndarray]:
  """Returns the texts that begin as (number of the sentence, tokens) say."""
  alpha, written = point.decoder_alpha, []
  for start in range(0, len(begun), 2 * ROWS):
    batch = begun[start : start + 2 * ROWS]
    inputs, forced = _batch(study, batch, 2 * ROWS)
    count = np.array([len(text) for _, text in batch], np.int32)
    count = np.pad(count, (0, 2 * ROWS - len(batch)), mode="edge")
    key = jax.random.fold_in(jax.random.key(seed), start)
    eos_id = study.session.vocabulary.eos_id
    ends = complete(
      *_models(study.pair), inputs, forced, count, alpha, key, eos_id
    )
    written += list(np.asarray(ends)[: len(batch)])
  return written


def _models(pair: ModelPair) -> tuple[Any, Any]:
  return pair.drafter_lm, pair.verifier_lm


def _batch(
  study: Study, texts: Sequence[tuple[int, Sequence[int]]], rows: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns sources [rows, S] and padded texts [rows, T] of (number, text)."""
  examples = [study.examples[i] for i, _ in texts]
  inputs, _ = padding.pad_batch(examples, rows, study.session.lengths[-1:])
  size = study.run.max_decode_len
  return inputs, pad([np.asarray(text) for _, text in texts], rows, size)


def _sums(study, texts, numbers, metric) -> quality.Statistics:
  """Returns the statistics of texts of examples."""
  words = []
  for text in texts:
    ends = np.flatnonzero(np.asarray(text) == study.session.vocabulary.eos_id)
    end = ends[0] + 1 if len(ends) else len(text)
    words.append(text_of(study.session.vocabulary, text[:end]))
  references = [study.examples[i].references for i in numbers]
  return quality.metric(metric)(words, references)[0]
