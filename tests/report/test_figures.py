"""Labels that do not touch, and figures that follow the page's colours."""

import dataclasses
import re
import xml.etree.ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from speccascade.decoding import METHODS
from speccascade.report import (
  block_figures,
  figures,
  groups,
  labels,
  page,
  point_tables,
  styles,
  summaries,
)
from speccascade.report.measured import MEASURED
from tests.report import synthetic

PLACES = st.lists(st.integers(-20, 220).map(float), min_size=1, max_size=25)


@given(PLACES)
@settings(max_examples=200, deadline=None)
def test_labels_never_touch(wanted):
  gap, height = 10.0, 200.0
  places = labels.spread(wanted, gap, height)
  least = min(gap, height / max(1, len(wanted) - 1))
  ordered = np.sort(places)
  assert (np.diff(ordered) >= least - 1e-9).all()
  assert ordered[0] >= -1e-9
  assert ordered[-1] <= height + 1e-9
  order = np.argsort(wanted, kind="stable")
  assert order.tolist() == np.argsort(places).tolist()
  far = [40.0 * i for i in range(len(wanted))]
  assert labels.spread(far, 10.0, 2000.0) == far  # those with room stay


def test_every_method_has_a_family():
  families = [
    "drafter verifier",
    "spec_decode",
    "spec_decode_lossy_star bild_star cactus mentored_tv",
    "spec_cascade_opt spec_cascade_chow_log",
    "spec_cascade_token_v3 spec_cascade_typical spec_cascade_min2",
    "seq_cascade_chow token_cascade_chow_log",
    "oracle_cascade_opt_log",
  ]
  for number, names in enumerate(families):
    assert {*map(styles.family, names.split())} == {number}


def test_methods_look_different():
  drawn = {styles.style(name) for name in METHODS}
  assert len(drawn) == len(METHODS)
  # A rule of a user's own is drawn too.
  assert styles.style("mine").color == styles.style("spec_cascade_opt").color


def panels(**options):
  return synthetic.study(**options).panels


@pytest.fixture(scope="module")
def element():
  plot = figures.quality_latency(panels(temperatures=(1.0,)), MEASURED)
  figure, tips = plot.draw(0)
  return page.inline(figure, tips, name="one", label='a "label"')


def test_an_inline_figure_is_one_element_in_the_pages_colours(element):
  root = xml.etree.ElementTree.fromstring(element)
  assert root.tag.endswith("svg")
  assert root.get("width") is None
  assert root.get("aria-label") == 'a "label"'
  ids = re.findall(r' id="([^"]*)"', element)
  assert len(set(ids)) == len(ids)
  assert all(name.startswith("one-") for name in ids)
  for used in re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', element):
    assert "".join(used) in ids
  fixed = set(re.findall(r"#[0-9a-f]{6}", element))
  assert fixed <= {"#888888", "#b0b0b0"}  # greys, of grid and dotted lines
  assert "var(--family-3)" in element


def test_every_point_can_be_asked(element):
  tips = re.findall(r'class="point"><title>([^<]*)</title>', element)
  (panel,) = panels(temperatures=(1.0,))
  shown = [p for p in panel.points if not p.method.startswith("oracle")]
  assert len(tips) == len(shown)
  (opt,) = [tip for tip in tips if "_opt, alpha 0.1," in tip]
  assert re.fullmatch(
    r"spec_cascade_opt, alpha 0\.1, gamma 5, BLEU [0-9.]+ \[[0-9.]+, [0-9.]+"
    r"\], measured latency 0\.[0-9]+, acceptance 0\.725",
    opt,
  )


def test_every_method_is_labelled_beside_its_panel():
  figure, _ = figures.quality_latency(panels(), MEASURED).draw()
  renderer = figure.canvas.get_renderer()
  for axis, panel in zip(figure.axes, panels()):
    inner = axis.get_window_extent(renderer)
    boxes = {text: text.get_window_extent(renderer) for text in axis.texts}
    boxes = {text: box for text, box in boxes.items() if text.get_text()}
    beside = [text for text, box in boxes.items() if box.x0 > inner.x1]
    labelled = {curve.settings.method for curve in panel.curves}
    labelled -= {"oracle_cascade_diff", *figures.MODELS}
    labelled |= {"drafter (small model)", "verifier (large model)"}
    assert {text.get_text() for text in beside} == labelled
    marks = [text for text in boxes if text not in beside]
    alphas = {f"{p.settings.alpha or 0:.2g}" for p in panel.points}
    written = {text.get_text() for text in marks}
    assert len(written) > 3
    assert written <= alphas
    for i, (text, box) in enumerate(boxes.items()):
      assert box.x1 <= (figure.bbox.x1 if text in beside else inner.x1)
      assert not any(box.overlaps(other) for other in [*boxes.values()][:i])


def test_axes_without_a_panel_are_not_drawn():
  """Five panels in rows of four leave three axes of the second row."""
  plot = figures.quality_latency(panels(temperatures=(1.0,)), MEASURED)
  several = dataclasses.replace(plot, panels=[*plot.panels] * 5)
  figure, _ = several.draw()
  shown = [axis.axison for axis in figure.axes]
  assert shown == [True] * 5 + [False] * 3


PLAIN = ["drafter", "verifier", "spec_decode", "spec_decode_lossy"]
MORE = [*PLAIN, "spec_cascade_opt", "token_cascade_chow", "oracle_cascade_diff"]


def test_figure_1_needs_a_token_cascade():
  assert not figures.quality_deferral(panels(methods=PLAIN)).panels
  _, tips = figures.quality_deferral(panels(methods=MORE)).draw()
  text = "\n".join(tips.values())
  for name in ("oracle_cascade_diff", "token_cascade_chow", "spec_decode,"):
    assert name in text
  assert "opt" not in text


