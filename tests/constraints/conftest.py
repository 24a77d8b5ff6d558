"""Vocabularies of every kind: SentencePiece, byte-level BPE, byte fallback."""

import pytest

from speccascade import built_in
from speccascade.text import vocabularies
from tests.text import tokenizers

KINDS = (
  *("sentence pieces", "bytes", "fallback", "continuing", "words"),
  "bytes alone",
)


class Words:
  """A vocabulary of the caller's own: whole words, which `decode` spells."""

  WORDS = ("<pad>", "</s>", "the ", "cat", " sat", "on", "; ", "cats", "a")
  vocab_size, eos_id = len(WORDS), 1

  def encode(self, text):
    return [token for token in range(2, 9) if self.WORDS[token] in text] * 3

  def decode(self, ids):
    return "".join(self.WORDS[i] for i in ids if i > 1)


@pytest.fixture(params=KINDS)
def any_vocabulary(request, tmp_path):
  """A vocabulary of each kind."""
  if request.param == "words":
    return Words()
  if request.param == "sentence pieces":
    return vocabularies.load(f"{built_in.verifier()}/spiece.model")
  if request.param == "bytes alone":
    return vocabularies.load("bytes")
  kind = "bytes" if request.param == "bytes" else "fallback"
  vocabulary = vocabularies.load(str(tokenizers.save(tmp_path / "v", kind)))
  if request.param == "continuing":
    return vocabulary.continuing()
  return vocabulary
