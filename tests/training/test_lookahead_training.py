"""Look-ahead embeddings learn from a verifier, which stays as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.checkpoints import orbax_io
from speccascade.generate.pair.model_loading import load_model
from speccascade.generate.pair.pair_checks import check_models
from speccascade.generate.pair.pairs import ModelPair
from speccascade.models import HeadsConfig, LookaheadModel, draft_heads
from speccascade.models.draft_heads import HeadsNetwork
from speccascade.training import (
  evaluate,
  lookahead_losses,
  losses,
  optimizers,
  states,
  training_step,
)
from speccascade.training.lesson import Reading
from tests import toy
from tests.training.conftest import STILL, continues, same, train_drafts
from tests.training.test_head_training import METRIC_NAMES, verifier_of

ADAM = optimizers.adamw(0.1)
KEY = jax.random.key(5, impl="threefry2x32")


def embeddings_of(verifier, num: int = 2):
  """Returns (config, parameters before training)."""
  config = HeadsConfig(kind="lookahead", num_heads=num)
  config = config.of_verifier(verifier.module.config, verifier.params)
  params = draft_heads.initial_params(config, verifier.module, verifier.params)
  return config, params


def test_texts_are_cut_at_all_places_alike():
  # Two texts in the first row, after prompts of one and two tokens; a text with
  # one target alone cannot be cut.
  targets = jnp.array([[3, 4, 5, 7, 8, 9, 1, 0], [3, 2, 0, 0, 0, 0, 0, 0]])
  weights = jnp.array([[1, 1, 1, 0, 1, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0, 0]])
  batch = {
    "decoder_input_tokens": jnp.array(
      [[2, 3, 4, 6, 7, 8, 9, 0], [6, 3, 0, 0, 0, 0, 0, 0]]
    ),
    "decoder_target_tokens": targets,
    "decoder_segment_ids": jnp.array(
      [[1] * 3 + [2] * 4 + [0], [1] * 2 + [0] * 6]
    ),
  }
  weights = weights.astype(jnp.float32)

  @jax.jit
  @jax.vmap
  def cut(rng):
    return lookahead_losses.cut(batch, weights, rng, num=2, vocab_size=10)

  num = 4000
  cuts = jax.device_get(cut(jax.random.split(KEY, num)))
  tokens = cuts.batch["decoder_input_tokens"]
  assert not cuts.weights[:, 1].any()
  # Place -> (inputs, targets, weights) of the first row: 4 places.
  want = {
    0: ([2, 10, 11, 6, 7, 8, 9, 0], [4, 5], [4, 4]),
    1: ([2, 3, 10, 11, 7, 8, 9, 0], [5, 7], [4, 0]),
    4: ([2, 3, 4, 6, 7, 10, 11, 0], [9, 1], [4, 4]),
    5: ([2, 3, 4, 6, 7, 8, 10, 11], [1, 0], [4, 0]),
  }
  places = cuts.places[:, 0, 0] - 1
  assert set(places.tolist()) == set(want)
  for place, (inputs, wanted, weight) in want.items():
    rows = places == place
    # A share of 1/4, within five standard deviations.
    assert abs(rows.mean() - 0.25) < 5 * (0.25 * 0.75 / num) ** 0.5
    for got, value in (
      (tokens, inputs),
      (cuts.targets, wanted),
      (cuts.weights, weight),
    ):
      assert np.all(got[rows, 0] == np.array(value))


def twin(config, params, verifier, batch, cuts) -> list[float]:
  """Returns the loss by embedding, from texts that end with the embeddings.

  The verifier reads them as further rows of its table.
  """
  module, ahead = verifier.module, params["embedding"]
  tree = dict(verifier.params)
  table = tree["token_embedder"]["embedding"]
  size, more = len(table), config.num_heads
  tree["token_embedder"] = {"embedding": jnp.concatenate([table, ahead])}
  if "logits_dense" in tree["decoder"]:
    kernel = tree["decoder"]["logits_dense"]["kernel"]
    kernel = {"kernel": jnp.pad(kernel, ((0, 0), (0, more)))}
    tree["decoder"] = {**tree["decoder"], "logits_dense": kernel}
  wide = type(module)(
    type(module.config)(
      **{**vars(module.config), "vocab_size": size + len(ahead)}
    )
  )
  ids = [size + k for k in range(more)]
  inputs = np.asarray(batch["decoder_input_tokens"])
  texts = np.zeros((len(inputs), inputs.shape[1] + more), np.int32)
  ends = []
  for row, place in enumerate(np.asarray(cuts.places)[:, 0] - 1):
    # The text of the cut begins after the last text before it in the row.
    start = 0
    if "decoder_segment_ids" in batch:
      segments = np.asarray(batch["decoder_segment_ids"])[row]
      start = int(np.argmax(segments == segments[place]))
    text = [*inputs[row, start : place + 1], *ids]
    texts[row, : len(text)] = text
    ends.append(len(text))

  @jax.jit
  def forward(tree):
    if "encoder_input_tokens" not in batch:
      return wide.apply({"params": tree}, texts)
    source = jnp.asarray(batch["encoder_input_tokens"])
    seen = jnp.ones_like(texts)
    return wide.apply(
      {"params": tree}, source, texts, seen, enable_dropout=False
    )

  logits = np.asarray(forward(tree), np.float64)[..., :size]
  logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  by_head = np.zeros(more)
  for row, end in enumerate(ends):
    for k in range(more):
      target = int(cuts.targets[row, k])
      chance = logs[row, end - more + k, target]
      by_head[k] -= float(cuts.weights[row, k]) * chance
  return by_head.tolist()


@pytest.mark.parametrize("model", toy.nightly(["llama", "t5"], ["llama"]))
def test_the_loss_is_of_texts_that_end_with_embeddings(model):
  verifier, batch = verifier_of(model)
  config, params = embeddings_of(verifier)
  module, objective = HeadsNetwork(config), states.Objective(z_loss=0.0)
  weights, _ = losses.normalize(batch, None)

  @jax.jit
  def run(params, verifier):
    cuts = lookahead_losses.cut(
      batch, weights, KEY, num=2, vocab_size=config.vocab_size
    )
    summed = lambda params: (
      lookahead_losses.summed(
        Reading(
          module,
          params,
          batch,
          weights,
          objective=objective,
          rng=KEY,
          teacher=verifier,
        )
      ).loss
    )
    loss, grads = jax.value_and_grad(summed)(params)
    return cuts, loss, grads

  cuts, loss, grads = run(params, verifier)
  by_head = twin(config, params, verifier, batch, cuts)
  assert min(by_head) > 1
  want = 0.8 * by_head[0] + 0.64 * by_head[1]
  np.testing.assert_allclose(loss, want, rtol=1e-4)
  assert np.all(np.abs(grads["embedding"]).max(axis=1) > 1e-3)
  measured = evaluate.teacher_forced(config, params, [batch], verifier)
  assert tuple(measured) == METRIC_NAMES
  assert measured["loss"] == measured["loss_1"] > 0
  assert 0 < measured["acceptance_2"] < 1


def test_each_step_cuts_at_other_places():
  verifier, batch = verifier_of("llama")
  config, params = embeddings_of(verifier)
  state = states.TrainState.create(params, STILL)
  step = training_step.make_step(
    HeadsNetwork(config), STILL, states.Objective(z_loss=0.0)
  )
  sums = [0.0]
  for _ in range(4):
    state = step(state, batch, verifier)
    sums.append(float(state.totals.loss))
  same(state.params, params)
  assert len(set(np.diff(sums).round(2))) == 4


@pytest.mark.parametrize(
  ("model", "share"),
  toy.nightly([("t5", 0.0), ("llama", 0.0), ("llama", 1.0)], [("llama", 1.0)]),
)
def test_training_teaches_embeddings_alone_and_continues(
  model, share, tmp_path
):
  verifier, batch = verifier_of(model)
  if model == "llama":
    # Its random distributions are almost uniform: nothing is to be learned of
    # them.
    table = 8 * verifier.params["token_embedder"]["embedding"]
    params = {**verifier.params, "token_embedder": {"embedding": table}}
    verifier = verifier.replace(params=params)
  before = jax.device_get(verifier.params)
  config, params = embeddings_of(verifier)

  def train(folder, steps):
    return train_drafts(
      folder, config, verifier, batch, ADAM, steps=steps, teacher_share=share
    )

  whole = continues(train, tmp_path, 30, 7, ADAM)
  assert whole.config == config
  # The verifier has the very same bits.
  same(verifier.params, before)
  # They learned, on the whole, what they are to draft.
  first, last = (
    evaluate.teacher_forced(config, x, [batch], verifier)
    for x in (params, whole.params)
  )
  name = "acceptance" if share else "loss"
  gains = [last[f"{name}_{k}"] - first[f"{name}_{k}"] for k in (1, 2)]
  assert np.sign(sum(gains)) == (1 if share else -1)
  assert abs(sum(gains)) > 0.05
  # The checkpoint is one of a drafter of this verifier.
  drafter = load_model("drafter", tmp_path / "whole")
  assert isinstance(drafter.lm, LookaheadModel)
  path = tmp_path / "verifier"
  orbax_io.save(path, before, verifier.module.config, step=1)
  check_models(ModelPair((drafter,), load_model("verifier", path)))
