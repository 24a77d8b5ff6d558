"""Wrong text files, for decoding, for training and for counting."""

import gzip
import io
import json
import pathlib
import tempfile

import numpy as np

from tests.audit.fuzz.case import Case
from tests.text import tokenizers

_DEEP = b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
_GZIP = gzip.compress(b"one two\n" * 50)
_JSON = {
  "list": b'["one"]\n',
  "null": b"null\n",
  "number": b"5\n",
  "no_json": b"one two\n",
  "no_inputs": b'{"targets": "one"}\n',
  "inputs_number": b'{"inputs": 5}\n',
  "inputs_null": b'{"inputs": null}\n',
  "targets_number": b'{"inputs": "one", "targets": 5}\n',
  "targets_null": b'{"inputs": "one", "targets": null}\n',
  "targets_object": b'{"inputs": "one", "targets": {"a": "b"}}\n',
  "targets_numbers": b'{"inputs": "one", "targets": [5]}\n',
  "extra_text": b'{"inputs": "one", "targets": "a", "extra_targets": "abc"}\n',
  "extra_numbers": b'{"inputs": "one", "targets": "a", "extra_targets": [5]}\n',
  "extra_number": b'{"inputs": "one", "targets": "a", "extra_targets": 5}\n',
  "surrogate": b'{"inputs": "one \\ud800", "targets": "a"}\n',
  "surrogate_target": b'{"inputs": "one", "targets": "\\udfff"}\n',
  "deep": _DEEP,
  "digits": b'{"inputs": ' + b"9" * 5000 + b"}\n",
  "torn": b'{"inputs": "one", "targ',
  "nan": b'{"inputs": NaN}\n',
  "spaces": b'{"inputs": "  "}\n',
  "pretty": b'{\n  "inputs": "one"\n}\n',
  "array": b'[{"inputs": "one", "targets": "two"}]\n',
  "utf16": '{"inputs": "one"}\n'.encode("utf-16"),
  "turns_none": b'{"turns": []}\n',
  "turns_number": b'{"turns": ["one", 5]}\n',
  "question_list": b'{"turns": ["one"], "question_id": [5]}\n',
  "second": b'{"inputs": "one", "targets": "two"}\n{"inputs"}\n',
  "chat_surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}\n',
}
_LINES = {
  "empty.txt": b"",
  "blank.txt": b"\n\n  \n",
  "latin.txt": b"one\ntw\xe4\n",
  "utf16.txt": "one two\n".encode("utf-16"),
  "torn.txt.gz": _GZIP[:-6],
  "flipped.txt.gz": _GZIP[:20] + bytes([_GZIP[20] ^ 255]) + _GZIP[21:],
  "plain.txt.gz": b"one two\n",
  "empty.jsonl": b"",
  "blank.jsonl": b"\n\n",
  "torn.jsonl.gz": gzip.compress(b'{"inputs": "one"}\n' * 50)[:-6],
  "long.txt": b"one " * 100 + b"\n",
}
_OFFER = {"drafter": "a", "method": "spec_decode", "alpha": None, "gamma": 3}
_OFFERS = [
  {**_OFFER, name: value}
  for name, value in (
    *(("gamma", gamma) for gamma in (0, 2.5, "3", 10**9, 10**30)),
    *(("alpha", alpha) for alpha in ("0", float("nan"), 10**400)),
    *(("drafter", 5), ("drafter", "b"), ("method", None)),
  )
]
_PAIRS = {
  "lines": (b"one\ntwo\n", b"one\n"),
  "empty": (b"", b""),
  "empty_target": (b"one\ntwo\n", b""),
  "latin": (b"one\n", b"\xe4\n"),
}
_LEVELS = b'{"format": "speccascade n-gram model 1", "levels": 0}'
_CASCADE = {"METHOD": '"cascade_drafting"', "DRAFTER_CHECKPOINT": "()"}
_CASCADE |= {"CASCADE_K": "[[2]]"}
# What the line must say, TRAIN_FILES, and the files.
_TRAINING = (
  *(("a.en", '"@work/a"', {}), ("a.de", '"@work/a"', {"a.en": b"one\n"})),
  ("TRAIN_FILES", '["@work/a.en"]', {"a.en": b"one\n"}),
  ("no.jsonl", '"@work/no.jsonl"', {"no.jsonl": b'{"inputs": "one"}\n'}),
)


