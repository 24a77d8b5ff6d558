"""Which models and vocabularies belong together."""

import dataclasses
import json
import math
import types

import jax
import pytest

from speccascade.checkpoints import hugging_face_names, orbax_io
from speccascade.decoding import METHODS
from speccascade.generate.pair import pair_checks, pairs
from speccascade.generate.pair.model_loading import Model, load_model
from speccascade.models import HeadsConfig, HeadsModel, HeadsNetwork
from speccascade.text.tokenizer import TokenizerVocabulary
from tests.text import tokenizers

FIRST = {"path": "one.model", "sha256": "aa"}
OTHER = {"path": "other.model", "sha256": "bb"}


def model(name, vocab_size=16, vocabulary=None):
  lm = types.SimpleNamespace(vocab_size=vocab_size, prompted=False)
  return Model(lm, name, f"/run/{name}", vocabulary)


def pair(drafter, verifier):
  return pairs.ModelPair((drafter,), verifier)


def heads_for(sha256):
  config = HeadsConfig(num_heads=1, vocab_size=16, verifier_sha256=sha256)
  params = HeadsNetwork(config).initial(jax.random.key(0))
  return Model(HeadsModel.create(config, params), "heads", "/run/heads")


@pytest.mark.parametrize(
  ("heads", "verifier", "message"),
  [("aa", "aa", None), ("aa", "", None), ("aa", "bb", "for another verifier")],
)
def test_heads_draft_for_their_verifier(heads, verifier, message):
  large = dataclasses.replace(model("large"), fingerprint=verifier)
  both = pair(heads_for(heads), large)
  assert both.has_costs
  if message is None:
    return pairs.check_models(both)
  with pytest.raises(pairs.PairError, match=message):
    pairs.check_models(both)


def test_heads_draft_alone_and_for_a_verifier():
  heads = heads_for("aa")
  with pytest.raises(pairs.PairError, match="set VERIFIER_CHECKPOINT"):
    pairs.check_models(pairs.ModelPair((heads,), None))
  two = pairs.ModelPair((heads, model("small")), model("large"))
  with pytest.raises(pairs.PairError, match="give no other drafter"):
    pairs.check_models(two)
  with pytest.raises(ValueError, match="CASCADE combines language models"):
    pair(heads, model("large")).combine_drafters(
      None, METHODS["cascade_drafting"]
    )


def test_heads_are_not_a_verifier(tmp_path):
  heads = heads_for("aa").lm
  orbax_io.save(tmp_path / "heads", heads.params, heads.config, step=1)
  with pytest.raises(pairs.PairError, match="must be a language model"):
    load_model("verifier", tmp_path / "heads")
  read = load_model("drafter", tmp_path / "heads")
  assert not read.drafts_alone
  assert read.lm.config == heads.config


def in_use(vocab_size, path=None, sha256=None):
  identity = sha256 and {"sha256": sha256}
  return types.SimpleNamespace(
    vocab_size=vocab_size, path=path, identity=identity
  )


@pytest.mark.parametrize(
  ("small", "large", "message"),
  [
    ({}, {"vocab_size": 32}, r"small has 16 .* large 32; a"),
    ({"vocabulary": FIRST}, {"vocabulary": OTHER}, "one.* other.model.*sha256"),
    ({"vocabulary": FIRST}, {"vocabulary": {**FIRST, "path": "a copy"}}, None),
    ({"vocabulary": FIRST}, {}, None),
  ],
)
def test_models_share_a_vocabulary(small, large, message):
  both = pair(model("small", **small), model("large", **large))
  if message is None:
    return pairs.check_models(both)
  with pytest.raises(pairs.PairError, match=message):
    pairs.check_models(both)


def test_models_begin_with_one_token():
  both = pair(model("small"), model("large"))
  lm = types.SimpleNamespace(vocab_size=16, prompted=False, start_id=2)
  other = dataclasses.replace(both.verifier, lm=lm)
  with pytest.raises(
    pairs.PairError, match=r"of small begin .* 0, .*large with 2"
  ):
    pairs.check_models(dataclasses.replace(both, verifier=other))


def test_the_vocabulary_in_use_is_the_trained_one():
  both = pair(model("small", vocabulary=FIRST), model("large"))
  pairs.check_vocabulary(both, in_use(16))
  pairs.check_vocabulary(both, in_use(16, "a copy", "aa"))
  with pytest.raises(pairs.PairError, match=r"17 ids, small only 16 rows"):
    pairs.check_vocabulary(both, in_use(17))
  with pytest.raises(pairs.PairError, match=r"small was .* other.model"):
    pairs.check_vocabulary(both, in_use(16, "other.model", "bb"))


