"""Hostile values and files, a table for each part that reads them.

What an output is held to, how it is decoded, configurations of Gemma,
tokenizers, few-shot tasks, damaged checkpoints, and folders of a decode.
"""

from collections.abc import Iterator
import json
import pathlib
import tempfile

from tests.audit.fuzz.case import Case
from tests.text import tokenizers

# Of what an output is held to: values of a wrong type, and right ones that can
# hold no output, by what the line must say.
_LIMITS = {
  "STOP": ("5", "(None,)", '(["a"],)', "{}"),
  "BANNED": ("5", "(2.5,)", "(None,)", "(10**9,)"),
  "GRAMMAR": ("5", '["a"]'),
  "INCLUDE_STOP": ('"yes"', "1", "None"),
  "IGNORE_EOS": ('"yes"', "1", "None"),
}
_HOLDS_NOTHING = {
  ("stop", "STOP"): ('("",)',),
  ("banned", "BANNED"): ("(-1,)", '("",)'),
  ("grammar", "GRAMMAR"): (
    *('"("', '"[z-a]"', '"a{3,1}"', '"(?=a)"', '"\\\\1"'),
  ),
}
# Of a decode: settings that are wrong, alone or together.
_TOGETHER = (
  ("GAMMA", {"TREE": "(2, 1)", "GAMMA": "5"}),
  ("TOP_K", {"TEMPERATURE": "0.0", "TOP_K": "-3"}),
  ("ALPHA", {"METHOD": '"spec_cascade_opt"', "ALPHA": '"0.3"'}),
  ("alpha", {"METHOD": '"spec_cascade_token_v3"', "ALPHA": "7.0"}),
  ("GAMMA", {"METHOD": '"spec_decode"', "GAMMA": '"adaptiv"'}),
)
_GEMMA = {
  "vocab_size": 320,
  "hidden_size": 16,
  "intermediate_size": 16,
  "num_hidden_layers": 1,
  "num_attention_heads": 2,
  "num_key_value_heads": 1,
  "head_dim": 8,
}
_GEMMAS = {
  "num_key_value_heads": (0, 3, "1", None),
  "head_dim": (0, -8, "8"),
  "sliding_window": (0, -1, "a"),
  "query_pre_attn_scalar": (0, -1, "a"),
  "final_logit_softcapping": (0, -1, "a"),
  "hidden_activation": (5, "nothing"),
}
_TOKENIZERS = (
  *(b"", b"[]", b"5", b"{", b"\xff", b"[" * 100_000, b'{"model": null}'),
  *(b'{"model": {"type": "BPE"}}', b'{"model": {"type": "none"}}'),
  b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
  b'{"model": {"type": "BPE", "vocab": {}, "merges": ["a"]}}',
)
# Of `few_shot_tasks.register`: what must be said, and the bindings.
_FEW_SHOT = {
  "FEW_SHOT_TASK": ("5", "None", '"nothing"', '""', '["gsm8k"]'),
  "NUM_SHOTS": ("-1", "2.5", '"3"', "1000000000"),
  "SHOT_SEED": ("-1", "2.5", '"3"'),
}
_FORMATS = ("spec_bench", "speed_bench", "speculation_profile", "vllm")
_DECODES = {
  "metrics.json": (b"", b"[]", b"5", b"{", b"\xff", b"{}", b"[" * 100_000),
  "predictions.jsonl": (b"5\n", b"{}\n", b"{\n", b"\xff\n", b"[]\n"),
}


def _limits() -> Iterator[Case]:
  for name, values in _LIMITS.items():
    for value in values:
      yield Case("decode", name, {name: value}, title="limits")
  for (says, name), values in _HOLDS_NOTHING.items():
    for value in values:
      yield Case("decode", says, {name: value}, title="limits")


def _decode() -> Iterator[Case]:
  for says, macros in _TOGETHER:
    yield Case("decode", says, macros, title="together")


