"""Sweeps with draft heads, which write nothing alone."""

import json

import pytest

from speccascade.decoding.programs import decoders
from speccascade.generate.points.point import Point
from speccascade.models.sharding import meshes
from speccascade.study.report import writing
from speccascade.study.rows import results
from speccascade.study.search import forecast, sweeps
from speccascade.tools.planning import decoding_plan
from tests.generate import tiny
from tests.study.search import test_sweep

OPT = "spec_cascade_opt"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """The folder of a large model and of an input."""
  folder = tmp_path_factory.mktemp("heads")
  lines = [
    json.dumps({"inputs": text, "targets": "one two"})
    for text in ("one two", "three", "four five")
  ]
  (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
  tiny.save(folder / "large" / "checkpoint_7", 1)
  return folder


@pytest.fixture(scope="module")
def heads(files):
  """The path of three draft heads of the large model."""
  return tiny.save_heads(files / "heads", files / "large")


def run(files, heads, out, call=sweeps.sweep, **changes):
  settings = {
    "drafter_checkpoint": heads,
    "methods": ["spec_decode", OPT],
    "alphas": {OPT: [0.1]},
    "temperatures": [1.0],
    "batch_size": 1,
    "num_timed": 1,
    "num_shown": 0,
  }
  return test_sweep.run(files, out, call, **settings | changes)


def test_heads_are_measured_without_a_drafter_alone(files, heads, tmp_path):
  out = tmp_path / "out"
  outcome = run(files, heads, out)
  rows = {row.settings.method: row for row in outcome.rows}
  assert {*rows} == {"verifier", "spec_decode", OPT}
  for name in ("spec_decode", OPT):
    row = rows[name]
    assert row.settings.drafter == "heads-3"
    assert row.settings.gamma == 2
    # A call of the heads for each block but the first one of a text.
    counts = row.counts
    assert counts.drafter_calls == counts.num_blocks - counts.num_examples
    # Two heads draft, and the third is the distribution after the drafts.
    assert {*row.costs.heads} == {2, 3}
    assert row.costs.drafter_prefill == 0
    num_heads = {"spec_decode": 2, OPT: 3}[name]
    block = row.costs.heads[num_heads] + row.costs.v[3]
    want = counts.num_tokens / (counts.num_blocks * block)
    assert row.predicted_speedup == pytest.approx(want)
    assert row.latency.num_examples == 1
    # A row holds the costs of heads, and the row of a model has none.
    assert results.ResultRow.from_json(row.to_json()) == row
  # The report does without the small model's point.
  (section,) = writing.sections_of(outcome.rows)
  assert not section.doubts
  by_file = writing.texts(outcome.rows, [section])
  assert "spec_decode" in by_file["report.md"]
  assert "the small model has" not in by_file["report.md"]


def test_look_ahead_embeddings_are_measured(files, tmp_path):
  path = files / "lookahead"
  path = tiny.save_heads(path, files / "large", kind="lookahead", num_heads=2)
  outcome = run(files, path, tmp_path / "out")
  rows = {row.settings.method: row for row in outcome.rows}
  assert {*rows} == {"verifier", "spec_decode", OPT}
  row = rows["spec_decode"]
  assert row.counts.drafter_calls == row.counts.num_blocks
  # Two distributions draft, the first of which is the verifier's own. The third
  # is that of the place after the drafts.
  assert {*row.costs.heads} == {2, 3}
  assert row.costs.drafter_prefill > 0


@pytest.mark.slow
def test_a_report_of_heads_is_drawn(files, heads, tmp_path):
  run(files, heads, tmp_path, num_shown=1, shown_methods=None)
  page = writing.from_folder(tmp_path, progress=False).read_text()
  assert "spec_cascade_opt" in page


def test_a_forecast_counts_the_heads(files, heads, tmp_path):
  ahead = run(files, heads, tmp_path, forecast.forecast)
  # The large model and two methods.
  assert (ahead.num_points, ahead.num_programs) == (3, 3)

  def plan(**settings):
    point = Point("spec_decode", gamma=2)
    return decoding_plan.plan(point=point, **settings)

  num_heads, emb_dim, vocab_size = 3, 8, 16
  numbers = num_heads * emb_dim * (emb_dim + vocab_size)
  bytes_of = run(files, heads, tmp_path, plan).bytes_on(meshes.ONE)
  assert bytes_of["drafter"] == 4 * numbers


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"methods": [name], "alphas": "one"}, f"{label} wants a language model")
    for name, label in (
      ("drafter", "Small model"),
      ("token_cascade_chow", r"TokenCascade \[Chow\]"),
      ("oracle_cascade_opt", r"Oracle \[OPT\]"),
      ("seq_cascade_chow", r"SeqCascade \[Chow\]"),
      ("cascade_drafting", "CS Drafting"),
    )
  ]
  + [
    (
      {"methods": ["bild"], "alphas": "one", "temperatures": [0.0]},
      "BiLD wants a language model",
    ),
    ({"gammas": [2, 4]}, "gamma is 4, and there are 3 draft heads"),
    (
      {"methods": None, "alphas": "one", "gammas": [4]},
      "gamma is 4, and there are 3 draft heads",
    ),
    ({"verification": "block"}, "which depends on where a block begins"),
  ],
)
def test_what_heads_cannot_do_is_said_first(
  files, heads, tmp_path, monkeypatch, changes, message
):
  monkeypatch.setattr(decoders, "_run", None)
  with pytest.raises(ValueError, match=message):
    run(files, heads, tmp_path / "out", **changes)
  assert not (tmp_path / "out").exists()