def test_a_token_without_a_row_is_read_and_refused_in_texts(tmp_path, caplog):
  tokenizers.save(tmp_path / "t", "bytes", size=320)
  path = tmp_path / "t" / "tokenizer.json"
  read = json.loads(path.read_text(encoding="utf-8"))
  pad = dict(read["added_tokens"][0], id=320, content="<pad>")
  read["added_tokens"].append(pad)
  path.write_text(json.dumps(read), encoding="utf-8")
  vocabulary = TokenizerVocabulary(str(tmp_path / "t"))
  assert vocabulary.vocab_size == 321
  one_less = pair(model("small", 320), model("large", 320))
  pairs.check_vocabulary(one_less, vocabulary)
  assert "only 320 rows: texts with '<pad>', which were added" in caplog.text
  pair_checks.check_rows(one_less, vocabulary.encode("a cat"), "example 0")
  with pytest.raises(pairs.PairError, match="example 0 has the token 320"):
    pair_checks.check_rows(one_less, vocabulary.encode("a<pad>"), "example 0")
  # A token of the vocabulary itself is one that any text may have.
  two_less = pair(model("small", 319), model("large", 319))
  with pytest.raises(pairs.PairError, match="321 ids, small only 319 rows"):
    pairs.check_vocabulary(two_less, vocabulary)
  # So is the token that ends a text.
  settings = {"eos_token": "<pad>"}
  (tmp_path / "t/tokenizer_config.json").write_text(json.dumps(settings))
  with pytest.raises(pairs.PairError, match="321 ids, small only 320 rows"):
    pairs.check_vocabulary(one_less, TokenizerVocabulary(str(tmp_path / "t")))


@pytest.mark.parametrize(
  ("settings", "needs", "message"),
  [
    ({}, {"needs_drafter": False}, "set VERIFIER_CHECKPOINT"),
    ({}, {"needs_verifier": False}, "set DRAFTER_CHECKPOINT"),
    (
      {"drafter": [None, None], "drafter_checkpoint": "a"},
      {},
      "names 2 .* DRAFTER_CHECKPOINT 1",
    ),
  ],
)
def test_what_a_specification_lacks(settings, needs, message):
  with pytest.raises(pairs.PairError, match=message):
    pairs.PairSpec(**settings).load(None, **needs)


def test_a_drafters_own_vocabulary_is_not_the_pairs(tmp_path):
  """With DRAFTER_VOCABULARY the drafter's folder says nothing of the pair's."""
  small, large = tmp_path / "small", tmp_path / "large"
  for folder in (small / "checkpoint_5", large):
    folder.mkdir(parents=True)
  (small / "spiece.model").write_bytes(b"pieces")
  paths = {"verifier_checkpoint": large}
  paths["drafter_checkpoint"] = small / "checkpoint_5"
  assert pairs.PairSpec(**paths).vocabulary_path == str(small)
  spec = pairs.PairSpec(**paths, drafter_vocabulary="words.model")
  assert spec.vocabulary_path is None


@pytest.mark.parametrize("path", ["", " ", 5])
def test_an_empty_path_of_a_vocabulary_is_named(path):
  message = "drafter_vocabulary: wanted the path of .* or None, not"
  with pytest.raises(ValueError, match=message):
    pairs.PairSpec(drafter_vocabulary=path)


def test_a_checkpoint_that_says_no_architecture(golden, golden_config):
  """Commands read the architecture of T5X's checkpoints off their arrays."""
  path = str(golden / "t5x_native")
  spec = pairs.PairSpec(drafter_checkpoint=[path], verifier_checkpoint=path)
  size = sum(
    math.prod(x.shape)
    for x in hugging_face_names.list_parameters(golden_config)
  )
  for read in spec.load(in_use(512)).models:
    assert read.lm.module.config == golden_config
    assert read.num_parameters == size


def test_drafter_of_a_pair():
  small, middle, large = model("small"), model("middle"), model("large")
  assert pairs.ModelPair((), large).drafter_lm is None
  assert pairs.ModelPair((small,), large).drafter_lm is small.lm
  several = pairs.ModelPair((middle, small), large)
  assert several.drafter_lm == (middle.lm, small.lm)
  assert several.drafter_name == "middle+small"
  assert pairs.ModelPair((small,), None).verifier_lm is None


def test_rows_say_rounded_products_only_where_they_are(monkeypatch):
  dtypes = ("float32", "bfloat16_products")
  kernels = "float32, bfloat16 kernels"
  monkeypatch.setattr(pairs.native, "is_available", lambda: True)
  assert pairs.describe_dtypes(*dtypes) == f"{kernels} and products"
  assert pairs.describe_dtypes(*dtypes, layout=object()) == kernels
  monkeypatch.setattr(pairs.native, "is_available", lambda: False)
  assert pairs.describe_dtypes(*dtypes) == kernels