def test_many_methods_are_shown_family_by_family():
  """At first the papers' and the fastest; then each with its family."""
  # A point of a rule that is learned needs a file of parameters.
  names = [name for name, row in METHODS.items() if not row.has_parameters]
  several = panels(methods=names, temperatures=(1.0,))
  (main,) = figures.quality_latency(several, MEASURED).panels
  fastest = summaries.fastest(summaries.speedups(*several, MEASURED))
  shown = {line.method for line in main.series}
  assert shown == {*figures.PAPERS, "verifier", fastest.name}
  families = figures.by_family(several, MEASURED).panels
  drawn = [line.method for panel in families for line in panel.series]
  everything = {c.settings.method for c in several[0].curves}
  wanted = {x for x in everything if not x.startswith(("oracle", "drafter"))}
  assert set(drawn) == wanted
  assert drawn.count("verifier") == len(families) == 5
  for panel in families:
    assert panel.num_labels <= 12
    both = {line.method for line in (*panel.series, *panel.background)}
    assert both == wanted
  assert not figures.by_family(panels(), MEASURED).panels  # few: one figure


def test_gamma_needs_several():
  assert not block_figures.gamma_ablation(panels(), [MEASURED]).panels
  assert block_figures.gamma_ablation(panels(gammas=(3, 5)), [MEASURED]).panels


def test_the_quick_starts_figure_has_sampled_points_by_two_clocks(tmp_path):
  """The same rows give the same bytes."""
  rows = synthetic.rows()
  for name in ("one", "two"):
    figures.of_rows(rows).save(tmp_path / name)
  for kind in ("png", "svg"):
    first, second = sorted(tmp_path.glob(f"*.{kind}"))
    assert first.read_bytes() == second.read_bytes()
  xml.etree.ElementTree.parse(tmp_path / "one.svg")
  plot = figures.of_rows(rows)
  measured_panel, modelled_panel = plot.panels
  assert measured_panel.title == "T = 1: time measured on this machine"
  assert modelled_panel.title == (
    "T = 1: the same decodes, if a block\ncost one step of the large model"
    " (modelled)"
  )
  greedy = [
    "drafter (small model), T = 0",
    "verifier (large model), T = 0",
    "spec_decode_lossy 0.9, T = 0",  # of the title
  ]
  assert "Greedy, spec_decode_lossy (0.9) is " in plot.claim
  for panel in plot.panels:
    assert len(panel.series) == len(synthetic.CURVES) - 1 + len(greedy)
    assert [line.label for line in panel.series[-3:]] == greedy
    assert panel.level == pytest.approx(synthetic.LARGE, abs=1)


def test_a_label_has_the_only_alpha_of_its_line():
  """Where a line has several alphas, they stand at its points."""
  rows = synthetic.rows(temperatures=(1.0,), methods=MORE)
  once = [row for row in rows if row.settings.alpha in (None, 0.1, 0.3)]
  once = [
    row
    for row in once
    if row.settings.method != "spec_decode_lossy" or row.settings.alpha == 0.3
  ]
  labels_of = {
    line.method: line.label for line in figures.of_rows(once).panels[0].series
  }
  assert labels_of["spec_decode_lossy"] == "spec_decode_lossy 0.3"
  assert labels_of["spec_decode"] == "spec_decode"
  assert labels_of["spec_cascade_opt"] == "spec_cascade_opt"


def test_the_title_stands_above_the_panels_and_inside_the_figure():
  figure, _ = figures.of_rows(synthetic.rows()).draw()
  renderer = figure.canvas.get_renderer()
  title = figure._suptitle.get_window_extent(renderer)
  assert figure.bbox.x0 <= title.x0 <= title.x1 <= figure.bbox.x1
  assert title.y1 <= figure.bbox.y1
  assert len(figure.axes) == 2
  for axis in figure.axes:
    box = axis.title.get_window_extent(renderer)
    left = axis._left_title.get_window_extent(renderer)
    assert title.y0 >= max(box.y1, left.y1)
    assert left.x1 <= figure.bbox.x1
  whole, _ = figures.of_rows(synthetic.rows()).draw(0)  # a panel of a page
  assert whole._suptitle is None
  labels_too_long = labels.wrap("word " * 60, 8.0)
  assert len(labels_too_long) > 2
  assert labels.wrap("", 8.0) == []


def test_other_samplings_of_the_large_model_are_lines_of_their_own():
  rows = synthetic.rows(temperatures=(1.0,))
  large = next(row for row in rows if row.settings.method == "verifier")
  rows += [
    synthetic.changed(large, **settings)
    for settings in ({"top_p": 0.9}, {"top_p": 0.8}, {"min_p": 0.1})
  ]
  [study] = groups.studies(rows)
  plot = figures.quality_latency(study.panels, MEASURED)
  labels = {line.label: line for line in plot.panels[0].series}
  assert [dot.mark for dot in labels["verifier, top_p"].dots] == ["0.8", "0.9"]
  assert "verifier, min_p 0.1" in labels
  assert "top_p 0.8" in labels["verifier, top_p"].dots[0].tip
  assert "other samplings" in plot.note
  kinds = [
    "verifier",
    "verifier, top_p",
    "verifier, min_p",
    "spec_decode, top_p",
  ]
  assert len({styles.style(kind) for kind in kinds}) == len(kinds)
  assert styles.style(kinds[1]).color == styles.style("verifier").color
  table = point_tables.baselines(study, None)
  assert [line.settings.top_p for line in table.lines] == [0.9, 0.8, None]
