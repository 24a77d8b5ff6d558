"""Compares the seqio task with the package without TensorFlow."""

import numpy as np
import pytest

from speccascade.tasks import generated

pytestmark = pytest.mark.needs_tf

LENGTHS = {"inputs": 64, "targets": 64}


@pytest.fixture(scope="module")
def task():
  seqio = pytest.importorskip("seqio")
  from speccascade.tasks.generated import task

  task.register("small_en_de", train=30, validation=12, test=12)
  return seqio.get_mixture_or_task("small_en_de")


def _rows(task, split):
  return list(
    task.get_dataset(LENGTHS, split=split, shuffle=False).as_numpy_iterator()
  )


@pytest.mark.parametrize("split", generated.SPLITS)
def test_rows_are_the_pairs(task, split):
  rows = _rows(task, split)
  assert len(rows) == task.num_input_examples(split)
  pairs = [generated.pair(split, i) for i in range(len(rows))]
  for name, texts in zip(("inputs", "targets"), zip(*pairs)):
    for row, ids in zip(rows, generated.encode(texts)):
      np.testing.assert_array_equal(row[name], ids)


def test_it_is_read_in_silence(task, capfd):
  from speccascade.tasks import reading

  assert len(reading.from_task(task, "test", num=2, progress=False)) == 2
  assert capfd.readouterr() == ("", "")


def test_metrics_of_the_task(task):
  rows = _rows(task, "test")
  targets = [
    task.postprocess_fn(
      row["targets_pretokenized"].decode(), example=row, is_target=True
    )
    for row in rows
  ]
  examples = [generated.example("test", i) for i in range(len(rows))]
  assert targets == [list(example.references) for example in examples]
  right = [task.postprocess_fn(one.references[-1]) for one in examples]
  scores = {}
  for metric in task.metric_fns:
    scores |= metric(targets, right)
  assert scores == pytest.approx({"bleu": 100, "chrf": 100, "valid": 100})
  right[0] = "Ich schlafe."
  share = 100 * (len(rows) - 1) / len(rows)
  assert task.metric_fns[-1](targets, right) == {"valid": pytest.approx(share)}


def test_the_vocabulary_is_the_packages(task):
  from speccascade.tasks.generated import task_pieces

  pieces = task.output_features["targets"].vocabulary
  assert pieces.vocab_size == task_pieces.SIZE
  assert pieces.text(generated.encode(["Er schläft."])[0]) == "Er schläft."


def test_registering_again():
  from speccascade.tasks.generated import task

  assert task.register() == "speccascade_en_de"
  with pytest.raises(ValueError, match="there is a task 'speccascade_en_de'"):
    task.register(train=10)
