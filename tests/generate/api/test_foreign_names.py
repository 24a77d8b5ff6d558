"""Names and habits that users bring: of transformers, lists of one, ids."""

import inspect
import re

import numpy as np
import pytest

import speccascade as sc
from speccascade.generate.api import foreign_names
from speccascade.generate.api.foreign_names import translate
from speccascade.settings.fields import SettingError

TEXT = "A clever witch sells the new car."
KNOWN = ("max_decode_len", "stop", "temperature", "num_outputs", "gamma")
KNOWN += ("min_decode_len", "banned", "log_probs", "top_k")
HOW = {"max_decode_len": 12, "max_input_len": 40, "trace": False}


@pytest.fixture(scope="module")
def pair():
  return sc.built_in_pair()


@pytest.fixture(autouse=True)
def said(monkeypatch):
  monkeypatch.setattr(foreign_names, "_said", set())


@pytest.mark.parametrize(
  ("given", "own"),
  [
    ({"max_new_tokens": 7}, {"max_decode_len": 7}),
    ({"max_tokens": 7}, {"max_decode_len": 7}),
    ({"min_new_tokens": 7}, {"min_decode_len": 8}),  # and an EOS
    ({"stop_strings": ["a"]}, {"stop": ["a"]}),
    ({"num_return_sequences": 3}, {"num_outputs": 3}),
    ({"num_assistant_tokens": 4}, {"gamma": 4}),
    ({"do_sample": False}, {"temperature": 0.0}),
    ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
    ({"do_sample": True, "temperature": 0.7}, {"temperature": 0.7}),
    ({"do_sample": True}, {}),
    ({"do_sample": None, "max_new_tokens": None, "num_beams": None}, {}),
    ({"num_beams": 1, "repetition_penalty": 1.0, "use_cache": True}, {}),
    ({"pad_token_id": 128001, "top_k": 50}, {"top_k": 50}),
    ({"gama": 3}, {"gama": 3}),  # refused where misspelled names are
  ],
)
def test_what_foreign_names_are_here(given, own, capsys):
  assert translate("generate", given, KNOWN) == own
  first = capsys.readouterr().out
  assert translate("generate", given, KNOWN) == own
  assert not capsys.readouterr().out  # a line is said once
  for name in given.keys() - {"temperature", "top_k", "gama"}:
    is_neutral = name not in foreign_names._SAME and name not in (
      *("do_sample", "min_new_tokens"),
    )
    if given[name] is not None and not is_neutral:
      assert name in first


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (
      {"num_beams": 4},
      "num_beams=4 .*no beam search.*=0 is greedy",
    ),
    ({"early_stopping": True}, "temperature=0 is greedy"),
    ({"num_beams": True}, "num_beams=True is not here"),
    ({"max_length": 20}, "max_decode_len bounds the output alone"),
    ({"repetition_penalty": 1.2}, "temperature, top_k, top_p and min_p alone"),
    ({"logits_processor": [1]}, "banned, grammar, json_schema"),
    ({"streamer": 1}, r"pair.stream\(text\)"),
    ({"assistant_model": 1}, r"load_pair\(drafter=SMALL, verifier=LARGE\)"),
    ({"input_ids": [1]}, "ids are the first argument"),
    ({"do_sample": 1}, "do_sample is 1; wanted True or False"),
    ({"do_sample": True, "temperature": 0}, "temperature=0 is greedy"),
    ({"max_new_tokens": 3, "max_decode_len": 3}, "leave one of them out"),
    ({"max_new_tokens": 3, "max_tokens": 3}, "leave one of them out"),
    ({"suppress_tokens": [3], "banned": [3]}, "leave one of them out"),
  ],
)
def test_what_is_not_here_is_refused_with_what_to_do(given, message):
  with pytest.raises(SettingError, match=message):
    translate("generate", given, KNOWN)


def test_every_foreign_name_is_of_no_own_setting(pair):
  # An own setting of such a name would be translated away.
  foreign = {*foreign_names._SAME, *foreign_names._ABSENT, "do_sample"}
  for call in (pair.generate, pair.compare, pair.stream, pair.chat, pair.sweep):
    assert not foreign & set(inspect.signature(call).parameters)
  own = inspect.signature(pair.generate).parameters
  assert set(foreign_names._SAME.values()) <= set(own)


