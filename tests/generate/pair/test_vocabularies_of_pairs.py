"""Pairs of T5s: one vocabulary in two files, and two of one size."""

import pathlib

import jax
import pytest
from sentencepiece import sentencepiece_model_pb2

import speccascade as sc
from speccascade.checkpoints import hugging_face, orbax_io
from speccascade.generate.pair.pairs import PairError
from speccascade.text import (
  piece_tokenizers,
  sentence_pieces,
  token_names,
  vocabularies,
)

PIECES = pathlib.Path(sc.__file__).parent / "built_in/large/spiece.model"
CONFIG = sc.T5Config(
  vocab_size=800,
  emb_dim=8,
  num_heads=1,
  num_encoder_layers=1,
  num_decoder_layers=1,
  head_dim=8,
  mlp_dim=8,
)


def proto():
  return sentencepiece_model_pb2.ModelProto.FromString(PIECES.read_bytes())


def save(folder, model=None, *, tokenizer=False, sentinels=0):
  """Writes a T5 with the vocabulary of a proto; returns its folder."""
  file = folder.parent / f"{folder.name}.model"
  file.write_bytes((model or proto()).SerializeToString())
  params = sc.T5LM.init(CONFIG, jax.random.key(0)).params
  vocabulary = None if tokenizer else str(file)
  hugging_face.save(folder, params, CONFIG, vocabulary=vocabulary)
  if tokenizer:
    size = len((model or proto()).pieces)
    added = {f"<extra_id_{i}>": size + i for i in range(sentinels)}
    content = piece_tokenizers.to_json(file.read_bytes(), added)
    (folder / "tokenizer.json").write_bytes(content)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
  return str(folder)


def turned():
  """Returns the model with the pieces from 40 to 700 in the other order."""
  model = proto()
  pieces = [(p.piece, p.score, p.type) for p in model.pieces[40:700]]
  for p, other in zip(model.pieces[40:700], pieces[::-1]):
    p.piece, p.score, p.type = other
  return model


@pytest.fixture
def one(tmp_path):
  return save(tmp_path / "one")


@pytest.mark.parametrize("tokenizer", [False, True])
def test_other_tokens_at_the_same_ids_are_refused(tmp_path, one, tokenizer):
  other = save(tmp_path / "other", turned(), tokenizer=tokenizer)
  for drafter, verifier in ((one, other), (other, one)):
    with pytest.raises(PairError, match=r"token 40 is '.*' and '.*'\); a dra"):
      sc.load_pair(drafter=drafter, verifier=verifier)
  with pytest.raises(PairError, match=r"the vocabulary .*one.*token 40 is"):
    sc.load_pair(verifier=one, vocabulary=other)
  with pytest.raises(PairError, match=r"token 3 is"):
    sc.load_pair(verifier=one, vocabulary="bytes")
  # Each has its own: the drafter drafts what both have.
  sc.load_pair(drafter=other, verifier=one, drafter_vocabulary=other)


@pytest.mark.parametrize("sentinels", [0, 3])
def test_two_files_of_one_vocabulary_are_a_pair(tmp_path, one, sentinels):
  other = save(tmp_path / "other", tokenizer=True, sentinels=sentinels)
  rewritten = proto()
  rewritten.trainer_spec.input_sentence_size += 1  # says nothing of a token
  again = save(tmp_path / "again", rewritten)
  assert (
    vocabularies.load(one).identity["sha256"]
    != vocabularies.load(again).identity["sha256"]
  )
  for small in (other, again):
    sc.load_pair(drafter=small, verifier=one)
    sc.load_pair(drafter=one, verifier=small)
    sc.load_pair(verifier=one, vocabulary=small)


def test_a_checkpoint_that_records_its_vocabulary(tmp_path, one):
  """Its record is a hash of the file; the tokens are compared where it is."""
  params = sc.T5LM.init(CONFIG, jax.random.key(0)).params
  file = tmp_path / "one.model"
  identity = orbax_io.vocabulary_identity(file)
  orbax_io.save(tmp_path / "ours", params, CONFIG, step=1, vocabulary=identity)
  same = save(tmp_path / "same", tokenizer=True)
  other = save(tmp_path / "other", turned(), tokenizer=True)
  sc.load_pair(drafter=tmp_path / "ours", verifier=same)
  with pytest.raises(PairError, match="token 40 is"):
    sc.load_pair(drafter=tmp_path / "ours", verifier=other)
  file.unlink()
  vocabularies.load.cache_clear()
  sentence_pieces._fetch.cache_clear()
  with pytest.raises(PairError, match="their sha256 differ"):
    sc.load_pair(drafter=tmp_path / "ours", verifier=same)


def test_another_vocabulary_than_a_broken_one(tmp_path, one, caplog):
  broken = save(tmp_path / "broken")
  (tmp_path / "broken" / "spiece.model").write_bytes(b"no model")
  sc.load_pair(verifier=broken, vocabulary=one)
  assert "broken: the vocabulary beside it is not read" in caplog.text
  with pytest.raises(ValueError, match="is not a SentencePiece model"):
    sc.load_pair(verifier=broken)


def test_an_unknown_vocabulary_is_not_compared(tmp_path, one):
  identity = vocabularies.load(one).identity | {"path": "gone.model"}
  assert token_names.find(identity) is None
  assert token_names.difference(identity, None) is None
  known = {"sha256": "0", "path": str(tmp_path / "gone.model")}
  assert token_names.difference(identity, known) == "their sha256 differ"
