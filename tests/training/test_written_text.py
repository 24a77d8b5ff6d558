"""Texts that models write during training: shapes, shares, resumed runs."""

import jax
import numpy as np
import pytest

from speccascade.models import CausalTransformer
from speccascade.training import states, trainer
from speccascade.training.batch_checks import check_batch
from speccascade.training.training_data import TrainingData
from speccascade.training.written_text import WrittenText
from tests.training.conftest import BARE, DESCENT, LLAMA, random_batch, same

EOS = 1
T5 = states.Transformer(BARE)


def sharp(module, seed):
  """Returns parameters with which a model is nearly sure of its next token."""
  params = jax.device_get(states.init_params(module, seed))
  table = params["token_embedder"]["embedding"]
  return params | {"token_embedder": {"embedding": 4 * table}}


@pytest.fixture(scope="module")
def params():
  return jax.device_get(states.init_params(T5, 0))


@pytest.fixture(scope="module")
def batch():
  batch = check_batch(random_batch(0, rows=6), BARE, 0)
  for name in batch:
    batch[name][-1] = 0  # an empty row, which fills up a batch
  return batch


def test_a_student_writes_targets_of_the_same_shape(batch, params):
  written = WrittenText(student_text=1.0, seed=5)
  new = written(batch, 3, T5, params)
  assert {k: (x.shape, x.dtype) for k, x in new.items()} == {
    k: (x.shape, x.dtype) for k, x in batch.items()
  }
  same(new["encoder_input_tokens"], batch["encoder_input_tokens"])
  targets = new["decoder_target_tokens"]
  assert (targets != batch["decoder_target_tokens"]).any()
  assert not targets[-1].any()
  for row in targets:
    ends = np.flatnonzero(row == EOS)
    assert not row[ends[0] + 1 :].any() if len(ends) else True
  fed = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
  same(new["decoder_input_tokens"], fed)


def test_texts_follow_the_seed_and_the_step(batch, params):
  written = WrittenText(student_text=1.0, seed=5)
  first, again, later = (written(batch, k, T5, params) for k in (3, 3, 4))
  same(first, again)
  name = "decoder_target_tokens"
  assert (first[name] != later[name]).any()
  other = WrittenText(student_text=1.0, seed=6)(batch, 3, T5, params)
  assert (first[name] != other[name]).any()


def test_texts_are_drawn_from_the_author(params):
  """First tokens of 400 rows of one source, against the model's own q.

  The largest of V = 40 frequencies of n = 400 draws is off by less than five
  standard errors, sqrt(q (1 - q) / n) each, but for a chance of 40 * 6e-7.
  """
  source = np.tile(random_batch(0)["encoder_input_tokens"][:1], (400, 1))
  targets = np.tile(np.array([[5, EOS]], np.int32), (400, 1))
  raw = {"encoder_input_tokens": source, "decoder_target_tokens": targets}
  batch = check_batch(raw, BARE, 0)
  teacher = states.Teacher(jax.device_get(states.init_params(T5, 1)), T5)
  for settings, author in (
    ({"student_text": 1.0}, params),
    ({"teacher_text": 1.0, "teacher": teacher}, teacher.params),
  ):
    new = WrittenText(**settings, seed=2)(batch, 0, T5, params)
    tokens = new["decoder_target_tokens"][:, 0]
    seen = np.bincount(tokens, minlength=BARE.vocab_size) / len(tokens)
    q = jax.nn.softmax(states.forward(T5, author, batch)[0, 0])
    q = np.asarray(q, np.float64)
    assert (np.abs(seen - q) < 5 * np.sqrt(q * (1 - q) / 400) + 1e-3).all()


def test_shares_are_shares_of_steps():
  """4,000 steps: shares are off by less than 5 standard errors of 0.008."""
  teacher = states.Teacher({}, T5)
  written = WrittenText(0.5, 0.3, teacher=teacher)
  authors = [written.author(step) for step in range(4000)]
  for author, share in (("student", 0.5), ("teacher", 0.3), ("data", 0.2)):
    assert authors.count(author) / 4000 == pytest.approx(share, abs=0.04)
  assert WrittenText(seed=1).author(0) == "data"


