"""Draft heads learn from a verifier, which stays as it is or learns too."""

import dataclasses
import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.checkpoints import load, orbax_io
from speccascade.checkpoints.errors import CheckpointError
from speccascade.generate.pair.model_loading import load_model
from speccascade.generate.pair.pair_checks import PairError, check_models
from speccascade.generate.pair.pairs import ModelPair
from speccascade.models import draft_heads
from speccascade.models.draft_heads import HeadsConfig, HeadsNetwork
from speccascade.models.t5.network import Transformer
from speccascade.training import (
  evaluate,
  head_losses,
  lesson,
  losses,
  optimizers,
  row_parts,
  states,
)
from speccascade.training.batch_checks import check_batch
from speccascade.training.lesson import Reading
from speccascade.training.memory_need import MemoryNeed
from speccascade.training.verifier_tuning import (
  HEADS,
  VERIFIER,
  VerifierTuning,
)
from tests import toy
from tests.training import test_teaching
from tests.training.conftest import (
  BARE,
  continues,
  random_batch,
  same,
  train_drafts,
)

ADAM = optimizers.adamw(0.01)
METRIC_NAMES = (
  *("loss", "accuracy", "loss_1", "accuracy_1", "acceptance_1"),
  *("loss_2", "accuracy_2", "acceptance_2"),
)
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
  batch = check_batch(random_batch(4), BARE, 0)
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
      Reading(module, params, batch, weights, 0, objective, teacher=verifier)
    )

  sums = summed(params, batch, verifier)
  want, by_head = twin(config, params, verifier, batch, np.asarray(weights))
  assert min(by_head) > 1
  np.testing.assert_allclose(sums.loss, want, rtol=1e-4)
  measured = evaluate.teacher_forced(config, params, [batch], verifier)
  assert tuple(measured) == METRIC_NAMES
  assert measured["loss"] == measured["loss_1"]
  # Of head 2, a mean over the targets that it has.
  later = lesson.ahead_weights(batch, weights, 2).sum()
  np.testing.assert_allclose(measured["loss_2"] * later, by_head[1], rtol=1e-4)


def test_no_head_learns_inside_a_prompt_or_across_texts():
  # A prompt of three tokens in each of two texts; the last place is empty.
  weights = jnp.array([[0, 0, 1, 1, 1, 0, 0, 1, 1, 0]], jnp.float32)
  texts = jnp.array([[1, 1, 1, 1, 1, 2, 2, 2, 2, 0]], jnp.int32)
  for num, want in (
    (1, [[0, 0, 1, 1, 0, 0, 0, 1, 0, 0]]),
    (2, [[0, 0, 1, 0, 0, 0, 0, 0, 0, 0]]),
  ):
    later = lesson.ahead_weights({"decoder_segment_ids": texts}, weights, num)
    assert np.array_equal(later, want)
  # One text alone.
  later = lesson.ahead_weights({}, weights[:, :5], 2)
  assert np.array_equal(later, [[0, 0, 1, 0, 0]])


