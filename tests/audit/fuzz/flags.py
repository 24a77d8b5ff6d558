"""Wrong flags and gin files, of every command."""

from tests.audit.fuzz.case import Case

_GIN = ("train", "decode", "sweep", "cascade_search", "ngrams")
_DEEP = 100_000
_UNNAMED = (
  ("OUTPUT", {"OUTPUT_DIR": None, "OUTPUT_FILE": None}),
  ("must be given", {"MODEL_DIR": None, "OUTPUT_FILE": None}),
)
_QUOTES = ("'", '"""', "b'a")
_FILES = {
  "syntax.gin": (b"METHOD = = 5\n", "syntax.gin"),
  "unknown.gin": (b"METHD = 5\nnothing.at_all = %METHD\n", "unknown.gin"),
  "import.gin": (b"import nothing.at.all\n", "import.gin"),
  "include.gin": (b"include 'nowhere.gin'\n", "include.gin"),
  "loop.gin": (b"include '@work/loop.gin'\n", "loop.gin"),
  "bytes.gin": (b"METHOD = '\xff\xfe'\n", "bytes.gin"),
  "nul.gin": (b"METHOD = 'a\x00b'\n", "nul.gin"),
  "deep.gin": (b"METHOD = " + b"[" * _DEEP + b"]" * _DEEP + b"\n", "deep.gin"),
  "digits.gin": (b"GAMMA = " + b"9" * 5000 + b"\n", "digits.gin"),
  "itself.gin": (b"METHOD = %METHOD\n", "METHOD"),
  "open.gin": (b"METHOD = (5,\n", "open.gin"),
  "closed.gin": (b"METHOD = {5: [}\n", "closed.gin"),
  "mark.gin": (b"\xef\xbb\xbfMETHOD = = 5\n", "mark.gin"),
  "from.gin": (b"from speccascade.nothing import point\n", "from.gin"),
  "call.gin": (b"METHOD = @point.Point()\n", "itself"),
}


