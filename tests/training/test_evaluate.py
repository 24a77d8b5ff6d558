"""Evaluation: the loss, the accuracy, and greedy outputs."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from speccascade.models.t5.network import Transformer
from speccascade.training import evaluate, states
from tests.training.conftest import TINY, random_batch, same

CONFIG = dataclasses.replace(TINY, dropout_rate=0.3)


def test_loss_and_accuracy_are_means_over_target_tokens():
  """Against float64, over two batches of unequal weight; dropout is off."""
  module = Transformer(CONFIG)
  params = states.init_params(module, 0)
  batches = [random_batch(1), random_batch(2)]
  # Rows without targets, as those that fill a last batch, weigh nothing.
  batches[1]["decoder_target_tokens"][1:] = 0
  forward = jax.jit(functools.partial(states.forward, module))
  loss = correct = weight = 0.0
  for batch in batches:
    targets = batch["decoder_target_tokens"]
    inputs = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    logits = forward(params, {**batch, "decoder_input_tokens": inputs})
    logits = np.asarray(logits, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
    loss -= picked[targets > 0].sum()
    correct += (logits.argmax(-1) == targets)[targets > 0].sum()
    weight += (targets > 0).sum()
  metrics = evaluate.teacher_forced(CONFIG, params, batches)
  assert metrics["loss"] == pytest.approx(loss / weight, rel=1e-5)
  assert metrics["accuracy"] == pytest.approx(correct / weight)


def test_nothing_to_evaluate_on_is_said():
  with pytest.raises(ValueError, match="no target tokens"):
    evaluate.teacher_forced(CONFIG, {}, [])


@pytest.fixture(scope="module")
def decoded(golden_config, golden_params, golden_arrays):
  """Seven sources in batches of 4, in another order than their lengths'."""
  rows = golden_arrays["greedy/task/encoder_input_tokens"]
  sources = [row[row > 0] for row in rows]
  sources = [sources[i] for i in (2, 0, 1, 1, 2, 0, 2)]
  outputs = evaluate.greedy(
    golden_config, golden_params, sources, max_decode_len=24, batch_size=4
  )
  return sources, outputs


def test_greedy_outputs_are_those_of_t5x_in_the_order_of_sources(
  decoded, golden_arrays
):
  want = golden_arrays["greedy/task/tokens"]
  for i, output in zip((2, 0, 1, 1, 2, 0, 2), decoded[1]):
    ends = np.flatnonzero(want[i] == 1)
    np.testing.assert_array_equal(output, want[i][: ends[0] + 1])


def test_an_evaluation_scores_what_it_decodes(
  golden_config, golden_params, golden_arrays, golden_batch, decoded
):
  sources, outputs = decoded

  def score(predictions):
    same(predictions, outputs)
    return {"bleu": np.float32(31)}

  evaluation = evaluate.Evaluation(
    [golden_batch], sources, score, max_decode_len=24, batch_size=4
  )
  metrics = evaluation(golden_config, golden_params)
  loss, z, weight = golden_arrays["loss/weighted"]
  assert metrics["loss"] == pytest.approx((loss - z) / weight, rel=1e-5)
  assert metrics["bleu"] == 31
  assert set(metrics) == {"loss", "accuracy", "bleu"}