@pytest.mark.parametrize("share", [0.0, 0.6])
@pytest.mark.parametrize(
  ("kind", "model"), [("medusa", "llama"), ("blockwise", "t5")]
)
def test_a_loss_in_parts_is_the_loss_of_all_places(
  kind, model, share, monkeypatch
):
  verifier, batch = verifier_of(model)
  config, params = heads_of(kind, verifier)
  # The targets with weight have gaps between them, and rows end early.
  shape = batch["decoder_target_tokens"].shape
  rng = np.random.default_rng(9)
  kept = np.arange(shape[1]) < rng.integers(2, shape[1], (shape[0], 1))
  kept &= rng.random(shape) < 0.9
  batch = {**batch, "decoder_loss_weights": jnp.float32(kept)}
  weights, _ = losses.normalize(batch, None)
  objective = states.Objective(z_loss=0.1, teacher_share=share)
  module = HeadsNetwork(config)
  # Every second target is the token that head 1 finds likeliest.
  hidden = verifier.hidden(batch)
  [first, _] = head_losses.head_logits(module, params, verifier, hidden)
  targets = jnp.asarray(batch["decoder_target_tokens"])
  likeliest = targets.at[:, 1:].set(first.argmax(-1)[:, :-1])
  is_even = np.arange(shape[1]) % 2 == 0
  batch["decoder_target_tokens"] = jnp.where(is_even, targets, likeliest)

  def run(part):
    monkeypatch.setattr(row_parts, "PART", part)

    def loss(params):
      sums = head_losses.summed(
        Reading(module, params, batch, weights, 0, objective, teacher=verifier)
      )
      return 3 * sums.loss, sums

    (_, sums), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(
      params
    )
    return sums, gradient

  sums, gradient = run(shape[1])
  assert sums.loss > 1
  assert sums.correct >= 1
  assert sums.z_loss > 0 or share
  assert (kept.sum(1) < shape[1] - 3).any()
  for part in (1, 3):
    in_parts = run(part)
    for got, want in zip(
      jax.tree.leaves(in_parts), jax.tree.leaves((sums, gradient))
    ):
      np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_long_rows_need_the_logits_of_one_part_alone():
  class Bucket(NamedTuple):
    widths: tuple[int, ...]
    batch_size: int

  class Batches(NamedTuple):
    buckets: tuple[Bucket, ...]

  def num_vectors(width, **options):
    need = MemoryNeed(num_parts=1)
    batches = Batches((Bucket((width,), 6),))
    config = dataclasses.replace(SHAPES["medusa"], vocab_size=10)
    need.add_logits(batches, config, states.Objective(**options))
    return need.num_bytes / 40

  # Two heads; the verifier's distribution is needed at all places at once.
  assert num_vectors(50) == 6 * 50 * 2
  assert num_vectors(500) == 6 * row_parts.PART * 2
  assert num_vectors(500, teacher_share=1.0, microbatches=3) == 2 * (
    row_parts.PART * 2 + 500
  )
  assert num_vectors(500, tuning=TUNING) == 6 * 500 * 3


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


@pytest.mark.parametrize(
  ("kind", "model", "share"), [("medusa", "t5", 0.0), ("blockwise", "llama", 1)]
)
def test_training_teaches_heads_alone_and_continues(
  kind, model, share, tmp_path
):
  verifier, batch = verifier_of(model)
  before = jax.device_get(verifier.params)
  config = SHAPES[kind].of_verifier(verifier.module.config, verifier.params)
  measured = []

  class Writer:
    def write_scalars(self, step, scalars):
      measured.append(scalars["train/loss"])

    def flush(self):
      pass

  def train(folder, steps, config=config):
    return train_drafts(
      *(folder, config, verifier, batch, ADAM),
      steps=steps,
      writer=Writer(),
      teacher_share=share,
    )

  whole = continues(train, tmp_path, 20, 7, ADAM)
  assert whole.config == config
  assert measured[19] < 0.8 * measured[0]
  # The verifier has the very same bits.
  same(verifier.params, before)
  # Heads of another verifier are another model.
  other = dataclasses.replace(config, verifier_sha256="other")
  with pytest.raises(CheckpointError, match="verifier_sha256"):
    train(tmp_path / "broken", 22, other)


TUNING = VerifierTuning(heads_weight=0.5, rate=0.3, heads_only_steps=2)


def joint(kind, verifier):
  """Returns (config, parameters of heads and verifier, off their beginning)."""
  config, params = heads_of(kind, verifier)
  rng = np.random.default_rng(7)
  tuned = jax.tree.map(
    lambda leaf: leaf + rng.normal(0, 0.05, leaf.shape).astype(np.float32),
    verifier.params,
  )
  return config, {HEADS: params, VERIFIER: tuned}


