"""Figures: what they show, that all of it is labelled, and that it fits."""

import dataclasses
import xml.etree.ElementTree

import pytest

from speccascade.decoding import METHODS
from speccascade.study.report import (
  block_figures,
  comparisons,
  figures,
  groups,
  line_panels,
  plots,
  point_tables,
  styles,
)
from speccascade.study.report.measured import MEASURED
from tests.study.report import synthetic


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
  number = styles.family("spec_cascade_opt")
  assert styles.style("mine").color == styles.FAMILIES[number].colour
  # Neighbours of a family, as the quick start draws them, differ in shade.
  for names in (
    [f"spec_cascade_token_v{number}" for number in (1, 2, 3)],
    [f"spec_cascade_{name}" for name in ("chow", "diff", "opt")],
    ["spec_decode_lossy", "spec_decode_lossy_star"],
  ):
    assert len({styles.style(name).color for name in names}) == len(names)


def panels(**options):
  return synthetic.study(**options).panels


@pytest.fixture(scope="module")
def plot():
  return figures.quality_latency(panels())


@pytest.mark.parametrize("width", [plots.WIDTH, plots.NARROW])
def test_every_method_is_in_the_legend_and_nothing_sticks_out(plot, width):
  figure = plot.draw(width)
  renderer = figure.canvas.get_renderer()
  (legend,) = figure.legends
  methods = {curve.settings.method for curve in panels()[0].curves}
  methods -= {"oracle_cascade_diff", *figures.MODELS}
  names = {text.get_text() for text in legend.get_texts()}
  assert names == {*methods, "verifier (large model)"}
  box = legend.get_window_extent(renderer)
  assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
  assert box.y0 >= 0
  assert box.y1 <= min(x.get_window_extent(renderer).y0 for x in figure.axes)
  tops = {round(axis.get_position().y1, 3) for axis in figure.axes}
  assert len(tops) == (1 if width == plots.WIDTH else 2)
  styles.pyplot().close(figure)


def test_the_drafter_is_an_arrow_at_the_edge_and_stretches_nothing(plot):
  figure = plot.draw()
  for axis, panel in zip(figure.axes, panels()):
    (arrow,) = [x for x in axis.texts if x.get_text().startswith("drafter")]
    small = panel.first("drafter")
    times = 1 / small.latency.value
    assert arrow.get_text() == (
      f"drafter: {small.quality.value:.1f} BLEU, {times:.3g} times"
    )
    assert axis.get_xlim()[1] < times
    assert arrow.xy[0] == 1.0
    assert 0 < arrow.xy[1] < 1
  styles.pyplot().close(figure)


@pytest.mark.parametrize(
  ("times", "quality", "head"),
  [
    (2.0, 20.0, (0.75, 0.5)),  # within the axis
    (2.0, 50.0, (0.75, 1.0)),
    (2.0, 3.0, (0.75, 0.0)),
    (9.0, 20.0, (1.0, 0.5)),
    (9.0, 50.0, (1.0, 0.95)),
    (0.1, 20.0, (0.0, 0.5)),
    (0.1, 3.0, (0.0, 0.05)),
  ],
)
def test_the_drafters_arrow_points_at_its_place(times, quality, head):
  """At the edge only where the place is beyond it, and then at that edge."""
  figure, axis = styles.pyplot().subplots()
  axis.set(xlim=(0.5, 2.5), ylim=(10, 30))
  line = line_panels.DrawnLine("", "spec_decode", (), ())
  panel = line_panels.LinePanel(
    "", [line], "", "", drafters=[("drafter", (times, quality))]
  )
  panel.write_texts(axis)
  assert (axis.get_xlim(), axis.get_ylim()) == ((0.5, 2.5), (10, 30))
  (arrow,) = axis.texts
  assert arrow.xy == pytest.approx(head)
  words = line_panels._box(arrow)
  box = axis.bbox
  assert box.x0 < words.x0 < words.x1 < box.x1 + 1
  assert box.y0 < words.y0 < words.y1 < box.y1 + 1
  is_left = arrow.get_horizontalalignment() == "right"
  assert is_left == (head[0] > 0.5)
  points = [line.get_xydata().tolist() for line in axis.lines]
  is_inside = 0 < head[0] < 1 and 0 < head[1] < 1
  assert ([[times, quality]] in points) == is_inside
  styles.pyplot().close(figure)


