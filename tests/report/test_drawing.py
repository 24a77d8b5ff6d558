"""Labels that do not touch, and figures that follow the page's colours."""

import dataclasses
import re
import xml.etree.ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from speccascade.report import clocks, curves, drawing, plots, svg
from speccascade.report.clocks import MEASURED
from tests.report import synthetic

PLACES = st.lists(st.integers(-20, 220).map(float), min_size=1, max_size=25)


@given(PLACES)
@settings(max_examples=200, deadline=None)
def test_labels_never_touch(wanted):
  gap, height = 10.0, 200.0
  found = drawing.spread(wanted, gap, height)
  least = min(gap, height / max(1, len(wanted) - 1))
  ordered = np.sort(found)
  assert (np.diff(ordered) >= least - 1e-9).all()
  assert ordered[0] >= -1e-9
  assert ordered[-1] <= height + 1e-9
  for i, j in zip(np.argsort(wanted, kind="stable"), np.argsort(found)):
    assert i == j


@given(PLACES)
@settings(max_examples=50, deadline=None)
def test_labels_with_room_stay(wanted):
  far = [40.0 * i for i in range(len(wanted))]
  assert drawing.spread(far, 10.0, 2000.0) == far


def panels(**known):
  (study,) = curves.studies(synthetic.rows(**known))
  return study.panels


@pytest.fixture(scope="module")
def element():
  plot = plots.quality_latency(
    panels(temperatures=(1.0,)), MEASURED, "bleu", "figure2", ""
  )
  return svg.inline(*plot.draw(0), "one", 'a "label"')


def test_an_inline_figure_is_one_element(element):
  root = xml.etree.ElementTree.fromstring(element)
  assert root.tag.endswith("svg")
  assert root.get("width") is None
  assert root.get("aria-label") == 'a "label"'
  ids = re.findall(r' id="([^"]*)"', element)
  assert len(set(ids)) == len(ids)
  assert all(one.startswith("one-") for one in ids)
  for used in re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', element):
    assert "".join(used) in ids


def test_colours_are_the_pages(element):
  fixed = set(re.findall(r"#[0-9a-f]{6}", element))
  assert fixed <= {"#888888", "#b0b0b0"}  # greys, of grid and dotted lines
  assert "var(--family-3)" in element


def test_every_point_can_be_asked(element):
  tips = re.findall(r'class="point"><title>([^<]*)</title>', element)
  (panel,) = panels(temperatures=(1.0,))
  shown = [p for p in panel.points if not p.method.startswith("oracle")]
  assert len(tips) == len(shown)
  (opt,) = [tip for tip in tips if "[OPT], alpha 0.1," in tip]
  assert re.fullmatch(
    r"SpecCascade \[OPT\], alpha 0\.1, gamma 5, BLEU [0-9.]+ \[[0-9.]+, [0-9.]+"
    r"\], measured latency 0\.[0-9]+, acceptance 0\.725",
    opt,
  )


def test_every_method_is_labelled_beside_its_panel():
  drawn = plots.quality_latency(panels(), MEASURED, "bleu", "figure2", "")
  figure, _ = drawn.draw()
  labels = [
    {curves.short_label(curve.label) for curve in panel.curves}
    - {"Oracle Diff"}
    for panel in panels()
  ]
  renderer = figure.canvas.get_renderer()
  for axis, wanted in zip(figure.axes, labels):
    texts = [text for text in axis.texts if text.get_text()]
    assert {text.get_text() for text in texts} == wanted
    boxes = [text.get_window_extent(renderer) for text in texts]
    for i, box in enumerate(boxes):
      assert box.x0 > axis.get_window_extent(renderer).x1
      assert box.x1 <= figure.bbox.x1
      for other in boxes[:i]:
        assert not box.overlaps(other)


def test_figure_1_needs_a_cascade():
  assert (
    plots.quality_deferral(
      panels(methods=["verifier", "spec_decode"]), "bleu", "figure1", ""
    )
    is None
  )
  drawn = plots.quality_deferral(panels(), "bleu", "figure1", "")
  figure, tips = drawn.draw()
  said = " ".join(tips.values())
  assert "Oracle [Diff]" in said
  assert "TokenCascade [Chow]" in said
  assert "SpecDecode," in said
  assert "OPT" not in said
  assert figure.axes[0].get_xlabel() == "deferral rate"


def test_without_latency_there_is_no_figure_2():
  rows = [dataclasses.replace(row, latency=None) for row in synthetic.rows()]
  (study,) = curves.studies(rows)
  args = ("bleu", "figure2", "")
  assert plots.quality_latency(study.panels, MEASURED, *args) is None
  model = clocks.modelled(0.1)
  assert plots.quality_latency(study.panels, model, *args) is not None


def test_gamma_needs_several():
  args = ("bleu", [MEASURED], "gamma")
  assert plots.gamma_ablation(panels(), *args) is None
  assert plots.gamma_ablation(panels(gammas=(3, 5)), *args) is not None


def test_the_detail_has_the_papers_methods_alone():
  methods = ["drafter", "verifier", "spec_decode", "spec_decode_lossy"]
  args = (MEASURED, "bleu", "figure2", "")
  few = panels(methods=methods)
  assert plots.quality_latency(few, *args, detail=True) is None
  many = panels(methods=[*methods, "spec_cascade_opt", "token_cascade_chow"])
  drawn = plots.quality_latency(many, *args, detail=True)
  assert "detail" in drawn.title
  _, tips = drawn.draw()
  said = "\n".join(tips.values())
  for label in ("SpecDecode [Lossy]", "SpecCascade [OPT]"):
    assert label in said
  for label in ("Large model", "Small model", "TokenCascade"):
    assert label not in said
