"""Draft heads learn from a verifier that stays as it is."""

import dataclasses

import jax
import numpy as np
import pytest

from speccascade.checkpoints import load, orbax_io
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models import draft_heads
from speccascade.models.draft_heads import HeadsConfig, HeadsNetwork
from speccascade.models.t5.network import Transformer
from speccascade.training import (
  evaluate,
  head_losses,
  loop,
  losses,
  optimizers,
  states,
  trainer,
)
from speccascade.training.checkpointing import Checkpoints
from tests.training import test_teaching
from tests.training.conftest import BARE, random_batch, same

ADAM = optimizers.adamw(0.01)
SHAPES = {
  "medusa": HeadsConfig(kind="medusa", num_heads=2),
  "blockwise": HeadsConfig(kind="blockwise", num_heads=2, mlp_dim=12),
}


def verifier_of(kind: str):
  """Returns (a `states.Teacher` with opinions, a batch for it)."""
  if kind == "llama":
    params = test_teaching.random_params(3)
    # Prompts of one token, so that each text is followed by a target.
    texts = [(p[-1:], targets) for p, targets in test_teaching.texts(5)]
    batch = test_teaching.batches_of(texts, pack=True)[0]
    return states.Teacher(params, test_teaching.MODULE), batch
  module = Transformer(BARE)
  batch = loop.check_batch(random_batch(4), BARE, 0)
  return states.Teacher(states.init_params(module, 3), module), batch


def heads_of(kind: str, verifier, seed: int = 0):
  """Returns (config, parameters away from where training begins)."""
  config = SHAPES[kind].of_verifier(verifier.module.config, verifier.params)
  params = draft_heads.initial_params(config, verifier.module, verifier.params)
  rng = np.random.default_rng(seed)
  return config, jax.tree.map(
    lambda leaf: leaf + rng.normal(0, 0.1, leaf.shape).astype(np.float32),
    params,
  )


def twin(config, params, verifier, batch, weights) -> tuple[float, list]:
  """Returns the loss of a batch, place by place in float64, and by head."""
  hidden = np.asarray(verifier.hidden(batch), np.float64)
  targets = np.asarray(batch["decoder_target_tokens"])
  segments = batch.get("decoder_segment_ids", np.ones_like(targets))
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  by_head = []
  for k in range(config.num_heads):
    total = 0.0
    inner = hidden @ params[f"inner_{k}"]["kernel"]
    if config.kind == "medusa":
      state = hidden + inner / (1 + np.exp(-inner))
      logits = state @ params[f"logits_dense_{k}"]["kernel"]
    else:
      outer = params[f"outer_{k}"]["kernel"]
      state = hidden + np.maximum(inner, 0) @ outer
      logits = verifier.project(state.astype(np.float32))
      logits = np.asarray(logits, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    rows, length = targets.shape
    for row in range(rows):
      for place in range(length - k - 1):
        at = place + k + 1
        if segments[row, at] != segments[row, place]:
          continue
        if weights[row, place] > 0:
          chance = log_probs[row, place, targets[row, at]]
          total -= weights[row, at] * chance
    by_head.append(total)
  return sum(0.8 ** (k + 1) * x for k, x in enumerate(by_head)), by_head


@pytest.mark.parametrize(
  ("kind", "model"), [("medusa", "llama"), ("blockwise", "t5")]
)
def test_the_loss_of_heads(kind, model):
  verifier, batch = verifier_of(model)
  config, params = heads_of(kind, verifier)
  weights, _ = losses.normalize(batch, None)
  module, objective = HeadsNetwork(config), states.Objective(z_loss=0.0)

  @jax.jit
  def summed(params, batch, verifier):
    return head_losses.summed(
      module, params, batch, 0, weights, verifier, objective
    )

  sums = summed(params, batch, verifier)
  want, by_head = twin(config, params, verifier, batch, np.asarray(weights))
  assert min(by_head) > 1
  np.testing.assert_allclose(sums.loss, want, rtol=1e-4)
  measured = evaluate.teacher_forced(config, params, [batch], verifier)
  assert tuple(measured) == head_losses.metric_names(2)
  assert measured["loss"] == measured["loss_1"]
  # Of head 2, a mean over the targets that it has.
  later = head_losses.ahead_weights(batch, weights, 2).sum()
  np.testing.assert_allclose(measured["loss_2"] * later, by_head[1], rtol=1e-4)


@pytest.mark.parametrize("kind", SHAPES)
def test_heads_begin_as_the_verifiers_own_law(kind):
  verifier, batch = verifier_of("t5")
  config = SHAPES[kind].of_verifier(verifier.module.config, verifier.params)
  params = draft_heads.initial_params(config, verifier.module, verifier.params)
  module = HeadsNetwork(config)

  @jax.jit
  def run(params, verifier, batch):
    hidden = verifier.hidden(batch)
    logits = head_losses.head_logits(module, params, verifier, hidden)
    return verifier.project(hidden), verifier.logits(batch), logits

  own, direct, of_heads = run(params, verifier, batch)
  np.testing.assert_allclose(own, direct, atol=1e-5)
  for logits in of_heads:
    np.testing.assert_allclose(logits, own, atol=1e-4)


def train(folder, verifier, batch, config, *, steps, share=0.0, **options):
  initial = draft_heads.initial_params(config, verifier.module, verifier.params)
  return trainer.run(
    config,
    [batch],
    Checkpoints(folder, config, initial_params=initial),
    trainer.TrainingRun(steps, progress=False, log_period=1),
    optimizer=ADAM,
    objective=states.Objective(z_loss=0.0, teacher_share=share),
    teacher=verifier,
    say=lambda text: None,
    **options,
  )


@pytest.mark.parametrize(
  ("kind", "model", "share"), [("medusa", "t5", 0.0), ("blockwise", "llama", 1)]
)
def test_training_teaches_heads_alone_and_goes_on(kind, model, share, tmp_path):
  verifier, batch = verifier_of(model)
  before = jax.device_get(verifier.params)
  config = SHAPES[kind].of_verifier(verifier.module.config, verifier.params)
  options = {"share": share, "config": config}
  measured = []

  class Writer:
    def write_scalars(self, step, scalars):
      measured.append(scalars["train/loss"])

    def flush(self):
      pass

  train(
    tmp_path / "whole", verifier, batch, steps=20, writer=Writer(), **options
  )
  assert measured[-1] < 0.8 * measured[0]
  # The verifier has the very same bits.
  same(verifier.params, before)
  # A run that ended early goes on, and ends with the same bits.
  for steps in (7, 20):
    train(tmp_path / "broken", verifier, batch, steps=steps, **options)
  whole, broken = (
    load(tmp_path / name / "checkpoint_20") for name in ("whole", "broken")
  )
  same(whole.params, broken.params)
  assert whole.config == broken.config == config
  like = jax.eval_shape(ADAM.transform.init, whole.params)
  same(*(orbax_io.read_opt_state(x.path, like) for x in (whole, broken)))
  # Heads of another verifier are another model.
  other = dataclasses.replace(config, verifier_sha256="other")
  with pytest.raises(CheckpointError, match="verifier_sha256"):
    train(
      tmp_path / "broken", verifier, batch, steps=22, share=share, config=other
    )


def test_a_fingerprint_tells_parameters_apart():
  verifier, _ = verifier_of("t5")
  params = jax.device_get(verifier.params)
  first = draft_heads.fingerprint(params)
  assert draft_heads.fingerprint(params) == first
  norm = params["decoder"]["decoder_norm"]
  norm["scale"] = norm["scale"] + np.float32(1e-6)
  assert draft_heads.fingerprint(params) != first