def cases() -> list[Case]:
  """Returns the cases."""
  found = []
  for command in _GIN:
    found += [
      Case(command, "'nothing'", flags=["--nothing"], code=2),
      Case(command, "'stray'", flags=["stray"], code=2),
      Case(command, "--gin.NAME=VALUE", flags=["--gin.GAMMA"], code=2),
      Case(command, "--gin.", flags=["--gin.=5"]),
      Case(command, "NOTHING", {"NOTHING": "5"}),
      Case(command, "nothing.at_all", {"nothing.at_all": "5"}),
      Case(command, "nowhere.gin", flags=["--gin_file=nowhere.gin"]),
      Case(command, "no gin file", flags=["--gin_file=@work"]),
      Case(command, "a" * 50, flags=["--gin_file=" + "a" * 5000]),
      Case(command, *_UNNAMED[command in ("train", "ngrams")]),
    ]
  bare = {"is_bare": True, "title": "without a config"}
  for command in (*_GIN, "advise", "planning.slices", "planning.communication"):
    found.append(Case(command, "no config is given: pass --gin_file", **bare))
    flags = ["--gin.METHOD='verifier'"]
    found.append(Case(command, "no config is given", flags=flags, **bare))
  for address in ("x", "x:", "x:0", "x:99999", "x:999999", ":", "x:-1"):
    flags = [f"--coordinator_address={address}", "--process_count=2"]
    flags.append("--process_index=0")
    found.append(Case("decode", "want HOST:PORT", flags=flags, code=2))
  none = {"METHOD": None, "GAMMA": None}
  for name, (content, says) in _FILES.items():
    flags = [f"--gin_file=@work/{name}"]
    found.append(Case("decode", says, none, flags, {name: content}))
  for name in ("loop.gin", "bytes.gin"):
    flags = ["--help", f"--gin_file=@work/{name}"]
    files = {name: _FILES[name][0]}
    found.append(Case("train", name, flags=flags, files=files))
  deep = "[" * 3000 + "]" * 3000
  found += [
    Case("decode", "METHOD", {"METHOD": deep}),
    *(Case("decode", "METHOD", {"METHOD": value}) for value in _QUOTES),
    *(Case("decode", "GAMMA", {"GAMMA": value}) for value in ("", "5)", "@x")),
    Case("decode", "TEMPERATURE", {"TEMPERATURE": "nan"}),
    Case("decode", "nowhere", flags=["--gin_bindings=include 'nowhere.gin'"]),
    Case("decode", "nothing", flags=["--gin_bindings=import nothing"]),
    Case("decode", "no gin file", flags=["--gin_file="]),
    *(
      Case("decode", path, flags=[*flags, f"--gin_file={path}"])
      for path in ("/dev/zero", "/dev", "@work/\xe9.gin")
      for flags in ([], ["--help"])
    ),
    Case("decode", "METHOD", {"METHOD": "spec_decode"}),
    Case("decode", "NOTHING", {"METHOD": "%NOTHING"}),
    Case("decode", "GAMMA", {"GAMMA": "9" * 5000}),
    Case("decode", "GAMMA", {"GAMMA": "@nothing.at_all()"}),
    Case("decode", "a" * 50, {"INPUT_FILE": '"' + "a" * 5000 + '"'}),
    Case("decode", "nothing", {"point.Point.nothing": "5"}),
    Case("decode", "tfds", flags=["--tfds_data_dir"], code=2),
    Case("decode", "verbose", flags=["--verbose=maybe"], code=2),
    Case("decode", "dry_run", flags=["--dry_run=5"], code=2),
    Case("report", "/nowhere", flags=["--results_dir=/nowhere"]),
    Case("report", "@work", flags=["--results_dir=@work"]),
  ]
  for command, *flags in (
    ("report", "--cost_ratio=a"),
    ("report", "--nothing=5", "--results_dir=@work"),
    ("report", "--results_dir"),
    ("quickstart", "--nothing=5"),
    ("smollm", "--nothing=5"),
    ("smollm", "--repeats=a"),
    ("quickstart", "--fast=5"),
    ("analysis", "--nothing=5"),
    ("analysis", "--c=a"),
    ("analysis", "--acceptance_rate"),
    ("vocabulary", "--text_files"),
    ("vocabulary", "--languages", "en"),
    ("vocabulary", "--split_digits=yes"),
    ("vocabulary", "--vocab_size=" + "9" * 5000),
    ("vocabulary", "--vocab_size=a", "--text_files=a", "--output_file=a"),
    ("vocabulary", "--model_type=word", "--text_files=a", "--output_file=a"),
  ):
    says = flags[0].partition("=")[0]
    found.append(Case(command, says, flags=flags, code=2))
  for flag in (
    *("--vocab_size=0", "--vocab_size=-5", "--vocab_size=2000000000"),
    *("--character_coverage=2", "--character_coverage=nan"),
    *("--text_files=/nowhere", "--text_files=@work/empty.txt"),
  ):
    name, _, value = flag[2:].partition("=")
    flags = ["--text_files=@base/in.jsonl", "--output_file=@work/out.model"]
    says = value if name == "text_files" else name
    files = {"empty.txt": b""}
    found.append(Case("vocabulary", says, flags=[*flags, flag], files=files))
  for flag in (
    *("--max_decode_len=0", "--max_decode_len=100000", "--repeats=0"),
    *("--drafter=/nowhere", "--drafter=@base/in.jsonl"),
    *("--gguf=/nowhere.gguf", "--gguf=@base/in.jsonl"),
  ):
    name, _, value = flag[2:].partition("=")
    says = value if "/" in value else name
    flags = ["--output_dir=@work/out", flag]
    found.append(Case("smollm", says.replace("@base", ""), flags=flags))
  for flag in ("--acceptance_rate=2", "--c=-1", "--c=nan", "--v=inf"):
    says = flag[2:].partition("=")[0]
    found.append(Case("analysis", says, flags=["--v=2", "--q2=1", flag]))
  return found
