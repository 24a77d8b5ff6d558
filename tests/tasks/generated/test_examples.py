"""Checks splits, determinism and references of the built-in task."""

import hashlib
import itertools
import subprocess
import sys

import pytest

from speccascade.tasks import generated
from speccascade.tasks.generated import grammar
from speccascade.tasks.generated.words import WORDS


def _digest(split):
  """Of 500 examples with all their references."""
  examples = [generated.example(split, i) for i in range(500)]
  lines = ("\t".join((x.inputs, x.targets, *x.references)) for x in examples)
  text = "\n".join(lines)
  return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def test_pairs_never_change():
  """A change here is a new task: train the vocabulary, measure again."""
  assert {split: _digest(split) for split in generated.SPLITS} == {
    "train": "dc51bee5478be176",
    "validation": "545e5b27fad29d9c",
    "test": "031b412c70db3748",
  }


def test_far_indices_and_order_of_access():
  forward = [generated.pair("validation", i) for i in (3, 10**12)]
  backward = [generated.pair("validation", i) for i in (10**12, 3)]
  assert forward == backward[::-1]


def test_splits_are_disjoint():
  sources = {
    split: {generated.pair(split, i)[0] for i in range(count)}
    for split, count in zip(generated.SPLITS, (3_000, 300, 300))
  }
  for left, right in itertools.combinations(sources.values(), 2):
    assert not left & right
  for split, texts in sources.items():
    assert {generated.split_of(text) for text in texts} == {split}
  assert len(sources["train"]) > 0.97 * 3_000


def test_a_source_has_one_reading(monkeypatch):
  """With few words, sources come again: always with the same references."""
  for section, table in WORDS.items():
    monkeypatch.setitem(WORDS, section, table[:1])
  monkeypatch.setattr(grammar, "_DETERMINERS", grammar._DETERMINERS[:2])
  known = {}
  again = 0
  for index in range(2_000):
    inputs, targets = generated.pair("train", index)
    if len(inputs.split()) < 9:
      references = set(generated.example("train", index).references)
      assert targets in references
      assert len(references) in (1, 2, 4, 8)
      again += inputs in known
      assert known.setdefault(inputs, references) == references, inputs
  assert again > 30


def test_bad_arguments():
  with pytest.raises(ValueError, match=r"split is 'dev'; .*of train"):
    generated.pair("dev", 0)
  with pytest.raises(ValueError, match=r"index is -1; .*whole number"):
    generated.pair("test", -1)


def test_no_tensorflow_is_loaded():
  code = (
    "import sys; from speccascade.tasks import generated; "
    "generated.encode(generated.pair('test', 0)); "
    "print([m for m in ('tensorflow', 'seqio', 'jax') if m in sys.modules])"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == "[]"
