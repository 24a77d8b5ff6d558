"""`load_pair`, `generate` and `compare`: results, views, and every refusal."""

import dataclasses
import functools
import inspect
import types

import jax
import numpy as np
import pytest

import speccascade as sc
from speccascade.checkpoints import CheckpointError, orbax_io
from speccascade.constraints.limits import TextLimits
from speccascade.generate.batches.sources import InputError
from speccascade.generate.pair.pairs import PairError
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.generate.turns import text_stream
from tests.generate import tiny

TEXTS = ["one two", "three", "four five six"]
SHORT = {"gamma": 2, "max_decode_len": 6, "max_input_len": 8}


def load(**changes):
  return sc.load_pair(**{"vocabulary": tiny.Vocabulary(), **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("pair")
  tiny.save(folder / "small", 0)
  tiny.save(folder / "large", 1, emb_dim=12)
  return folder


@pytest.fixture(scope="module")
def pair(folder):
  return load(drafter=str(folder / "small"), verifier=folder / "large")


@pytest.fixture(scope="module")
def out(pair):
  return pair.generate(TEXTS, "spec_cascade_chow", alpha=0.3, **SHORT)


def test_equal_calls_repeat_each_other_unless_the_seed_is_none(pair):
  settings = {**SHORT, "temperature": 1.0, "max_decode_len": 12}
  first, again = (pair.generate(TEXTS, **settings) for _ in range(2))
  assert first.texts == again.texts
  drawn = [pair.generate(TEXTS, seed=None, **settings) for _ in range(4)]
  seeds = {each.settings.seed for each in drawn}
  assert len(seeds) == 4
  assert len({each.texts for each in drawn}) > 1
  # The seed that was drawn is there, and repeats the texts.
  known = pair.generate(TEXTS, seed=drawn[0].settings.seed, **settings)
  assert known.texts == drawn[0].texts
  streams = {
    "".join(pair.stream(TEXTS[0], seed=None, **settings)) for _ in range(8)
  }
  assert len(streams) > 1
  for call in (pair.generate, pair.stream, pair.chat):
    text = " ".join(call.__doc__.split())
    assert "seed: " in text
    assert "None" in text.split(" seed: ")[1][:200]
  with pytest.raises(ValueError, match=r"seed is True; .*whole number"):
    pair.generate(TEXTS, seed=True, **settings)


def test_what_comes_back(out):
  assert out.log_probs is None
  assert len(out) == 3
  assert out.inputs == tuple(TEXTS)
  assert out.tokens.shape == (3, 6)
  assert out.tokens.dtype == np.int32
  assert out.trace.source.shape == (3, 6)
  vocabulary = tiny.Vocabulary()
  for text, tokens, length, record in zip(
    out.texts, out.tokens, out.lengths, out.records
  ):
    assert 1 <= length <= 6
    assert not tokens[length:].any()
    assert record["aux"]["tokens"] == tokens[:length].tolist()
    known = [t for t in tokens[:length] if 1 < t < vocabulary.vocab_size]
    assert text == record["prediction"] == vocabulary.decode(known)
  assert [count.num_tokens for count in out.counts] == out.lengths.tolist()
  blocks = sum(count.num_blocks for count in out.counts)
  length = out.stats["mean_acceptance_length"]
  assert length == pytest.approx(out.lengths.sum() / blocks)
  assert out.settings.alpha == 0.3
  assert out.settings.drafter == "small-7"


def test_another_alpha_temperature_seed_and_text_compile_nothing(pair, out):
  generate = functools.partial(pair.generate, method="spec_cascade_chow")
  again = generate(TEXTS, alpha=0.3, **SHORT)
  np.testing.assert_array_equal(again.tokens, out.tokens)
  before = dict(pair.programs)
  for num in (2, 4, 8):  # which share a program
    texts = ["zero", "one", "two", "nine"] * 2
    other = generate(texts[:num], alpha=0.9, temperature=0.5, seed=7, **SHORT)
    assert len(other) == num
  assert pair.programs == before
  changed = generate(TEXTS, alpha=0.3, seed=1, **SHORT)
  assert (changed.tokens != out.tokens).any()


def test_it_says_what_it_compiles(pair, capsys):
  settings = {**SHORT, "max_decode_len": 5, "trace": False}
  for line in ("compiling 1 program of Small model\n", ""):
    pair.generate("one", "drafter", **settings)
    assert capsys.readouterr().out == line


def test_draws_depend_on_the_place_and_not_on_the_neighbours(pair):
  settings = {"method": "drafter", "trace": False, **SHORT}
  all_at_once = pair.generate(TEXTS, **settings)
  one = pair.generate(TEXTS[0], **settings)
  np.testing.assert_array_equal(one.tokens, all_at_once.tokens[:1])
  one_by_one = pair.generate(TEXTS, batch_size=1, **settings)
  np.testing.assert_array_equal(one_by_one.tokens, all_at_once.tokens)
  assert one_by_one.texts == all_at_once.texts


def test_the_api_writes_what_the_core_writes(pair, out):
  small, large = pair.models.drafter_lm, pair.models.verifier_lm
  decode = sc.decoder(
    "spec_cascade_chow", gamma=2, max_decode_len=6, eos_id=1, trace=True
  )
  inputs = np.zeros((4, 8), np.int32)  # the last row pads the batch
  for row, text in enumerate(TEXTS):
    ids = [*tiny.Vocabulary().encode(text), 1]
    inputs[row, : len(ids)] = ids
  keys = sc.row_keys(0, 0, np.arange(4))
  core = decode(small, large, inputs, keys, 0.3, sc.Sampling.create(1.0))
  np.testing.assert_array_equal(core.tokens[:3], out.tokens)
  np.testing.assert_array_equal(core.lengths[:3], out.lengths)
  np.testing.assert_array_equal(core.trace.source[:3], out.trace.source)


def test_views(pair, out):
  lines = repr(out).splitlines()
  assert lines[0] == (
    "3 texts by SpecCascade [Chow] (alpha 0.3, gamma 2, temperature 1)"
  )
  assert lines[1] == f"  0: {out.texts[0]!r}"
  assert "tokens a block, acceptance rate" in lines[-1]
  html = out._repr_html_()
  assert html.count('class="sc-record"') == 3
  assert html.count("tabindex") == out.lengths.sum()
  assert "SpecCascade [Chow] (alpha 0.3, gamma 2, temperature 1)" in html
  plain = dataclasses.replace(out, trace=None, texts=("<b>", "", ""))
  assert plain._repr_html_().startswith("<pre>3 texts by ")
  assert "&lt;b&gt;" in plain._repr_html_()
  many = dataclasses.replace(out, texts=out.texts * 9, records=out.records * 9)
  assert "and 7 more" in repr(many)
  assert many._repr_html_().count('class="sc-record"') == 20
  assert repr(pair) == "Pair of drafter small-7, verifier large-7"


def test_without_trace(pair):
  plain = pair.generate(TEXTS, "drafter", trace=False, log_probs=True, **SHORT)
  assert plain.trace is None
  np.testing.assert_array_equal(plain.log_probs.pi, plain.log_probs.q)
  inside = np.arange(6) < plain.lengths[:, None]
  np.testing.assert_array_equal(np.isfinite(plain.log_probs.q), inside)
  assert np.all(np.isnan(plain.log_probs.p))
  log_probs = plain.records[0]["aux"]["log_probs"]
  assert set(log_probs["p"]) == {None}
  expected = plain.log_probs.q[0][inside[0]]
  assert log_probs["q"] == pytest.approx(expected, abs=1e-6)
  assert "trace" not in plain.records[0]["aux"]
  assert plain.stats["acceptance_rate"] is None
  assert "block" not in repr(plain)


def test_long_texts_are_refused_or_cut(pair, capsys):
  long = ["one", "one two three four five six seven eight", "two", "one"]
  with pytest.raises(InputError, match=r"text 1 has 9 tokens.*truncate=True"):
    pair.generate(long, "drafter", **SHORT)
  settings = {"truncate": True, "trace": False, **SHORT}
  pair.generate(long, "drafter", **settings)  # and compiles
  capsys.readouterr()
  cut = pair.generate(long, "drafter", **settings)
  assert cut.num_truncated == 1
  assert capsys.readouterr().out == "1 of 4 texts truncated to 8 tokens\n"
  assert "1 source truncated" in repr(cut)


@pytest.mark.parametrize(
  ("texts", "settings", "kind", "message"),
  [
    ([], {}, InputError, "there are no texts"),
    (7, {}, InputError, "texts is of type int"),
    (b"one", {}, InputError, "texts is of type bytes"),
    ({"role": "user", "content": "x"}, {}, InputError, "texts is of type dict"),
    ({"one", "two"}, {}, InputError, "texts is of type set"),
    (["one", None], {}, InputError, "text 1 is of type NoneType"),
    (["a\ud800"], {}, InputError, "text 0 has half a surrogate"),
    ("one", {"method": "spec_cascade_chow", "alpha": 2}, ValueError, "alpha"),
    ("one", {"method": "spec_cascade_opt_three"}, ValueError, "2 drafters"),
  ],
)
def test_what_generate_refuses(pair, texts, settings, kind, message, capsys):
  with pytest.raises(kind, match=message) as caught:
    pair.generate(texts, **{**SHORT, **settings})
  assert "\n" not in str(caught.value)
  assert capsys.readouterr().out == ""  # nothing is said to be compiled


@pytest.mark.parametrize(
  ("method", "settings", "message"),
  [
    ("drafter", {"draft_length": ("max_prob", 0.4)}, "draft_length is 'max_pr"),
    ("bild", {"verification": "block"}, "verification is 'block'; BiLD takes"),
  ],
)
def test_a_setting_that_a_method_ignores_is_refused(
  pair, method, settings, message
):
  for call in (pair.generate, pair.stream):
    with pytest.raises(ValueError, match=message):
      call("one", method, temperature=0.0, **settings, **SHORT)
  with pytest.raises(ValueError, match=r"; none of .*: leave it out"):
    pair.compare("one", [method], temperature=0.0, **settings, **SHORT)


def test_calls_show_every_setting_and_refuse_other_names(pair):
  for call in (pair.generate, pair.compare, pair.stream, pair.chat):
    keywords = inspect.signature(call).parameters
    assert {"gamma", "bonus", "top_p", "advice", "truncate"} <= set(keywords)
    assert keywords["draft_length"].default == "fixed"
    assert "  top_p: the smallest set of likeliest tokens" in call.__doc__
    with pytest.raises(ValueError, match=r"not a setting of .*mean gamma"):
      call("one", gama=3)


class _Retracting:
  """A vocabulary whose last token changes the text of the first one."""

  eos_id = 1

  def text(self, ids):
    return "ab" if len(ids) < 3 else "xbc"


def test_a_text_that_changes_after_it_was_yielded_is_named(caplog):
  stream = object.__new__(text_stream.TextStream)
  stream._vocabulary, stream.text = _Retracting(), ""
  stream._limits = TextLimits()
  steps = [([5], False, "ab"), ([5, 6], False, ""), ([5, 6, 7], True, "")]
  for ids, ended, piece in steps:
    stream.tokens = np.array(ids)
    stream._stream = types.SimpleNamespace(ended=[ended])
    assert not caplog.text
    assert stream._next_piece() == piece
  assert stream.text == "xbc"
  assert "the attribute `text`, which is 'xbc'" in caplog.text
  assert not stream._next_piece()


def test_a_tree_says_its_gamma(pair):
  how = {"temperature": 0.0, "max_decode_len": 6, "max_input_len": 8}
  out = pair.generate("one", tree=(2, 1), **how)
  assert out.settings.gamma == 2
  with pytest.raises(ValueError, match="2 drafts deep: set it to"):
    pair.generate("one", tree=(2, 1), gamma=3, **how)
  with pytest.raises(ValueError, match="tree"):
    pair.generate("one", tree="wide", **how)
  # Methods without blocks leave trees aside.
  plain = pair.generate("one", "verifier", **how)
  for tree in ({"tree": (2, 1)}, {"tree": (2, 1), "gamma": 2}):
    assert pair.generate("one", "verifier", **tree, **how).texts == plain.texts


def test_compare_takes_costs_of_drafts(pair):
  costs = DraftCosts((0, 1, 2), (1.0, 1.2, 1.4), 0.2)
  how = SHORT | {"gamma": "adaptive", "draft_costs": costs}
  compared = pair.compare(TEXTS[:1], ["spec_decode"], repeats=1, **how)
  gammas = [row.settings.gamma for row in compared.rows]
  assert gammas[1] == "adaptive"


def test_an_adaptive_gamma_has_a_mean(pair):
  costs = DraftCosts((0, 1, 2), (1.0, 1.2, 1.4), 0.2)
  how = SHORT | {"gamma": "adaptive", "draft_costs": costs}
  out = pair.generate(TEXTS, "spec_decode", **how)
  drafted, blocks = (
    sum(getattr(each, name) for each in out.counts)
    for name in ("drafted", "num_blocks")
  )
  assert out.stats["mean_gamma"] == drafted / blocks
  assert "mean_gamma" not in pair.generate(TEXTS, **SHORT).stats


def test_a_stream_is_of_one_text(pair):
  message = "stream takes one text; 3 were given: call it for each of them"
  with pytest.raises(InputError, match=message):
    pair.stream(TEXTS, "drafter", **SHORT)
  one, listed = (
    "".join(pair.stream(text, "drafter", **SHORT))
    for text in (TEXTS[0], TEXTS[:1])
  )
  assert one == listed


def test_a_t5_has_no_chat(pair):
  for settings in ({}, {"prompt": "text"}, {"prompt": "source"}):
    with pytest.raises(PairError, match="has no chat; use stream") as caught:
      pair.chat(**settings)
    assert "PROMPT" not in str(caught.value)


def test_methods_that_compare_refuses(pair):
  message = "methods is .*; wanted a list of strings or "
  for methods in (7, [("spec_cascade_opt",)], [("spec_cascade_opt", "0.3")]):
    with pytest.raises(ValueError, match=message):
      pair.compare("one", methods, **SHORT)


def test_one_model_alone(folder):
  pair = load(drafter=folder / "small", dtype="bfloat16")
  assert pair.models.drafter_lm.module.config.dtype == "bfloat16"
  with pytest.raises(ValueError, match="SpecDecode needs a verifier"):
    pair.generate("one", "spec_decode")
  with pytest.raises(ValueError, match="Large model needs a verifier"):
    pair.compare("one")


def test_models_in_memory_and_several_drafters(folder):
  small = sc.T5LM.init(tiny.config(), jax.random.key(0))
  large = str(folder / "large"), tiny.config(emb_dim=12)
  pair = load(drafter=[large, small], verifier=small)
  assert repr(pair) == "Pair of drafter large-7+drafter, verifier verifier"
  assert len(pair.models.drafter_lm) == 2
  with pytest.raises(ValueError, match="takes one drafter; 2 were given"):
    pair.generate("one", "spec_decode", **SHORT)
  pair = load(drafter=[large, small, small], verifier=small)
  with pytest.raises(ValueError, match=r"takes 2 drafters, .*; 3 were given"):
    pair.generate("one", "spec_cascade_opt_three", **SHORT)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  """A SentencePiece model of 24 pieces."""
  return tiny.train_words(tmp_path_factory.mktemp("words") / "spiece.model")


@pytest.mark.needs_tf
def test_the_vocabulary_is_the_checkpoints_own(words, tmp_path, golden):
  shape = {"vocab_size": 40}
  identity = orbax_io.vocabulary_identity(words)
  tiny.save(tmp_path / "a", 0, vocabulary=identity, **shape)
  tiny.save(tmp_path / "b", 0, **shape)
  pair = sc.load_pair(drafter=tmp_path / "b", verifier=tmp_path / "a")
  assert pair.vocabulary.path == str(words)
  assert pair.vocabulary.decode(pair.vocabulary.encode("one")) == "one"
  gone = {**identity, "path": str(tmp_path / "gone.model")}
  tiny.save(tmp_path / "c", 0, vocabulary=gone, **shape)
  with pytest.raises(FileNotFoundError, match=r"gone\.model, which is not"):
    sc.load_pair(verifier=tmp_path / "c")
  moved = sc.load_pair(verifier=tmp_path / "c", vocabulary=words)
  assert moved.vocabulary.path == str(words)
  # A Hugging Face directory holds it.
  hugging_face = tmp_path / "hf"
  hugging_face.mkdir()
  for file in (golden / "hf").iterdir():
    (hugging_face / file.name).write_bytes(file.read_bytes())
  (hugging_face / "spiece.model").write_bytes(words.read_bytes())
  pair = sc.load_pair(drafter=hugging_face)
  assert pair.vocabulary.path == str(hugging_face / "spiece.model")


def test_what_load_pair_refuses(folder, tmp_path):
  small, wide = folder / "small", tiny.config(emb_dim=12)
  other = tiny.save(tmp_path / "other", 2, vocab_size=24)
  for settings, kind, message in (
    ({}, PairError, "load_pair got no model"),
    ({"drafter": ""}, PairError, "drafter is ''; wanted the path"),
    ({"verifier": (small, "small")}, PairError, "verifier is .*T5Config"),
    ({"drafter": small, "dtype": "int8"}, PairError, "dtype is 'int8'"),
    ({"drafter": small, "verifier": other}, PairError, "share one vocabulary"),
    ({"drafter": small, "vocabulary": None}, PairError, "do not say their voc"),
    ({"drafter": small, "vocabulary": 3}, PairError, "type int, which has no"),
    ({"drafter": (small, wide)}, CheckpointError, "emb_dim"),
  ):
    with pytest.raises(kind, match=message) as caught:
      load(**settings)
    assert "\n" not in str(caught.value)


def test_what_load_pair_wants_is_said():
  with pytest.raises(PairError, match=r"'a', 'b'\) does not .*\(drafter=SMALL"):
    sc.load_pair("a", "b")
  for name, message in (
    ("no_such_model", "a local folder, one on gs://, or ORG/NAME of a model"),
    ("owner/t5-small", "`hf download owner/t5-small --local-dir FOLDER`"),
  ):
    with pytest.raises(
      CheckpointError, match=r"there is no (checkpoint|folder) "
    ) as caught:
      load(verifier=name)
    assert message in str(caught.value)
    assert ("hf download" in str(caught.value)) == ("/" in name)


def test_compare(pair):
  compared = pair.compare(
    TEXTS[:2],
    ["drafter", "verifier", ("token_cascade_chow", 0.5)],
    repeats=1,
    **SHORT,
  )
  names = [row.settings.method for row in compared.rows]
  assert names == ["verifier", "drafter", "token_cascade_chow"]
  verifier, drafter, cascade = compared.rows
  assert verifier.latency.relative_latency == 1
  assert drafter.counts.verifier_calls == 0
  assert cascade.settings.alpha == 0.5
  plain = {"trace": False, "batch_size": 1, **SHORT}
  for row, texts, name in zip(compared.rows, compared.texts, names):
    alone = pair.generate(TEXTS[:2], name, alpha=row.settings.alpha, **plain)
    assert texts == alone.texts
    assert row.counts.num_tokens == alone.lengths.sum()
  assert "| token_cascade_chow | 0.5   |" in repr(compared)
  assert f"  drafter: {compared.texts[1][0]!r}" in repr(compared)
  html = compared._repr_html_()
  assert html.count("<table>") == 3
  assert "token_cascade_chow, alpha 0.5" in html
