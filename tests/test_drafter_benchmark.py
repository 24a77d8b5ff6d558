"""`benchmarks.drafters` measures blocks of every size, and is drawn."""

import json
import sys

import pytest

from benchmarks import drafters, drafters_figure
from speccascade import built_in
from speccascade.generate.points import round_times
from tests.generate import tiny


@pytest.fixture
def measure(tmp_path, monkeypatch):
  """Returns a function that runs the benchmark on one text."""
  monkeypatch.setattr(round_times, "_BUDGET_S", 0.0)  # one turn of the sizes
  text = tmp_path / "known.txt"
  text.write_text("A clever witch sells the new car.\n")

  def run(drafter, *flags: str) -> None:
    argv = ["drafters", "--verifier", str(built_in.FOLDER / "large")]
    argv += ["--drafters", str(drafter), "--input_files", str(text), "--lookup"]
    argv += ["--num_examples", "1", "--max_decode_len", "12", *flags]
    monkeypatch.setattr(sys, "argv", argv)
    drafters.main()

  return run


def test_rows_of_chosen_and_fixed_block_sizes(
  measure, tmp_path, capsys, monkeypatch
):
  file, figure = tmp_path / "rows.jsonl", tmp_path / "figure.svg"
  flags = ("--temperatures", "0", "--gammas", "2", "adaptive")
  measure(built_in.FOLDER / "small", *flags, "--rows", str(file))
  rows = list(map(json.loads, file.read_text("utf-8").splitlines()))
  fixed, chosen, composed = rows
  assert [row["gamma"] for row in rows[:2]] == [2, "adaptive"]
  assert chosen["c"] == fixed["c"] > 0
  assert chosen["tokens_per_block"] >= 1
  assert 0 < chosen["mean_gamma"] <= 8
  assert fixed["mean_gamma"] is chosen["v"] is None
  assert fixed["v"] > 0
  assert composed["drafter"] == "small and prompt lookup"
  assert composed["megabytes"] == fixed["megabytes"] > 0
  _, head, _, *lines = [
    [cell.strip() for cell in line.split("|")]
    for line in capsys.readouterr().out.split("\n")
    if line
  ]
  (line,) = (line for line in lines if line[head.index("gamma")] == "adaptive")
  shown = f"{chosen['tokens_per_block']:.2f}"
  assert line[head.index("tokens/block")] == shown
  # The figure takes the block that is fastest, whatever it is.
  chosen["speedup"][0] = 1 + max(row["speedup"][0] for row in rows)
  assert chosen in drafters_figure.fastest(rows)
  monkeypatch.setattr(
    sys, "argv", ["drafters_figure", str(file), "--output_file", str(figure)]
  )
  drafters_figure.main()
  assert figure.read_text("utf-8").startswith("<?xml")


def test_heads_read_the_part_of_a_head_that_is_kept(measure, tmp_path):
  heads = tiny.save_heads(tmp_path / "heads", built_in.FOLDER / "large")
  flags = ("--alone", "--temperatures", "0", "--gammas", "1", "--rows")
  file, ids, sizes = tmp_path / "rows.jsonl", tmp_path / "ids.json", []
  ids.write_text(json.dumps([*range(100)]))
  for drafter in (heads, f"{heads},draft_vocabulary={ids}"):
    measure(drafter, *flags, str(file))
    row = json.loads(file.read_text("utf-8").splitlines()[0])
    sizes.append(row["megabytes"])
  whole, kept = sizes
  assert 0 < kept < whole / 2


def test_what_cannot_choose_is_refused_before_the_first_turn(
  measure, tmp_path, capsys
):
  with pytest.raises(SystemExit):
    measure("self-int8", "--gammas", "some")
  assert "'some' is not a gamma; wanted a number or" in capsys.readouterr().err
  heads = tiny.save_heads(tmp_path / "heads", built_in.FOLDER / "large")
  with pytest.raises(SystemExit):
    measure(heads, "--alone", "--gammas", "2", "adaptive")
  _, err = capsys.readouterr()
  assert "heads: GAMMA is 'adaptive', and a HeadsModel gives all" in err
  assert "decode/s" not in err
