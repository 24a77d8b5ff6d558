"""Turns and outputs have the ids that they have in the whole conversation."""

import json

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from speccascade.generate.batches import sources
from speccascade.generate.turns.conversation import Chat
from speccascade.text import continuations, prompting, vocabularies
from speccascade.text.prompting import Completion, Prompting
from speccascade.training import token_rows
from tests.text import tokenizers

BLANK = "\u2581"
FILES = {"inputs": 500, "targets": 500}
_LOOP = (
  "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}USER"
  "{% else %}ANSWER{% endif %}{% endfor %}"
)
TEMPLATES = {
  "tight": _LOOP.replace("USER", "[INST] {{ m.content }} [/INST]").replace(
    "ANSWER", "{{ m.content }}{{ eos_token }}"
  ),
  "mistral": _LOOP.replace("USER", "[INST] {{ m.content }} [/INST]").replace(
    "ANSWER", "{{ ' ' + m.content + eos_token }}"
  ),
  "llama2": _LOOP.replace(
    "USER", "{{ bos_token }}[INST] {{ m.content }} [/INST]"
  ).replace("ANSWER", "{{ ' ' + m.content + ' ' + eos_token }}"),
  "words": _LOOP.replace("USER", "U: {{ m.content }}\nA:").replace(
    "ANSWER", " {{ m.content }}\n"
  ),
  "joined": _LOOP.replace("USER", "{{ m.content }}").replace(
    "ANSWER", "{{ m.content }}"
  ),
  "chatml": tokenizers.CHATML,
}


def blanks_before(folder, scheme):
  """Writes a tokenizer that puts a blank before a text, as Mistral's do."""
  letters = [chr(i) for i in range(33, 127)]
  names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
  merges = [(BLANK, "["), (BLANK, "U"), (BLANK, "o"), ("o", "k"), ("g", "o")]
  names += [*letters, BLANK, *("".join(pair) for pair in merges)]
  tokenizer = Tokenizer(
    models.BPE(
      {name: i for i, name in enumerate(names)},
      merges,
      unk_token="<unk>",
      byte_fallback=True,
      fuse_unk=True,
    )
  )
  if scheme == "prepend":
    tokenizer.normalizer = normalizers.Sequence(
      [normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)]
    )
  else:
    name, _, split = scheme.partition(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
      prepend_scheme=name, split=bool(split)
    )
  tokenizer.decoder = decoders.Sequence(
    [
      decoders.Replace(BLANK, " "),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(" ", 1, 0),
    ]
  )
  tokenizer.add_special_tokens(names[:3])
  folder.mkdir()
  tokenizer.save(str(folder / "tokenizer.json"))
  return {"bos_token": "<s>", "eos_token": "</s>"}


def of_pieces(folder):
  """Writes a SentencePiece model of a decoder-only model, as Llama 2's."""
  folder.mkdir()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(tokenizers.TEXT * 4),
    model_prefix=str(folder / "tokenizer"),
    model_type="bpe",
    vocab_size=330,
    hard_vocab_limit=False,
    byte_fallback=True,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    minloglevel=3,
  )
  return {"bos_token": "<s>", "eos_token": "</s>"}


KINDS = ("bytes", "fallback", "pieces", "prepend", "first", "always", "never")
KINDS += ("first split", "always split")


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
  folder, kind = tmp_path_factory.mktemp("tokenizer") / "t", request.param
  if kind in ("bytes", "fallback"):
    tokenizers.save(folder, kind)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
  elif kind == "pieces":
    settings = of_pieces(folder)
  else:
    settings = blanks_before(folder, kind)
  return folder, settings


@pytest.fixture(params=sorted(TEMPLATES))
def chats(request, folder):
  folder, settings = folder
  settings = settings | {"chat_template": TEMPLATES[request.param]}
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  vocabularies.load.cache_clear()
  return Prompting(vocabularies.load(str(folder)), "chat")


def answer_ids(chats, conversation):
  """Returns the ids of the last answer in its conversation, up to EOS."""
  template = chats.vocabulary.chat_template
  before = template.render(conversation[:-1])
  whole = template.render(conversation, add_generation_prompt=False)
  assert whole.startswith(before)
  held, ids = (chats.vocabulary.encode(x) for x in (before, whole))
  if ids[: len(held)] != held:
    return None
  ids = ids[len(held) :]
  ends = [i for i, x in enumerate(ids) if x in chats.vocabulary.eos_ids]
  return ids[: ends[0] + 1] if ends else ids


