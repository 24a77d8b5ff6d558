"""Decoder-only models learn outputs, from text and from a teacher."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.checkpoints import load, orbax_io
from speccascade.models import CausalTransformer, LlamaConfig, T5GemmaConfig
from speccascade.models.t5gemma.network import T5GemmaTransformer
from speccascade.text.arrays import TokenArrays
from speccascade.training import (
  evaluate,
  losses,
  optimizers,
  states,
  teachers,
  trainer,
  training_batches,
)
from speccascade.training.checkpointing import Checkpoints
from tests import toy
from tests.training.conftest import LLAMA, STILL, same

EOS = 1
MODULE = CausalTransformer(LLAMA)
ADAM = optimizers.adamw(0.02)
MEAN = "NUM_REAL_TARGET_TOKENS"


def texts(num=12, seed=0):
  """Returns random prompts; each output counts on to 10, and ends in EOS."""
  rng = np.random.default_rng(seed)
  prompts = [
    rng.integers(0, 10, rng.integers(1, 5)).tolist() for _ in range(num)
  ]
  return [(p, [*range(p[-1] + 1, 11), EOS]) for p in prompts]


def arrays_of(examples):
  columns = dict(zip(("inputs", "targets"), zip(*examples)))
  return TokenArrays.join(
    {k: np.concatenate(rows).astype(np.int32) for k, rows in columns.items()},
    {k: list(map(len, rows)) for k, rows in columns.items()},
  )


def batches_of(examples, **options):
  """Returns one batch of all examples, in rows apart or packed."""
  arrays = arrays_of(examples)
  options = {"batch_size": len(examples), "seed": 0} | options
  train_batches = training_batches.train_batches(
    arrays, prompted=True, **options
  )
  return [train_batches.batch(0)]


def objective(share, **kwargs):
  return states.Objective(
    z_loss=0.0, teacher_share=share, loss_normalizing_factor=MEAN, **kwargs
  )


def random_params(seed):
  return states.init_params(MODULE, seed)


def train(data, steps, share=0.0, **kwargs):
  """Returns the state after training, and the metrics of each step."""
  log = []
  kwargs = {"optimizer": ADAM, "progress": False} | kwargs
  if (params := kwargs.pop("params", None)) is not None:
    kwargs["state"] = states.TrainState.create(params, kwargs["optimizer"])
  after = trainer.fit(
    LLAMA,
    data,
    steps=steps,
    objective=objective(share),
    log_every=1,
    on_log=lambda step, metrics: log.append(metrics),
    **kwargs,
  )
  return after, log


@pytest.fixture(scope="module")
def data():
  return batches_of(texts())


@pytest.fixture(scope="module")
def from_texts(data):
  return train(data, 80)


@pytest.fixture(scope="module")
def learned(from_texts):
  """A model that has learned the language from its texts."""
  return from_texts[0].params


def test_a_model_learns_from_texts(from_texts):
  _, log = from_texts
  assert log[-1]["loss"] < 0.1 < 1 < log[0]["loss"]
  assert log[-1]["accuracy"] == 1


def test_a_model_learns_the_distributions_of_another(data, learned):
  teacher = states.Teacher(learned, MODULE)
  after, log = train(data, 80, 1.0, teacher=teacher)
  assert log[-1]["loss"] < 0.05 < 1 < log[0]["loss"]
  before, then = (
    evaluate.teacher_forced(LLAMA, params, data, teacher)
    for params in (random_params(0), after.params)
  )
  assert before["divergence"] > 1 > 20 * then["divergence"]
  assert before["acceptance"] < 0.5 < 0.9 < then["acceptance"]


def twin(examples, params, teacher_params, share):
  """The mean loss of output tokens, example by example, in float64."""
  width = max(len(p) + len(o) for p, o in examples)
  rows = np.zeros((len(examples), width), np.int32)
  for row, (prompt, output) in zip(rows, examples):
    row[: len(prompt) + len(output)] = [*prompt, *output]
  logs = []
  for each in (params, teacher_params):
    logits = np.asarray(MODULE.apply({"params": each}, rows), np.float64)
    logs.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
  terms = []
  for row, (prompt, output) in enumerate(examples):
    for place, token in enumerate(output, len(prompt) - 1):
      log_q, log_p = (log[row, place] for log in logs)
      divergence = np.sum(np.exp(log_p) * (log_p - log_q))
      terms.append(-(1 - share) * log_q[token] + share * divergence)
  return np.mean(terms), len(terms)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("share", toy.nightly([0.0, 0.3, 1.0], [0.3]))
def test_the_loss_is_of_outputs_alone(is_packed, share, learned):
  """Against float64, for ragged prompts, packed and in rows apart."""
  examples, options = texts(6, seed=1), {}
  if is_packed:
    lengths = {"inputs": 40, "targets": 40}
    options = {"pack": True, "batch_size": 1, "lengths": lengths}
  [batch] = batches_of(examples, **options)
  assert len(batch["decoder_input_tokens"]) == (1 if is_packed else 6)
  params, teacher = random_params(1), states.Teacher(learned, MODULE)
  _, [metrics] = train(
    [batch], 1, share, teacher=teacher, optimizer=STILL, params=params
  )
  want, num = twin(examples, params, learned, share)
  assert batch["decoder_loss_weights"].sum() == num
  assert metrics["loss"] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("is_packed", [False, True])
def test_stored_states_teach_as_the_teacher_does(
  is_packed, learned, tmp_path, monkeypatch
):
  """A step that reads the teacher's states equals a step that computes them.

  After one of two files is removed, only its texts are computed again.
  """
  examples, lengths = texts(6, seed=1), {"inputs": 16, "targets": 16}
  teacher, head = states.Teacher(learned, MODULE), learned["token_embedder"]
  calls, states_of = [], teachers._states_of
  monkeypatch.setattr(teachers, "PART", 4)

  def count_calls(*args):
    calls.append(args)
    return states_of(*args)

  monkeypatch.setattr(teachers, "_states_of", count_calls)
  train_batches = training_batches.train_batches(
    arrays_of(examples),
    batch_size=1,
    seed=0,
    pack=is_packed,
    lengths=lengths,
    prompted=True,
  )
  teachers.with_hidden(teacher, train_batches, tmp_path, progress=False)
  first, _ = sorted(tmp_path.glob("*/*.npy"))
  first.unlink()
  train_batches = teachers.with_hidden(
    teacher, train_batches, tmp_path, progress=False
  )
  assert len(calls) == 3
  batches = [
    train_batches.batch(i) for i in range(train_batches.steps_per_epoch)
  ]
  # This teacher can answer from the stored states only: it has the right output
  # projection, and random parameters elsewhere.
  blind = states.Teacher(random_params(3) | {"token_embedder": head}, MODULE)
  _, log = train(
    batches,
    len(batches),
    1.0,
    teacher=blind,
    optimizer=STILL,
    params=random_params(1),
  )
  weights = [batch["decoder_loss_weights"].sum() for batch in batches]
  want, num = twin(examples, random_params(1), learned, 1.0)
  losses_seen = [metrics["loss"] for metrics in log]
  assert sum(weights) == num
  assert np.average(losses_seen, weights=weights) == pytest.approx(want, 1e-3)


def test_a_damaged_file_of_a_teacher_is_named(learned, tmp_path):
  teacher = states.Teacher(learned, MODULE)
  made = training_batches.train_batches(
    arrays_of(texts(3)), batch_size=1, seed=0, prompted=True
  )
  teachers.with_hidden(teacher, made, tmp_path, progress=False)
  [path] = tmp_path.glob("*/*.npy")
  whole = path.read_bytes()
  np.save(path, np.zeros((1, 16), np.float16))
  damaged = (b"", b"text", whole[:60], whole[:-9], path.read_bytes())
  for content in damaged:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="TEACHER_CACHE_DIR: ") as error:
      teachers.with_hidden(teacher, made, tmp_path, progress=False)
    assert f"{path} " in str(error.value)
    assert "delete this file, and run again" in str(error.value)
    assert "\n" not in str(error.value)
  path.unlink()
  teachers.with_hidden(teacher, made, tmp_path, progress=False)
  assert path.read_bytes() == whole


def test_states_of_whole_texts_serve_where_those_of_targets_do(
  tmp_path, monkeypatch
):
  teacher = states.Teacher(random_params(2), MODULE)
  made = training_batches.train_batches(
    arrays_of(texts(3)), batch_size=1, seed=0, prompted=True
  )
  alone = teachers.with_hidden(teacher, made, tmp_path / "alone", False)
  shared = tmp_path / "shared"
  whole = teachers.with_hidden(teacher, made, shared, False, prompts=True)
  monkeypatch.setattr(teachers, "_hidden", None)  # The teacher does not read.
  read = teachers.with_hidden(teacher, made, shared, False)
  hidden = (each.arrays.hidden for each in (alone, whole, read))
  for target, longer, stored in zip(*hidden, strict=True):
    assert len(longer) >= len(target)
    np.testing.assert_array_equal(target, stored)


def test_a_teacher_that_is_the_student_teaches_nothing(data):
  params = random_params(2)
  teacher = states.Teacher(params, MODULE)
  _, [metrics] = train(data, 1, 1.0, params=params, teacher=teacher)
  assert abs(metrics["loss"]) < 1e-6
  assert metrics["grad_norm"] < 1e-6
  measured = evaluate.teacher_forced(LLAMA, params, data, teacher)
  assert abs(measured["divergence"]) < 1e-6
  assert measured["acceptance"] == pytest.approx(1, abs=1e-6)


def test_divergence_is_its_definition():
  """Against float64, with a one-hot row and a tie."""
  logits = np.random.default_rng(0).normal(0, 3, (2, 4, 7)).astype(np.float32)
  logits[:, 0], logits[0, 1] = 0, [80] + [-80] * 6
  p, q = (np.exp(x - x.max(-1, keepdims=True)) for x in logits.astype(float))
  p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
  want = np.where(p > 0, p * (np.log(np.maximum(p, 1e-300)) - np.log(q)), 0)
  values = losses.divergence(*jnp.asarray(logits))
  np.testing.assert_allclose(values, want.sum(-1), rtol=1e-5, atol=1e-6)
  overlap = losses.overlap(*jnp.asarray(logits))
  np.testing.assert_allclose(overlap, np.minimum(p, q).sum(-1), rtol=1e-5)


def test_both_tables_of_an_encoder_decoder_are_reduced(tmp_path):
  sizes = {"vocab_size": 16, "num_heads": 2, "num_kv_heads": 2, "head_dim": 4}
  layers = {"num_decoder_layers": 1, "num_encoder_layers": 1, "mlp_dim": 8}
  wide, small = (
    T5GemmaTransformer(T5GemmaConfig(**sizes, **layers, emb_dim=width))
    for width in (12, 8)
  )
  given = wide.initial(jax.random.key(0))
  orbax_io.save(tmp_path / "wide", given, wide.config, step=1)
  params = small.initial(jax.random.key(1))
  params["token_embedder"]["end_of_image"] = beside = np.ones(8)
  new = teachers.with_embedding(params, tmp_path / "wide")
  assert new["token_embedder"]["end_of_image"] is beside
  for part, table in ((new, given), (new["encoder"], given["encoder"])):
    want = teachers.reduce_width(table["token_embedder"]["embedding"], 8)
    np.testing.assert_allclose(part["token_embedder"]["embedding"], want)


def test_a_run_that_is_taken_up_ends_as_the_unbroken_one(
  data, learned, tmp_path
):
  """From a reduced embedding; checkpoints hold config and vocabulary."""
  identity = {"path": "there", "sha256": "0" * 64}
  wide = CausalTransformer(LlamaConfig(**vars(LLAMA) | {"emb_dim": 24}))
  orbax_io.save(
    tmp_path / "wide", wide.initial(jax.random.key(0)), wide.config, step=1
  )

  def run(folder, steps):
    settings = trainer.TrainingRun(
      steps, initial_embedding_path=tmp_path / "wide", progress=False
    )
    checkpoints = Checkpoints(tmp_path / folder, LLAMA, vocabulary=identity)
    teacher = states.Teacher(learned, MODULE)
    lines = []
    trainer.TrainingJob(
      LLAMA,
      data,
      checkpoints,
      settings,
      teacher=teacher,
      say=lines.append,
      optimizer=ADAM,
      objective=objective(0.5),
    ).run()
    return lines[0], load(tmp_path / folder)

  source, unbroken = run("unbroken", 4)
  assert f"and the embedding of {tmp_path}/wide" in source
  run("broken", 2)
  source, broken = run("broken", 4)
  assert "resuming from" in source
  same(broken.params, unbroken.params)
  assert broken.config == LLAMA
  assert broken.vocabulary == identity


def test_a_reduced_embedding_keeps_products():
  """A table of rank 2 in 5 dimensions keeps all products in 2 dimensions."""
  rng = np.random.default_rng(0)
  table = rng.normal(size=(9, 2)) @ rng.normal(size=(2, 5))
  small = teachers.reduce_width(table, 2)
  np.testing.assert_allclose(small @ small.T, table @ table.T, atol=1e-5)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda b: b.pop("decoder_loss_weights"), "no decoder_loss_weights"),
    (lambda b: b.pop("decoder_input_tokens"), "no decoder_input_tokens"),
  ],
)
def test_batches_that_do_not_fit_are_refused(data, change, message):
  batch = dict(data[0])
  change(batch)
  with pytest.raises(ValueError, match=message):
    train([batch], 1)


def test_a_share_needs_a_teacher(data):
  with pytest.raises(ValueError, match=r"MixedLoss\(share=0\.5.*no teacher"):
    train(data, 1, 0.5)
