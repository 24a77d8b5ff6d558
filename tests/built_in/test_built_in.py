"""The pair of the package: what it weighs, what it writes, how it is made."""

import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speccascade as sc
from speccascade import built_in, checkpoints
from speccascade.study.report import card as model_card
from speccascade.tasks.generated import examples, task_pieces
from speccascade.tools.examples import packaged

pytestmark = pytest.mark.needs_tf
MAX_BYTES = 8_000_000
NUM_TEXTS = 24


def names_hashes(card, hashes):
  """Returns whether a card has a row for each file."""
  rows = [f"| {name} | {x} | {y} |" for name, (x, y) in hashes.items()]
  return bool(rows) and all(row in card for row in rows)


def test_the_card_has_the_hashes_of_the_files():
  card = (built_in.FOLDER / packaged.CARD).read_text(encoding="utf-8")
  # The card is the one that the pair would get today, in its versions.
  today = packaged.card(built_in.FOLDER)
  assert names_hashes(card, today.hashes)
  assert (
    card.partition("- Versions")[0]
    == (today.to_markdown().partition("- Versions")[0])
  )
  sizes = [int(size) for size in re.findall(r"\| (\d+) \| \w{64} \|", card)]
  assert len(sizes) == 6
  assert sum(sizes) <= MAX_BYTES


def test_the_parameters_are_bfloat16():
  for path, millions in ((built_in.drafter(), 0.2), (built_in.verifier(), 3.8)):
    file = pathlib.Path(path) / "model.safetensors"
    params = jax.tree.leaves(checkpoints.load(path).params)
    num = sum(map(np.size, params))
    assert round(num / 1e6, 1) == millions
    assert file.stat().st_size < 2.1 * num
    for array in params:
      rounded = np.asarray(jnp.asarray(array).astype(jnp.bfloat16), np.float32)
      np.testing.assert_array_equal(rounded, array)


def test_it_translates():
  pair = sc.built_in_pair()
  texts = [examples.pair("test", i)[0] for i in range(NUM_TEXTS)]
  settings = {"temperature": 0.0, "max_decode_len": 48, "trace": False}
  large = pair.generate(texts, method="verifier", **settings)
  fast = pair.generate(texts, method="spec_decode", **settings)
  assert fast.texts == large.texts
  assert fast.stats["mean_acceptance_length"] > 2
  # A whole translation that the grammar allows, not only some right words.
  wanted = [examples.example("test", i).references for i in range(NUM_TEXTS)]
  valid = [text in right for text, right in zip(large.texts, wanted)]
  assert sum(valid) >= NUM_TEXTS / 3


@pytest.mark.slow
def test_it_is_made(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # the trainings
  assert packaged.main([f"--output_dir={tmp_path}", "--fast"]) == 0
  folder = tmp_path / "pair"
  assert str(folder) in capsys.readouterr().out
  card = (folder / packaged.CARD).read_text(encoding="utf-8")
  hashes = model_card.hashes_of(folder, packaged.MODELS)
  assert names_hashes(card, hashes)
  assert json.loads((folder / "card.json").read_text())["hashes"]
  pair = sc.load_pair(drafter=folder / "small", verifier=folder / "large")
  assert pair.vocabulary.vocab_size == task_pieces.SIZE
