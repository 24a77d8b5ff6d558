"""A pair whose drafter copies: what it writes, and what it is refused for."""

import pytest

import speccascade as sc
from speccascade import built_in
from speccascade.generate.pair.pair_checks import PairError

TEXTS = ["The old man sees the old man and the old man.", "A girl sleeps."]
HOW = {"temperature": 0.0, "max_decode_len": 24}


@pytest.fixture(scope="module")
def pair():
  return sc.load_pair(verifier=built_in.verifier(), drafter=sc.PromptLookup(3))


def test_it_writes_what_the_verifier_writes(pair):
  out = pair.generate(TEXTS, **HOW)
  assert out.texts == pair.generate(TEXTS, "verifier", **HOW).texts
  assert out.settings.drafter == "prompt lookup 3"
  assert out.settings.gamma == 3
  assert out.counts[0].accepted
  assert out.counts[0].drafter_calls == 0
  assert "prompt lookup 3" in repr(pair)


def test_rules_that_ask_no_drafter(pair):
  out = pair.compare(TEXTS[:1], max_decode_len=8, repeats=1)
  methods = [row.settings.method for row in out.rows]
  assert methods == ["verifier", "spec_decode", "spec_cascade_token_v3"]


def test_refusals(pair):
  with pytest.raises(ValueError, match=r"one-hot\): no prompt lookup"):
    pair.generate(TEXTS, "spec_cascade_opt", **HOW)
  with pytest.raises(PairError, match="give one"):
    sc.load_pair(drafter=sc.PromptLookup(3))
  with pytest.raises(ValueError, match="num_copied is 0"):
    sc.PromptLookup(0)