def test_a_sequential_cascade_that_never_defers_stretches_nothing():
  rows = synthetic.rows(temperatures=(1.0,))
  ends = {"relative_low": 0.04, "relative_high": 0.06}
  rows = [
    synthetic.changed(row, relative_latency=0.05, **ends)
    if row.settings.method == "token_cascade_chow"
    else row
    for row in rows
  ]
  (study,) = groups.studies(rows)
  (panel,) = figures.quality_latency(study.panels).panels
  others = [x for x in panel.lines if x.method != "token_cascade_chow"]
  fastest = max(x.value for line in others for x in line.xs)
  assert fastest < panel.right < 20


def test_speed_and_quality_have_their_intervals(plot):
  panel = panels()[1]
  (line,) = [x for x in plot.panels[1].lines if x.label == "spec_cascade_opt"]
  (curve,) = [x for x in panel.curves if x.name == "spec_cascade_opt"]
  for place, point in enumerate(curve.points):
    low, high = point.latency.bounds
    assert line.xs[place] == (1 / point.latency.value, 1 / high, 1 / low)
    assert line.ys[place] == point.quality
    assert line.xs[place].has_interval
    assert line.ys[place].has_interval


def test_the_alphas_of_both_ends_are_written_where_they_have_room(plot):
  figure = plot.draw()
  renderer = figure.canvas.get_renderer()
  for axis, panel in zip(figure.axes, plot.panels):
    ends = {
      line.marks[x] for line in panel.lines if line.marks for x in (0, -1)
    }
    marks = [x for x in axis.texts if not x.get_text().startswith("drafter")]
    assert len(marks) > 3
    assert {text.get_text() for text in marks} <= ends
    boxes = [text.get_window_extent(renderer) for text in marks]
    for place, box in enumerate(boxes):
      assert not any(box.overlaps(other) for other in boxes[:place])
  styles.pyplot().close(figure)


def test_axes_without_a_panel_are_not_drawn(plot):
  """Three panels in rows of two leave an axis of the second row."""
  several = dataclasses.replace(plot, panels=[plot.panels[0]] * 3)
  figure = several.draw()
  assert [axis.axison for axis in figure.axes] == [True] * 3 + [False]
  styles.pyplot().close(figure)


PLAIN = ["drafter", "verifier", "spec_decode", "spec_decode_lossy"]
MORE = [*PLAIN, "spec_cascade_opt", "token_cascade_chow", "oracle_cascade_diff"]


def test_figure_1_needs_a_token_cascade():
  assert not figures.quality_deferral(panels(methods=PLAIN)).panels
  plot = figures.quality_deferral(panels(methods=MORE))
  methods = {line.method for panel in plot.panels for line in panel.lines}
  assert methods == {*MORE} - {"spec_cascade_opt"}


def test_many_methods_are_shown_family_by_family():
  """At first the papers' and the fastest; then each with its family."""
  # A point of a rule that is learned needs a file of parameters.
  names = [name for name, row in METHODS.items() if not row.has_parameters]
  several = panels(methods=names, temperatures=(1.0,))
  (main,) = figures.quality_latency(several).panels
  fastest = comparisons.fastest(comparisons.speedups(*several))
  shown = {line.method for line in main.lines}
  assert shown == {*figures.PAPERS, "verifier", fastest.curve.name}
  families = figures.by_family(several)
  drawn = [line.method for panel in families.panels for line in panel.lines]
  everything = {c.settings.method for c in several[0].curves}
  wanted = {x for x in everything if not x.startswith(("oracle", "drafter"))}
  assert set(drawn) == wanted
  assert drawn.count("verifier") == len(families.panels) == 5
  for panel in families.panels:
    assert len(panel.lines) <= 12
    both = {line.method for line in (*panel.lines, *panel.background)}
    assert both == wanted
  figure = families.draw()
  assert not figure.legends
  for axis, panel in zip(figure.axes, families.panels):
    assert len(axis.get_legend().get_texts()) == len(panel.lines)
  styles.pyplot().close(figure)
  assert not figures.by_family(panels()).panels  # few: one figure


