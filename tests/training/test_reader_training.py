"""State readers learn from a verifier, which stays as it is."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import Sampling
from speccascade.generate.pair.model_loading import Model, load_model
from speccascade.generate.pair.pair_checks import PairError, check_models
from speccascade.generate.pair.pairs import ModelPair
from speccascade.models import (
  LlamaLM,
  StateReader,
  StateReaderConfig,
  architectures,
  draft_heads,
  state_reader,
)
from speccascade.models.state_reader import StateReaderNetwork
from speccascade.study.search import draft_kinds
from speccascade.text.arrays import TokenArrays
from speccascade.training import (
  evaluate,
  learned_vocabulary,
  losses,
  optimizers,
  reader_losses,
  states,
  teachers,
  trainer,
  training_batches,
)
from speccascade.training.checkpointing import Checkpoints
from speccascade.training.lesson import Reading
from tests import toy
from tests.training.conftest import continues, same
from tests.training.test_head_training import verifier_of

ADAM = optimizers.adamw(0.01)


def reader_of(verifier, **options):
  """Returns (config, parameters before training)."""
  config = StateReaderConfig(**options)
  config = config.of_verifier(verifier.module.config, verifier.params)
  params = state_reader.initial_params(config, verifier.module, verifier.params)
  return config, params


def test_targets_count_where_a_block_may_draft_them():
  weights = jnp.array([[0, 0, 1, 1, 1, 0, 2, 1]], jnp.float32)
  segments = jnp.array([[1, 1, 1, 1, 1, 2, 2, 2]])
  batch = {"decoder_segment_ids": segments}
  want = {
    0: [0, 0, 1, 1, 1, 0, 2, 1],
    1: [0, 0, 0, 1, 1, 0, 0, 1],
    2: [0, 0, 0, 0, 1, 0, 0, 0],
  }
  for num, row in want.items():
    got = reader_losses.drafted_weights(batch, weights, num)
    assert got[0].tolist() == row
    assert not reader_losses.drafted_weights({}, weights, 8).any()


# What readers have: a head of their own, several states, a public layer.
PLAIN, OWN_HEAD, FUSED = {}, {"own_head": True}, {"fused": True}
EAGLE3 = OWN_HEAD | FUSED | {"layout": "eagle3"}


@pytest.mark.parametrize("options", toy.nightly([PLAIN, EAGLE3], [EAGLE3]))
def test_texts_of_a_packed_row_are_read_as_apart(options):
  verifier, batch = verifier_of("llama")
  config, params = reader_of(verifier, **options)
  module = StateReaderNetwork(config)
  layers = config.layers_read(verifier.module.config.num_decoder_layers)

  @jax.jit
  def read(batch):
    reading = Reading(module, params, batch, None, teacher=verifier)
    _, states = verifier.hidden_and_states(batch, layers)
    return reader_losses.logits(reading, states)

  whole = [np.asarray(x) for x in read(batch)]
  segments = np.asarray(batch["decoder_segment_ids"])
  texts = [
    (row, number)
    for row in range(len(segments))
    for number in set(segments[row].tolist()) - {0}
  ]
  assert len(texts) > len(segments)
  for row, number in texts:
    where = np.flatnonzero(segments[row] == number)
    alone = {}
    for name, values in batch.items():
      if name not in ("decoder_segment_ids", "decoder_positions"):
        alone[name] = np.asarray(values)[row : row + 1, where]
    for got, want in zip(read(alone), whole):
      np.testing.assert_allclose(got[0], want[row, where], atol=2e-5)


def train(folder, config, verifier, batch, *, steps, optimizer=ADAM, **options):
  initial = state_reader.initial_params(
    config, verifier.module, verifier.params
  )
  return trainer.TrainingJob(
    config,
    [batch],
    Checkpoints(folder, config, initial_params=initial),
    trainer.TrainingRun(steps, progress=False, log_period=1),
    optimizer=optimizer,
    objective=states.Objective(z_loss=0.0, **options),
    teacher=verifier,
    say=lambda text: None,
  ).run()


@pytest.mark.parametrize(
  ("model", "options", "share"),
  toy.nightly(
    [
      ("t5", OWN_HEAD, 0.0),
      ("t5", FUSED, 0.0),
      ("llama", PLAIN, 0.0),
      ("llama", OWN_HEAD | FUSED, 1.0),
      ("llama", EAGLE3, 0.0),
    ],
    [("llama", EAGLE3, 0.0), ("t5", FUSED, 0.0)],
  ),
)
def test_training_teaches_the_reader_alone_and_is_read(
  model, options, share, tmp_path
):
  verifier, batch = verifier_of(model)
  before = jax.device_get(verifier.params)
  config, params = reader_of(verifier, **options, num_steps=2)
  measure = lambda params: evaluate.teacher_forced(
    config, params, [batch], verifier
  )
  first = measure(params)
  run = lambda folder, **how: train(
    folder, config, verifier, batch, teacher_share=share, **how
  )
  stored = continues(run, tmp_path, 8, 5, ADAM)
  same(before, verifier.params)
  after = measure(stored.params)
  assert set(after) == {"loss", "accuracy"} | {
    f"{name}_{k}" for k in (1, 2) for name in ("loss", "accuracy", "acceptance")
  }
  # The teacher's distributions are not those of the data.
  for k in (1, 2):
    if share:
      assert after[f"acceptance_{k}"] > first[f"acceptance_{k}"]
    else:
      assert after[f"loss_{k}"] < first[f"loss_{k}"]
  # The checkpoint is read as a drafter of this verifier alone.
  drafter = load_model("drafter", tmp_path / "whole")
  assert isinstance(drafter.lm, StateReader)
  assert not drafter.drafts_alone
  lm = architectures.row_of(verifier.module.config).model.create(
    verifier.module.config, dict(before)
  )
  digest = draft_heads.fingerprint(before)
  check_models(ModelPair((drafter,), Model(lm, "p", "", fingerprint=digest)))
  with pytest.raises(PairError, match="trained for another verifier"):
    check_models(ModelPair((drafter,), Model(lm, "p", "", fingerprint="0")))
  with pytest.raises(PairError, match="the verifier must be a language model"):
    load_model("verifier", tmp_path / "whole")


def test_a_cut_head_is_not_trained():
  verifier, batch = verifier_of("llama")
  config, _ = reader_of(verifier, **OWN_HEAD)
  config = dataclasses.replace(config, draft_vocab_size=3)
  module = StateReaderNetwork(config)
  reading = Reading(module, {}, batch, None, teacher=verifier)
  with pytest.raises(ValueError, match="train a reader with own_head"):
    reader_losses.lessons(reading)


def test_a_trained_reader_is_accepted_more_often():
  # The verifier's own texts teach it, and others measure it.
  config = dict(vocab_size=8, emb_dim=16, num_heads=2, num_kv_heads=1)
  verifier = LlamaLM.init(
    architectures.LlamaConfig(
      **config, head_dim=8, mlp_dim=16, num_decoder_layers=2
    ),
    jax.random.key(1),
  )
  # (A wide table gives it opinions.)
  table = verifier.params["token_embedder"]["embedding"] * 60
  params = {**verifier.params, "token_embedder": {"embedding": table}}
  verifier = verifier.replace(params=params)
  inputs = np.random.default_rng(0).integers(2, 8, (32, 3)).astype(np.int32)
  options = {
    "sampling": Sampling.create(1.0),
    "max_decode_len": 12,
    "eos_id": 99,
    "inputs": jnp.asarray(inputs),
  }
  texts = toy.decode("verifier", (None, verifier), **options).tokens
  whole = np.concatenate([inputs, texts], axis=1)
  weights = np.ones(whole[:, 1:].shape, np.float32)
  weights[:, :2] = 0
  batch = {
    "decoder_input_tokens": whole[:, :-1],
    "decoder_target_tokens": whole[:, 1:],
    "decoder_loss_weights": weights,
  }
  teacher = states.Teacher(params, verifier.module)
  config, start = reader_of(teacher)
  module, objective = StateReaderNetwork(config), states.Objective(z_loss=0.0)

  @jax.jit
  def step(params, opt_state):
    def loss(params):
      reading = Reading(
        module,
        params,
        batch,
        losses.normalize(batch, None)[0],
        objective=objective,
        teacher=teacher,
      )
      return reader_losses.summed(reading).loss / weights.sum()

    grads = jax.grad(loss)(params)
    updates, opt_state = ADAM.transform.update(grads, opt_state, params)
    return jax.tree.map(jnp.add, params, updates), opt_state

  trained, opt_state = start, ADAM.transform.init(start)
  for _ in range(60):
    trained, opt_state = step(trained, opt_state)
  models = [
    (StateReader.create(config, params), verifier)
    for params in (start, trained)
  ]
  rates = []
  for pair in models:
    stats = toy.decode("spec_decode", pair, **options).stats
    rates.append(stats.accepted.sum() / stats.examined.sum())
  assert rates[1] > rates[0] + 0.1
  # What a search expects of each draft is what training measures.
  laws, of_verifier = draft_kinds._reader_laws(
    *models[1],
    Sampling.create(1.0),
    config.num_steps,
    jnp.asarray(inputs),
    jnp.asarray(texts),
  )
  measured = evaluate.teacher_forced(config, trained, [batch], teacher)
  for k, (_, q) in enumerate(laws):
    rate = jnp.minimum(q, of_verifier[1]).sum(-1)[:, k:].mean()
    want = measured[f"acceptance_{k + 1}"]
    np.testing.assert_allclose(rate, want, atol=1e-4)


def test_a_draft_vocabulary_is_learned_where_its_tokens_are_drawn():
  verifier, batch = verifier_of("llama")
  config, params = reader_of(verifier, num_steps=2)
  module = StateReaderNetwork(config)
  vocab_size = config.vocab_size
  ids = list(range(3, vocab_size, 2))
  vocabulary = types.SimpleNamespace(eos_id=1)
  cut = learned_vocabulary.with_cut_head(verifier, ids[::-1], vocabulary)
  assert cut.cut["ids"].tolist() == [1, *ids]

  def reading_by(teacher, share=1.0):
    objective = states.Objective(z_loss=0.0, teacher_share=share)
    weights, _ = losses.normalize(batch, None)
    return Reading(
      module, params, batch, weights, objective=objective, teacher=teacher
    )

  whole = reader_losses.lessons(reading_by(verifier))
  kept = reader_losses.lessons(reading_by(cut))
  index, targets = cut.cut["ids"], batch["decoder_target_tokens"]
  for of_all, of_kept in zip(whole, kept):
    for name in ("logits", "teacher_logits"):
      np.testing.assert_allclose(
        getattr(of_kept, name), getattr(of_all, name)[..., index], atol=1e-5
      )
    is_kept = jnp.isin(targets, index)
    assert (is_kept != (of_all.weights > 0)).any()
    want = jnp.where(is_kept, of_all.weights, 0)
    np.testing.assert_array_equal(of_kept.weights, want)
    found = index[of_kept.targets]
    assert (jnp.where(is_kept, found == targets, True)).all()
  # What is measured is of all targets: p of a token that is not kept is lost.
  metrics = reader_losses.measure(reading_by(cut))
  for k, of_all in enumerate(whole, 1):
    p = jax.nn.softmax(of_all.teacher_logits)[..., index]
    q = jax.nn.softmax(of_all.logits[..., index])
    want = jnp.sum(jnp.minimum(p, q).sum(-1) * of_all.weights)
    got, weight = metrics[f"acceptance_{k}"]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert weight == of_all.weights.sum()
    right = index[q.argmax(-1)] == targets
    got, _ = metrics[f"accuracy_{k}"]
    np.testing.assert_allclose(got, jnp.sum(right * of_all.weights))


@pytest.mark.parametrize("pack", [False, True])
def test_stored_states_are_those_that_a_reader_reads_in_training(
  pack, tmp_path
):
  verifier, _ = verifier_of("llama")
  config, params = reader_of(verifier, num_steps=2)
  rng = np.random.default_rng(3)
  sizes = {"inputs": [3, 1, 4], "targets": [2, 5, 3]}
  tokens = {
    name: rng.integers(2, config.vocab_size, sum(lengths)).astype(np.int32)
    for name, lengths in sizes.items()
  }
  arrays = TokenArrays.join(tokens, sizes)
  batches = training_batches.train_batches(
    arrays,
    batch_size=2,
    seed=0,
    lengths={"inputs": 5, "targets": 6},
    pack=pack,
    prompted=True,
  )
  stored = teachers.with_hidden(
    verifier, batches, tmp_path, False, prompts=True
  )
  module = StateReaderNetwork(config)
  for step in range(2):
    batch, with_states = batches.batch(step), stored.batch(step)
    assert "teacher_hidden" in with_states
    results = []
    for one in (batch, with_states):
      weights, _ = losses.normalize(one, None)
      reading = Reading(module, params, one, weights, teacher=verifier)
      results.append(reader_losses.measure(reading))
    for name, (value, weight) in results[0].items():
      assert weight == results[1][name][1]
      np.testing.assert_allclose(value, results[1][name][0], rtol=2e-3)