@pytest.mark.parametrize("learns", [False, True])
def test_each_head_has_its_z_loss(learns):
  verifier, batch = verifier_of("llama")
  config, params = (joint if learns else heads_of)("medusa", verifier)
  weights, _ = losses.normalize(batch, None)
  objective = states.Objective(z_loss=0.1, tuning=TUNING, head_decay=0.7)
  module = HeadsNetwork(config)
  sums = head_losses.summed(
    Reading(module, params, batch, weights, 0, objective, teacher=verifier)
  )
  writer, heads = verifier, params
  if learns:
    writer = states.Teacher(params[VERIFIER], verifier.module)
    heads = params[HEADS]
  hidden = writer.hidden(batch)
  laws = [
    writer.project(hidden),
    *head_losses.head_logits(module, heads, writer, hidden),
  ]
  by_depth = []
  for k, logits in enumerate(laws):
    later = lesson.ahead_weights(batch, weights, k) if k else weights
    z = 0.1 * jax.nn.logsumexp(logits, axis=-1) ** 2
    wanted = lesson.ahead(batch["decoder_target_tokens"], k)
    plain, _ = losses.cross_entropy(logits, wanted)
    by_depth.append([float((x * later).sum()) for x in (z, plain + z)])
  own, *of_heads = np.array(by_depth)
  assert min(own[0], *(x[0] for x in of_heads)) > 0.01
  want = sum(0.7**k * x for k, x in enumerate(of_heads, 1))
  if learns:
    want = own + 0.5 * want
  np.testing.assert_allclose([sums.z_loss, sums.loss], want, rtol=1e-4)


@pytest.mark.parametrize(
  ("kind", "model", "share"),
  toy.nightly(
    [(k, m, s) for k in SHAPES for m in ("t5", "llama") for s in (0.0, 1.0)],
    quick=[("blockwise", "llama", 1.0)],
  ),
)
def test_the_loss_of_a_verifier_that_learns(kind, model, share):
  verifier, batch = verifier_of(model)
  config, params = joint(kind, verifier)
  weights, _ = losses.normalize(batch, None)
  objective = states.Objective(
    z_loss=0.0, teacher_share=share, tuning=TUNING, head_decay=0.7
  )
  module = HeadsNetwork(config)

  @jax.jit
  def loss(params, verifier):
    return head_losses.summed(
      Reading(module, params, batch, weights, 0, objective, teacher=verifier)
    ).loss

  @jax.jit
  def parts(params, verifier):
    """Returns [1 + K]: the verifier's loss, and each head's."""
    tuned = states.Teacher(params[VERIFIER], verifier.module)
    hidden = tuned.hidden(batch)
    each = head_losses.head_logits(module, params[HEADS], tuned, hidden)
    sums, before = [], verifier.logits(batch)
    for k, logits in enumerate([tuned.project(hidden), *each]):
      later = lesson.ahead_weights(batch, weights, k) if k else weights
      if share:
        by_token = losses.divergence(lesson.ahead(before, k), logits)
      else:
        wanted = lesson.ahead(batch["decoder_target_tokens"], k)
        by_token, _ = losses.cross_entropy(logits, wanted)
      sums.append((by_token * later).sum())
    return jnp.stack(sums)

  own, *of_heads = np.asarray(parts(params, verifier), np.float64)
  want = own + 0.5 * sum(0.7**k * x for k, x in enumerate(of_heads, 1))
  assert min(own, *of_heads) > 0.01
  np.testing.assert_allclose(loss(params, verifier), want, rtol=1e-4)
  # The gradient is the slope along a random direction.
  rng = np.random.default_rng(8)
  way = jax.tree.map(
    lambda leaf: rng.normal(0, 1, leaf.shape).astype(np.float32), params
  )

  def along(step):
    moved = jax.tree.map(lambda x, y: x + step * y, params, way)
    return float(loss(moved, verifier))

  slope = (along(1e-3) - along(-1e-3)) / 2e-3
  grads = jax.jit(jax.grad(loss))(params, verifier)
  products = jax.tree.map(lambda x, y: float((x * y).sum()), grads, way)
  np.testing.assert_allclose(
    sum(jax.tree.leaves(products)), slope, rtol=0.02, atol=0.02
  )
  # The heads' losses reach the verifier.
  own_loss = jax.jit(jax.grad(lambda x: parts(x, verifier)[0]))
  alone = own_loss(params)[VERIFIER]
  gap = jax.tree.map(lambda x, y: abs(x - y).max(), grads[VERIFIER], alone)
  assert max(jax.tree.leaves(gap)) > 1e-3


