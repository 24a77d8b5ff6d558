"""Drafters that were made for shorter texts than their verifiers."""

import logging

import numpy as np
import pytest

import speccascade as sc
from speccascade.decoding.programs import methods
from speccascade.generate.pair import pair_checks
from speccascade.generate.pair.pair_checks import PairError
from tests.generate import llamas

WINDOW = 40
TEXT = "a b c d e f g h i j"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  """Equal models, so that drafts are accepted while there are any."""
  folder = tmp_path_factory.mktemp("models")
  for name, window in (("short", WINDOW), ("long", 512)):
    llamas.save(folder / name, 0, max_positions=window)
  return sc.load_pair(
    drafter=str(folder / "short"), verifier=str(folder / "long")
  )


HOW = {"max_decode_len": 60, "prompt": "text", "ignore_eos": True}


def num_tokens(pair, text):
  return len(pair.vocabulary.encode(text))


@pytest.mark.parametrize("gamma", [3, "adaptive"])
def test_the_verifier_continues_alone_and_says_so_once(pair, gamma, caplog):
  pair_checks._say_once.cache_clear()
  how = HOW | {"temperature": 0.0, "gamma": gamma}
  with caplog.at_level(logging.WARNING, "absl"):
    out = pair.generate([TEXT, "a"], **how)
    pair.generate(TEXT, **how)
  said = [x for x in caplog.messages if "was made for" in x]
  assert len(said) == 1
  assert f"made for {WINDOW} tokens" in said[0]
  assert "the verifier writes alone" in said[0]
  alone = pair.generate([TEXT, "a"], "verifier", **HOW, temperature=0.0)
  np.testing.assert_array_equal(out.tokens, alone.tokens)
  assert list(out.lengths) == [60, 60]
  assert out.stats["past_window_rate"] > 0
  assert out.stats["mean_acceptance_length"] > 1


def test_streams_chats_and_comparisons_go_on_too(pair):
  how = HOW | {"temperature": 0.0}
  whole = pair.generate(TEXT, **how)
  assert "".join(pair.stream(TEXT, **how)) == whole.texts[0]
  row = pair.compare(TEXT, ["spec_decode"], repeats=1, **how)
  assert row is not None
  chat = pair.chat(max_decode_len=20, ignore_eos=True, temperature=0.0)
  answers = ["".join(chat.send("a b c")) for _ in range(4)]
  other = pair.chat(
    "verifier", max_decode_len=20, ignore_eos=True, temperature=0.0
  )
  assert answers == ["".join(other.send("a b c")) for _ in range(4)]


@pytest.mark.parametrize(
  "method",
  ["spec_cascade_opt", "spec_decode_lossy", "seq_cascade_chow", "drafter"],
)
def test_what_reads_the_drafter_everywhere_is_refused_as_before(pair, method):
  wanted = f"together more than the {WINDOW} that"
  with pytest.raises(PairError, match=wanted):
    pair.generate(TEXT, method, **HOW)


def test_texts_that_fit_run_what_they_ran(pair):
  [drafter] = pair.models.drafters
  assert drafter.window == WINDOW
  out = pair.generate("a", prompt="text", max_decode_len=4)
  assert "past_window_rate" not in out.stats
  assert not methods.find("spec_cascade_opt").continues_alone
