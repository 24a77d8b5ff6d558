"""Folders are scored by task cards: a gate of quality, and answers' time."""

import dataclasses
import json
import pathlib

import pytest

from speccascade import score as command
from speccascade.study.report import task_score
from speccascade.study.task_cards import CARDS, TaskCard
from speccascade.tasks import quality
from tests.study.report import synthetic

ROOT = pathlib.Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
CARD = TaskCard(
  title="made up",
  metric="bleu",
  scored_by="bleu",
  margin=3.0,
  fixed={"task": "generated", "num_examples": 200, "temperature": 1.0},
  verifier_parameters=12_340_000,
  num_timed=20,
  free="the method",
  models=(),
  baseline="",
)
COMMITTED = {
  "multi30k": ("multi30k_2016_wide_avx512", 1.98, "spec_cascade_token_v1", 0.8),
  "gsm8k": ("gsm8k_wide", 1.61, "spec_cascade_token_v1", 0.3),
}


@pytest.mark.parametrize("name", CARDS)
def test_committed_rows_have_scores(name, capsys, tmp_path):
  folder, value, method, alpha = COMMITTED[name]
  flags = [f"--card={name}", f"--results_dir={RESULTS / folder}"]
  assert command.main([*flags, f"--output_file={tmp_path / 'a.json'}"]) == 0
  said = capsys.readouterr().out
  wanted = f"{name}: score {value}, {method} {alpha} at t1_d3\n"
  assert said.startswith(wanted)
  written = json.loads((tmp_path / "a.json").read_text())
  assert round(written["score"], 2) == value
  best, *others = written["points"]
  assert (best["method"], best["alpha"], best["cell"]) == (
    method,
    alpha,
    "t1_d3",
  )
  assert best["seconds_per_answer"] > 0
  assert best["relative_length"]["value"] > 0.5
  # A fast drafter alone fails the gate.
  [drafter] = [x for x in others if x["method"] == "drafter"]
  assert not drafter["passes"]
  assert drafter["score"] is None
  # The page says what the command says.
  page = " ".join((ROOT / "docs/task_cards.md").read_text().split())
  assert f"score {value} with `{method}` at {alpha}" in page


def test_the_page_has_the_cards():
  page = " ".join((ROOT / "docs/task_cards.md").read_text().split())
  page = page.replace("\\ ", "")
  for name, card in CARDS.items():
    assert f"## `{name}`" in page
    for text in (card.title, card.gate, *card.models, card.baseline):
      assert text in page
    for key, value in card.fixed.items():
      assert f"`{key}` {value}" in page


def save(folder, rows):
  folder.mkdir()
  lines = "".join(row.to_json() + "\n" for row in rows)
  (folder / "rows.jsonl").write_text(lines)
  return folder


def scored(folder, rows, **changes):
  card = dataclasses.replace(CARD, **changes)
  return task_score.score("made up", card, save(folder, rows))