@pytest.mark.parametrize(
  ("kind", "model"),
  toy.nightly([("medusa", "t5"), ("blockwise", "llama")], [("medusa", "t5")]),
)
def test_a_tuned_verifier_is_found_and_continues(kind, model, tmp_path):
  verifier, batch = verifier_of(model)
  before = jax.device_get(verifier.params)
  config = SHAPES[kind].of_verifier(verifier.module.config, verifier.params)
  evaluation = evaluate.Evaluation([batch], teacher=verifier)

  def tune(folder, steps, tuning=TUNING, **options):
    return train_drafts(
      *(folder, config, verifier, batch, ADAM),
      steps=steps,
      tuning=tuning,
      **options,
    )

  whole = tmp_path / "whole"
  metrics = tune(whole, 6, evaluation=evaluation).metrics
  names = [name.removeprefix("eval/") for name in metrics]
  assert names == evaluation.names(config, is_tuned=True)
  assert metrics["eval/verifier_divergence"] > 1e-4
  same(verifier.params, before)
  # Until step 2 the heads learn alone; a broken run ends with the same bits.
  broken = tmp_path / "broken"
  tune(broken, 2)
  same(load(broken / "verifier").params, before)
  tune(broken, 4)
  # A run that was killed left a verifier whose heads were not written.
  shutil.copytree(
    broken / "verifier/checkpoint_4", broken / "verifier/checkpoint_6"
  )
  tune(broken, 6)
  for part in ("", "verifier"):
    first, second = (load(folder / part) for folder in (whole, broken))
    same(first.params, second.params)
  assert [x.name for x in (broken / "verifier").iterdir()] == ["checkpoint_6"]
  heads, tuned = load(broken), load(broken / "verifier")
  assert tuned.config == verifier.module.config
  digest = draft_heads.fingerprint(tuned.params)
  assert heads.config.verifier_sha256 == digest != config.verifier_sha256
  like = jax.eval_shape(
    ADAM.transform.init, {HEADS: heads.params, VERIFIER: tuned.params}
  )
  same(
    *(
      orbax_io.read_opt_state(folder / "checkpoint_6", like)
      for folder in (whole, broken)
    )
  )
  # The pair fits, and a pair with the verifier of before says where its is.
  drafter = load_model("drafter", broken)
  pair = ModelPair((drafter,), load_model("verifier", broken / "verifier"))
  check_models(pair)
  other = dataclasses.replace(pair.verifier, fingerprint="other")
  with pytest.raises(PairError, match=r"give that verifier, .*checkpoint_6"):
    check_models(dataclasses.replace(pair, verifier=other))
  # Heads that were trained alone are not a run to continue.
  alone = tmp_path / "alone"
  tune(alone, 1, tuning=None)
  with pytest.raises(CheckpointError, match="VERIFIER_TUNING is set"):
    tune(alone, 2)


def test_a_fingerprint_tells_parameters_apart():
  verifier, _ = verifier_of("t5")
  params = jax.device_get(verifier.params)
  first = draft_heads.fingerprint(params)
  assert draft_heads.fingerprint(params) == first
  norm = params["decoder"]["decoder_norm"]
  norm["scale"] = norm["scale"] + np.float32(1e-6)
  assert draft_heads.fingerprint(params) != first
