"""The one picture: its claim follows from the rows, and wrong rows say so."""

import pathlib

import numpy as np
import pytest

from speccascade.study.report import headline
from tests.study.report import synthetic
from tests.study.report.synthetic import changed
from tests.study.report.test_findings import NOISE, large, timed

TOKEN = "spec_cascade_token_v3"
PLAIN = timed("spec_decode", 0.7, 70.0, own=0.01)


def cascade(latency: float, quality: float, alpha: float, own: float = 0.01):
  """Returns a row of the cascade whose quality scatters by itself."""
  row = timed(TOKEN, latency, quality, alpha, own=own)
  score = dict(row.quality["bleu"])
  score["replicates"] = (quality + np.roll(NOISE, 29)).tolist()
  return changed(row, quality={"bleu": score})


def title(*rows) -> str:
  return headline.headline([large(), *rows]).title


def test_the_claim_is_what_the_intervals_show():
  better = cascade(0.6, 75.0, 0.3)
  # (The fastest point that is surely better is taken, not the fastest.)
  alike = cascade(0.5, 70.0, 0.5)
  assert title(PLAIN, better, alike) == (
    f"Sampling at T = 1, {TOKEN} 0.3 is better than the large model, and 1.67"
    " times as fast"
  )
  assert title(PLAIN, alike) == (
    f"Sampling at T = 1, {TOKEN} 0.5 is as good as the large model, and 2.00"
    " times as fast"
  )
  slow = cascade(1.2, 75.0, 0.3)
  unsure = cascade(0.95, 75.0, 0.3, own=0.2)
  for row in (slow, unsure):
    assert title(PLAIN, row).startswith(
      "Sampling at T = 1, no cascade is faster"
    )


def test_greedy_points_have_a_line_and_dots_of_their_own():
  # A picture of samples alone hides that the large model writes better texts
  # greedily, and that lossless speculation writes them too.
  at_zero = {"temperature": 0.0}
  rows = [
    large(),
    PLAIN,
    cascade(0.6, 75.0, 0.3),
    changed(timed("verifier", 1.0, 80.0, gamma=None), **at_zero),
    changed(timed("spec_decode", 0.5, 80.0, own=0.01), **at_zero),
  ]
  shown = headline.headline(rows)
  sampled, greedy = shown.title.split("\n")
  assert sampled.startswith(f"Sampling at T = 1, {TOKEN} 0.3 is better")
  assert greedy == (
    "Greedy, the large model has 80.0 BLEU, and spec_decode writes its tokens"
    " 2.00 times as fast"
  )
  figure = headline.plot(shown).draw()
  (axis,) = figure.axes
  words = "\n".join(text.get_text() for text in axis.texts)
  assert "large model alone, T = 1\n70.0 BLEU" in words
  assert "large model alone, greedy\n80.0 BLEU" in words
  assert "large model's tokens\n2.00 times as fast" in words
  assert "better and faster than the large model, T = 1" in words
  rows[-1] = changed(timed("spec_decode", 0.98, 80.0, own=0.2), **at_zero)
  assert "and spec_decode is not shown to be faster" in (
    headline.headline(rows).title
  )
  assert headline.headline(
    [*rows[3:], changed(cascade(0.6, 85.0, 0.3), **at_zero)]
  ).title.startswith("Greedy, ")


def test_the_readmes_picture_is_of_committed_rows(tmp_path, capsys):
  root = pathlib.Path(__file__).parents[3]
  page = (root / "docs/reports.md").read_text(encoding="utf-8")
  command = page.partition("speccascade.report.headline ")[2]
  words = command.partition("```")[0].replace("\\\n", " ").split()
  folders = [str(root / word) for word in words if "results/" in word]
  path = tmp_path / "headline.svg"
  argv = [f"--output_file={path}", "--results_dir", *folders]
  assert headline.main(argv) == 0
  said = capsys.readouterr().out
  assert "Sampling at T = 1, spec_cascade_token_v1 0.6 is better than" in said
  assert "Greedy, the large model has 36.0 BLEU, and spec_decode" in said
  assert path.stat().st_size > 0


def test_rows_that_lack_a_point_are_refused():
  with pytest.raises(ValueError, match="timed points of verifier"):
    title(PLAIN)
  with pytest.raises(ValueError, match="timed points of verifier"):
    title(cascade(0.6, 75.0, 0.3))
  other = changed(cascade(0.6, 75.0, 0.3), task="another")
  with pytest.raises(ValueError, match="of 2 pairs or tasks"):
    title(PLAIN, other)


def test_it_is_drawn(tmp_path, capsys):
  rows = synthetic.rows()
  (tmp_path / "rows.jsonl").write_text(
    "".join(row.to_json() + "\n" for row in rows)
  )
  pictures = []
  for name in ("a.svg", "b.svg", "c.png"):
    path = tmp_path / name
    argv = [f"--results_dir={tmp_path}", f"--output_file={path}"]
    assert headline.main(argv) == 0
    pictures.append(path.read_bytes())
  assert pictures[0] == pictures[1]
  claim = headline.headline(rows).title
  assert claim in capsys.readouterr().out
  assert "better and faster" in (tmp_path / "a.svg").read_text()
  argv[-1] = f"--output_file={tmp_path / 'd.txt'}"
  assert headline.main(argv) == 1
  assert "want a .png or .svg file" in capsys.readouterr().err