def _arrays(meta=(), **arrays) -> bytes:
  """Returns a .npz file of arrays, and of bytes."""
  file = io.BytesIO()
  np.savez(file, meta=np.array(meta, np.uint8), **arrays)
  return file.getvalue()


def cases() -> list[Case]:
  """Returns the cases."""
  texts = {f"{name}.jsonl": content for name, content in _JSON.items()} | _LINES
  found, training = [], list(_TRAINING)
  for name, content in texts.items():
    path = f'"@work/{name}"'
    for command in ("decode", "ngrams"):
      if (command, name) != ("ngrams", "long.txt"):
        here = {name: content}
        found.append(Case(command, name, {"INPUT_FILE": path}, files=here))
    if ".jsonl" in name:
      for split in ("TRAIN_FILES", "VALIDATION_FILES"):
        found.append(Case("train", name, {split: path}, files={name: content}))
  for name, (source, target) in _PAIRS.items():
    training.append((name, f'"@work/{name}"', {f"{name}.en": source}))
    training[-1][-1][f"{name}.de"] = target
  for name in ("torn.txt.gz", "flipped.txt.gz", "plain.txt.gz"):
    files = {"data.en.gz": _LINES[name], "data.de.gz": _GZIP}
    training.append(("data.en.gz", '"@work/data"', files))
  none = {"TRAIN_FILES": "None", "VALIDATION_FILES": "None"}
  found.append(Case("train", "TRAIN_FILES", none))
  for says, path, files in training:
    found.append(Case("train", says, {"TRAIN_FILES": path}, files=files))
  for name, content in {
    "list.model": b"[]",
    "empty.model": b"",
    "torn.model": b"\n\x0f\n\x05<pad>\x15",
  }.items():
    for command in ("decode", "train", "ngrams"):
      path = {"VOCABULARY": f'"@work/{name}"'}
      found.append(Case(command, name, path, files={name: content}))
  bigrams = {
    "object.json": b'{"a": 1}',
    "texts.json": b'["a"]',
    "negative.json": b"[-1]",
    "large.json": b"[99999999999]",
    "empty.json": b"[]",
    "deep.json": b"[" * 100_000 + b"]" * 100_000,
    "torn.json.gz": gzip.compress(b"[1, 2, 3]")[:-5],
    "text.npz": b"text",
    "empty.npz": b"",
    "torn.npz": _arrays(unigram=[1.0])[:60],
    "array.npz": _arrays(unigram=[1.0]),
    "levels.npz": _arrays(unigram=[1.0], meta=[*_LEVELS]),
  }
  advice = {"GAMMA": '"auto"', "ADVICE": '"@work/a.json"'}
  found += [
    Case("decode", "a.json", advice, files={"a.json": content})
    for content in (
      *(b"[]", b"5", b'{"about": 5, "offers": []}', b"{}", b"text"),
      *(b'{"about": {}, "offers": []}', b'{"about": {}, "offers": [5]}'),
      *(b'{"about": {"nothing": 5}, "offers": []}', b"["),
      *(
        b'{"about": {}, "offers": [%s]}' % json.dumps(x).encode()
        for x in _OFFERS
      ),
    )
  ]
  search = {"DRAFTER_CHECKPOINT": "()"}
  for name, content in bigrams.items():
    macros = search | {"BIGRAMS": f'"@work/{name}"'}
    files = {name: content}
    found.append(Case("cascade_search", name, macros, files=files))
    if name.endswith(".npz"):
      macros = _CASCADE | {"NGRAMS": f'"@work/{name}"'}
      flags = ["--gin_file=configs/runs/cascade.gin"]
      found.append(Case("decode", name, macros, flags, files))
  return found + _mmlu() + _chat_templates() + _bombs()