def test_the_best_that_passes_counts(tmp_path):
  rows = synthetic.rows(temperatures=(1.0,))
  result = scored(tmp_path / "a", rows)
  scores = [each.score for each in result.points if each.score is not None]
  assert scores == sorted(scores, reverse=True)
  assert result.best is result.points[0]
  # The lower end of the interval, of what surely loses no more than 3 BLEU.
  assert result.best.score == result.best.point.speed.low
  for each in result.points:
    assert each.passes == (each.gain.low >= -3)
    assert (each.score is None) != each.passes
  assert {each.point.method for each in result.points if not each.passes}
  # A stricter gate passes less, and none of them at last.
  num = [
    sum(x.passes for x in scored(tmp_path / f"m{m}", rows, margin=m).points)
    for m in (3.0, 1.0, -5.0)
  ]
  assert num[0] >= num[1] > num[2] == 0
  none = scored(tmp_path / "none", rows, margin=-5.0)
  assert none.best is None
  assert none.text.startswith("made up: no score")


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"num_examples": 100}, "num_examples is 100, and the card fixes 200"),
    ({"seed": 3}, "seed is 3, and 0 of the baseline"),
    ({"dtype": "bfloat16"}, "dtype is 'bfloat16', and 'float32' of the"),
    ({"num_parameters": {}}, "the verifier has None parameters, and the card"),
    ({"latency": None}, "0 examples were timed, and the card wants 20: set"),
    ({"environment": {"device": "b"}}, "the device is b, and a chip of the"),
  ],
)
def test_what_does_not_fit_has_no_score(tmp_path, changes, said):
  rows = synthetic.rows(temperatures=(1.0,))
  rows = [
    synthetic.changed(row, **changes)
    if row.settings.method == "spec_cascade_opt"
    else row
    for row in rows
  ]
  result = scored(tmp_path / "a", rows)
  for each in result.points:
    is_other = each.point.method == "spec_cascade_opt"
    assert bool(each.problems) == is_other
    assert not is_other or each.score is None
  assert said in result.text


def test_a_folder_without_the_baseline_is_refused(tmp_path):
  rows = synthetic.rows(methods=["spec_decode"], temperatures=(1.0,))
  with pytest.raises(ValueError, match="has no row of METHOD 'verifier'"):
    scored(tmp_path / "a", rows)
  rows = synthetic.rows(temperatures=(1.0,))
  with pytest.raises(ValueError, match="has no 'chrf' of drafter"):
    scored(tmp_path / "b", rows, metric="chrf", scored_by="chrf")


def decoded_texts(folder, row, texts, **changes):
  """Writes the folder of a decode of some texts, of six tokens each."""
  records = [
    {
      "inputs": "a",
      "prediction": text,
      "targets": ["a b c d e"],
      "aux": {
        **{"index": index, "trial": 0, "tokens": [7] * 6},
        "counts": {"num_examples": 1, "num_tokens": 6},
      },
    }
    for index, text in enumerate(texts)
  ]
  row = dataclasses.replace(row, **changes)
  return synthetic.decode_folder(folder, row, records)


def test_records_of_a_decode_are_scored_again(tmp_path):
  rows = {
    row.settings.method: synthetic.changed(row, num_examples=3)
    for row in synthetic.rows(
      methods=["verifier", "spec_cascade_chow"], temperatures=(1.0,)
    )
  }
  texts = ["a b c d e", "a b c d x", "x b c d e"]
  card = dataclasses.replace(CARD, fixed={"num_examples": 3}, margin=50.0)
  truth = quality.evaluate(["bleu"], texts, [["a b c d e"]] * 3, replicates=9)
  counts = dataclasses.replace(
    rows["verifier"].counts, num_examples=3, num_tokens=18
  )
  alone = decoded_texts(
    tmp_path / "exact",
    rows["verifier"],
    texts,
    counts=counts,
    quality=truth,
  )

  def result(name, **changes):
    changes = {"quality": truth, "counts": counts, **changes}
    row = rows["spec_cascade_chow"]
    folder = decoded_texts(tmp_path / name, row, texts, **changes)
    return task_score.score("made up", card, folder, alone)

  [point] = result("right").points
  assert not point.problems
  assert point.score == point.point.speed.low
  assert point.point.relative_length.value == 1
  better = {"bleu": truth["bleu"] | {"value": 99.0}}
  [point] = result("better", quality=better).points
  assert "bleu, and the row states 99" in point.problems[0]
  assert point.score is None
  more = dataclasses.replace(counts, num_tokens=20)
  [point] = result("more", counts=more).points
  assert "18 tokens, and the row counts 3 with 20" in point.problems[0]
  (tmp_path / "right" / "predictions.jsonl").unlink()
  [point] = task_score.score("made up", card, tmp_path / "right", alone).points
  assert "nothing is scored again" in point.problems[0]