class Stream:
  """Stands for a stream that answers with given ids."""

  def __init__(self, ids, text):
    self.tokens, self.text, self.fed = np.array(ids), text, None

  def __iter__(self):
    return iter([self.text])

  def pad_turn(self, tokens, widths):
    self.fed = list(tokens)
    return self.fed

  def turn(self, tokens, number):
    pass


SAID = ["hi", "go", " ok", "[x]", "\nno", "Ü 4"]


@pytest.mark.parametrize("said", SAID)
def test_a_turn_has_the_ids_of_the_whole_conversation(chats, said):
  first = [{"role": "user", "content": "hi"}]
  answered = [*first, {"role": "assistant", "content": "ok"}]
  ids = answer_ids(chats, answered) or chats.vocabulary.encode("ok")
  streams = []

  def start(messages, number):
    streams.append((messages, Stream(ids, "ok")))
    return streams[-1][1]

  chat = Chat(start, chats, [999])
  list(chat.send("hi"))
  list(chat.send(said))
  full = [*answered, {"role": "user", "content": said}]
  whole, _ = chats.tokens(full, 999, "", False)
  prompt, _ = chats.tokens(first, 999, "", False)
  if chat.num_begun == 1:
    fed = streams[0][1].fed
    # An answer may have other ids than its text has in the conversation.
    is_canonical = whole[len(prompt) :][: len(ids)] == ids
    assert not is_canonical or [*prompt, *ids, *fed] == whole
    assert whole[len(whole) - len(fed) :] == fed
  else:
    # The ids differ, or the template writes the answer in other words.
    assert streams[1][0] == full
    rendered = chats.render(full)
    answer = continuations.text_inside(chats.vocabulary, ids)
    text = chats.render(first) + answer
    held = chats.vocabulary.encode(text)
    assert not rendered.startswith(text) or whole[: len(held)] != held


def test_most_turns_stay_in_the_caches(chats):
  """Beginning again is for what differs, and no way around the seam."""
  first = [{"role": "user", "content": "hi"}]
  answered = [*first, {"role": "assistant", "content": "ok"}]
  ids = answer_ids(chats, answered)
  if ids is None or ids[-1] not in chats.vocabulary.eos_ids:
    return
  chat = Chat(lambda m, n: Stream(ids, "ok"), chats, [999])
  for said in ("hi", "go", "no"):
    list(chat.send(said))
  assert chat.num_begun == 1


@pytest.mark.parametrize("output", ["ok", "go on", "the cat", "Ü\n4"])
def test_a_right_output_has_the_ids_of_the_whole_conversation(chats, output):
  prompt = [{"role": "user", "content": "hi"}]
  whole = answer_ids(chats, [*prompt, {"role": "assistant", "content": output}])
  arrays = prompting.tokenize([Completion("x", prompt, output)], chats, FILES)
  learned = arrays.get("targets", 0).tolist()
  raw = [sources.RawExample("x", prompt, [output])]
  limit = {"max_len": 500, "setting": "MOST", "truncate": False}
  read = sources.encode(raw, chats, **limit)
  gold = token_rows._gold(read.examples[0], read, 500)
  assert gold.tolist() == learned
  assert learned[-1] == chats.vocabulary.eos_id
  if whole is None:
    return  # the output shares a token with the prompt
  if whole[-1] not in chats.vocabulary.eos_ids:
    # The template writes no EOS; the text is the output's all the same.
    lead = continuations.text_inside(chats.vocabulary, learned[:-1])
    assert lead.strip() == output.strip()
    return
  assert learned[:-1] == whole[:-1]


def test_an_output_after_a_text(folder):
  folder, settings = folder
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  vocabularies.load.cache_clear()
  vocabulary = vocabularies.load(str(folder))
  read = vocabulary.continuing()
  for prompt, output in (
    ("the cat", " sat on"),
    ("x =\n", "ok"),
    ("[INST] hi [/INST]", "ok"),
    ("g", "o on"),  # may share a token with the prompt
    ("the cat", "s"),
  ):
    arrays = prompting.tokenize(
      [Completion("x", prompt, output)], Prompting(vocabulary, "text"), FILES
    )
    ids = arrays.get("targets", 0).tolist()[:-1]
    assert read.text(ids) == output
    held, whole = (vocabulary.encode(x) for x in (prompt, prompt + output))
    if whole[: len(held)] == held:
      assert ids == whole[len(held) :]


def test_an_encoder_decoder_writes_a_text_of_its_own(folder):
  vocabulary = vocabularies.load(str(folder[0]))
  source = Prompting(vocabulary, "source")
  assert source.output("the cat", "sat") == vocabulary.encode("sat")
