"""Points are measured study by study, and found again in the ledger."""

import types

import pytest

from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.pair.pairs import Model, ModelPair
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.measuring import measure
from speccascade.study.measuring.study import Study
from speccascade.study.rows.results import ResultRow
from speccascade.study.rows.run_folder import OutputError
from speccascade.study.search.candidates import Candidate, each_drafter
from speccascade.study.search.ledger import Ledger
from speccascade.tasks.inputs import Sources
from tests.decoding.drafting import models
from tests.generate import tiny


def model(name, seed):
  return Model(models.AuditedLM(models.tables(seed, 2, 13)), name, "")


@pytest.fixture
def studies():
  pair = ModelPair((model("medium", 1), model("small", 2)), model("large", 0))
  sources = Sources(
    [types.SimpleNamespace(tokens=(1,), index=0)] * 3,
    tiny.Vocabulary(),
    8,
    "words",
    "test",
  )
  return each_drafter(Study(Session(pair, sources, Run(max_decode_len=8))))


@pytest.fixture
def calls(monkeypatch):
  """Replaces the measuring; [(drafter, alphas)] of what was measured."""
  calls = []

  def measured(study, points, file, tick):
    missing = [p for p in points if study.settings(p) not in file]
    calls.append((study.pair.drafter_name, [point.alpha for point in missing]))
    for point in missing:
      settings = study.settings(point)
      file.append(ResultRow(settings, "", Counts(3, 9, 3), {}, {}))
    rows = {row.settings: row for row in file.rows}
    return [rows[study.settings(point)] for point in points]

  monkeypatch.setattr(measure, "measure", measured)
  return calls


def test_points_of_one_study_are_measured_together(studies, calls, tmp_path):
  medium, small = studies
  points = [
    Candidate(study, Point("spec_cascade_chow", alpha))
    for alpha in (0.1, 0.2)
    for study in (medium, small)
  ]
  ledger = Ledger(tmp_path, {"of": "mine"})
  ledger.check()
  ledger.open()
  rows = [measured.row for measured in ledger.measure(points[:3])]
  assert [row.settings for row in rows] == [p.settings for p in points[:3]]
  assert calls == [("medium", [0.1, 0.2]), ("small", [0.1])]
  assert [point in ledger for point in points] == [True, True, True, False]
  # A killed search finds its whole rows again.
  calls.clear()
  with (tmp_path / "rows.jsonl").open("a") as file:
    file.write(rows[0].to_json()[:40])
  again = Ledger(tmp_path, {"of": "mine"})
  again.check()
  assert len(again.rows) == 3
  assert [measured.row for measured in again.measure(points)][:3] == rows
  assert calls == [("medium", []), ("small", [0.2])]


def test_rows_of_another_search_stay_as_they_are(tmp_path):
  Ledger(tmp_path, {"of": "mine"}).open()
  (tmp_path / "rows.jsonl").write_text("torn")
  with pytest.raises(OutputError, match="of is 'mine' there and 'yours' here"):
    Ledger(tmp_path, {"of": "yours"}).check()
  assert (tmp_path / "rows.jsonl").read_text() == "torn"
