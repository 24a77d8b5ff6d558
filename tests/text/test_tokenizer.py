"""Reads vocabularies of tokenizer.json, and makes prompts with them."""

import json
import shutil

import numpy as np
import pytest
import sentencepiece

from speccascade.checkpoints import storage
from speccascade.generate.batches import sources
from speccascade.tasks import seqio_vocabularies
from speccascade.text import (
  mistral_expression,
  vocabularies,
)
from speccascade.text.prompting import Prompting, eos_ids
from speccascade.text.tokenizer import TokenizerVocabulary
from tests.text import tokenizers

pytestmark = pytest.mark.needs_tf

TEXTS = [
  *tokenizers.TEXT,
  "",
  " ",
  "a\n\n  b",
  "東京 \U0001f9d1\u200d\U0001f4bb",
]
USER = {"role": "user", "content": "the cat"}


@pytest.fixture(scope="module", params=["bytes", "fallback"])
def vocabulary(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp(request.param)
  return vocabularies.load(str(tokenizers.save(folder, request.param)))


def test_ids_and_text(vocabulary):
  for text in TEXTS:
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert vocabulary.text([*ids, vocabulary.eos_id, *ids]) == text
    # Ids past the tokenizer can be sampled; special tokens are not text.
    start = vocabulary.encode("<|im_start|>")
    assert len(start) == 1
    ids = [*start, vocabulary.vocab_size + 3, *ids]
    assert vocabulary.text(np.array(ids)) == text
    assert vocabulary.decode(ids).endswith(text)
    assert vocabulary.decode(ids).startswith("<|im_start|>")


def test_pieces_are_spelled_as_sentencepiece_spells_them(vocabulary):
  spelled = lambda text: [vocabulary.piece(i) for i in vocabulary.encode(text)]
  assert "".join(spelled("a the cat")).lstrip("\u2581") == "a\u2581the\u2581cat"
  assert spelled("<|im_end|>") == ["<|im_end|>"]
  assert "".join(spelled("x\u20ac")[-3:]) == "<0xE2><0x82><0xAC>"
  assert spelled("\0")[-1] == "<0x00>"
  assert vocabulary.piece(vocabulary.vocab_size + 1) == ""


def test_prompts_have_bos_where_the_tokenizer_says_so(tmp_path):
  def prompt(kind, **settings):
    folder = tokenizers.save(tmp_path / "t", kind, **settings)
    vocabulary = vocabularies.TokenizerVocabulary(str(folder))
    ids = vocabulary.prompt("the cat")
    unprompted = vocabulary.encode("the cat")
    assert ids[len(ids) - len(unprompted) :] == unprompted
    return [vocabulary.piece(i) for i in ids[: len(ids) - len(unprompted)]]

  assert prompt("bytes") == []
  assert prompt("fallback") == ["<s>"]
  assert prompt("fallback", add_bos_token=False) == []
  assert prompt("bytes", add_bos_token=True, bos_token="<|im_start|>") == [
    "<|im_start|>"
  ]


def test_formats(vocabulary):
  make = lambda text, form=None, most=99, cut=False: Prompting(
    vocabulary, form
  ).tokens(text, most, "MOST", cut)
  chat, is_cut = make("the cat")  # a tokenizer with a template chats
  assert not is_cut
  # A tokenizer that begins words with blanks does so after special tokens too.
  assert vocabulary.decode(chat).replace("> ", ">") == (
    "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
  )
  assert make([USER])[0] == chat
  text, _ = make("the cat", "text")
  assert text == vocabulary.prompt("the cat")
  assert make("the cat", "source")[0] == [
    *vocabulary.encode("the cat"),
    vocabulary.eos_id,
  ]
  # A prompt is cut at its start, after BOS; a source before EOS.
  first = [] if vocabulary.bos_id is None else [vocabulary.bos_id]
  assert make("the cat sat", "text", 3, True) == (
    [*first, *vocabulary.encode("the cat sat")[len(first) - 3 :]],
    True,
  )
  cut, _ = make("the cat sat", "source", 2, True)
  assert cut == [vocabulary.encode("the cat sat")[0], vocabulary.eos_id]
  with pytest.raises(ValueError, match=r"MOST allows 2: .*\(no chat is trunc"):
    make("the cat", None, 2, True)
  with pytest.raises(ValueError, match=r"MOST allows 2.*set truncate=True"):
    make("the cat sat", "text", 2)
  with pytest.raises(ValueError, match="messages, which want PROMPT = 'chat'"):
    make([USER], "text")
  with pytest.raises(ValueError, match="PROMPT is 'Chat'; wanted one of"):
    make("a", "Chat")
  with pytest.raises(ValueError, match="CHAT_VARIABLES are of a chat"):
    Prompting(vocabulary, "text", {"enable_thinking": False})
  for form in ("chat", "text", "source"):
    with pytest.raises(ValueError, match="with half of a surrogate pair"):
      make("a \ud83d", form)
  if not first:
    with pytest.raises(ValueError, match="empty prompt"):
      make("", "text")


def test_what_lies_beside_it(tmp_path):
  folder = tokenizers.save(tmp_path / "a", template=None)
  read = lambda: vocabularies.TokenizerVocabulary(str(folder))
  plain = read()
  assert eos_ids(plain) == plain.eos_id == 2
  assert Prompting(plain).format == "text"
  with pytest.raises(ValueError, match="has no chat template; set PROMPT"):
    Prompting(plain, "chat")
  (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}!")
  (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
  several = read()
  assert eos_ids(several) == (2, 0)
  assert several.text([50, 0, 51]) == several.text([50])
  assert Prompting(several).render([USER]) == "<|im_end|>!"
  # Ids make a vocabulary, not the file that says them.
  assert several == plain
  assert several.identity == plain.identity
  path = folder / "tokenizer.json"
  assert vocabularies.load(str(path)).identity == plain.identity
  text = path.read_text(encoding="utf-8")
  path.write_text(text.replace('"<|endoftext|>"', '"<|another|>"'))
  assert read() != plain
  templates = [{"name": "tools", "template": "t"}]
  templates += [{"name": "default", "template": "d"}]
  (folder / "chat_template.jinja").write_text("")
  assert read().chat_template is None
  other = tokenizers.save(tmp_path / "b", template=templates)
  assert Prompting(vocabularies.load(str(other))).render([USER]) == "d"


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("tokenizer.json", None, r"no vocabulary in .* neither spiece.model nor"),
    ("tokenizer.json", "{}", "tokenizer.json is not a tokenizer of Hugging"),
    ("tokenizer.json", "\x00", "is not a tokenizer of Hugging Face"),
    ("tokenizer_config.json", "{", "tokenizer_config.json is not JSON"),
    ("tokenizer_config.json", "[]", "_config.json is not a JSON object"),
    ("tokenizer_config.json", "{}", "does not say what ends a text"),
    ("config.json", '{"eos_token_id": []}', "does not say what ends a text"),
    ("config.json", '{"eos_token_id": "x"}', r"/config.json: eos_token_id is"),
    (
      *("generation_config.json", '{"eos_token_id": [2, "x"]}'),
      r"generation_config.json: eos_token_id is \[2, 'x'\]; wanted the ids",
    ),
    (
      "chat_template.jinja",
      b"a\xff",
      r"chat_template\.jinja is not UTF-8 .* 1\)",
    ),
    *(
      ("tokenizer_config.json", {"chat_template": template}, message)
      for message in [r"tokenizer_config\.json: chat_template is .* wanted a"]
      for template in (
        *(5, True, {"a": 1}, [5], ["x"], [{"name": "a"}]),
        *([{"name": [], "template": "x"}], [{"name": "a", "template": 5}]),
      )
    ),
  ],
)
def test_damaged_directories(tmp_path, name, content, message):
  folder = tokenizers.save(tmp_path / "a")
  (folder / name).unlink(missing_ok=True)
  if isinstance(content, dict):
    content = json.dumps({"eos_token": "<|im_end|>", **content})
  if content is not None:
    content = content if isinstance(content, bytes) else content.encode()
    (folder / name).write_bytes(content)
  with pytest.raises((ValueError, OSError), match=message):
    vocabularies.load(str(folder))


