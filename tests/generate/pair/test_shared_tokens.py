"""Pairs of two tokenizers: what they share, how texts are read, whole runs."""

import json
import re
import types

import numpy as np
import pytest

import speccascade as sc
from speccascade.decoding.records import prompts
from speccascade.generate.batches.sources import sources_of_texts
from speccascade.generate.pair.pairs import PairError
from speccascade.generate.pair.shared_tokens import SharedTokens, spellings
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.measuring.study import Measuring, Study
from speccascade.text import vocabularies
from speccascade.text.prompting import Prompting
from tests.generate import decodes, llamas, tiny

pytestmark = pytest.mark.needs_tf

SHORT = {"max_decode_len": 8, "max_input_len": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("two")
  llamas.save(folder / "small", 0, kind="fallback", vocab_size=580)
  llamas.save(folder / "large", 1)
  return folder


@pytest.fixture(scope="module")
def pair(folder):
  """A pair of a byte-level verifier and a drafter with byte fallback."""
  small, large = folder / "small", folder / "large"
  return sc.load_pair(drafter=small, verifier=large, drafter_vocabulary=small)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
  """A SentencePiece vocabulary of letters and words of the same texts."""
  path = tmp_path_factory.mktemp("pieces") / "words.model"
  text = "the cat sat on the mat and the dog sat on the rug"
  return vocabularies.load(str(tiny.train_words(path, text, vocab_size=18)))


def tables(verifier, drafter):
  """Returns the arrays of a model whose table has three rows of padding."""
  num_rows = verifier.vocab_size + 3
  lm = SharedTokens(verifier, drafter, num_rows).model(None)
  return np.asarray(lm.to_drafter), np.asarray(lm.is_shared)


def test_tokens_of_one_text_are_shared(pair, folder, pieces):
  large = vocabularies.load(str(folder / "large"))
  small = vocabularies.load(str(folder / "small"))
  for verifier, drafter in ((large, small), (small, large), (large, pieces)):
    to_drafter, is_shared = tables(verifier, drafter)
    # No two shared tokens are one token of the drafter.
    assert len(set(to_drafter[is_shared])) == is_shared.sum()
    assert not is_shared[verifier.vocab_size :].any()
    names, drafter_names = spellings(verifier), spellings(drafter)
    for token in np.flatnonzero(is_shared):
      assert names[token] == drafter_names[to_drafter[token]]
    # Of tokens with one spelling only one is shared; no other spelling of the
    # drafter's is left out.
    lacking = {x for i, x in enumerate(names) if x and not is_shared[i]}
    both = {names[i] for i in np.flatnonzero(is_shared)}
    assert not (lacking - both) & set(drafter_names)
    assert to_drafter[verifier.eos_id] == drafter.eos_id
    assert is_shared[verifier.eos_id]


def test_a_token_without_a_row_is_not_shared(folder):
  large = vocabularies.load(str(folder / "large"))
  shared = SharedTokens(large, large, large.vocab_size - 1)
  assert shared.model(None).is_shared.shape == (large.vocab_size - 1,)
  assert f"of the verifier's {large.vocab_size} tokens" in str(shared)


def test_a_token_without_a_row_in_the_drafter_is_not_shared(folder):
  large = vocabularies.load(str(folder / "large"))
  # The rows end before the token of "the".
  ids = large.encode("the")
  rows = max(ids)
  shared = SharedTokens(large, large, large.vocab_size, rows)
  lm = shared.model(None)
  assert not lm.is_shared[rows:].any()
  assert lm.to_drafter.max() < rows
  inputs = np.array([[*ids, large.eos_id]], np.int32)
  for prompted in (False, True):
    read = shared.inputs(inputs, prompted=prompted, most=9)
    assert read.max() < rows


def test_what_is_shared_and_what_stands_for_the_rest(folder, pieces):
  large, small = (
    vocabularies.load(str(folder / x)) for x in ("large", "small")
  )
  to_drafter, is_shared = tables(large, small)
  ids = {large.piece(i): i for i in range(large.vocab_size)}

  def spelled(piece):
    """Returns what the drafter reads for a piece, and whether it is shared."""
    token = ids[piece]
    return small.piece(int(to_drafter[token])), bool(is_shared[token])

  # Blanks, and bytes that one spells out and the other falls back on.
  assert spelled("\u2581") == ("\u2581", True)
  assert spelled("at") == ("at", True)
  assert spelled("\n") == ("<0x0A>", True)
  assert spelled("<0xE2>") == ("<0xE2>", True)
  assert spelled("t") == ("t", True)  # not <0x74>
  # The end of a text by its role, other control tokens by their names.
  assert spelled("<|im_end|>") == ("</s>", True)
  assert spelled("<|im_start|>") == ("<|im_start|>", True)
  # A longer token is read as the longest that ends like it.
  lacks = [i for i, x in enumerate(spellings(large)) if x and not is_shared[i]]
  ends = {x: i for i, x in enumerate(spellings(small)) if isinstance(x, bytes)}
  assert lacks
  for token in lacks:
    text = spellings(large)[token]
    longest = max(filter(text.endswith, ends), key=len)
    assert 0 < len(longest) < len(text)
    assert to_drafter[token] == ends[longest]
  # What no piece ends like is unknown, or the end where nothing stands for it.
  assert small.unk_id is None
  assert set(to_drafter[large.vocab_size :]) == {small.eos_id}
  to_drafter, is_shared = tables(large, pieces)
  assert to_drafter[ids["0"]] == pieces.unk_id
  assert not is_shared[ids["0"]]
  assert is_shared[ids["\u2581"]]


def test_ids_of_nearly_the_same_vocabulary_are_named(folder, tmp_path, capsys):
  """As 139 of Gemma 2, whose 2B has another token there than its 27B."""
  other = llamas.save(tmp_path / "other", 0)
  path = other / "tokenizer.json"
  text = path.read_text(encoding="utf-8")
  path.write_text(text.replace('"<|endoftext|>"', '"<|another|>"'))
  large = folder / "large"
  pair = sc.load_pair(drafter=other, verifier=large, drafter_vocabulary=other)
  ids = {pair.vocabulary.piece(i): i for i in range(320)}
  token = ids["<|endoftext|>"]
  line = capsys.readouterr().out
  assert "never drafted, as the drafter has another token there:" in line
  assert line.endswith(f": {token} ('<|endoftext|>')\n")
  is_shared = np.asarray(pair.models.drafter_lm.is_shared)
  assert not is_shared[token]


def test_prompts_are_read_in_the_drafters_own_ids(folder, pieces):
  large, small = (
    vocabularies.load(str(folder / x)) for x in ("large", "small")
  )
  texts = ["the 9 dogs sat", "<|im_start|>user\n\u4f60\u597d<|im_end|>\n", "a"]
  batch = np.full((3, 24), prompts.PAD, np.int32)
  for row, text in zip(batch, texts):
    ids = large.prompt(text)
    row[24 - len(ids) :] = ids  # padded at the left
  read = SharedTokens(large, small, 320).inputs(
    batch, prompted=True, most=float("inf")
  )
  assert read.shape == (3, 48)
  for row, text in zip(read, texts):
    num = int((row != prompts.PAD).sum())
    assert row[:num].tolist() == small.prompt(text)  # with its BOS
    assert row[0] == small.bos_id
  # BOS is the verifier's own; what does not fit is cut at its start.
  swapped = SharedTokens(small, large, 600)
  [row] = swapped.inputs(read[:1], prompted=True, most=3)
  assert row.tolist() == large.prompt(texts[0])[-3:]
  # A prompt without a text is its last token.
  bos = np.array([[small.bos_id]], np.int32)
  [row] = swapped.inputs(bos, prompted=True, most=9)
  assert row.tolist() == [large.eos_id, prompts.PAD]
  # A source of an encoder keeps its EOS, however much of it is cut.
  source = [*pieces.encode("the cat sat"), pieces.eos_id]
  padding = [0] * (12 - len(source))
  batch = np.array([source + padding], np.int32)
  for most in (99, 3):
    [row] = SharedTokens(pieces, large, 30).inputs(
      batch, prompted=False, most=most
    )
    ids = large.encode("the cat sat")[: most - 1]
    assert row[row != 0].tolist() == [*ids, large.eos_id]


def test_a_file_is_decoded_as_by_the_verifier(folder, pair, tmp_path, capsys):
  texts = ["the cat", "the dog sat on \u4f60"]
  path = tmp_path / "in.jsonl"
  path.write_text("\n".join(json.dumps({"inputs": x}) for x in texts))
  row = decodes.decode(
    folder,
    tmp_path / "out",
    temperature=0.0,
    task_feature_lengths={"inputs": 64},
    num_lengths=1,
    drafter_vocabulary=str(folder / "small"),
    input_file=str(path),
  )
  line = r"2\d\d of the verifier's 320 tokens \(8\d%\) are the drafter's too"
  assert re.fullmatch(f"{line}\n", capsys.readouterr().out)
  assert row.settings.drafter == "small"
  assert row.counts.drafted > 0
  written = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
  alone = pair.generate(texts, "verifier", temperature=0, **SHORT)
  for line, text in zip(written, alone.texts):
    assert json.loads(line)["prediction"] == text


def test_a_batch_is_read_by_all_drafters(pair):
  sources = sources_of_texts(
    ["the cat", "a"],
    Prompting(pair.vocabulary, "text"),
    max_len=32,
    truncate=False,
  )
  run = Run(max_decode_len=8, batch_size=1)
  study = Study(Session(pair.models, sources, run), Measuring(num_timed=1))
  batches = study.batches(Point("spec_decode", gamma=2), timed=True)
  for example in study.examples:
    drafter, verifier, padded, *_ = batches.prepare([example])
    assert verifier is pair.models.verifier_lm
    ids = pair.models.shared.drafter.prompt(example.text)
    assert drafter.inputs.shape == (1, 2 * padded.shape[1])
    assert drafter.inputs[0, : len(ids)].tolist() == ids
  # The drafter's window holds 128 tokens, of which 100 may be output.
  drafter = pair.models.drafter_of(np.ones((1, 64), np.int32), 100)
  assert drafter.inputs.shape == (1, 28)


@pytest.mark.slow
def test_streams_and_conversations(pair):
  settings = {"temperature": 0, "gamma": 2, **SHORT}
  whole = pair.generate(["the cat"], "verifier", **settings).texts[0]
  assert "".join(pair.stream("the cat", **settings)) == whole
  answers = []
  for method in ("spec_decode", "verifier"):
    chat = pair.chat(method, **settings)
    answers.append(["".join(chat.send(x)) for x in ("the cat", "sat")])
    assert chat.num_begun == 1
  assert answers[0] == answers[1]


class Backwards(tiny.Vocabulary):
  """The words of `tiny.Vocabulary` but one, in reverse order."""

  def encode(self, text):
    return [15 - i if i > 3 else 2 for i in super().encode(text)]

  def decode(self, ids):
    return super().decode([15 - i if 2 < i < 12 else 2 for i in ids])


@pytest.mark.slow
def test_encoder_decoders(tmp_path):
  small, large = (tiny.save(tmp_path / x, i) for i, x in enumerate("ab"))
  pair = sc.load_pair(
    drafter=small,
    verifier=large,
    vocabulary=tiny.Vocabulary(),
    drafter_vocabulary=Backwards(),
  )
  texts = ["one two three", "zero nine"]
  batch = np.array([[4, 5, 6, 1], [3, 12, 1, 0]], np.int32)
  read = pair.models.drafter_of(batch, 8).inputs
  assert read.tolist() == [[11, 10, 9, 1, 0, 0, 0, 0], [2, 3, 1, 0, 0, 0, 0, 0]]
  settings = {"max_decode_len": 8, "temperature": 0}
  alone = pair.generate(texts, "verifier", **settings)
  drafted = pair.generate(texts, "spec_decode", gamma=2, **settings)
  np.testing.assert_array_equal(drafted.tokens, alone.tokens)


def test_drafters_of_the_verifiers_tokens_alone(folder, tmp_path):
  large = folder / "large"
  models = sc.load_pair(verifier=large).models
  reader = sc.StateReader.untrained(models.verifier_lm)
  own = {"drafter_vocabulary": large}
  with pytest.raises(PairError, match="state readers, which have the verif"):
    sc.load_pair(drafter=reader, verifier=large, **own)
  verifier = tiny.save(tmp_path / "t5", 0)
  heads = tiny.save_heads(tmp_path / "heads", verifier, kind="medusa")
  own = dict.fromkeys(("vocabulary", "drafter_vocabulary"), tiny.Vocabulary())
  with pytest.raises(PairError, match=r"heads-3 has .*; leave drafter_voc"):
    sc.load_pair(drafter=heads, verifier=verifier, **own)


def test_pairs_that_share_nothing_or_say_the_wrong_thing(folder, tmp_path):
  small, large = folder / "small", folder / "large"
  with pytest.raises(PairError, match="or drafter_vocabulary name the draft"):
    sc.load_pair(drafter=small, verifier=large)
  with pytest.raises(PairError, match=r"small was .* drafter_vocabulary is"):
    sc.load_pair(drafter=small, verifier=large, drafter_vocabulary=large)
  with pytest.raises(FileNotFoundError, match="no vocabulary"):
    sc.load_pair(drafter=small, verifier=large, drafter_vocabulary="nowhere")
  with pytest.raises(PairError, match="drafter_vocabulary is of type int"):
    sc.load_pair(drafter=small, verifier=large, drafter_vocabulary=3)
  words = types.SimpleNamespace(
    eos_id=0, vocab_size=3, encode=list, decode=lambda ids: f"<{ids}>"
  )
  with pytest.raises(PairError, match="share no token"):
    SharedTokens(vocabularies.load(str(large)), words, 320)
