"""Tables and figures are functions of the rows."""

import csv
import dataclasses
import io
import math
import xml.etree.ElementTree

import pytest

from speccascade.decoding import METHODS
from speccascade.quickstart import quickstart_report
from speccascade.report import figures, styles, tables
from speccascade.report.frontier import Estimate
from tests.inference.test_results import row


def rows():
  """A small and a large model and speculation, greedy and sampled."""
  made = []
  for temperature in (0.0, 1.0):
    for method, value, latency in (
      ("drafter", 60.0, 0.25),
      ("verifier", 78.0 - 7 * temperature, 1.0),
      ("spec_decode", 78.0 - 7 * temperature, 0.625),
    ):
      one = row(method=method, temperature=temperature)
      made.append(
        dataclasses.replace(
          one,
          quality={
            "bleu": {"value": value, "low": value - 4, "high": value + 4},
            "valid": {"value": 30.0, "low": 20.0, "high": 40.0},
          },
          latency=dataclasses.replace(
            one.latency,
            relative_latency=latency,
            relative_low=latency - 0.1,
            relative_high=latency + 0.1,
          ),
          measured_speedup=1 / latency,
          agreement={"identical": 199, "near_ties": 1, "num_examples": 200},
          environment={"device": "a chip", "versions": {"jax": "1"}},
        )
      )
  return made


def test_markdown():
  lines = tables.markdown(rows()).splitlines()
  assert len(lines) == 2 + 6
  assert len({len(line) for line in lines}) == 1
  cells = [cell.strip() for cell in lines[4].split("|")[1:-1]]
  assert cells == [
    *["spec_decode", "0", "-", "78.0", "30.0", "0.857", "-", "-"],
    *["0.625", "1.60", "1.90"],
  ]


def test_csv_is_unrounded():
  found = list(csv.DictReader(io.StringIO(tables.to_csv(rows()))))
  assert len(found) == 6
  assert found[3]["BLEU"] == "60.0"
  assert found[3]["alpha"] == ""
  assert found[0]["speed-up"] == "4.0"


def test_every_method_has_a_family():
  named = {name: figures.family(name) for name in METHODS}
  assert named["drafter"] == named["verifier"] == 0
  assert named["spec_decode"] == 1
  assert named["spec_decode_lossy_star"] == named["bild_star"] == 2
  assert named["spec_cascade_opt"] == named["spec_cascade_chow_log"] == 3
  assert named["spec_cascade_token_v3"] == named["spec_cascade_typical"] == 4
  assert named["seq_cascade_chow"] == named["token_cascade_chow_log"] == 5
  assert named["oracle_cascade_opt_log"] == 6


def test_methods_look_different():
  drawn = {styles.style(name) for name in METHODS}
  assert len(drawn) == len(METHODS)
  # A rule of a user's own is drawn too.
  assert styles.style("mine").color == styles.style("spec_cascade_opt").color


def test_estimates_are_printed_with_their_intervals():
  column = tables.Column(
    "x", lambda one: one, 2, {0.0: "never"}, has_interval=True
  )
  cases = {
    Estimate(1.234, 1.0, 1.5): "1.23 [1.00, 1.50]",
    Estimate(1.234, 0.0, 1.5): "1.23 [never, 1.50]",
    Estimate(1.234): "1.23",
    Estimate(1.0, 1.0, 1.0): "1.00",
    Estimate(0.0): "never",
    Estimate(math.nan): "-",
    None: "-",
  }
  assert [column.text(one) for one in cases] == list(cases.values())
  found = tables.to_csv(cases, [column]).splitlines()
  assert found[0] == "x,x low,x high"
  assert found[1:] == [
    *["1.234,1.0,1.5", "1.234,0.0,1.5", "1.234,,", "1.0,1.0,1.0", "0.0,,"],
    *[",,", ",,"],
  ]


def test_html_is_escaped():
  columns = (tables.Column("a < b", lambda one: f"<{one}>"),)
  found = tables.to_html(["x"], columns)
  assert '<th scope="row">&lt;x&gt;</th>' in found
  assert "<x>" not in found


def test_figure_is_a_function_of_the_rows(tmp_path):
  for name in ("one", "two"):
    figures.save(figures.quality_latency(rows()), tmp_path / name)
  for kind in ("png", "svg"):
    one, two = (
      (tmp_path / f"{name}.{kind}").read_bytes() for name in ("one", "two")
    )
    assert one == two
  assert one.startswith(b"<?xml")
  xml.etree.ElementTree.fromstring(one)
  assert sorted(path.suffix for path in tmp_path.iterdir()) == [
    *[".png", ".png"],
    *[".svg", ".svg"],
  ]


def test_figure_needs_rows_with_both():
  with pytest.raises(ValueError, match="no row has both"):
    figures.quality_latency([dataclasses.replace(row(), latency=None)])


def test_findings():
  text = "\n".join(quickstart_report.findings(rows()))
  assert "60.0 BLEU and the large one 78.0; sampled at T = 1" in text
  assert "large one has 71.0" in text
  assert "1.60x as fast as the large model [1.38, 1.90], 1.90 pred" in text
  assert "in 199 of 200 sentences (1 others" in text
  assert "loses" not in text


def test_a_loss_is_told_with_its_reason():
  found = rows()
  slow = dataclasses.replace(
    found[2].latency, relative_latency=1.4, relative_low=1.3
  )
  found[2] = dataclasses.replace(
    found[2], latency=slow, efficiency={"acceptance_rate": 0.31}
  )
  last = quickstart_report.findings(found)[-1]
  assert last.startswith("spec_decode at T = 0 loses: 1.40 of the large model")
  assert "0.31 of the drafts" in last
  assert "drafter step costs 0.10" in last
  assert "verifier block 1.70" in last


def test_report_files(tmp_path):
  quickstart_report.write(tmp_path, rows())
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    "quality_latency.png",
    "quality_latency.svg",
    "table.csv",
    "table.md",
  ]
  head = (tmp_path / "table.md").read_text()
  assert "on a chip; jax 1." in head