def test_a_directory_of_a_t5_has_sentencepiece(tmp_path, vocabulary_path):
  folder = tokenizers.save(tmp_path / "t5")
  (folder / "spiece.model").write_bytes(vocabulary_path.read_bytes())
  read = vocabularies.load(str(folder))
  assert read == vocabularies.load(str(vocabulary_path))
  assert Prompting(read).format == "source"


def _add_token(folder, number):
  """Adds "<sep>" to the tokenizer of a folder, with the number given."""
  path = folder / "tokenizer.json"
  read = json.loads(path.read_text(encoding="utf-8"))
  token = dict(read["added_tokens"][0], id=number, content="<sep>")
  read["added_tokens"].append(token | {"special": False})
  path.write_text(json.dumps(read), encoding="utf-8")


@pytest.mark.parametrize(
  "where", ["added_tokens.json", storage.TOKENIZER_CONFIG]
)
def test_a_token_that_was_added_to_a_t5_is_read(
  tmp_path, vocabulary_path, where
):
  folder = tokenizers.save(tmp_path / "t5")
  _add_token(folder, 320)
  (folder / "spiece.model").write_bytes(vocabulary_path.read_bytes())
  sentinel = "<extra_id_0>"
  if where == storage.TOKENIZER_CONFIG:
    decoder = {"320": {"content": "<sep>"}, "321": {"content": sentinel}}
    added = {"eos_token": "<|im_end|>", "added_tokens_decoder": decoder}
  else:
    added = {"<sep>": 320, sentinel: 321}
  (folder / where).write_text(json.dumps(added))
  read = vocabularies.load(str(folder))
  assert read.encode("a<sep>b")[1] == 320
  assert read.text([*read.encode("a"), 320]) == "a<sep>"
  assert Prompting(read).format == "source"  # a T5 as before
  (folder / "tokenizer.json").unlink()
  vocabularies.load.cache_clear()
  with pytest.raises(
    ValueError, match=r"'<sep>' and 0 others.*save_pretrained"
  ):
    vocabularies.load(str(folder))