def test_a_call_takes_them(pair, capsys):
  plain = pair.generate([TEXT], temperature=0, **HOW)
  own = {"max_input_len": 40, "trace": False}
  settings = {"max_new_tokens": 12, "do_sample": False, "num_beams": 1}
  out = pair.generate(TEXT, **settings, **own)
  assert out.texts == plain.texts
  said = capsys.readouterr().out.splitlines()
  assert "max_new_tokens is max_decode_len here: max_decode_len=12" in said
  assert "".join(pair.stream(TEXT, **settings, max_input_len=40)) == out[0]
  with pytest.raises(ValueError, match="is num_outputs of"):
    pair.stream(TEXT, num_return_sequences=2)
  assert "max_new_tokens" not in capsys.readouterr().out
  # A name that is nobody's: one line, and not all the settings.
  with pytest.raises(SettingError) as caught:
    pair.generate(TEXT, xyzzy=1)
  assert str(caught.value) == (
    "xyzzy is not a setting of generate; help(Pair.generate) lists what there"
    " is"
  )


def test_several_outputs_of_a_text_follow_each_other(pair):
  texts = [TEXT, "The old man sleeps."]
  out = pair.generate(texts, num_outputs=3, **HOW)
  assert len(out) == 6
  assert out.inputs == (texts[0],) * 3 + (texts[1],) * 3
  again = pair.generate([x for x in texts for _ in range(3)], **HOW)
  assert out.texts == again.texts


def test_items_of_a_generation_are_texts(pair):
  out = pair.generate([TEXT, "The old man sleeps."], temperature=0, **HOW)
  assert out[0] == out.texts[0]
  assert out[-1:] == out.texts[-1:]
  assert list(out) == [*out.texts]
  assert len(out) == 2
  with pytest.raises(IndexError):
    out[2]
  assert out.token_ids == [
    out.tokens[i, : out.lengths[i]].tolist() for i in range(2)
  ]
  assert pair.vocabulary.decode(out.token_ids[0][:-1]) == out[0]


def test_ids_are_read_as_they_are(pair):
  vocabulary = pair.vocabulary
  ids = [*vocabulary.encode(TEXT), vocabulary.eos_id]
  plain = pair.generate([TEXT], temperature=0, **HOW)
  for given in (ids, [ids], tuple(ids), np.array(ids), np.array([ids])):
    out = pair.generate(given, temperature=0, **HOW)
    assert out.texts == plain.texts
  assert out.inputs == (TEXT,)
  both = pair.generate([ids, TEXT], temperature=0, **HOW)
  assert both.texts == plain.texts * 2
  for wrong, message in (
    ([[5, 10**6]], "text 0 has the id 1000000; the vocabulary has ids from 0"),
    ([[5, -1]], "text 0 has the id -1"),
    ([[5] * 41], "text 0 has 41 ids, max_input_len allows 40"),
    ([[5, 0, 3]], "text 0 has a token with the id 0"),
    ([[True, 5]], "text 0"),
    ([[]], "text 0"),
  ):
    with pytest.raises(ValueError, match=message):
      pair.generate(wrong, **HOW)


def test_texts_that_the_vocabulary_cannot_spell_are_said(pair, capsys):
  pair.generate([TEXT, "The old ☃ sleeps."], temperature=0, **HOW)
  [line] = [x for x in capsys.readouterr().out.splitlines() if "spell" in x]
  assert re.fullmatch(
    r"the vocabulary cannot spell all of 1 of 2 texts, the first 'The old ☃"
    r" sleeps.': 1 of \d+ tokens \(\d\.\d%\) are unknown",
    line,
  )
  pair.generate([TEXT], temperature=0, **HOW)
  assert "spell" not in capsys.readouterr().out


def test_a_string_is_a_list_of_one(pair):
  texts = [
    pair.generate(TEXT, temperature=0, stop=stop, banned=banned, **HOW).texts
    for stop, banned in (("neuen", "kluge"), (["neuen"], ["kluge"]))
  ]
  assert texts[0] == texts[1]
  assert "neuen" not in texts[0][0]


def test_a_model_alone_writes_and_says_so_once(pair, capsys):
  large, small = pair.models.verifier_lm, pair.models.drafter_lm
  for role, lm in (("verifier", large), ("drafter", small)):
    alone = sc.load_pair(**{role: lm}, vocabulary=pair.vocabulary)
    capsys.readouterr()
    out = alone.generate(TEXT, temperature=0, **HOW)
    assert out.settings.method == role
    assert f'method="{role}", which is the {role} alone\n' in (
      capsys.readouterr().out
    )
    alone.generate(TEXT, temperature=0, **HOW)
    assert not capsys.readouterr().out
    with pytest.raises(ValueError, match="SpecDecode needs a "):
      alone.generate(TEXT, "spec_decode", **HOW)


def test_what_is_public_is_listed_and_shown_in_a_line():
  assert dir(sc) == sorted(sc.__all__)
  assert {"load_pair", "METHODS", "Sweep"} <= set(dir(sc))
  for method in sc.METHODS.values():
    shown = [method, method.execution, method.target]
    if method.target is not None:
      shown.append(method.target.rule)
    assert all("\n" not in repr(x) and len(repr(x)) < 100 for x in shown)
    assert method.label in repr(method)
