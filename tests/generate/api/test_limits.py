"""Stops and masks in calls of the API: texts, records, streams, refusals."""

import json

import jax
import numpy as np
import pytest

import speccascade as sc
from speccascade.constraints.automaton_tables import ConstraintError
from tests.text import tokenizers

TEXTS = ["A clever witch sells the new car.", "The old man sleeps."]
HOW = {"temperature": 0.0, "max_decode_len": 20, "trace": False}


@pytest.fixture(scope="module")
def pair():
  return sc.built_in_pair()


@pytest.fixture(scope="module")
def whole(pair):
  return pair.generate(TEXTS, **HOW)


def reasons(out) -> list[str]:
  return [record["aux"]["stop_reason"] for record in out.records]


def test_a_text_ends_before_its_stop(pair, whole):
  assert reasons(whole) == ["eos", "eos"]
  assert whole.settings.limits is None
  # From the middle of a word to the middle of the next.
  stop = whole.texts[0][7:13]
  out = pair.generate(TEXTS, stop=[stop], **HOW)
  assert out.texts == (whole.texts[0][:7], whole.texts[1])
  assert reasons(out) == ["stop", "eos"]
  assert json.loads(out.settings.limits) == {"stop": [stop]}
  num = out.lengths[0]
  assert num < whole.lengths[0]
  assert out.tokens[0, :num].tolist() == whole.tokens[0, :num].tolist()
  assert out.counts[0].num_blocks < whole.counts[0].num_blocks
  kept = pair.generate(TEXTS, stop=[stop], include_stop=True, **HOW)
  assert kept.texts[0] == whole.texts[0][:13]
  assert kept.lengths[0] == num


def test_a_stream_holds_back_what_may_begin_a_stop(pair, whole):
  how = {"temperature": 0.0, "max_decode_len": 20}
  text = whole.texts[0]
  for stop in (text[7:13], text[-5:], f"{text[-3:]}!", "no such words"):
    want = pair.generate(TEXTS[0], stop=[stop], **HOW).texts[0]
    pieces = list(pair.stream(TEXTS[0], stop=[stop], **how))
    assert "".join(pieces) == want
    so_far = ""
    for piece in pieces:
      so_far += piece
      assert want.startswith(so_far)


def test_an_end_of_text_may_end_nothing(pair, whole):
  out = pair.generate(TEXTS, ignore_eos=True, **HOW)
  assert out.lengths.tolist() == [20, 20]
  assert reasons(out) == ["length", "length"]
  for text, begins in zip(out.texts, whole.texts):
    assert text.startswith(begins)
    assert len(text) > len(begins)


@pytest.mark.parametrize("method", ["verifier", "spec_decode"])
def test_masks_shape_outputs(pair, whole, method):
  word = whole.texts[0].split()[0]
  out = pair.generate(TEXTS, method, banned=[word, 5], min_decode_len=15, **HOW)
  assert all(word not in text for text in out.texts)
  assert out.lengths.min() >= 15
  assert not (out.tokens == 5).any()
  same = pair.generate(
    TEXTS, "verifier", banned=[word, 5], min_decode_len=15, **HOW
  )
  assert out.texts == same.texts


@pytest.mark.parametrize(
  ("limits", "error", "words"),
  [
    ({"stop": 5.5}, ValueError, "stop is 5.5; wanted a list"),
    ({"stop": [""]}, ValueError, "empty string.*leave it out"),
    ({"include_stop": True}, ValueError, "no stop to include"),
    ({"min_decode_len": 30}, ValueError, "raise that one, or lower"),
    ({"banned": [10**6]}, ConstraintError, "banned has the id"),
    ({"banned": [-1]}, ValueError, "wanted ids from 0"),
    ({"grammar": "a", "json_schema": "{}"}, ValueError, "one of the two"),
    ({"grammar": "a", "ignore_eos": True}, ValueError, "ends in an EOS"),
  ],
)
def test_limits_that_are_refused(pair, limits, error, words):
  with pytest.raises(error, match=words):
    pair.generate(TEXTS, **limits, **HOW)


def test_a_stop_may_be_an_id(pair, whole):
  tokens = whole.tokens[0, : whole.lengths[0]].tolist()
  place = len(tokens) // 2
  stop = tokens[place]
  place = tokens.index(stop)
  out = pair.generate(TEXTS, stop=[stop], **HOW)
  assert out.lengths[0] == place + 1
  assert reasons(out)[0] == "stop"
  assert json.loads(out.settings.limits) == {"stop": [stop]}
  assert whole.texts[0].startswith(out.texts[0])
  kept = pair.generate(TEXTS, stop=[stop], include_stop=True, **HOW)
  assert kept.texts[0].startswith(out.texts[0])
  assert len(kept.texts[0]) >= len(out.texts[0])
  how = {"temperature": 0.0, "max_decode_len": 20}
  pieces = pair.stream(TEXTS[0], stop=[stop], **how)
  assert "".join(pieces) == out.texts[0]
  eos = pair.generate(TEXTS, stop=["</s>"], ignore_eos=True, **HOW)
  assert eos.texts == whole.texts
  assert reasons(eos) == ["stop", "stop"]


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
  """A small model with a tokenizer that has special tokens."""
  folder = tokenizers.save(tmp_path_factory.mktemp("v") / "v", "bytes")
  config = sc.LlamaConfig(
    vocab_size=330,
    emb_dim=32,
    num_heads=2,
    num_kv_heads=2,
    head_dim=16,
    num_decoder_layers=1,
    mlp_dim=32,
    max_positions=1024,
  )
  model = sc.LlamaLM.init(config, jax.random.key(3))
  return sc.load_pair(verifier=model, vocabulary=str(folder))


def test_special_tokens_end_rows_streams_and_turns(chatting):
  how = {"prompt": "text", "max_decode_len": 300, "temperature": 1.0}
  how["trace"] = False
  texts = ["the cat"] * 8
  free = chatting.generate(texts, "verifier", ignore_eos=True, **how)
  special = {"<|endoftext|>": 0, "<|im_start|>": 1}
  ends = {}
  for text, token in special.items():
    out = chatting.generate(
      texts, "verifier", ignore_eos=True, stop=[text], **how
    )
    for row, length in enumerate(out.lengths):
      tokens = free.tokens[row].tolist()
      want = tokens.index(token) + 1 if token in tokens else 300
      assert length == want
      ends[token, row] = want
      reason = reasons(out)[row]
      assert reason == ("stop" if token in tokens else "length")
      assert text not in out.texts[row]
  assert min(ends.values()) < 300
  banned = chatting.generate(
    texts, "verifier", ignore_eos=True, banned=list(special), **how
  )
  assert not np.isin(banned.tokens, [0, 1]).any()
  both = chatting.generate(
    texts, "verifier", ignore_eos=True, stop=list(special), **how
  )
  for row, length in enumerate(both.lengths):
    assert length == min(ends[0, row], ends[1, row])
  refused = {"stop": ["the<|im_start|>"], "banned": ["<|im_start|>x"]}
  for name, given in refused.items():
    with pytest.raises(ConstraintError, match=f"^{name} has .* no part"):
      chatting.generate(texts, "verifier", **{name: given}, **how)
