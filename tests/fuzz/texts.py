"""Wrong text files, for decoding, for training and for counting."""

import gzip
import json

from tests.fuzz.case import Case

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
  "second": b'{"inputs": "one", "targets": "two"}\n{"inputs"}\n',
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
# What the line must say, TRAIN_FILES, and the files.
_TRAINING = (
  *(("a.en", '"@work/a"', {}), ("a.de", '"@work/a"', {"a.en": b"one\n"})),
  ("TRAIN_FILES", '["@work/a.en"]', {"a.en": b"one\n"}),
  ("no.jsonl", '"@work/no.jsonl"', {"no.jsonl": b'{"inputs": "one"}\n'}),
)


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
  return found
