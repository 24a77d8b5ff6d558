"""Decoder-only pairs from Hugging Face directories: whole runs, and faults."""

import contextlib
import dataclasses
import json
import types

import jax.numpy as jnp
import numpy as np
import pytest

import speccascade as sc
from speccascade.generate.api import Generation, generation
from speccascade.generate.batches.sources import InputError, Source, Sources
from speccascade.generate.pair import pair_checks
from speccascade.generate.pair.pairs import PairError
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.generate.turns.text_stream import TokenStream
from tests.generate import decodes, llamas, tiny

pytestmark = pytest.mark.needs_tf

SHORT = {"gamma": 3, "max_decode_len": 12, "max_input_len": 64}
GREEDY = SHORT | {"temperature": 0}
TEXTS = ["the cat sat", "你好 🙂"]
TURNS = [
  {"role": "user", "content": "the cat"},
  {"role": "assistant", "content": "sat"},
  {"role": "user", "content": "the dog"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("llamas")
  llamas.save(folder / "small", 0)
  llamas.save(folder / "large", 1)
  return folder


@pytest.fixture(scope="module")
def pair(folder):
  return sc.load_pair(drafter=folder / "small", verifier=folder / "large")


def call(folder, tmp_path, **changes):
  """Decodes a file as the command does."""
  settings = {
    "temperature": 0.0,
    "task_feature_lengths": {"inputs": 64},
    "gamma": 3,
    "max_decode_len": 12,
    "batch_size": 1,
    "input_file": str(tmp_path / "in.jsonl"),
    **changes,
  }
  return decodes.decode(folder, tmp_path / "out", **settings)


def test_a_file_of_texts_and_conversations(folder, pair, tmp_path):
  rows = [{"inputs": TEXTS[0]}, {"messages": TURNS}]
  lines = [json.dumps(row) for row in rows]
  (tmp_path / "in.jsonl").write_text("\n".join(lines))
  row = call(folder, tmp_path, num_lengths=1)
  assert row.settings.verifier == "large"
  path = tmp_path / "out" / "predictions.jsonl"
  written = [json.loads(line) for line in path.read_text().splitlines()]
  assert [each["inputs"] for each in written] == [
    TEXTS[0],
    "user: the cat\nassistant: sat\nuser: the dog",
  ]
  assert [each.get("messages") for each in written] == [None, TURNS]
  # The interface says the same, by the verifier alone.
  [alone] = pair.generate(TURNS, "verifier", **GREEDY).texts
  assert alone == written[1]["prediction"]
  rendered = pair.vocabulary.chat_template.render(TURNS)
  asked = pair.generate(rendered, "verifier", prompt="text", **GREEDY)
  assert asked.texts[0] == alone
  # Another format is another prompt, and a resumed run says so.
  (tmp_path / "in.jsonl").write_text(f"{lines[0]}\n{lines[0]}")
  with pytest.raises(ValueError, match="inputs_sha256"):
    call(folder, tmp_path, prompt="text", num_lengths=1)


def test_a_stream_is_the_whole(pair):
  settings = SHORT | {"alpha": 0.2, "seed": 3, "log_probs": True}
  whole = pair.generate(TEXTS[1], "spec_cascade_opt", **settings)
  stream, pieces = pair.stream(TEXTS[1], "spec_cascade_opt", **settings), []
  for piece in stream:
    pieces.append(piece)
    assert_log_probs(stream, whole)
  assert "".join(pieces) == whole.texts[0]
  assert len(pieces) > 1
  assert len(stream.tokens) == whole.lengths[0]
  assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])
  with pytest.raises(ValueError, match="sequence"):
    pair.stream("the cat", "seq_cascade_chow", **SHORT)
  with pytest.raises(ValueError, match="rounds"):
    pair.stream("the cat", rounds=0)
  with pytest.raises(ValueError, match=r"alpha is 0\.3; SpecDecode takes no"):
    pair.stream("the cat", alpha=0.3)
  assert not pair.stream("the cat", alpha=None, **SHORT).ended
  # Who wrote each token, as a tokenizer spells it.
  [record] = whole.records
  assert len(record["aux"]["trace"]["piece"]) == whole.lengths[0]
  assert all(record["aux"]["trace"]["piece"])
  assert "sc-token" in whole._repr_html_()


