"""`Pair.sweep`: rows, a table and a figure of a pair in a program."""

import pytest

import speccascade as sc
from speccascade.study.rows import results

HOW = {"max_decode_len": 12, "max_input_len": 40, "repeats": 1}


@pytest.fixture(scope="module")
def pair():
  return sc.built_in_pair()


def test_a_sweep_has_rows_a_table_and_a_figure(pair, tmp_path):
  examples = sc.built_in_examples(3)
  swept = pair.sweep(
    examples,
    "spec_cascade_token_v3",
    alphas=[0.3, 0.6],
    gammas=[2],
    output_dir=tmp_path,
    **HOW,
  )
  points = [(row.settings.method, row.settings.alpha) for row in swept.rows]
  cascade = "spec_cascade_token_v3"
  assert {("drafter", None), ("verifier", None)} < set(points)
  assert {(cascade, 0.3), (cascade, 0.6)} < set(points)
  assert len(points) == 4
  assert all(row.latency and "bleu" in row.quality for row in swept.rows)
  assert swept._repr_html_().count("<tr") == 5
  assert cascade in repr(swept)
  assert swept.figure._repr_png_().startswith(b"\x89PNG")
  # The folder has the rows, and the same call continues there.
  assert len(results.read_rows(tmp_path / "rows.jsonl")) == 4
  again = pair.sweep(
    examples, cascade, alphas=[0.3], gammas=[2], output_dir=tmp_path, **HOW
  )
  assert len(again.rows) == 4


def test_a_metric_of_ones_own_has_a_column_and_the_figure(pair, tmp_path):
  path = tmp_path / "own.py"
  path.write_text("def half(texts, references): return [0.5] * len(texts)\n")
  swept = pair.sweep(
    sc.built_in_examples(2),
    "spec_decode",
    metrics=[f"{path}:half", "bleu"],
    gammas=[2],
    **HOW,
  )
  assert swept.metric == "half"
  assert swept.figure.panels[0].y_label == "half"
  assert "half" in repr(swept)
  assert ">50.0<" in swept._repr_html_().replace(" ", "")


@pytest.mark.parametrize(
  ("examples", "message"),
  [
    ("A text.", "examples is of type str; wanted a list, "),
    ([], "there are no examples"),
    (["A text."], r"example 0 is 'A text.'; wanted \(text, reference\)"),
    ([("A text.", [])], "example 0 is "),
    ([("A text.", "x"), ("A text.", 3)], "example 1 is "),
  ],
)
def test_examples_are_pairs(pair, examples, message):
  with pytest.raises(ValueError, match=message):
    pair.sweep(examples)