def test_a_source_begins_as_its_encoder_reads_it(tmp_path):
  # CodeT5 has byte-level BPE, and "<s> TEXT </s>" around every text.
  folder = tokenizers.save(tmp_path / "c", template=None)
  path = folder / "tokenizer.json"
  read = json.loads(path.read_text(encoding="utf-8"))
  names = "<|im_start|>", "<|im_end|>"
  first, last = ({"SpecialToken": {"id": name, "type_id": 0}} for name in names)
  read["post_processor"] = {
    "type": "TemplateProcessing",
    "single": [first, {"Sequence": {"id": "A", "type_id": 0}}, last],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {
      name: {"id": name, "ids": [i], "tokens": [name]}
      for i, name in enumerate(names, 1)
    },
  }
  path.write_text(json.dumps(read), encoding="utf-8")
  (folder / "config.json").write_text('{"is_encoder_decoder": true}')
  vocabulary = vocabularies.load(str(folder))
  prompting = Prompting(vocabulary)
  assert prompting.format == "source"
  ids, _ = prompting.tokens("the cat", 99, "MOST", False)
  assert ids == vocabulary.tokenizer.encode("the cat").ids
  assert [ids[0], ids[-1]] == [1, 2]
  assert prompting.tokens("the cat", 3, "MOST", True)[0] == [*ids[:2], 2]
  # So do the sources of a task, whose tokens come from seqio.
  task = sources.RawExample("x", "the cat", tokens=np.array(ids[1:]))
  limit = {"max_len": 99, "setting": "MOST", "truncate": False}
  (example,) = sources.encode([task], prompting, **limit).examples
  assert example.tokens.tolist() == ids


