"""Cascades by configuration: what they decode, and what they refuse."""

import json

import numpy as np
import pytest

from speccascade.inference import infer
from speccascade.inference.cascades import Cascade
from speccascade.training import ngram_counts
from tests.inference import tiny
from tests.inference.test_infer import KINDS

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("cascade")
  (folder / "in.txt").write_text("one two one two\nthree\nfour five\n")
  counts = ngram_counts.count([[3, 4, 5, 3, 4]], vocab_size=13, order=3)
  ngram_counts.smooth(counts, vocab_size=13, min_count=1).save(folder / "n.npz")
  (folder / "table.json").write_text(json.dumps([4] * 13))
  return {
    "small": tiny.save(folder / "small" / "checkpoint_7", 0),
    "medium": tiny.save(folder / "medium" / "checkpoint_7", 2, emb_dim=12),
    "large": tiny.save(folder / "large" / "checkpoint_7", 1, emb_dim=12),
    "input": str(folder / "in.txt"),
    "ngrams": str(folder / "n.npz"),
    "bigrams": str(folder / "table.json"),
  }


@pytest.fixture
def run(files, tmp_path):
  def call(name, **changes):
    settings = {
      "method": "cascade_drafting",
      "output_dir": tmp_path / name,
      "vocabulary": tiny.Vocabulary(),
      "task_feature_lengths": {"inputs": 8},
      "max_decode_len": 6,
      "batch_size": 3,
      "temperature": 0.0,
      "progress": False,
      "drafter_checkpoint": files["small"],
      "verifier_checkpoint": files["large"],
      "input_file": files["input"],
    }
    return infer.infer(**tiny.objects({**settings, **changes}, **KINDS))

  return call


def predictions(folder):
  lines = (folder / "predictions.jsonl").read_text().splitlines()
  return [json.loads(line)["aux"]["tokens"] for line in lines]


def test_cascades_decode_what_the_verifier_does(run, files, tmp_path):
  run("alone", method="verifier")
  wanted = predictions(tmp_path / "alone")
  cases = {
    "two": (
      [files["medium"], files["small"]],
      Cascade(
        k=[[1, 1, 2], [0, 1, 2], [0, 0, 2]],
        lenience=3.0,
        bigrams=files["bigrams"],
      ),
    ),
    "none": ((), Cascade(k=[[3]])),
    "counted": (
      (),
      Cascade(k=[[1, 2], [0, 2]], ngrams=files["ngrams"]),
    ),
  }
  for name, (drafters, cascade) in cases.items():
    row = run(name, drafter_checkpoint=drafters, cascade=cascade)
    assert predictions(tmp_path / name) == wanted
    assert cascade.label in row.settings.drafter
    num_models = len(row.counts.calls_by_model)
    assert num_models == {"two": 3, "none": 0, "counted": 1}[name]


def test_labels():
  cascade = Cascade(k=[[5, 19], [0, 10]], meaning="cumulative", lenience=5)
  assert cascade.label == "K=5-14,0-10 l=5 max_gram"
  one = Cascade(k=[[2]], max_gram=False, ngrams="a/n.npz", verification="block")
  assert one.label == "K=2 l=1 ngrams=n.npz block"


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"k": [[1, 2]]}, "wanted a square matrix"),
    ({"k": [[1]], "verification": "blocks"}, "wanted one of token, block"),
    ({"k": [[1]], "max_gram": False, "bigrams": "x"}, "nothing reads it"),
  ],
)
def test_wrong_cascades(settings, message):
  with pytest.raises(ValueError, match=message):
    Cascade(**settings)


@pytest.mark.parametrize(
  ("changes", "cascade", "message"),
  [
    ({"method": "token_cascade_chow"}, {"k": [[1, 2], [0, 2]]}, "has none"),
    ({}, {"k": [[1]]}, "K has 1 rows for 2 drafters"),
    ({}, {"k": [[1, 2], [0, 2]], "lenience": 0.2}, "lenience is 0.2"),
    ({}, {"k": [[1, 2], [0, 2]], "bigrams": "no.json"}, "no bigram table"),
    (
      {"method": "spec_cascade_chow"},
      {"k": [[1, 2], [0, 2]]},
      "reads the drafter's confidence",
    ),
  ],
)
def test_what_does_not_fit_is_refused(run, tmp_path, changes, cascade, message):
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    run("bad", cascade=Cascade(**cascade), **changes)
  assert not (tmp_path / "bad").exists()


def test_another_vocabularys_counts_are_refused(files, tmp_path):
  counts = ngram_counts.count([[3, 4]], vocab_size=13, order=2)
  path = tmp_path / "other.npz"
  ngram_counts.smooth(counts, vocab_size=13, vocabulary="a" * 64).save(path)
  cascade = Cascade(k=[[2]], max_gram=False, ngrams=path)
  drafter = cascade.build((), 16, "a" * 64)
  assert drafter.vocab_size == 16
  # The rows that are padding have no probability.
  assert np.all(np.asarray(drafter.model.unigram[13:]) == 0)
  with pytest.raises(ValueError, match="counted with another vocabulary"):
    cascade.build((), 16, "b" * 64)
  with pytest.raises(ValueError, match="has 13 tokens, the pair 12"):
    cascade.build((), 12)
