"""Configured cascades: the tokens that they decode, and what they refuse."""

import json
import types

import numpy as np
import pytest

from speccascade.generate.pair.cascades import (
  Cascade,
  SideBySide,
  calls_by_drafter,
)
from speccascade.training import ngram_counts


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
  """Paths of an n-gram model and of a bigram table."""
  folder = tmp_path_factory.mktemp("cascade")
  counts = ngram_counts.count([[3, 4, 5, 3, 4]], vocab_size=13, order=3)
  ngram_counts.smooth(counts, vocab_size=13, min_count=1).save(folder / "n.npz")
  (folder / "table.json").write_text(json.dumps([4] * 13))
  return {"ngrams": folder / "n.npz", "bigrams": folder / "table.json"}


DRAFTING = {"method": "cascade_drafting", "temperature": 0.0}


def test_cascades_decode_what_the_verifier_does(
  run, files, tables, tmp_path, lines
):
  def tokens(name, **settings):
    settings = {**DRAFTING, "output_dir": tmp_path / name, **settings}
    row = run(max_decode_len=6, **settings)
    return row, [record["aux"]["tokens"] for record in lines(name)]

  _, wanted = tokens("alone", method="verifier")
  two = [str(files / "medium"), str(files / "small")]
  k = [[1, 1, 2], [0, 1, 2], [0, 0, 2]]
  several = Cascade(k=k, lenience=3.0, bigrams=tables["bigrams"])
  counted = Cascade(k=[[1, 2], [0, 2]], ngrams=tables["ngrams"])
  for name, num_models, drafters, cascade in (
    ("two", 3, two, several),
    ("none", 0, (), Cascade(k=[[3]])),
    ("counted", 1, (), counted),
    ("branched", 1, two[:1], Cascade(k=[[2, 2], [0, 2]], first_children=3)),
  ):
    row, written = tokens(name, drafter_checkpoint=drafters, cascade=cascade)
    assert written == wanted
    assert cascade.label in row.settings.drafter
    # The cascade sets the length of a block, whatever GAMMA is.
    assert row.settings.gamma == sum(cascade.k[0])
    assert len(row.counts.calls_by_model) == num_models
  beside = {"method": "spec_decode", "cascade": SideBySide(3)}
  row, written = tokens("beside", drafter_checkpoint=two, **beside)
  assert written == wanted
  assert row.settings.gamma == 3
  assert row.settings.drafter.endswith("side by side, 3")
  # Greedily a cascade of a designated drafter writes what its chain writes.
  cascade = {"method": "spec_cascade_token_v2"}
  _, wanted = tokens("chain", drafter_checkpoint=two[1], **cascade)
  row, written = tokens(
    "designated",
    drafter_checkpoint=two,
    cascade=SideBySide(3, designated=1),
    **cascade,
  )
  assert written == wanted
  assert row.settings.drafter.endswith("side by side, 3, q of 1")


def test_labels():
  cascade = Cascade(k=[[5, 19], [0, 10]], meaning="cumulative", lenience=5)
  assert cascade.label == "K=5-14,0-10 l=5 max_gram"
  cascade = Cascade(
    k=[[2]], max_gram=False, ngrams="a/n.npz", verification="block"
  )
  assert cascade.label == "K=2 l=1 ngrams=n.npz block"
  assert Cascade(k=[[2]], first_children=8).label == "K=2 l=1 max_gram 8 first"


def test_a_models_calls_are_counted_wherever_it_is():
  medium, small = object(), object()
  drafter = types.SimpleNamespace(models=(medium, small, small))
  assert calls_by_drafter(drafter, [3, 4, 5], [medium, small]) == [3, 9]


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"k": [[1]], "verification": "blocks"}, "wanted 'token' or 'block'"),
    ({"k": [[1]], "max_gram": False, "bigrams": "x"}, "nothing reads it"),
    ({"k": [[1]], "first_children": 0}, "first_children is 0"),
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
    ({}, {"k": [[1, 2], [0, 2]], "bigrams": "no.json"}, "no bigram table"),
    ({}, {"k": [[1, 2], [0, 2]], "first_children": 99}, "the vocabulary has"),
    (
      {"method": "spec_cascade_token_v2"},
      {"k": [[1, 2], [0, 2]], "first_children": 2},
      "no distribution after the siblings",
    ),
    (
      {"verification": "k_seq"},
      {"k": [[1, 2], [0, 2]], "first_children": 2},
      "'k_seq', .*'iid' alone",
    ),
    (
      {"method": "spec_cascade_chow"},
      {"k": [[1, 2], [0, 2]]},
      "reads the drafter's confidence",
    ),
  ],
)
def test_what_does_not_fit_is_refused(run, tmp_path, changes, cascade, message):
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    run(cascade=Cascade(**cascade), **DRAFTING | changes)
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"drafter_checkpoint": ["small"]}, "names 1 drafters; side by side"),
    ({"method": "spec_cascade_token_v2"}, "have no single distribution"),
    ({"verification": "traversal"}, "have no single distribution"),
    ({"method": "token_cascade_chow"}, "has none"),
  ],
)
def test_what_does_not_fit_beside_is_refused(
  run, files, tmp_path, changes, message
):
  names = changes.get("drafter_checkpoint", ["medium", "small"])
  settings = {"method": "spec_decode", "temperature": 0.0} | changes
  settings["drafter_checkpoint"] = [str(files / name) for name in names]
  with pytest.raises(ValueError, match=message):
    run(cascade=SideBySide(2), **settings)
  assert not (tmp_path / "out").exists()


def test_a_designated_drafter_is_one_of_them():
  with pytest.raises(ValueError, match="designated is -1"):
    SideBySide(2, designated=-1)
  with pytest.raises(ValueError, match=r"names 2 drafters; .*0 to 1"):
    SideBySide(2, designated=2).build((object(), object()), 13)


def test_another_vocabularys_counts_are_refused(tmp_path):
  counts = ngram_counts.count([[3, 4]], vocab_size=13, order=2)
  path = tmp_path / "other.npz"
  ngram_counts.smooth(counts, vocab_size=13, vocabulary="a" * 64).save(path)
  cascade = Cascade(k=[[2]], max_gram=False, ngrams=path)
  drafter = cascade.build((), 16, "a" * 64)
  assert drafter.vocab_size == 16
  assert not drafter.model.prompted
  assert cascade.build((), 16, prompted=True).model.prompted
  # Rows past the vocabulary only pad the table: they have no probability.
  assert np.all(np.asarray(drafter.model.unigram[13:]) == 0)
  with pytest.raises(ValueError, match="counted with another vocabulary"):
    cascade.build((), 16, "b" * 64)
  with pytest.raises(ValueError, match="has 13 tokens, the pair 12"):
    cascade.build((), 12)
