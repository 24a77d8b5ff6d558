"""What a state reader learns from its verifier's states, and from its own.

A step reads each text several times: first with the verifier's states, and then
with the outputs of the reading before, as drafts are read. Each reading
predicts the next token at all places. The verifier stays as it is.

With a draft vocabulary the readings give logits of its N tokens alone. What
they learn is then the verifier's distribution restricted to these tokens, at
the places whose target is among them: a place counts as often as the verifier
draws such a token.

Axes: B rows, S source length, T target length, E model width, V vocabulary, N
tokens of a draft vocabulary.

Source: Li et al., "EAGLE-3" (arXiv 2503.01840), section 3.2, training-time
test. There no loss compares states; here neither. What the readings learn, by
which loss, is this package's.
"""

from typing import Any

import jax
import jax.numpy as jnp

from speccascade.models import attention
from speccascade.training import lesson, states
from speccascade.training.lesson import Lesson, Reading

Array = jax.Array


def _source(batch: Any, verifier: states.Teacher) -> tuple[Array, Array] | None:
  """Returns the encoded source and what is seen of it; None without one."""
  if "encoder_input_tokens" not in batch:
    return None
  tokens = batch["encoder_input_tokens"]
  segments = batch.get("encoder_segment_ids")
  encoded = verifier.module.apply(
    {"params": verifier.params},
    tokens,
    segments,
    enable_dropout=False,
    method="encode",
  )
  is_seen = (tokens > 0)[:, None, :]
  if segments is not None:
    is_seen &= attention.same(batch["decoder_segment_ids"], segments)
  return encoded, is_seen


def logits(reading: Reading, hidden: Array) -> list[Array]:
  """Returns the logits float32 of each reading.

  They are [B, T, V], or [B, T, N] where the verifier's head is cut.

  Args:
    reading: the reader, its parameters, its verifier and a batch.
    hidden: [B, T, E], the verifier's hidden states; or [B, T, K E], those that
      the reader fuses.

  Raises:
    ValueError: the reader's head keeps some tokens alone.
  """
  batch, verifier, module = reading.batch, reading.teacher, reading.module
  assert verifier is not None
  tokens = batch["decoder_input_tokens"]
  # (Batches have 0 before a text, whatever a T5Gemma's start token is.)
  start = getattr(verifier.module.config, "start_id", None)
  if start is not None:
    tokens = jnp.where(tokens == 0, start, tokens)
  variables = {"params": reading.params}
  config: Any = module.config
  if config.draft_vocab_size is not None:
    raise ValueError(
      "the state reader has a head that keeps"
      f" {config.draft_vocab_size} tokens, and training wants a whole head:"
      " train a reader with own_head, and cut it with DRAFT_VOCABULARY"
    )
  owner, of_owner = verifier.module, {"params": verifier.params}
  if config.own_table:
    owner, of_owner = module, variables
  vectors = owner.apply(of_owner, tokens, method="embed")
  outputs = module.apply(
    variables,
    vectors,
    hidden.astype(vectors.dtype),
    segment_ids=batch.get("decoder_segment_ids"),
    positions=batch.get("decoder_positions"),
    source=_source(batch, verifier),
    num_steps=config.num_steps,
  )
  if not config.own_head:
    is_cut = verifier.cut is not None
    project = verifier.project_kept if is_cut else verifier.project
    return [project(x) for x in outputs]
  whole = [module.apply(variables, x, method="logits") for x in outputs]
  if verifier.cut is None:
    return whole
  return [x[..., verifier.cut["ids"]] for x in whole]


def drafted_weights(batch: Any, weights: Array, num_before: int) -> Array:
  """Returns [B, T], the weights of targets with drafts before them.

  A target with two drafts before it is one that a block two places earlier
  drafts. It counts where that block could begin: after a prompt, and in the
  same text of a packed row.

  Args:
    batch: may have `decoder_segment_ids`.
    weights: [B, T], of the targets.
    num_before: drafts before each target.
  """

  def earlier(values: Array) -> Array:
    kept = values[:, : values.shape[1] - num_before]
    return jnp.pad(kept, ((0, 0), (min(num_before, values.shape[1]), 0)))

  if not num_before:
    return weights
  weights = jnp.where(earlier(weights) > 0, weights, 0)
  segments = batch.get("decoder_segment_ids")
  if segments is not None:
    weights = jnp.where(earlier(segments) == segments, weights, 0)
  return weights


def lessons(reading: Reading) -> list[Lesson]:
  """Returns what the readings learn: reading k is of the k-th draft.

  Args:
    reading: the reader, its parameters, its verifier and a batch.
  """
  return _read(reading)[0]


def _read(reading: Reading) -> tuple[list[Lesson], Array, Array | None]:
  """Returns the lessons, the verifier's hidden states, and which are kept.

  These are the targets of a draft vocabulary, [B, T] bool; None without one.
  """
  verifier = reading.teacher
  assert verifier is not None
  config: Any = reading.module.config
  num_layers = verifier.module.config.num_decoder_layers
  hidden, read = verifier.hidden_and_states(
    reading.batch, config.layers_read(num_layers)
  )
  targets, p_logits, is_kept = reading.targets, None, None
  if verifier.cut is not None:
    targets, is_kept = _among(verifier.cut["ids"], targets)
  if reading.needs_teacher:
    is_cut = is_kept is not None
    p_logits = (verifier.project_kept if is_cut else verifier.project)(hidden)
  lessons = []
  for k, of_reading in enumerate(logits(reading, read)):
    weights = drafted_weights(reading.batch, reading.weights, k)
    if is_kept is not None:
      weights = jnp.where(is_kept, weights, 0)
    lessons.append(
      Lesson(of_reading, targets, weights, reading.step, p_logits, depth=k + 1)
    )
  return lessons, hidden, is_kept


def _among(ids: Array, tokens: Array) -> tuple[Array, Array]:
  """Returns places of tokens among ascending ids, and whether each is there."""
  places = jnp.minimum(jnp.searchsorted(ids, tokens), len(ids) - 1)
  return places, ids[places] == tokens


def summed(reading: Reading) -> states.Sums:
  """Returns the loss of a batch, summed over readings and target tokens."""
  return lesson.summed(lessons(reading), reading.objective)


def measure(reading: Reading) -> lesson.Metrics:
  """Returns what is measured of a reader, see `lesson.by_depth`.

  With a draft vocabulary "acceptance" and "accuracy" are those of all targets:
  a token that is not kept is never drafted. "loss" is that of the kept ones.
  """
  learned, hidden, is_kept = _read(reading)
  metrics, verifier = lesson.by_depth(learned), reading.teacher
  if is_kept is None:
    return metrics
  assert verifier is not None
  p = jax.nn.softmax(verifier.project(hidden))[..., verifier.cut["ids"]]
  for k, kept in enumerate(learned):
    weights = drafted_weights(reading.batch, reading.weights, k)
    is_correct = lesson.is_correct(kept.logits, kept.targets) & is_kept
    overlap = jnp.minimum(p, jax.nn.softmax(kept.logits)).sum(-1)
    for name, values in (("accuracy", is_correct), ("acceptance", overlap)):
      of_all = jnp.sum(values * weights), weights.sum()
      metrics[f"{name}_{kept.depth}"] = of_all
  return metrics | {"accuracy": metrics["accuracy_1"]}
