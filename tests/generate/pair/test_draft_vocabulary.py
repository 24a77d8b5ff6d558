"""Pairs whose drafters draft some tokens alone: settings, texts, counting."""

import json
import os
import string

import numpy as np
import pytest

import speccascade as sc
from speccascade import built_in
from speccascade import draft_vocabulary as command
from speccascade.decoding.programs import decoders
from speccascade.generate.pair.pair_checks import PairError
from speccascade.generate.pair.pairs import PairSpec
from speccascade.models import cut_head
from speccascade.models.markov_lm import MarkovLM
from speccascade.text import frequent_tokens, vocabularies
from tests.generate import decodes, llamas, tiny

TEXTS = ["A clever witch sells the new car.", "The old man reads a book."]
GREEDY = {"temperature": 0, "max_decode_len": 24, "trace": False}
EVEN = np.arange(0, 768, 2)


def kept(pair):
  """Returns the ids that a pair's drafter drafts."""
  return pair.models.drafter_lm.params[cut_head.NAME]["ids"].tolist()


@pytest.fixture(scope="module")
def pieces():
  return vocabularies.load(built_in.verifier())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Tiny Llamas, and a draft vocabulary beside the small one."""
  folder = tmp_path_factory.mktemp("cut")
  for name, seed in (("small", 0), ("large", 1)):
    llamas.save(folder / name, seed)
  texts = folder / "texts.txt"
  texts.write_text(f"the cat sat on the mat\n{string.printable[:80]}\n")
  argv = ["--texts", str(texts), "--vocabulary", str(folder / "large")]
  place = folder / "small" / frequent_tokens.FILE
  assert command.main([*argv, "--num=40", f"--output_file={place}"]) == 0
  return folder


def test_texts_are_the_verifiers_and_ends_are_kept(pieces):
  whole, pair = sc.built_in_pair(), sc.built_in_pair(draft_vocabulary=EVEN)
  assert pieces.eos_id not in EVEN
  assert kept(pair) == sorted([*EVEN.tolist(), pieces.eos_id])
  assert pair.models.drafter_name == "small cut to 385"
  wanted = whole.generate(TEXTS, "verifier", **GREEDY).texts
  assert pair.generate(TEXTS, "spec_decode", **GREEDY).texts == wanted
  # A drafter alone writes the kept tokens; another alpha compiles nothing.
  alone = pair.generate(TEXTS, "drafter", **GREEDY)
  for record in alone.records:
    assert {*record["aux"]["tokens"]} <= {*kept(pair)}
  sizes = []
  for alpha in (0.2, 0.4):
    settings = {"alpha": alpha, "max_decode_len": 8, "trace": False}
    pair.generate(TEXTS, "spec_cascade_opt", **settings)
    sizes.append(decoders._run._cache_size())
  assert sizes[0] == sizes[1]


@pytest.mark.parametrize("kernel_dtype", ["float32", "bfloat16"])
def test_a_grammar_that_allows_no_kept_token(kernel_dtype, pieces):
  """The drafter then drafts what the grammar allows, and nothing fails."""
  words = ["Morgen", "Gestern"]
  # No piece of either word is kept.
  used = {i for word in words for i in pieces.encode(word)}
  ids = [i for i in range(10, 300) if i not in used]
  pair = sc.built_in_pair(draft_vocabulary=ids, kernel_dtype=kernel_dtype)
  settings = {"grammar": "|".join(words), "max_decode_len": 16}
  for temperature in (0, 1.0):
    out = pair.generate(TEXTS, temperature=temperature, **settings)
    assert {*out.texts} <= {*words}


# Limits of a call, of which none was known when the head was cut.
LIMITS = {
  "stop": {"stop": ["ein", "er "]},
  "include_stop": {"stop": [" ein"], "include_stop": True},
  "stop_id": {"stop": [11, 17, 231]},
  "banned": {"banned": ["Buch", 40, 42]},
  "ends_late": {"min_decode_len": 20},
  "never_ends": {"ignore_eos": True},
  "forced": {"grammar": "Morgen Gestern (ein|kein) Morgen"},
  "trees": {"tree": (3, 2), "drawing": "without_replacement", "gamma": 2},
  "filtered": {"top_k": 400, "min_p": 1e-4, "top_p": 0.999},
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_a_call_hold_and_texts_stay(name, cut_pair):
  """Forced tokens and stops need not be kept: the verifier writes them."""
  settings = GREEDY | LIMITS[name]
  alone = {x: settings[x] for x in settings if x not in LIMITS["trees"]}
  wanted = cut_pair.generate(TEXTS, "verifier", **alone)
  out = cut_pair.generate(TEXTS, **{"gamma": 3} | settings)
  np.testing.assert_array_equal(out.tokens, wanted.tokens)
  assert out.texts == wanted.texts
  assert not np.isin(out.tokens, kept(cut_pair)).all()
  if name != "forced":
    assert sum(counts.accepted for counts in out.counts) > 0
  sampled = cut_pair.generate(
    TEXTS, **{"gamma": 3} | settings | {"temperature": 1.3}
  )
  assert np.all(sampled.lengths > 0)


@pytest.fixture(scope="module")
def cut_pair():
  return sc.built_in_pair(draft_vocabulary=EVEN)


def test_ids_a_file_and_a_number_name_the_same_tokens(folder, tmp_path):
  stored = frequent_tokens.read(folder / "small" / frequent_tokens.FILE)
  ids = list(stored.ids[:30])
  lines, listed = tmp_path / "ids.txt", tmp_path / "ids.json"
  lines.write_text("\n".join(map(str, ids)))
  listed.write_text(json.dumps(ids))
  models = {"drafter": folder / "small", "verifier": folder / "large"}
  for setting in (30, ids, np.array(ids), tuple(ids), lines, str(listed)):
    pair = sc.load_pair(**models, draft_vocabulary=setting)
    assert kept(pair) == sorted(ids)
  # All drafters of a list are cut.
  models["drafter"] = [models["drafter"]] * 2
  pair = sc.load_pair(**models, draft_vocabulary=ids)
  assert [model.lm.vocab_size for model in pair.models.drafters] == [328] * 2
  assert pair.models.drafter_name == "small cut to 30+small cut to 30"


@pytest.mark.needs_tf
def test_a_run_records_the_cut_drafter(folder, tmp_path):
  path = tmp_path / "in.txt"
  path.write_text("the cat\nthe dog sat on\n")
  settings = {
    "temperature": 0.0,
    "task_feature_lengths": {"inputs": 64},
    "num_lengths": 1,
    "input_file": str(path),
  }
  rows, texts = [], []
  for number, cut in enumerate((None, 30)):
    out = tmp_path / str(number)
    rows.append(decodes.decode(folder, out, draft_vocabulary=cut, **settings))
    lines = (out / "predictions.jsonl").read_text().splitlines()
    texts.append([json.loads(line)["prediction"] for line in lines])
  assert [row.settings.drafter for row in rows] == ["small", "small cut to 30"]
  assert texts[0] == texts[1]
  assert rows[1].counts.drafted > 0
  # A method without a drafter reads none, and cuts none.
  options = {"draft_vocabulary": 9999, "method": "verifier", **settings}
  alone = decodes.decode(folder, tmp_path / "alone", **options)
  assert not alone.settings.drafter


def test_special_tokens_come_first_and_then_the_most_frequent(folder):
  vocabulary = vocabularies.load(str(folder / "large"))
  special = frequent_tokens.special_ids(vocabulary)
  assert special[: len(vocabulary.eos_ids)] == list(vocabulary.eos_ids)
  assert all(map(vocabulary.is_control, special))
  texts = [[90, 91, 90], "the", [91, 92, 91]]
  found = frequent_tokens.count(texts, vocabulary, len(special) + 2)
  assert found.ids == [*special, 91, 90]
  assert found.num_tokens == 6 + len(vocabulary.encode("the"))
  assert found.share == pytest.approx(5 / found.num_tokens)
  everything = frequent_tokens.count(texts, vocabulary, 300).ids
  assert {*everything} == {*special, 90, 91, 92, *vocabulary.encode("the")}
  filled = frequent_tokens.count(texts, vocabulary, 300, fill=True)
  assert filled.ids[: len(everything)] == everything
  rest = filled.ids[len(everything) :]
  assert rest == [i for i in range(320) if i not in everything][: len(rest)]
  assert len(filled.ids) == 300


def test_what_is_counted_of_files(tmp_path, capsys):
  """What a model wrote, targets, or lines: what a drafter would draft."""
  record = {"inputs": "one", "prediction": "two", "aux": {"tokens": [5, 6]}}
  pair = {"inputs": "one", "targets": ["two", "three"]}
  chat = {"messages": [{"role": "user", "content": "four"}]}
  files = {"predictions.jsonl": [record], "pairs.jsonl": [pair, chat]}
  for name, rows in files.items():
    (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
  (tmp_path / "lines.txt").write_text("five\n")
  names = [*files, "lines.txt"]
  texts = frequent_tokens.texts_of([tmp_path / name for name in names])
  assert texts[:2] == [(5, 6), "two"]
  assert "four" in texts[2]
  assert texts[3] == "five"
  out = tmp_path / "out" / "ids.json"
  argv = [f"--texts={tmp_path / 'lines.txt'}", "--vocabulary=bytes"]
  argv += [f"--output_file={out}"]
  assert command.main([*argv, "--num=300"]) == 0
  assert (
    "tokens, which are 100.00% of the 4 tokens of" in capsys.readouterr().out
  )
  content = json.loads(out.read_text())
  assert content["ids"][0] == 1
  assert content["num_tokens"] == 4
  assert command.main([*argv, "--num=300", "--fill"]) == 0
  assert len(json.loads(out.read_text())["ids"]) > len(content["ids"])
  assert command.main([*argv, "--num=2"]) == 1
  assert "are always kept: give a larger" in capsys.readouterr().err
  (tmp_path / "lines.txt").write_text("\n")
  assert command.main([*argv, "--num=300"]) == 1
  assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("setting", "message"),
  [
    (0, "draft_vocabulary is 0; .*from 1"),
    (2.5, "draft_vocabulary is 2.5; wanted"),
    ([], r"draft_vocabulary is \[\]; wanted"),
    ([3, -1], r"draft_vocabulary is \[3, -1\]; wanted"),
    ("", "no file of ids at ''"),
    ("nowhere", "no file of ids at 'nowhere'"),
    ([3, 3], "the id 3 twice; give it once"),
    ([999], "the id 999; .*from 0 to 327"),
    (41, "is 41, .*draft_vocabulary.json has 40 tokens; give"),
  ],
)
def test_a_setting_that_names_no_tokens(folder, setting, message):
  models = {"drafter": folder / "small", "verifier": folder / "large"}
  with pytest.raises(ValueError, match=message) as error:
    sc.load_pair(**models, draft_vocabulary=setting)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  "content", ["", "3 four", "[3.5]", '{"numbers": [3]}', "[" * 9999, "\0"]
)
def test_a_file_without_ids(folder, tmp_path, content):
  path = tmp_path / "ids.json"
  path.write_text(content)
  with pytest.raises(
    ValueError, match=r"ids.json does not hold ids \(.*wanted"
  ):
    sc.load_pair(drafter=folder / "small", draft_vocabulary=path)


def test_a_number_needs_a_counted_file():
  message = "there is no .*draft_vocabulary.json .* python -m speccascade.draft"
  with pytest.raises(PairError, match=message):
    sc.built_in_pair(draft_vocabulary=99)
  lm = sc.built_in_pair().models.drafter_lm
  models = {"drafter": lm, "vocabulary": built_in.verifier()}
  with pytest.raises(PairError, match=r"no MODEL/draft_vocabulary\.json"):
    sc.load_pair(**models, draft_vocabulary=99)
  assert kept(sc.load_pair(**models, draft_vocabulary=[1, 5])) == [1, 5]


def test_a_file_of_another_vocabulary(folder):
  place = folder / "small" / frequent_tokens.FILE
  with pytest.raises(PairError, match=r"counted with .*large.* \(token 0 is"):
    sc.built_in_pair(draft_vocabulary=str(place))


def test_pairs_without_a_head_to_cut(folder):
  large = folder / "large"
  cut = {"draft_vocabulary": [3, 4, 5]}
  with pytest.raises(PairError, match="the pair has none; leave it out"):
    sc.load_pair(verifier=large, **cut)
  with pytest.raises(PairError, match="the pair has none; leave it out"):
    sc.load_pair(drafter=sc.PromptLookup(), verifier=large, **cut)
  lm = MarkovLM(np.zeros((328, 328), np.float32), prompted=True)
  with pytest.raises(
    PairError, match=r"a T5Gemma .* drafter is a MarkovLM; lea"
  ):
    sc.load_pair(drafter=lm, verifier=large, **cut)


@pytest.mark.parametrize("kind", ["medusa", "blockwise", "lookahead"])
def test_draft_heads_draft_kept_tokens(tmp_path, kind):
  verifier = tiny.save(tmp_path / "t5", 0)
  heads = tiny.save_heads(tmp_path / "heads", verifier, kind=kind)
  options = {
    "vocabulary": tiny.Vocabulary(),
    "draft_vocabulary": range(3, 16, 2),
  }
  pair = sc.load_pair(drafter=heads, verifier=verifier, **options)
  assert kept(pair) == [1, *range(3, 16, 2)]
  assert pair.models.drafter_name == "heads-3 cut to 8"
  settings = GREEDY | {"gamma": 2, "max_decode_len": 12, "log_probs": True}
  texts = ["one two three", "seven eight"]
  wanted = pair.generate(texts, "verifier", **GREEDY | {"max_decode_len": 12})
  out = pair.generate(texts, "spec_decode", **settings)
  np.testing.assert_array_equal(out.tokens, wanted.tokens)
  assert sum(counts.drafted for counts in out.counts) > 0


def test_a_drafter_of_another_vocabulary(folder, tmp_path):
  """Its head keeps the tokens of the list that both vocabularies have."""
  small, large = tmp_path / "other", folder / "large"
  llamas.save(small, 0, kind="fallback", vocab_size=580)
  models = {
    "drafter": small,
    "verifier": large,
    "drafter_vocabulary": str(small),
  }
  whole = sc.load_pair(**models).models.drafter_lm
  ids = [2, *range(3, 320, 3)]
  pair = sc.load_pair(**models, draft_vocabulary=ids)
  lm = pair.models.drafter_lm
  shared = np.flatnonzero(lm.is_shared)
  wanted = np.intersect1d(np.flatnonzero(whole.is_shared), [*ids, 0])
  assert 5 < len(wanted) < len(ids)
  np.testing.assert_array_equal(shared, wanted)
  head = lm.model.params[cut_head.NAME]["ids"]
  np.testing.assert_array_equal(head, np.sort(whole.to_drafter[wanted]))
  assert pair.models.drafter_name == f"other cut to {len(wanted)}"
  settings = {"temperature": 0, "max_decode_len": 12, "max_input_len": 64}
  texts = pair.generate(["the cat", "a dog"], "verifier", **settings).texts
  out = pair.generate(["the cat", "a dog"], gamma=2, **settings)
  assert out.texts == texts
  alone = pair.generate(["the cat"], "drafter", **settings)
  assert set(alone.tokens[0, : alone.lengths[0]].tolist()) <= {*shared.tolist()}
  with pytest.raises(ValueError, match="no id that a head is cut to is shared"):
    whole.cut_to(np.flatnonzero(~np.asarray(whole.is_shared))[:3])


def test_the_specification_checks_its_field():
  assert PairSpec(draft_vocabulary=[3, 4]).draft_vocabulary == (3, 4)
  with pytest.raises(ValueError, match="draft_vocabulary is 0; wanted"):
    PairSpec(draft_vocabulary=0)
  assert os.fspath(PairSpec(draft_vocabulary="a").draft_vocabulary) == "a"
