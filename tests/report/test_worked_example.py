"""The drawn example: the committed figure has the numbers of the code."""

import pathlib
import re
import xml.etree.ElementTree

import numpy as np
import pytest

from speccascade.report import (
  methods_page,
  styles,
  worked_draft,
  worked_example,
)

ROOT = pathlib.Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / worked_draft.FIGURE
AGAIN = "python -m speccascade.report.worked_example"


def texts(svg: str) -> list[str]:
  """Returns what an SVG says, text by text."""
  root = xml.etree.ElementTree.fromstring(svg)
  found = root.iter("{http://www.w3.org/2000/svg}text")
  return ["".join(each.itertext()).strip() for each in found]


def corners(svg: str) -> list[float]:
  """Returns the coordinates of the bars of an SVG."""
  paths = re.findall(r'<g id="patch_\d+">\s*<path d="([^"]*)"', svg)
  return [float(x) for path in paths for x in re.findall(r"[\d.]+", path)]


def test_the_committed_figure_is_what_the_code_draws():
  committed, drawn = COMMITTED.read_text("utf-8"), worked_example.svg()
  assert texts(committed) == texts(drawn), AGAIN
  assert len(corners(committed)) > 200
  np.testing.assert_allclose(
    corners(committed), corners(drawn), atol=0.5, err_msg=AGAIN
  )
  assert worked_example.svg() == drawn  # the same numbers give the same bytes


def test_the_figure_says_what_the_page_says():
  said = " ".join(texts(worked_example.svg()))
  page = methods_page.page()
  for worked in worked_draft.examples():
    share = worked_draft.decimal(worked.accepted)
    assert f"{worked.name} accepts {share}" in said
    assert share in page
    for outcome in worked.outcomes:
      assert f"{worked.target} {worked_draft.decimal(outcome.pi)}" in said
      assert outcome.token in said
  for outcome in worked.outcomes:  # of the cascade
    numbers = map(worked_draft.decimal, (outcome.q, outcome.p))
    assert f"| {outcome.token} | {' | '.join(numbers)} |" in page


def test_bars_are_as_high_as_the_numbers():
  examples = worked_draft.examples()
  figure = worked_example.draw(examples)
  for axis, worked in zip(figure.axes, examples):
    heights = np.array([bar.get_height() for bar in axis.patches])
    # Of each token: accepted twice, rejected, and what is drawn in its place.
    q, pi, rejected, residual = heights.reshape(-1, 4).T
    assert (q == pi).all()
    for total, name in ((q + rejected, "q"), (pi + residual, "pi")):
      wanted = [getattr(outcome, name) for outcome in worked.outcomes]
      np.testing.assert_allclose(total, wanted, atol=1e-6)
  styles.pyplot().close(figure)


def test_no_text_touches_another_text():
  figure = worked_example.draw(worked_draft.examples())
  renderer = figure.canvas.get_renderer()
  written = [text for axis in figure.axes for text in axis.texts]
  boxes = [text.get_window_extent(renderer) for text in written]
  for place, box in enumerate(boxes):
    assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
    assert not any(box.overlaps(other) for other in boxes[:place])
  styles.pyplot().close(figure)


def test_the_command_writes_the_figure(tmp_path, capsys):
  path = tmp_path / "figure.svg"
  assert worked_example.main([f"--output_file={path}"]) == 0
  assert path.read_text("utf-8") == worked_example.svg()
  assert capsys.readouterr().out == f"figure: {path}\n"
  with pytest.raises(SystemExit):
    worked_example.main(["--output"])