def test_a_stream_of_trees_is_the_whole(pair):
  settings = SHORT | {"tree": (2, 1, 1), "seed": 3}
  whole = pair.generate(TEXTS[0], "spec_decode", trace="trees", **settings)
  [record] = whole.records
  assert [len(x["tokens"]) for x in record["aux"]["trees"]] == (
    [6] * record["aux"]["counts"]["num_blocks"]
  )
  assert "drafts that lost" in whole._repr_html_()
  pieces = [*pair.stream(TEXTS[0], "spec_decode", **settings)]
  assert "".join(pieces) == whole.texts[0]
  assert len(pieces) > 1


def test_what_chat_refuses(pair, tmp_path):
  with pytest.raises(ValueError, match=r"prompt is 'text'; .* 'chat'"):
    pair.chat(prompt="text")
  with pytest.raises(ValueError, match=r"^banned has the id 1000000"):
    next(pair.chat(banned=[10**6], **GREEDY).send("a"))
  llamas.save(tmp_path / "plain", 0, template=None)
  plain = sc.load_pair(verifier=tmp_path / "plain")
  message = "tokenizer of plain.* has no chat template; use stream, or generate"
  with pytest.raises(PairError, match=message):
    plain.chat("verifier")
  # A conversation is one text.
  assert not pair.stream(TURNS, **SHORT).ended


def assert_log_probs(stream, whole):
  """Asserts that those of a stream so far are those of the whole."""
  num = len(stream.tokens)
  for name, want in vars(whole.log_probs).items():
    got = getattr(stream.log_probs, name)
    assert got.shape == (num,)
    np.testing.assert_allclose(got, want[0, :num], atol=1e-5)


def answered(pair, tokens):
  """Returns what a prompt of tokens is answered."""
  sources = Sources(
    [Source(0, "", np.array(tokens, np.int32))], pair.vocabulary, 128
  )
  sources = dataclasses.replace(sources, prompted=True)
  length = GREEDY["max_decode_len"]
  run = Run(max_decode_len=length, batch_size=1, log_probs=True)
  point = Point("spec_decode", gamma=3, temperature=0.0)
  session = Session(pair.models, sources, run)
  batches = generation.checked_batches(session, point)
  return Generation.of(session, point, batches.decode_all(session.examples))


@pytest.mark.slow
def test_a_conversation_continues_in_its_caches(pair):
  chat = pair.chat(system="the rug", rounds=2, log_probs=True, **GREEDY)
  assert chat.answer is None
  vocabulary, held = pair.vocabulary, []
  said = [{"role": "system", "content": "the rug"}]
  for content in ("the cat", "the dog", "sat"):
    answer = "".join(chat.send(content))
    user = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    if not held:
      user = f"<|im_start|>system\nthe rug<|im_end|>\n{user}"
    elif held[-1] != 2:
      user = f"<|im_end|>\n{user}"
    else:
      user = f"\n{user}"
    held += vocabulary.encode(user)
    # What a prompt of all these tokens is answered.
    whole = answered(pair, held)
    assert whole.texts == (answer,) == (chat.answer.text,)
    assert_log_probs(chat.answer, whole)
    said.append({"role": "user", "content": content})
    said.append({"role": "assistant", "content": answer})
    assert chat.messages == said
    held += chat.answer.tokens.tolist()
  assert chat.num_begun == 1


