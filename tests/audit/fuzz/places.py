"""Folders and files that cannot be written, or are none."""

from tests.audit.fuzz import row_files
from tests.audit.fuzz.case import Case

_LONG = "b" * 300  # more than a file name may have
_FAR = ("/proc/nowhere", "/dev/null/a", f"@work/{_LONG}", "@work/file/a")
_TEXT = {"file": b"one two\n"}


def cases() -> list[Case]:
  """Returns the cases."""
  found = []
  for command, name in (
    *(("train", "MODEL_DIR"), ("decode", "OUTPUT_DIR")),
    *(("sweep", "OUTPUT_DIR"), ("cascade_search", "OUTPUT_DIR")),
    ("advise", "OUTPUT_DIR"),
  ):
    found += [
      Case(command, name, {name: f'"{path}"'}, files=_TEXT)
      for path in (*_FAR, "@work/file", "a\\x00b")
    ]
    # A file that it writes is a folder.
    files = {"out/config.gin/a": b""}
    found.append(Case(command, "holds a folder config.gin", files=files))
    # Its lock is a folder.
    found.append(Case(command, name, files={"out/.writer/a": b""}))
  rows = {"rows.jsonl": row_files.right(), **_TEXT}
  for name in ("report.md", "index.html"):
    files = rows | {f"report/{name}/a": b""}
    flags = ["--results_dir=@work"]
    found.append(Case("report", f"a folder {name}", flags=flags, files=files))
  shards = {"out/shards": b""}
  found.append(Case("decode", "holds a file shards", files=shards))
  macros = {"OUTPUT_FILE": '"@work/a.npz"'}
  files = {"a.npz/a": b""}
  found.append(Case("ngrams", "holds a folder a.npz", macros, files=files))
  text = ["--text_files=@work/file", "--vocab_size=9"]
  for path in _FAR:
    end = path.rpartition("/")[2][:50]
    out, to = f"--output_file={path}/a.model", f"--output_dir={path}"
    macros = {"OUTPUT_FILE": f'"{path}/a.npz"'}
    found += [
      Case("ngrams", "OUTPUT_FILE", macros, files=_TEXT),
      Case("vocabulary", "output_file", flags=[*text, out], files=_TEXT),
      Case("quickstart", "--output_dir", flags=["--fast", to], files=_TEXT),
      Case("report", "/", flags=["--results_dir=@work", to], files=rows),
      Case("report", end, flags=[f"--results_dir={path}"], files=_TEXT),
    ]
  for out in ("", "@work", "."):
    flags = [*text, f"--output_file={out}"]
    found.append(Case("vocabulary", "output_file", flags=flags, files=_TEXT))
  for path in ("", "/dev/zero", "/proc/self/mem", "@work", _LONG):
    flags = [f"--text_files={path}", "--output_file=@work/a.model"]
    found.append(Case("vocabulary", path[:50] or "no text", flags=flags))
  for value in ("9" * 20, "3"):
    flags = [*text, "--output_file=@work/a", f"--vocab_size={value}"]
    found.append(Case("vocabulary", "vocab_size", flags=flags, files=_TEXT))
  for path in ('""', '"@work"', '"/dev/zero"', f'"{_LONG}"', '"~/nowhere"'):
    advice = {"GAMMA": '"auto"', "ADVICE": path}
    found.append(Case("decode", "ADVICE", advice))
  return found
