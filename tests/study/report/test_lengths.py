"""Answers that are longer than the large model's take longer."""

import dataclasses

import numpy as np
import pytest

from speccascade.study.evaluation import lengths
from speccascade.study.report import (
  figures,
  findings,
  groups,
  headline,
  tables,
  writing,
)
from speccascade.study.report.measured import modelled_clock
from tests.study.report import synthetic

LOSSY, RULE = "spec_decode_lossy", "spec_cascade_opt"
METHODS = ["drafter", "verifier", "spec_decode", LOSSY, RULE]


def rows(factors, **options):
  """Returns rows whose answers have a factor of the verifier's tokens."""
  rng = np.random.default_rng(3)
  exact = rng.integers(5, 40, synthetic.EXAMPLES).astype(float)
  written = []
  for row in synthetic.rows(methods=METHODS, temperatures=(1.0,), **options):
    factor = factors.get(row.settings.method, 1.0)
    own = exact * factor * rng.uniform(0.95, 1.05, exact.size)
    if row.settings.method == "verifier":
      own = exact
    ratio = lengths.relative_length(*map(dict, map(enumerate, (own, exact))))
    written.append(
      dataclasses.replace(row, lengths=tuple(own), relative_length=ratio)
    )
  return written


def points(study, method):
  return [point for point in study.points if point.method == method]


@pytest.fixture(scope="module")
def written():
  return rows({LOSSY: 1.3, RULE: 0.8})


def test_modelled_latency_is_of_an_answer_where_lengths_differ(written):
  [study] = groups.studies(written)
  assert study.lengths_differ
  clocks = [modelled_clock(0.1, differ) for differ in (False, True)]
  for method, factor in {LOSSY: 1.3, RULE: 0.8, "verifier": 1.0}.items():
    found = points(study, method)
    assert found
    for point in found:
      token, answer = (point.by(clock) for clock in clocks)
      ratio = answer.latency.value / token.latency.value
      assert ratio == pytest.approx(factor, rel=0.01)
      # What a clock measured is of whole answers in any case.
      assert point.latency.value == point.rows[0].latency.relative_latency
  # Latency and quality of a resample are of the same examples.
  [longer, *_] = points(study, LOSSY)
  sample = longer.by(clocks[1]).latency_sample
  replicates = longer.rows[0].relative_length["replicates"]
  assert sample.shape == longer.quality_sample.shape
  np.testing.assert_allclose(
    sample[1:] / sample[0],
    replicates / np.array(longer.relative_length.value),
  )
  assert longer.by(clocks[1]).latency.has_interval


def test_the_figure_is_by_seconds_an_answer_and_says_so(written):
  [section] = writing.sections_of(written)
  by_latency = [
    (plot, clock)
    for plot, clock in zip(section.plots, section.clocks)
    if plot.name.startswith("figure2")
  ]
  assert by_latency
  for plot, clock in by_latency:
    [panel] = plot.panels
    label = f"times as fast, by seconds an answer ({clock.name})  →"
    assert panel.x_label == label
    assert "so speed is by seconds an answer" in plot.note
    assert "spec_decode_lossy 0.1 writes 1.3" in plot.note
  text = writing.markdown([section])
  said = "T = 1: answers differ in length from the large model's at 12 of 15"
  assert said in text
  assert "measured wall-clock, seconds an answer" in text
  by_clock = figures.of_rows(written)
  assert by_clock.panels
  assert all("an answer" in panel.x_label for panel in by_clock.panels)


def test_the_point_that_is_named_says_how_long_its_answers_are(written):
  [study] = groups.studies(written)
  lead = findings.lead_of(study.panels[0])
  assert lead.named.method == RULE
  assert "; its answers are 0.80 [0.79, 0.80] times as long" in lead.details


def test_the_picture_says_it_too(written):
  for rows_of, says in ((written, True), (rows({}), False)):
    plot = headline.plot(headline.headline(rows_of))
    [panel] = plot.panels
    assert (", by seconds an answer" in panel.x_label) == says
    words = " ".join(line.words for line in panel.lines)
    assert ("\nanswers 0.80 times as long" in words) == says


def test_tables_have_lengths_and_seconds(written):
  [section] = writing.sections_of(written)
  by_name = {table.name: table for table in section.tables}
  for name, title in {
    "table2_measured": "relative lengths",
    "differences_modelled": "relative lengths",
    "points": "relative length",
  }.items():
    table = by_name[name]
    [column] = [x for x in table.columns if x.title == title]
    assert "0.80" in {column.text(x)[:4] for x in table.lines}
  csv = tables.to_csv(by_name["points"].lines, by_name["points"].columns)
  assert "seconds an answer,relative length,relative length low" in csv
  csv = writing.texts(written, [section])["rows.csv"]
  head = csv.splitlines()[0]
  assert "seconds_per_answer," in head
  assert "relative_length,relative_length low,relative_length high" in head
  assert ",cell," in head
  shown = tables.markdown(written)
  assert "seconds an answer" in shown
  assert "relative length" in shown