@pytest.mark.slow
def test_a_conversation_restarts_where_it_must(pair):
  chat = pair.chat(room=20, **GREEDY)
  list(chat.send("a"))
  next(chat.send("b"), None)  # left in the middle
  assert len(chat.messages) == 2
  list(chat.send("c"))
  assert chat.num_begun == 3
  with pytest.raises(PairError, match="together more than the 128"):
    list(pair.chat(**GREEDY | {"max_decode_len": 120}).send("a"))
  with pytest.raises(ValueError, match="wanted a list of objects"):
    list(chat.send({"content": "a"}))


@pytest.mark.slow
def test_prompts_are_padded_by_no_token(pair):
  # Id 0 is a token here; rows alone are rows of a batch.
  zero = pair.vocabulary.decode([0])
  texts = [f"{zero}a{zero}", "the cat sat on the mat"]
  settings = GREEDY | {"prompt": "text"}
  both = pair.generate(texts, **settings)
  for text, tokens in zip(texts, both.tokens):
    alone = pair.generate(text, **settings).tokens[0]
    np.testing.assert_array_equal(alone, tokens)


@pytest.mark.parametrize(
  ("settings", "error", "message"),
  [
    ({"prompt": "source"}, PairError, "is decoder-only and takes prompts"),
    ({"max_decode_len": 127}, PairError, "together more than the 128 that"),
    ({"max_input_len": 4}, InputError, "text 0 has .* tokens"),
    ({"prompt": "text", "texts": ""}, InputError, "text 0 is an empty prompt"),
    ({"texts": [TURNS], "prompt": "text"}, InputError, "has messages, which"),
    ({"texts": [[{}]]}, ValueError, "wanted a list of objects"),
    ({"prompt": "Chat"}, ValueError, "prompt is 'Chat'"),
  ],
)
def test_bad_input_is_refused(pair, settings, error, message):
  settings = {"texts": "the cat", **GREEDY, **settings}
  with pytest.raises(error, match=message):
    pair.generate(**settings)


@pytest.mark.parametrize("tied", [True, False])
def test_a_drafters_rows_past_the_verifiers_go(folder, tmp_path, tied):
  shape = {"vocab_size": llamas.ROWS + 8, "logits_via_embedding": tied}
  more = llamas.save(tmp_path / "more", 0, **shape)
  pair = sc.load_pair(drafter=more, verifier=folder / "large")
  small, large = pair.models.drafter_lm, pair.models.verifier_lm
  assert small.vocab_size == large.vocab_size == llamas.ROWS
  whole = sc.load_pair(drafter=more).models.drafter_lm
  assert whole.vocab_size == llamas.ROWS + 8
  tokens = jnp.ones((1, 3), jnp.int32)
  logits = [
    lm.extend(lm.prefill(tokens, capacity=3), tokens, jnp.array([3]))[1].logits
    for lm in (small, whole)
  ]
  np.testing.assert_allclose(
    logits[0], logits[1][..., : llamas.ROWS], rtol=1e-5, atol=1e-5
  )


def test_rows_that_a_drafter_lacks_are_never_drafted(folder, tmp_path):
  """The verifier keeps them, and the lossless distribution is its own."""
  more = llamas.save(tmp_path / "more", 1, vocab_size=llamas.ROWS + 8)
  pair = sc.load_pair(drafter=folder / "small", verifier=more)
  drafter, verifier = pair.models.drafter_lm, pair.models.verifier_lm
  assert drafter.vocab_size == verifier.vocab_size == llamas.ROWS + 8
  alone = sc.load_pair(verifier=more).models.verifier_lm
  own = sc.load_pair(drafter=folder / "small").models.drafter_lm
  # The drafter reads a token that it lacks as the last one that it has.
  lacks = jnp.asarray([[1, llamas.ROWS + 3, 2]], jnp.int32)
  last = jnp.minimum(lacks, llamas.ROWS - 1)

  def logits(lm, tokens):
    state = lm.prefill(tokens, capacity=3)
    return np.asarray(lm.extend(state, tokens, jnp.array([3]))[1].logits)

  np.testing.assert_array_equal(logits(verifier, lacks), logits(alone, lacks))
  drafted = logits(drafter, lacks)
  assert np.isneginf(drafted[..., llamas.ROWS :]).all()
  np.testing.assert_array_equal(drafted[..., : llamas.ROWS], logits(own, last))
  greedy = pair.generate(TEXTS, "spec_decode", **GREEDY)
  want = pair.generate(TEXTS, "verifier", **GREEDY)
  assert greedy.texts == want.texts
  # Its own distribution decides where a draft is kept: a lossy rule is not
  # spoiled.
  pair.generate(TEXTS, "spec_cascade_opt", **SHORT, temperature=1.0, alpha=0.3)


