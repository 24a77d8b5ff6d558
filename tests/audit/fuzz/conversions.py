"""Wrong sources, destinations and flags of the commands for checkpoints."""

import json

from tests.audit.fuzz.case import Case
from tests.checkpoints import gguf_files

_LONG = "b" * 300  # more than a file name may have
_SOURCES = {
  **{name: name for name in ("/nowhere", "/dev/zero", "s3://a/b", "/proc")},
  **{name: "no bucket" for name in ("gs://", "gs:///a")},
  "google/flan-t5-small": "hf download google/flan-t5-small",
  **{"": "not a path", _LONG: "not a path", "~/nowhere": "nowhere"},
  **{
    "@base/in.jsonl": "is a file",
    "@base": "not a complete",
    "@work": "@work",
  },
}
_CHECKED = ("inspect", "--check")
_GIN = {
  "syntax.gin": b"MODEL = = 5\n",
  "empty.gin": b"X = 1\n",
  "number.gin": b"MODEL = 5\n",
  "bytes.gin": b"\xff\n",
  "open.gin": b"MODEL = (5,\n",
  "deep.gin": b"MODEL = " + b"[" * 100_000,
  "loop.gin": b"include '@work/loop.gin'\n",
  "import.gin": b"import nothing.at.all\n",
}
# A Llama of Hugging Face's, up to its weights; what is wrong with one.
_LLAMA = {
  "model_type": "llama",
  "vocab_size": 320,
  "hidden_size": 16,
  "intermediate_size": 16,
  "num_hidden_layers": 1,
  "num_attention_heads": 2,
}
_ENDS = (10**9, -1, "end", [2, "end"], {"a": 1}, 320)
_LLAMAS = (
  *(("config.json", {"eos_token_id": ends}) for ends in _ENDS),
  *(("generation_config.json", {"eos_token_id": ends}) for ends in _ENDS),
  *(("config.json", {"rope_theta": x}) for x in (1e308, 1e39, 1, 0, -1, "a")),
)
# Folders of Hugging Face that hold no model that is read.
_FOLDERS = {
  "an adapter of": {"adapter_config.json": b"{}"},
  "PyTorch weights": {"config.json": b"{}", "pytorch_model-1-of-2.bin": b""},
  "llama/snapshots/abc": {"snapshots/abc/a": b"", "blobs/a": b""},
  "give @work/llama/a.gguf": {"a.gguf": b""},
}
_FORMATS = ("t5x", "speccascade", "hugging_face")
# By format, None for all: flags, and what the line must say.
_FLAGS = {
  None: [
    *((f"--step={value}", "step is") for value in (-1, "9" * 20)),
    *((f"--destination={x}", "destination") for x in ("", "@work/file/a")),
    ("--destination=/proc/nowhere/a", "/proc/nowhere"),
    ("--destination=s3://a/b", "s3://a/b"),
    (f"--destination=@work/{_LONG}", "not a path"),
    *((f"--model_gin_file={x}", "no gin file") for x in ("/dev/zero", "@work")),
    *((f"--model_gin_file=@work/{name}", name) for name in _GIN),
    ("--model_gin_file=configs/models/t5_1_1_small.gin", "vocab_size=32128"),
  ],
  "t5x": [("--vocabulary=@base/words.model", "no vocabulary")],
  "speccascade": [("--dtype=bfloat16", "float32")],
  "hugging_face": [("--destination=@base/large", "exists already")],
}
_VOCABULARIES = {
  **{"/nowhere": "/nowhere", "/dev/zero": "/dev/zero", "@work": "@work"},
  "@base/in.jsonl": "not a SentencePiece model",
  "@work/file": "not a SentencePiece model",
}
for _format in _FORMATS[1:]:
  _FLAGS[_format] += [
    (f"--vocabulary={path}", says) for path, says in _VOCABULARIES.items()
  ]


def cases() -> list[Case]:
  """Returns the cases."""
  found = []
  to = ["--destination=@work/x", "--format=t5x"]
  for source, says in _SOURCES.items():
    for command, *flags in (("convert", *to), ("inspect",), _CHECKED):
      flags = [f"--source={source}", *flags]
      found.append(Case(f"checkpoints.{command}", says, flags=flags))
  for name, settings in _LLAMAS:
    written = {"config.json": _LLAMA}
    written |= {name: written.get(name, {}) | settings}
    files = {f"llama/{k}": json.dumps(x).encode() for k, x in written.items()}
    files["llama/model.safetensors"] = b""
    [(setting, value)] = settings.items()
    says, title = f"llama/{name}: {setting} is", f"{name} {value}"
    flags = ["--source=@work/llama"]
    case = Case(
      "checkpoints.inspect", says, flags=flags, files=files, title=title
    )
    found.append(case)
  for says, contents in _FOLDERS.items():
    files = {f"llama/{name}": content for name, content in contents.items()}
    for command, *flags in (("convert", *to), ("inspect",)):
      flags = ["--source=@work/llama", *flags]
      name = f"checkpoints.{command}"
      found.append(Case(name, says, flags=flags, files=files))
  files = {**_GIN, "file": b""}
  for title, (content, _) in gguf_files.FAULTS.items():
    for command, *flags in (("convert", *to), ("inspect",)):
      flags = ["--source=@work/a.gguf", *flags]
      how = {"files": {"a.gguf": content}, "title": title}
      found.append(Case(f"checkpoints.{command}", "a.gguf", flags=flags, **how))
  for kind, pairs in _FLAGS.items():
    for flag, says in pairs:
      for name in _FORMATS if kind is None else [kind]:
        flags = ["--source=@base/small", "--destination=@work/x", flag]
        flags.append(f"--format={name}")
        wrong = Case("checkpoints.convert", says, flags=flags, files=files)
        found.append(wrong)
  for flag in ("--format=nothing", "--dtype=int8", "--step=a", "--nothing"):
    says = flag[2:].partition("=")[0]
    flags = ["--source=@base/small", *to, flag]
    found.append(Case("checkpoints.convert", says, flags=flags, code=2))
  return [*found, Case("checkpoints.inspect", "give one source")]