def test_one_bos_for_a_text_that_has_it(tmp_path):
  folder = tokenizers.save(tmp_path / "t", "fallback")
  vocabulary = vocabularies.load(str(folder))
  assert vocabulary.prompt("<s>the cat").count(vocabulary.bos_id) == 1
  assert vocabulary.prompt("the <s>cat").count(vocabulary.bos_id) == 2


def test_an_output_after_a_text_keeps_its_first_blank(vocabulary):
  # The tokenizer of Llama 2 writes "sat" as " sat", and reads it as "sat".
  adds_blank = vocabulary.piece(vocabulary.encode("sat")[0])[0] == "\u2581"
  for text in ("sat", " sat on", "\u20ac", ""):
    ids = vocabulary.encode(text if adds_blank else f" {text}")
    if not ids:
      continue
    ids = [*ids, vocabulary.eos_id, *ids]
    for form, wanted in (
      ("text", f" {text}"),
      ("chat", text if adds_blank else f" {text}"),
    ):
      raw = [sources.RawExample("x", "the cat")]
      limit = {"max_len": 99, "setting": "MOST", "truncate": False}
      read = sources.encode(
        raw, Prompting(vocabulary, form), **limit
      ).vocabulary
      assert read == vocabulary
      assert read.text(ids) == wanted


def test_no_token_without_text_ends_a_run_of_bytes(tmp_path):
  folder = tokenizers.save(tmp_path / "t", "fallback")
  vocabulary = vocabularies.load(str(folder))
  code = lambda byte: vocabulary.tokenizer.token_to_id(f"<0x{byte:02X}>")
  (cat, *_), no_token = vocabulary.encode("cat"), vocabulary.vocab_size + 5
  for between in ([], [vocabulary.bos_id], [no_token]):
    ids = [cat, code(0xC3), code(0xA9), *between, code(0x82)]
    # The last byte makes the whole run undecodable, so that none of it is sure.
    assert [vocabulary.whole(ids[:num]) for num in range(6)][
      : len(ids) + 1
    ] == [
      *(0, 1),
      *[1] * (len(ids) - 1),
    ]
  assert vocabulary.whole([cat, no_token, vocabulary.bos_id]) == 3


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
def test_a_sentencepiece_model_alone(tmp_path, kind, rule):
  # Llama 2's model is BPE without normalization, and keeps blanks.
  is_plain = rule == "identity"
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXTS[:3] * 4),
    model_prefix=str(tmp_path / "tokenizer"),
    model_type=kind,
    vocab_size=330,
    hard_vocab_limit=False,
    byte_fallback=True,
    normalization_rule_name=rule,
    remove_extra_whitespaces=not is_plain,
    minloglevel=3,
  )
  path = tmp_path / "tokenizer.model"
  pieces = sentencepiece.SentencePieceProcessor(str(path))
  for place in (path, tmp_path):
    vocabularies.load.cache_clear()
    read = vocabularies.load(str(place))
    for text in (*TEXTS, "ﬁne  print", "x \u20ac 7", "catcatdogs"):
      ids = pieces.encode(text)
      # SentencePiece makes no piece of the empty text, and of blanks one.
      assert read.encode(text) == ids
      assert read.decode(ids) == pieces.decode(ids)
    assert (read.bos_id, read.eos_id, read.unk_id) == (1, 2, 0)
    assert Prompting(read).format == "text"
    assert read.prompt("the cat") == [1, *pieces.encode("the cat")]
    assert read.encode("<s>") == [1]
    assert read.text([*pieces.encode("the cat"), 2, 5]) == "the cat"
  # Copies have tokenizer.json, which says the same.
  vocabularies.save(read, str(tmp_path / "copy"), "MODEL_DIR")
  copy = vocabularies.load(str(tmp_path / "copy"))
  assert copy == read
  assert copy.prompt("the cat") == read.prompt("the cat")
  # A token that was added after the model was trained.
  added = {"<|end|>": pieces.get_piece_size()}
  (tmp_path / "added_tokens.json").write_text(json.dumps(added))
  vocabularies.load.cache_clear()
  read = vocabularies.load(str(tmp_path))
  assert read.encode("the cat<|end|>")[-1] == added["<|end|>"]
  (tmp_path / "added_tokens.json").write_text('{"<|end|>": 7}')
  vocabularies.load.cache_clear()
  with pytest.raises(
    ValueError, match=r"tokenizer\.model .*ids \[7\] of pieces"
  ):
    vocabularies.load(str(tmp_path))
  path.write_bytes(b"no model")
  (tmp_path / "added_tokens.json").unlink()
  for place in (path, tmp_path):
    vocabularies.load.cache_clear()
    with pytest.raises(
      ValueError, match="is not a SentencePiece model"
    ) as error:
      vocabularies.load(str(place))
    assert "\n" not in str(error.value)