def test_a_decoder_only_model_continues_prompts():
  module = CausalTransformer(LLAMA)
  params = jax.device_get(states.init_params(module, 0))
  # Prompts of 3, 1 and 2 tokens, and an empty row.
  fed = np.array(
    [[4, 5, 6, 7, 1], [8, 2, 1, 0, 0], [3, 9, 9, 9, 1], [0] * 5], np.int32
  )
  weights = np.array(
    [[0, 0, 1, 1, 0], [1, 1, 0, 0, 0], [0, 1, 1, 1, 0], [0] * 5], np.int32
  )
  targets = np.pad(fed, ((0, 0), (0, 1)))[:, 1:]
  batch = {
    "decoder_input_tokens": fed,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": weights,
  }
  new = WrittenText(student_text=1.0, seed=1)(batch, 0, module, params)
  learned = new["decoder_loss_weights"] > 0
  for row, length in enumerate((3, 1, 2)):
    same(new["decoder_input_tokens"][row, :length], fed[row, :length])
    assert learned[row].argmax() == length - 1
    # What is learned is in one piece, and each token is fed after it is made.
    places = np.flatnonzero(learned[row])
    same(places, np.arange(length - 1, length - 1 + len(places)))
    made = new["decoder_target_tokens"][row, places]
    same(new["decoder_input_tokens"][row, places[1:]], made[:-1])
    assert len(places) == 6 - length or made[-1] == EOS
    assert EOS not in made[:-1]
  assert not learned[3].any()


def test_a_resumed_run_reads_the_texts_of_the_unbroken_one():
  batches = [random_batch(seed) for seed in range(2)]
  written = WrittenText(student_text=0.5, seed=2)
  authors = [written.author(step) for step in range(4)]
  assert authors == ["student", "data", "data", "student"]
  kwargs = {
    "optimizer": DESCENT,
    "objective": states.Objective(loss="reverse_kl"),
    "teacher": states.Teacher(states.init_params(T5, 1), T5),
    "written": written,
    "progress": False,
  }
  unbroken = trainer.fit(BARE, batches, steps=4, **kwargs)
  half = trainer.fit(BARE, batches, steps=2, **kwargs)
  resumed = trainer.fit(BARE, batches, steps=4, state=half, **kwargs)
  same(resumed.params, unbroken.params)
  data = trainer.fit(BARE, batches, steps=4, **kwargs | {"written": None})
  leaf = jax.tree.leaves(data.params)[0]
  assert (leaf != jax.tree.leaves(unbroken.params)[0]).any()


def test_shares_and_batches_that_do_not_fit_are_refused(batch, params):
  with pytest.raises(ValueError, match="sum must not be more"):
    WrittenText(0.6, 0.6, teacher=states.Teacher({}, T5))
  with pytest.raises(ValueError, match="TEACHER_TEXT needs a TEACHER"):
    WrittenText(teacher_text=0.1)
  packed = batch | {"decoder_segment_ids": batch["decoder_target_tokens"]}
  with pytest.raises(ValueError, match="has decoder_segment_ids, and the stu"):
    WrittenText(1.0)(packed, 0, T5, params)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"student_text": 0.5, "pack": True}, "leave out PACK and TEACHER_CACHE"),
    ({"teacher_text": 0.5, "teacher_cache_dir": "x"}, "leave out PACK and"),
    ({"earlier_drafters": ["x"]}, "EARLIER_DRAFTERS need a TEACHER_CHECKPOINT"),
    ({"student_text": 1.5}, "student_text is 1.5"),
  ],
)
def test_settings_that_exclude_each_other_are_refused(settings, message):
  lengths = {"inputs": 8, "targets": 8}
  with pytest.raises(ValueError, match=message):
    TrainingData(
      mixture_or_task_name="t",
      task_feature_lengths=lengths,
      batch_size=1,
      **settings,
    )