def test_models_that_do_not_belong_together(folder, tmp_path):
  other = llamas.save(tmp_path / "other", 0)
  path = other / "tokenizer.json"
  text = path.read_text(encoding="utf-8")
  path.write_text(text.replace('"<|endoftext|>"', '"<|another|>"'))
  with pytest.raises(PairError, match="was trained with the vocabulary"):
    sc.load_pair(drafter=other, verifier=folder / "large")
  llamas.save(tmp_path / "few", 0, vocab_size=300)
  with pytest.raises(PairError, match=r"320 ids, few only 300 rows"):
    sc.load_pair(verifier=tmp_path / "few")
  tiny.save(tmp_path / "t5", 0, vocab_size=llamas.ROWS)
  with pytest.raises(PairError, match="encoder-decoder, large decoder-only"):
    sc.load_pair(drafter=tmp_path / "t5", verifier=folder / "large")
  t5 = sc.load_pair(verifier=tmp_path / "t5", vocabulary=folder / "large")
  with pytest.raises(PairError, match="encoder-decoder and takes sources"):
    t5.generate("the cat", "verifier", prompt="text", max_decode_len=4)
  (tmp_path / "in.jsonl").write_text('{"inputs": "a"}')
  t5 = str(tmp_path / "t5")
  with pytest.raises(InputError, match="neither a file nor these models"):
    call(folder, tmp_path, drafter_checkpoint=t5, verifier_checkpoint=t5)


@pytest.mark.parametrize(
  ("num", "room", "window", "fits"),
  [
    # 10 tokens are held, and the prompt had 4. A turn of 3 tokens has room for
    # the 8 of its answer.
    (3, 21, 25, True),
    (3, 20, 25, False),
    (3, 21, 24, False),
    # A pass over 9 tokens writes 9 slots, whatever of them are the row's own.
    (9, 28, 32, True),
    (9, 27, 32, False),
  ],
)
def test_a_turn_fits_up_to_the_last_slot(num, room, window, fits):
  stream = object.__new__(TokenStream)
  stream._stream = types.SimpleNamespace(used=[10], room=room)
  stream._run, stream._prompt_len = Run(max_decode_len=8), 4
  models = [types.SimpleNamespace(window=x) for x in (99, window)]
  stream._pair = types.SimpleNamespace(models=models)
  stream._is_alone = False
  assert stream.fits(num) == fits
  padded = stream.pad_turn([1] * num, [2, num])
  assert padded == ([1] * num if fits else None)


@pytest.mark.parametrize(
  ("prompted", "window", "fits"),
  [(True, 12, True), (True, 11, False), (False, 8, True), (False, 7, False)],
)
def test_models_read_up_to_their_window(prompted, window, fits, monkeypatch):
  monkeypatch.setattr(pair_checks, "check_rows", lambda *_: None)
  model = types.SimpleNamespace(name="m", prompted=prompted, window=window)
  examples = [Source(0, "", np.zeros(num, np.int32)) for num in (1, 4, 2)]
  sources = Sources(examples, None, 4, prompted=prompted)
  pair, expected = (
    types.SimpleNamespace(models=[model]),
    contextlib.nullcontext(),
  )
  if not fits:
    expected = pytest.raises(PairError, match=f"than the {window} that m")
  with expected:
    pair_checks.check_sources(pair, sources, 8)