def _bombs() -> list[Case]:
  """Small files that hold gigabytes, and templates that write them."""
  long, short = b"0" * (1 << 24), b"a\n" * (1 << 23)
  texts = {
    "long.txt.gz": gzip.compress(long) * 128,
    "short.txt.gz": gzip.compress(short) * 32,
    "long.jsonl.gz": gzip.compress(long) * 128,
  }
  found = []
  for name, content in texts.items():
    for command in ("decode", "ngrams"):
      macros = {"INPUT_FILE": f'"@work/{name}"'}
      found.append(Case(command, name, macros, files={name: content}))
  zeros = io.BytesIO()
  np.savez_compressed(zeros, **{"heads/kernel": np.zeros(1 << 26, np.float32)})
  macros = {
    "METHOD": '"spec_cascade_learned"',
    "RULE_PARAMETERS": '"@work/rule.npz"',
  }
  files = {"rule.npz": zeros.getvalue()}
  found.append(Case("decode", "rule.npz", macros, files=files))
  macros = _CASCADE | {"BIGRAMS": '"@work/long.json.gz"'}
  flags = ["--gin_file=configs/runs/cascade.gin"]
  files = {"long.json.gz": texts["long.txt.gz"]}
  found.append(Case("decode", "long.json.gz", macros, flags, files))
  with tempfile.TemporaryDirectory() as folder:
    path = tokenizers.save(pathlib.Path(folder, "a")) / "tokenizer.json"
    right = {"tokens/tokenizer.json": path.read_bytes()}
  right["tokens/tokenizer_config.json"] = b'{"eos_token": "<|im_end|>"}'
  right["chat.jsonl"] = b'{"messages": [{"role": "user", "content": "one"}]}\n'
  macros = {
    "VOCABULARY": '"@work/tokens"',
    "INPUT_FILE": '"@work/chat.jsonl"',
    "PROMPT": '"chat"',
  }
  for template in (
    b"{{ 'a' | center(10**11) }}",
    b"{% set n = namespace(s='aa') %}{% for i in range(40) %}"
    b"{% set n.s = n.s + n.s %}{% endfor %}{{ n.s | length }}",
  ):
    files = right | {"tokens/chat_template.jinja": template}
    title = f"template {template[:30]}"
    says = "more memory than it may"
    found.append(Case("decode", says, macros, files=files, title=title))
  return found


def _mmlu() -> list[Case]:
  """Files of MMLU's questions that hold none."""
  macros = {"MIXTURE_OR_TASK_NAME": '"mmlu_cot"', "SPLIT": '"test"'}
  macros |= {"INPUT_FILE": "None"}
  flags, folder = ["--tfds_data_dir=@work/tfds"], "tfds/downloads/manual/mmlu"
  question = {"question": "a", "choices": ["a"] * 4, "targets": "A"}
  lines = (
    *(b"", b"\xff", b"{", b"[" * 100_000, b"5"),
    *(
      json.dumps(question | change).encode()
      for change in (
        *({"question": 5}, {"choices": ["a"] * 3}, {"targets": "E"}),
        *({"choices": "aaaa"}, {"targets": None}, {"question": "\udfff"}),
      )
    ),
  )
  tables = (b"", b"a,b,c,d,e\n", b"a,b,c,d,e,f\n", b"A\n", b"\xff\n", b'"a')
  files = [("test.jsonl.gz", gzip.compress(line + b"\n")) for line in lines]
  files += [("test/a_test.csv", table) for table in tables]
  return [
    Case(
      *("decode", name if content else "test", macros, flags),
      files={f"{folder}/{name}": content},
      title=f"number {number}",
    )
    for number, (name, content) in enumerate(files)
  ]


def _chat_templates() -> list[Case]:
  """Tokenizers whose chat template is none."""
  with tempfile.TemporaryDirectory() as folder:
    path = tokenizers.save(pathlib.Path(folder, "a")) / "tokenizer.json"
    right = {"tokens/tokenizer.json": path.read_bytes()}
  ends = {"eos_token": "<|im_end|>"}
  found = []
  for says, content in (
    *(("chat_template.jinja", template) for template in (b"\xff", b"a\xc3")),
    *(
      ("tokenizer_config.json", {"chat_template": template} | ends)
      for template in (
        *(5, True, 1.5, {"a": 1}, [5], ["x"], [{"name": "a"}], "\ud800"),
        *([{"name": [], "template": "x"}], [{"name": "a", "template": 5}]),
      )
    ),
  ):
    files = {"tokens/tokenizer_config.json": json.dumps(ends).encode()}
    is_json = isinstance(content, dict)
    content = json.dumps(content).encode() if is_json else content
    files |= right | {f"tokens/{says}": content}
    macros = {"VOCABULARY": '"@work/tokens"'}
    title = f"{says} {content[:40]}"
    found.append(Case("decode", says, macros, files=files, title=title))
  return found