def _gemma() -> Iterator[Case]:
  """Configurations of decoder-only Gemmas, and of both stacks of a T5Gemma."""
  flags = ["--source=@work/gemma"]
  for name, values in _GEMMAS.items():
    for value in values:
      stack = _GEMMA | {name: value}
      for model, where, config in (
        ("gemma2", "", stack),
        ("t5gemma", "decoder", {"encoder": _GEMMA, "decoder": stack}),
        ("t5gemma", "encoder", {"encoder": stack, "decoder": _GEMMA}),
      ):
        config = {"model_type": model, **config}
        files = {"gemma/config.json": json.dumps(config).encode()}
        files["gemma/model.safetensors"] = b""
        title = f"{model} {where} {name} {value!r}"
        yield Case(
          "checkpoints.inspect", "gemma", flags=flags, files=files, title=title
        )


def _tokenizer() -> Iterator[Case]:
  """Files tokenizer.json that hold no tokenizer, or a torn one."""
  with tempfile.TemporaryDirectory() as folder:
    path = tokenizers.save(pathlib.Path(folder, "a")) / "tokenizer.json"
    right = path.read_bytes()
  for number, content in enumerate((*_TOKENIZERS, right[: len(right) // 2])):
    files = {
      "tokens/tokenizer.json": content,
      "tokens/tokenizer_config.json": b'{"eos_token": "<|im_end|>"}',
    }
    macros = {"VOCABULARY": '"@work/tokens"'}
    yield Case(
      "decode", "tokens", macros, files=files, title=f"tokenizer {number}"
    )


def _few_shot() -> Iterator[Case]:
  flags = ["--gin_file=configs/data/few_shot.gin"]
  for name, values in _FEW_SHOT.items():
    for value in values:
      macros = {"FEW_SHOT_TASK": '"gsm8k"', "INPUT_FILE": "None"}
      yield Case("decode", "", macros | {name: value}, flags)


def _checkpoints() -> Iterator[Case]:
  """A file of weights that is cut short, or promises what it does not hold."""
  header = b'{"a": {"dtype": "F32", "shape": [%s], "data_offsets": [0, %s]}}'
  weights = {
    "empty": b"",
    "short": b"\x08\x00",
    "long header": (1 << 62).to_bytes(8, "little") + b"{}",
    "no JSON": (2).to_bytes(8, "little") + b"{[",
  }
  for num, size in ((b"4", b"99"), (b"-1", b"4"), (b"1e9", b"4"), (b"4", b"8")):
    text = header % (num, size)
    content = len(text).to_bytes(8, "little") + text + b"0" * 16
    weights[f"{num.decode()} of {size.decode()}"] = content
  config = {"model_type": "llama", **_GEMMA}
  for title, content in weights.items():
    files = {
      "model/config.json": json.dumps(config).encode(),
      "model/model.safetensors": content,
    }
    flags = ["--source=@work/model"]
    for command, *more in (
      ("inspect", "--check"),
      ("convert", "--destination=@work/x", "--format=t5x"),
    ):
      yield Case(
        *(f"checkpoints.{command}", "model"),
        flags=[*flags, *more],
        files=files,
        title=title,
      )


def _exchange() -> Iterator[Case]:
  """Folders of a decode whose files are none."""
  for name, contents in _DECODES.items():
    for number, content in enumerate(contents):
      for kind in _FORMATS:
        flags = ["--decode_dir=@work/out", "--output_file=@work/x"]
        yield Case(
          *("exchange", "out"),
          flags=[*flags, f"--format={kind}"],
          files={f"out/{name}": content},
          title=f"number {number}",
        )


FAMILIES = {
  "limits": _limits,
  "decode": _decode,
  "gemma": _gemma,
  "tokenizer": _tokenizer,
  "fewshot": _few_shot,
  "checkpoints": _checkpoints,
  "exchange": _exchange,
}


def cases() -> list[Case]:
  """Returns the cases of all families."""
  return [case for family in FAMILIES.values() for case in family()]
