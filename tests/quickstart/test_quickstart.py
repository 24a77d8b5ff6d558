"""The quick start from end to end, with models that learn nothing."""

import csv
import json

import pytest

from speccascade import quickstart
from speccascade.quickstart import quickstart as library


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The output of one run."""
  folder = tmp_path_factory.mktemp("quickstart")
  assert quickstart.main([f"--output_dir={folder}", "--fast"]) == 0
  return folder


def test_what_it_leaves(folder):
  assert {path.name for path in folder.iterdir()} == {
    *["small", "large", "rows.jsonl", "table.md", "table.csv"],
    *["quality_latency.png", "quality_latency.svg"],
  }
  points = library.FAST.points()
  with (folder / "table.csv").open() as file:
    table = list(csv.DictReader(file))
  assert [(row["method"], float(row["T"])) for row in table] == [
    (point.method, point.temperature) for point in points
  ]
  for line in (folder / "rows.jsonl").read_text().splitlines():
    row = json.loads(line)
    assert row["settings"]["drafter"] == "small-3"
    assert set(row["quality"]) == {"bleu", "valid"}
    assert row["latency"]["walltime_s"] > 0


def test_a_second_run_reuses_all(folder, capsys):
  kept = [*(folder / "small").rglob("*"), folder / "rows.jsonl"]
  before = {path: path.stat().st_mtime_ns for path in kept}
  assert quickstart.main([f"--output_dir={folder}", "--fast"]) == 0
  assert {path: path.stat().st_mtime_ns for path in kept} == before
  out = capsys.readouterr().out
  assert "| spec_decode" in out
  assert f"table, rows and figure are in {folder}" in out
  assert out.rstrip().endswith(f"speccascade.report --results_dir={folder}")


def test_training_and_test_sentences_differ():
  recipe = library.FAST
  test = {example.text for example in library.test_examples(recipe)}
  train = library.encoded_pairs("train", recipe.max_tokens)
  vocabulary = library.Vocabulary()
  seen = {
    vocabulary.decode([int(i) for i in next(train)[1][:-1]]) for _ in range(200)
  }
  assert len(test) == recipe.num_test
  assert not test & seen
  for example in library.test_examples(recipe):
    assert 1 <= len(example.references) <= 8
    assert len(example.tokens) <= recipe.max_tokens


def test_valid_counts_right_renderings():
  examples = library.test_examples(library.FAST)
  texts = [example.references[0] for example in examples]
  texts[0] = "Falsch."
  scores = library.score(examples, texts)
  assert scores["valid"]["value"] == pytest.approx(100 * 2 / 3)
  assert scores["bleu"]["value"] < 100


def test_errors_are_one_line(tmp_path, capsys):
  taken = tmp_path / "rows.jsonl"
  taken.write_text("no row\n")
  assert quickstart.main([f"--output_dir={tmp_path}", "--fast"]) == 1
  err = capsys.readouterr().err
  assert err.startswith("error: ")
  assert "line 1" in err
  assert err.count("\n") == 1
