"""The loss, against T5X's numbers and a float64 twin."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models.t5.network import Transformer
from speccascade.training import losses, states


def twin(logits, targets, smoothing, z_loss):
  """The definition, with the smoothed labels written out, in float64."""
  logits = np.asarray(logits, np.float64)
  vocab_size = logits.shape[-1]
  label = np.full(logits.shape, smoothing / (vocab_size - 1))
  np.put_along_axis(label, targets[..., None], 1 - smoothing, axis=-1)
  top = logits.max(-1, keepdims=True)
  log_z = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
  log_probs = logits - log_z[..., None]
  entropy = -(label * np.log(np.maximum(label, 1e-300))).sum(-1)
  z = z_loss * log_z**2
  return -(label * log_probs).sum(-1) - entropy + z, z


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("z_loss", [0.0, 0.03])
@pytest.mark.parametrize("is_traced", [False, True])
def test_cross_entropy_is_its_definition(smoothing, z_loss, is_traced):
  rng = np.random.default_rng(0)
  logits = rng.normal(0, 4, (3, 5, 11)).astype(np.float32)
  logits[0, 0] = 0  # ties
  logits[0, 1] = [80] + [-80] * 10  # one-hot
  targets = rng.integers(0, 11, (3, 5))
  if is_traced:
    smoothing, z_loss = jnp.float32(smoothing), jnp.float32(z_loss)
  loss, z = losses.cross_entropy(
    logits, targets, label_smoothing=smoothing, z_loss=z_loss
  )
  want, want_z = twin(logits, targets, float(smoothing), float(z_loss))
  np.testing.assert_allclose(loss, want, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(z, want_z, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def golden_logits(golden_config, golden_params, golden_batch):
  forward = functools.partial(states.forward, Transformer(golden_config))
  return jax.jit(forward)(golden_params, golden_batch)


@pytest.mark.parametrize(
  ("key", "smoothing", "factor"),
  [
    ("weighted_norm", 0.0, "NUM_REAL_TARGET_TOKENS"),
    ("weighted_smooth0.1", 0.1, None),
  ],
)
def test_losses_equal_those_of_t5x(
  golden_arrays, golden_logits, golden_batch, key, smoothing, factor
):
  weights, divisor = losses.normalize(golden_batch, factor)
  loss, z = losses.cross_entropy(
    golden_logits,
    golden_batch["decoder_target_tokens"],
    label_smoothing=smoothing,
    z_loss=1e-4,
  )
  values = [(loss * weights).sum() / divisor, (z * weights).sum() / divisor]
  want = golden_arrays[f"loss/{key}"]
  np.testing.assert_allclose([*values, weights.sum()], want, rtol=1e-6)


@pytest.mark.parametrize(
  ("targets", "segments", "factor", "want", "divisor"),
  [
    # Padding weighs nothing unless weights are given.
    ([[5, 1, 0], [7, 8, 1]], None, None, [[1, 1, 0], [1, 1, 1]], 1),
    (
      [[5, 1, 0], [7, 8, 1]],
      None,
      "NUM_TOTAL_TARGET_TOKENS",
      [[1, 1, 0], [1, 1, 1]],
      6,
    ),
    (
      [[5, 1, 0, 0], [7, 8, 9, 1]],
      None,
      "AVERAGE_PER_SEQUENCE",
      [[1 / 2, 1 / 2, 0, 0], [1 / 4, 1 / 4, 1 / 4, 1 / 4]],
      2,
    ),
    (
      [[5, 1, 7, 8, 9, 1, 0]],
      [[1, 1, 2, 2, 2, 2, 0]],
      "AVERAGE_PER_SEQUENCE",
      [[1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 4, 1 / 4, 0]],
      2,
    ),
  ],
)
def test_weights_and_divisor(targets, segments, factor, want, divisor):
  batch = {"decoder_target_tokens": jnp.array(targets)}
  if segments:
    batch["decoder_segment_ids"] = jnp.array(segments)
  weights, total = losses.normalize(batch, factor)
  np.testing.assert_allclose(weights, want)
  assert total == divisor