def test_gamma_needs_several():
  assert not block_figures.gamma_ablation(panels(), [MEASURED]).panels
  plot = block_figures.gamma_ablation(panels(gammas=(3, 5)), [MEASURED])
  for panel in plot.panels:
    assert list(panel.ticks) == [3, 5]
    for line in panel.lines:
      assert [place.value for place in line.xs] == [3, 5]


def test_acceptance_has_intervals():
  (panel,) = panels(temperatures=(1.0,), methods=PLAIN)
  plot = block_figures.acceptance_by_position([panel])
  (plain,) = [x for x in plot.panels[0].lines if x.label == "spec_decode"]
  rates = panel.first("spec_decode").efficiency["acceptance_by_position"]
  assert [place.value for place in plain.ys] == rates
  assert all(y.low < y.value < y.high for y in plain.ys)
  # Later positions are examined less often.
  reaches = [y.high - y.low for y in plain.ys]
  assert reaches == sorted(reaches)


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
  assert [panel.title for panel in plot.panels] == [
    "T = 1: time measured on this machine",
    "T = 1: modelled: a block costs one step",
  ]
  greedy = ["verifier (large model), T = 0", "spec_decode, T = 0"]
  greedy += ["spec_decode_lossy 0.9, T = 0"]
  assert plot.claim.startswith("T = 1: spec_cascade_")
  for panel in plot.panels:
    # Neither the drafter, which is an arrow, nor the oracle.
    assert len(panel.lines) == len(synthetic.CURVES) - 2 + len(greedy)
    assert [line.label for line in panel.lines[-3:]] == greedy
    assert [line.is_hollow for line in panel.lines].count(True) == 3
    assert len(panel.drafters) == 1
    assert panel.large == (1.0, pytest.approx(synthetic.LARGE, abs=1))


def test_a_label_has_the_only_alpha_of_its_line():
  """Where a line has several alphas, they are at its points."""
  rows = synthetic.rows(temperatures=(1.0,), methods=MORE)
  once = [row for row in rows if row.settings.alpha in (None, 0.1, 0.3)]
  once = [
    row
    for row in once
    if row.settings.method != "spec_decode_lossy" or row.settings.alpha == 0.3
  ]
  labels_of = {
    line.method: line.label for line in figures.of_rows(once).panels[0].lines
  }
  assert labels_of["spec_decode_lossy"] == "spec_decode_lossy 0.3"
  assert labels_of["spec_decode"] == "spec_decode"
  assert labels_of["spec_cascade_opt"] == "spec_cascade_opt"


def test_the_title_is_above_the_panels_and_inside_the_figure(plot):
  figure = plot.draw()
  renderer = figure.canvas.get_renderer()
  title = figure._suptitle.get_window_extent(renderer)
  assert figure.bbox.x0 <= title.x0 <= title.x1 <= figure.bbox.x1
  assert title.y1 <= figure.bbox.y1
  for axis in figure.axes:
    left = axis._left_title.get_window_extent(renderer)
    assert title.y0 >= left.y1
    assert left.x1 <= figure.bbox.x1
  bare = plot.draw(has_title=False)  # of a page, which says it in a sentence
  assert bare._suptitle is None
  for each in (figure, bare):
    styles.pyplot().close(each)


def test_other_samplings_of_the_large_model_are_lines_of_their_own():
  rows = synthetic.rows(temperatures=(1.0,))
  large = next(row for row in rows if row.settings.method == "verifier")
  rows += [
    synthetic.changed(large, **settings)
    for settings in ({"top_p": 0.9}, {"top_p": 0.8}, {"min_p": 0.1})
  ]
  [study] = groups.studies(rows)
  plot = figures.quality_latency(study.panels)
  labels = {line.label: line for line in plot.panels[0].lines}
  assert labels["verifier, top_p"].marks == ["0.8", "0.9"]
  assert "verifier, min_p 0.1" in labels
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