def test_in_a_pipeline(vocabulary):
  text = tokenizers.TEXT[1]
  in_task = seqio_vocabularies.of(vocabulary)
  assert in_task == vocabulary
  ids = in_task.encode_tf(text)
  assert ids.numpy().tolist() == vocabulary.encode(text)
  assert in_task.decode_tf(ids).numpy().decode() == text


def test_merges_may_be_written_either_way(tmp_path):
  folder = tokenizers.save(tmp_path / "a")
  first = vocabularies.TokenizerVocabulary(str(folder))
  path = folder / "tokenizer.json"
  read = json.loads(path.read_text(encoding="utf-8"))
  merges = read["model"]["merges"]
  assert isinstance(merges[0], list)
  read["model"]["merges"] = [" ".join(pair) for pair in merges]
  path.write_text(json.dumps(read), encoding="utf-8")
  assert vocabularies.TokenizerVocabulary(str(folder)) == first


LLAMA_3 = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
  r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{M}]+|\p{N}|"
  r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
  ("pattern", "model_type", "token", "is_warned"),
  [
    (LLAMA_3, "mistral", None, True),
    (LLAMA_3, "mistral3", "[INST]", True),
    (LLAMA_3, None, "[INST]", True),
    (LLAMA_3, "llama", None, False),
    (LLAMA_3, "mistral", "<|begin_of_text|>", False),
    (TEKKEN, "mistral", "[INST]", False),
    (None, "mistral", "[INST]", False),
  ],
)
def test_the_wrong_expression_of_mistrals_tokenizers_is_named_once(
  tmp_path, caplog, pattern, model_type, token, is_warned
):
  mistral_expression._warned.clear()
  folder = tokenizers.save(tmp_path / "one")
  path = folder / "tokenizer.json"
  read = json.loads(path.read_text(encoding="utf-8"))
  if pattern:
    split = {"type": "Split", "pattern": {"Regex": pattern}}
    split |= {"behavior": "Isolated", "invert": False}
    level = read["pre_tokenizer"] | {"use_regex": False}
    both = {"type": "Sequence", "pretokenizers": [split, level]}
    read["pre_tokenizer"] = both
  size = len(read["model"]["vocab"])
  turn = ["[INST]", "[/INST]"]
  for content in turn if token in turn else filter(None, [token]):
    new = dict(read["added_tokens"][0], id=size, content=content)
    read["added_tokens"].append(new)
    size += 1
  path.write_text(json.dumps(read), encoding="utf-8")
  config = {"model_type": model_type} if model_type else {}
  (folder / "config.json").write_text(json.dumps(config))
  shutil.copytree(folder, tmp_path / "copy")
  for place in (folder, tmp_path / "copy"):
    TokenizerVocabulary(str(place))
  found = [x for x in caplog.messages if "known to be wrong" in x]
  assert len(found) == is_warned
  assert all("fix_mistral_regex=True" in x and "\n" not in x for x in found)


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_the_tokenizers_of_tests_are_the_same_each_time(tmp_path, kind):
  # Seeded draws of tokens are those of one tokenizer.
  texts = {
    (tokenizers.save(tmp_path / name, kind) / "tokenizer.json").read_text(
      encoding="utf-8"
    )
    for name in "abcd"
  }
  assert len(texts) == 1
