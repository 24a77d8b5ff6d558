"""What the right commands of `case.py` read: a pair, texts, a row."""

import gzip
import json
import pathlib

from tests import mains
from tests.report import synthetic


def write(base: pathlib.Path):
  """Writes them to a folder."""
  mains.pair(base, [])
  lines = [
    json.dumps({"inputs": text, "targets": "one two"})
    for text in ("one two", "three four five", "six")
  ]
  (base / "in.jsonl").write_text("\n".join(lines) + "\n")
  (base / "train.gin").write_text(mains.TRAIN)
  for language, text in (("en", "one two three"), ("de", "four five")):
    with gzip.open(base / f"data.{language}.gz", "wt") as file:
      file.write(f"{text}\n" * 12)


def rows() -> list[dict]:
  """Returns three rows of a sweep as JSON has them."""
  methods = ("drafter", "verifier", "spec_decode")
  made = synthetic.rows(temperatures=(0.0,), methods=methods)
  return [json.loads(row.to_json()) for row in made]
