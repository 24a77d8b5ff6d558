"""Which models and vocabularies belong together."""

import types

import pytest

from speccascade.inference import pair as pairs

ONE = {"path": "one.model", "sha256": "aa"}
OTHER = {"path": "other.model", "sha256": "bb"}


def model(name, vocab_size=16, vocabulary=None):
  lm = types.SimpleNamespace(vocab_size=vocab_size)
  return pairs.Model(lm, name, f"/run/{name}", vocabulary)


def pair(drafter, verifier):
  return pairs.ModelPair((drafter,), verifier)


def test_different_rows():
  with pytest.raises(pairs.PairError, match=r"small has 16 .* large 32; a"):
    pairs.check_models(pair(model("small"), model("large", 32)))


def test_different_vocabulary_files():
  both = pair(model("small", vocabulary=ONE), model("large", vocabulary=OTHER))
  with pytest.raises(pairs.PairError, match=r"one.model.* other.model.*sha256"):
    pairs.check_models(both)


def test_equal_or_unknown_vocabularies_pass():
  same = {**ONE, "path": "a copy"}
  pairs.check_models(
    pair(model("small", vocabulary=ONE), model("large", vocabulary=same))
  )
  pairs.check_models(pair(model("small", vocabulary=ONE), model("large")))


def test_ids_must_have_rows():
  both = pair(model("small"), model("large"))
  pairs.check_vocabulary(both, 16, None)
  with pytest.raises(pairs.PairError, match=r"17 ids, small only 16 rows"):
    pairs.check_vocabulary(both, 17, None)


def test_vocabulary_in_use_must_be_the_trained_one():
  both = pair(model("small", vocabulary=ONE), model("large"))
  pairs.check_vocabulary(both, 16, ONE)
  with pytest.raises(
    pairs.PairError, match=r"small was trained .* other.model"
  ):
    pairs.check_vocabulary(both, 16, OTHER)


def test_checkpoints_are_asked_for_by_their_macro():
  with pytest.raises(pairs.PairError, match="set VERIFIER_CHECKPOINT"):
    pairs.PairSpec().load(None, needs_drafter=False)
  with pytest.raises(pairs.PairError, match="set DRAFTER_CHECKPOINT"):
    pairs.PairSpec().load(None, needs_verifier=False)


def test_as_many_architectures_as_checkpoints():
  with pytest.raises(pairs.PairError, match=r"names 2 .* DRAFTER_CHECKPOINT 1"):
    pairs.PairSpec(drafter=[None, None], drafter_checkpoint="a").load(None)


def test_drafter_of_a_pair():
  small, middle, large = model("small"), model("middle"), model("large")
  assert pairs.ModelPair((), large).drafter_lm is None
  assert pairs.ModelPair((small,), large).drafter_lm is small.lm
  several = pairs.ModelPair((middle, small), large)
  assert several.drafter_lm == (middle.lm, small.lm)
  assert several.drafter_name == "middle+small"
  assert pairs.ModelPair((small,), None).verifier_lm is None