def test_lengths_that_do_not_differ_change_nothing():
  [study] = groups.studies(rows({}))
  assert not study.lengths_differ
  [panel] = figures.quality_latency(study.panels).panels
  assert panel.x_label == "times as fast as the large model (measured)  →"
  assert not findings.lengths(study.panels)
  # The large model's own distribution has its lengths, whatever a sample has.
  [study] = groups.studies(rows({"spec_decode": 1.4, "drafter": 2.0}))
  assert not study.lengths_differ


def test_rows_of_older_versions_have_what_they_counted():
  older = synthetic.rows(methods=METHODS, temperatures=(1.0,))
  counts = dataclasses.replace(older[-1].counts, num_tokens=2000)
  older[-1] = dataclasses.replace(older[-1], counts=counts)
  [study] = groups.studies(older)
  [*others, last] = study.points
  assert last.relative_length == (0.5, None, None)
  assert {point.relative_length.value for point in others} == {1.0}
  assert last.seconds_per_answer == last.rows[0].latency.walltime_s
  # Half as long, and nothing says how surely.
  assert not study.lengths_differ
  # Without the large model there is nothing to compare with.
  [alone] = groups.studies(older[-1:])
  assert alone.points[0].relative_length is None


def test_a_younger_row_of_the_large_model_is_paired():
  written = rows({LOSSY: 1.3})
  written = [dataclasses.replace(x, relative_length=None) for x in written]
  [study] = groups.studies(written)
  length = points(study, LOSSY)[0].relative_length
  assert length.value == pytest.approx(1.3, rel=0.01)
  assert length.has_interval
  # A row that was compared on the timed examples alone is compared on all.
  part = {"value": 9.0, "low": 8.0, "high": 10.0, "num_examples": 20}
  written = [
    dataclasses.replace(x, relative_length=part)
    if x.settings.method == LOSSY
    else x
    for x in written
  ]
  [study] = groups.studies(written)
  assert points(study, LOSSY)[0].relative_length == length
  # But for rows without lengths that is what is known.
  written = [dataclasses.replace(x, lengths=()) for x in written]
  [study] = groups.studies(written)
  assert points(study, LOSSY)[0].relative_length.value == 9


def test_seeds_are_averaged():
  written = rows({LOSSY: 1.3}, seeds=(0, 1))
  [study] = groups.studies(written)
  [first, *_] = points(study, LOSSY)
  assert len(first.rows) == 2
  values = [row.relative_length["value"] for row in first.rows]
  assert first.relative_length.value == pytest.approx(np.mean(values))
  assert first.relative_length.has_interval


def test_lengths_are_of_the_same_sampling():
  written = rows({LOSSY: 1.3})
  cooler = [
    synthetic.changed(
      x, temperature=0.5, lengths=tuple(2 * np.array(x.lengths))
    )
    for x in written
    if x.settings.method == "verifier"
  ]
  bare = [dataclasses.replace(x, relative_length=None) for x in written]
  found = [
    point
    for study in groups.studies([*cooler, *bare])
    for point in points(study, LOSSY)
  ]
  assert found
  for point in found:
    assert point.relative_length.value == pytest.approx(1.3, rel=0.01)


def older_folder(folder, row, answers):
  """Writes the folder of a decode, in the form of older versions."""
  row = dataclasses.replace(row, lengths=(), relative_length=None)
  records = [
    {
      "inputs": "a",
      "aux": {
        **{"index": i, "trial": t, "tokens": [5] * num},
        "counts": {"num_examples": 1},
      },
    }
    for t, trial in enumerate(answers)
    for i, num in enumerate(trial)
  ]
  return synthetic.decode_folder(folder, row, records)


def test_lengths_of_a_decode_are_those_of_its_records(tmp_path):
  written = {
    row.settings.method: synthetic.changed(row, num_examples=3)
    for row in synthetic.rows(
      methods=["verifier", "spec_cascade_chow"], temperatures=(1.0,)
    )
  }
  own = older_folder(
    tmp_path / "own", written["spec_cascade_chow"], [[4, 2, 6], [4, 4, 2]]
  )
  alone = synthetic.changed(written["verifier"], drafter="another")
  exact = older_folder(tmp_path / "exact", alone, [[2, 2, 2]])
  said = []
  writing.from_folder(own, exact_dir=exact, progress=False, say=said.append)
  # (4 + 3 + 4) / 6, in pairs.
  [line] = said
  assert line.endswith(
    " seconds an answer; answers are 1.83 [1.50, 2.00] times as long as the"
    " large model's"
  )
  text = (own / "report" / "points.csv").read_text()
  assert "1.8333333333333333," in text
  # Without the other folder nothing is known, and no column is shown.
  writing.from_folder(own, progress=False)
  assert "| relative length |" not in (own / "report" / "report.md").read_text()
  with pytest.raises(ValueError, match="has no row of METHOD 'verifier'"):
    writing.from_folder(own, exact_dir=own, progress=False)
  (own / "predictions.jsonl").write_text('{"inputs": "a"}\n')
  with pytest.raises(ValueError, match="line 1 is not a decoded example"):
    writing.from_folder(own, progress=False)
