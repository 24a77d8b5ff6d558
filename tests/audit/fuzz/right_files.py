"""What the right commands of `case.py` read: a pair, heads, texts, a row."""

import dataclasses
import gzip
import json
import pathlib

import jax

from speccascade.checkpoints import load, orbax_io
from speccascade.models import HeadsConfig, HeadsNetwork
from tests import mains
from tests.study.report import synthetic


def write(base: pathlib.Path):
  """Writes them to a folder."""
  mains.pair(base, [])
  _write_heads(base)
  lines = [
    json.dumps({"inputs": text, "targets": "one two"})
    for text in ("one two", "three four five", "six")
  ]
  (base / "in.jsonl").write_text("\n".join(lines) + "\n")
  (base / "train.gin").write_text(mains.TRAIN)
  for language, text in (("en", "one two three"), ("de", "four five")):
    with gzip.open(base / f"data.{language}.gz", "wt") as file:
      file.write(f"{text}\n" * 12)


def _write_heads(base: pathlib.Path):
  """Writes heads of the pair's verifier, and heads of another verifier."""
  verifier = load(base / "large")
  config = HeadsConfig(kind="blockwise", num_heads=2, mlp_dim=4).of_verifier(
    verifier.require_config(), verifier.params
  )
  params = jax.device_get(HeadsNetwork(config).initial(jax.random.key(0)))
  other = dataclasses.replace(config, verifier_sha256="other")
  ahead = dataclasses.replace(config, kind="lookahead", num_heads=1)
  embeddings = jax.device_get(HeadsNetwork(ahead).initial(jax.random.key(0)))
  for name, heads, arrays in (
    ("heads", config, params),
    ("foreign_heads", other, params),
    ("lookahead", ahead, embeddings),
  ):
    orbax_io.save(
      base / name, arrays, heads, step=1, vocabulary=verifier.vocabulary
    )


def rows() -> list[dict]:
  """Returns three rows of a sweep as JSON has them."""
  methods = ("drafter", "verifier", "spec_decode")
  made = synthetic.rows(temperatures=(0.0,), methods=methods)
  return [json.loads(row.to_json()) for row in made]
