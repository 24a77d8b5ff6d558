"""Sweeps with a tiny pair: points, programs, resuming, and every refusal."""

import collections
import dataclasses
import functools
import itertools
import json
import os
import signal

import numpy as np
import pytest

from speccascade.decoding.programs import decoders, methods
from speccascade.decoding.programs.decoders import Decoder
from speccascade.generate.batches.sources import Source
from speccascade.generate.pair.cascades import Cascade
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_settings import (
  PointSettings,
  settings_of,
)
from speccascade.generate.run import Run
from speccascade.runtime import progress
from speccascade.study.measuring.study import Measuring
from speccascade.study.report import groups
from speccascade.study.rows import results
from speccascade.study.rows.run_folder import OutputError
from speccascade.study.search import forecast, plans, sweeps
from speccascade.study.search.plans import Plan
from speccascade.study.search.shown import Shown
from speccascade.tasks.inputs import Inputs
from tests.generate import conftest, tiny

CHOW = "spec_cascade_chow"
# It shares its programs with no other method, and they compile in seconds.
METHOD = "seq_cascade_chow_norm"
files = conftest.files


def run(files, out, call=sweeps.sweep, **changes):
  """Sweeps one method with three alphas, at two temperatures.

  `call` is `sweeps.sweep`, or a function that takes the same settings.
  """
  settings = {
    "output_dir": out,
    "task_feature_lengths": {"inputs": 8},
    "vocabulary": tiny.Vocabulary(),
    "drafter_checkpoint": str(files / "small"),
    "verifier_checkpoint": str(files / "large"),
    "input_file": str(files / "in.jsonl"),
    "methods": [METHOD],
    "alphas": {METHOD: [0.2, 0.5, 0.8]},
    "gammas": [2],
    "temperatures": [1.0, 0.7],
    "method": "spec_decode",
    "max_decode_len": 8,
    "batch_size": 4,
    "num_timed": 2,
    "repeats": 1,
    "num_shown": 2,
    "shown_methods": [METHOD],
    "progress": False,
  } | changes
  shown = Shown(settings.pop("num_shown"), settings.pop("shown_methods"))
  objects = tiny.objects(
    settings,
    pair=PairSpec,
    inputs=Inputs,
    plan=Plan,
    common=Point,
    run=Run,
    measuring=Measuring,
  )
  return call(shown=shown, **objects)


MORE = {
  "methods": [CHOW, "spec_cascade_opt"],
  "alphas": {CHOW: [0.2, 0.8], "spec_cascade_opt": [0.1]},
  "temperatures": [1.0, 0.7],
  "seeds": [3, 5],
  "trials": 2,
  "num_shown": 0,
}


@pytest.fixture(scope="module")
def sampled(files, tmp_path_factory):
  """A sweep at two temperatures and two seeds; (outcome, programs, folder)."""
  out = tmp_path_factory.mktemp("sampled") / "out"
  lower, compiled = Decoder.lower, []

  def count(decoder, *call):
    compiled.append(decoder)
    return lower(decoder, *call)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Decoder, "lower", count)
    outcome = run(files, out, **MORE)
  return outcome, len(compiled), out


def test_points(sampled):
  outcome, num_programs, out = sampled
  assert results.read_rows(out / "rows.jsonl") == outcome.rows
  points = [
    ("drafter", None),
    ("verifier", None),
    (CHOW, 0.2),
    (CHOW, 0.8),
    ("spec_cascade_opt", 0.1),
  ]
  settings = [row.settings for row in outcome.rows]
  assert len(settings) == len(points) * 2 * 2
  assert {((s.method, s.alpha), s.temperature, s.seed) for s in settings} == {
    *itertools.product(points, (1.0, 0.7), (3, 5))
  }
  for row in outcome.rows:
    has_blocks = row.settings.method in MORE["methods"]
    assert row.settings.gamma == (2 if has_blocks else None)
    assert row.counts.num_examples == 6 * 2
    assert row.quality["bleu"]["num_examples"] == 6 * 2
    assert row.latency.num_examples == 2
    for part in (row.quality["bleu"]["replicates"], row.latency.replicates):
      assert len(part) == 200
    assert row.predicted_speedup > 0
    assert row.environment["device"]
    assert row.environment["versions"]["jax"]
  # Another seed, another draw; methods take turns in the file.
  counts = {3: set(), 5: set()}
  for row in outcome.rows:
    counts[row.settings.seed].add(row.counts)
  assert counts[3] != counts[5]
  first_methods = [s.method for s in settings[:5]]
  assert first_methods == ["drafter", "verifier", *MORE["methods"], CHOW]
  # Alphas, temperatures, seeds and targets share programs: those of the two
  # models alone and of the cascades, at batch 1 and in batches.
  assert num_programs == 3 * 2


def test_a_forecast(sampled, files, tmp_path):
  outcome, num_programs, _ = sampled
  out = tmp_path / "out"
  ahead = run(files, out, forecast.forecast, **MORE)
  assert ahead.num_points == ahead.most_points == len(outcome.rows)
  assert ahead.num_programs == num_programs
  assert ahead.seconds >= ahead.decode_s > 0
  assert str(ahead).startswith("20 points, 6 programs of decoders\nabout ")
  more = {**MORE, "alphas": "adaptive", "budget": 5, "num_shown": 1}
  ahead = run(files, out, forecast.forecast, **more, shown_methods=[CHOW])
  # Both models, and three alphas a curve, then five.
  assert str(ahead).startswith("32 points, up to 48, 7 programs of decoders\n")
  assert not out.exists()


def test_a_finished_sweep_measures_nothing(sampled, files, monkeypatch):
  outcome, _, out = sampled
  before = (out / "rows.jsonl").read_bytes()
  monkeypatch.setattr(decoders, "_run", None)
  assert run(files, out, **MORE).rows == outcome.rows
  assert (out / "rows.jsonl").read_bytes() == before


class Killed(Exception):
  """Stands for a process that dies."""


def on_append(monkeypatch, num, act):
  """Calls `act` with the file and the row that makes more than `num`."""
  append = results.ResultFile.append

  def acting(self, row):
    if len(self.rows) == num:
      act(self, row)
    append(self, row)

  monkeypatch.setattr(results.ResultFile, "append", acting)


def die(file, row, torn=0):
  """Writes the first `torn` bytes of a row, and dies."""
  with file.path.open("ab") as opened:
    opened.write(row.to_json().encode()[:torn])
  raise Killed


def test_a_killed_sweep_ends_as_an_unbroken_one(files, tmp_path, monkeypatch):
  """`tests/audit/kills` kills processes; here are all parts of what is left."""
  whole, out = tmp_path / "whole", tmp_path / "out"
  # Between two rows, then with half a row on the disk.
  for num, torn in ((2, 0), (7, 50)):
    on_append(monkeypatch, num, functools.partial(die, torn=torn))
    with pytest.raises(Killed):
      run(files, out)
    monkeypatch.undo()
  assert not (out / "rows.jsonl").read_bytes().endswith(b"\n")
  run(files, out)
  notes = []
  note = lambda text, **_: notes.append(text)
  monkeypatch.setattr(progress, "note", note)
  run(files, whole)
  # Two points of one program, which records traces.
  assert notes == ["compiling 1 that trace tokens", "", ""]
  rows = {
    folder: {
      row.key: (row.settings, row.counts, row.quality, row.efficiency)
      for row in results.read_rows(folder / "rows.jsonl")
    }
    for folder in (whole, out)
  }
  assert len(rows[out]) == 10
  assert rows[out] == rows[whole]
  assert len((out / "rows.jsonl").read_text().splitlines()) == 10
  for name in ("examples.jsonl", "run.json"):
    assert (out / name).read_bytes() == (whole / name).read_bytes()
  names = sorted(path.name for path in out.iterdir())
  assert names == ["examples.jsonl", "rows.jsonl", "run.json"]
  # Two examples of the middle alpha at each temperature, with their trace.
  lines = (out / "examples.jsonl").read_text().splitlines()
  records = [json.loads(line) for line in lines]
  assert [
    (r["settings"]["temperature"], r["aux"]["index"]) for r in records
  ] == [(1.0, 0), (1.0, 1), (0.7, 0), (0.7, 1)]
  for record in records:
    settings, *_ = rows[out][record["settings"].pop("key")]
    assert PointSettings(**record["settings"]) == settings
    assert settings.alpha == 0.5
    assert record["label"] == "SeqCascade [Chow, per token]"
    assert record["inputs"] == conftest.TEXTS[record["aux"]["index"]]
    trace, tokens = record["aux"]["trace"], record["aux"]["tokens"]
    for name in ("source", "deferred", "p_top_piece", "piece"):
      assert len(trace[name]) == len(tokens)


def test_a_signal_ends_it_at_once(files, tmp_path, monkeypatch):
  before = signal.getsignal(signal.SIGTERM)
  kill = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
  on_append(monkeypatch, 4, kill)
  outcome = run(files, tmp_path / "out", num_shown=0)
  assert outcome.stop.name == "SIGTERM"
  assert len(outcome.rows) == 5  # those of a group come together
  assert signal.getsignal(signal.SIGTERM) is before


def test_adaptive(files, tmp_path, monkeypatch):
  """Ends and middle first; then one alpha a time, up to the budget."""
  settings = {
    "alphas": "adaptive",
    "budget": 5,
    "temperatures": [1.0],
    "num_timed": 0,
    "num_shown": 0,
  }

  whole = run(files, tmp_path / "whole", **settings)
  points = [row.settings for row in whole.rows]
  alphas = [p.alpha for p in points if p.method == METHOD]
  assert alphas[:3] == [0.1, 0.5, 0.9]
  assert len(alphas) == 5
  assert whole.rows[0].latency is None
  on_append(monkeypatch, 6, die)
  with pytest.raises(Killed):
    run(files, tmp_path / "out", **settings)
  monkeypatch.undo()
  again = run(files, tmp_path / "out", **settings)
  assert [row.settings for row in again.rows] == points


def test_more_points_join_those_on_disk(sampled, files):
  outcome, _, out = sampled
  num = len(outcome.rows)
  changes = {"alphas": {CHOW: [0.8, 0.65]}, "methods": [CHOW], "seeds": [3]}
  more = run(files, out, **{**MORE, **changes})
  assert more.rows[:num] == outcome.rows
  assert [row.settings.alpha for row in more.rows[num:]] == [0.65, 0.65]


def test_a_sweep_is_over_the_alpha_of_one_phase(files, tmp_path):
  plan = {"temperatures": [1.0], "num_timed": 0, "num_shown": 0}
  plan |= {"methods": [CHOW], "alphas": {CHOW: [0.2, 0.8]}}
  phases = {"marker": " ", "alpha_phase": "after", "other_alpha": 0.4}
  outcome = run(files, tmp_path, **plan, **phases)
  # The models alone have no alpha.
  alphas = {row.settings.alpha: row for row in outcome.rows}
  assert {*alphas} == {None, 0.2, 0.8}
  for alpha in (0.2, 0.8):
    settings, counts = alphas[alpha].settings, alphas[alpha].counts
    assert settings.marker == (" ",)
    assert (settings.alpha_phase, settings.other_alpha) == ("after", 0.4)
    assert sum(counts.tokens_by_phase) == counts.num_tokens
  assert alphas[None].settings.marker is None
  # One alpha joins the same folder, as another curve of the method.
  more = run(files, tmp_path, **plan)
  assert len(more.rows) == len(outcome.rows) + 2
  [study] = groups.studies(more.rows)
  names = [curve.name for panel in study.panels for curve in panel.curves]
  assert f"{CHOW}, alpha 0.4 before ' '" in names
  assert CHOW in names


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"methods": ["spec_cascade_cow"]}, "did you mean spec_cascade_chow"),
    (
      {"methods": [CHOW], "alphas": {CHOW: [0.5, 2]}},
      r"alpha is 2; SpecCascade \[Chow\] takes",
    ),
    ({"alphas": {"mentored": [0.5]}}, "for mentored, which METHODS leaves out"),
    (
      {
        **{"methods": [CHOW], "alphas": "default"},
        **{"bonus": "verifier", "verification": "block"},
      },
      "block verification with bonus 'verifier'",
    ),
    (
      {"cascade": Cascade(k=[[1, 1], [0, 1]]), "gammas": [2, 3]},
      r"GAMMAS is \[2, 3\]; the CASCADE",
    ),
    (
      {"baselines": [{"topp": 0.9}]},
      r"baselines has 'topp'; did you mean top_p",
    ),
    (
      {"baselines": [{"method": METHOD}]},
      "baselines has method .* wanted one of verifier, spec_decode",
    ),
    ({"baselines": [{"top_p": 1.5}]}, "top_p is 1.5; .*above 0"),
    (
      {"verification": "block"},
      "'block'; none of Small model, Large",
    ),
    (
      {"methods": ["bild"], "alphas": "default", "temperatures": [1.0]},
      "TEMPERATURES has 1",
    ),
    (
      {"methods": ["spec_cascade_opt_three"], "alphas": "default"},
      "takes 2 drafters",
    ),
  ],
)
def test_what_does_not_fit_is_said_before_anything_is_decoded(
  files, tmp_path, monkeypatch, changes, message
):
  monkeypatch.setattr(decoders, "_run", None)
  with pytest.raises(ValueError, match=message):
    run(files, tmp_path / "out", **changes)
  assert not (tmp_path / "out").exists()


def test_another_sweeps_folder_is_refused(sampled, files):
  *_, out = sampled
  for changes, message in (
    ({"max_decode_len": 9}, "another run: max_decode_len is 8 "),
    ({"drafter_checkpoint": str(files / "large")}, "another run: models is"),
  ):
    with pytest.raises(OutputError, match=message):
      run(files, out, trials=2, **changes)


def test_default_methods_are_those_one_drafter_allows():
  fitted = {n for n, m in methods.METHODS.items() if m.has_parameters}
  names = {*methods.METHODS} - {"spec_cascade_opt_three"}
  assert {*plans.default_methods(1)} == names - fitted
  assert {*plans.default_methods(1, fitted=True)} == names
  assert len(plans.default_methods(2, fitted=True)) == len(methods.METHODS)


def test_no_point_comes_twice():
  wanted = plans.Plan(gammas=[2, 3], temperatures=[0.0, 0.5], seeds=[0, 1])
  several = wanted.curves(Point("verifier"), 100, plans.default_methods())
  common = dict.fromkeys(("task", "split", "drafter", "verifier"), "")
  common |= {"max_decode_len": 4, "num_examples": 1}
  keys = [
    settings_of(point, seed=curve.seed, **common).key
    for curve in several
    for point in curve.points
  ]
  assert len(keys) == len(set(keys))
  count = collections.Counter(
    (curve.base.method, curve.base.temperature) for curve in several
  )
  # No blocks, no gamma; greedy, no second seed; greedy only, no temperature.
  for name, greedy, sampled in (
    ("verifier", 1, 2),
    ("token_cascade_chow", 1, 2),
    ("spec_decode", 2, 4),
    ("bild", 1, 0),
  ):
    assert (count[name, 0.0], count[name, 0.5]) == (greedy, sampled)
  greedy_only = [n for n, m in methods.METHODS.items() if m.greedy_only]
  assert not any(count[name, 0.5] for name in greedy_only)


def test_methods_take_what_they_use_of_common_settings():
  names = ["spec_decode", "token_cascade_chow", "bild", "cascade_drafting"]
  wanted = plans.Plan(methods=names, temperatures=[0.0], alphas="one")
  common = Point(
    "spec_decode", verification="block", draft_length=("max_prob", 0.4)
  )
  curves = wanted.curves(common, 100, names)
  used = {
    curve.base.method: (curve.base.draft_length, curve.base.verification)
    for curve in curves
  }
  assert used == {
    "spec_decode": (("max_prob", 0.4), "block"),
    "bild": (("max_prob", 0.4), "token"),
    "cascade_drafting": ("fixed", "block"),
    **dict.fromkeys(
      ("drafter", "verifier", "token_cascade_chow"), ("fixed", "token")
    ),
  }


def test_timed_examples_are_drawn_from_all():
  examples = [Source(i, "", np.zeros(1, np.int32)) for i in range(100)]
  order = [e.index for e in sweeps._put_timed_first(examples, 10)]
  assert sorted(order) == list(range(100))
  assert order[:10] == sorted(order[:10])
  assert order[10:] == sorted(order[10:])
  assert max(order[:10]) > 50


def test_baselines_are_points_of_the_large_model_alone():
  sampled = {"temperatures": [0.0, 0.9], "gammas": [2, 3], "seeds": [1, 4]}
  plan = Plan(
    methods=["spec_decode"],
    baselines=[
      {"top_p": 0.8},
      {"temperature": 0.5, "min_p": 0.1},
      {"method": "spec_decode", "top_k": 4},
      {"temperature": 0.9, "top_k": 0},  # the plan's own
    ],
    **sampled,
  )
  common = Point("spec_decode", bonus="verifier")
  bare = dataclasses.replace(plan, baselines=())
  curves = plan.curves(common, 100, ["spec_decode"])
  added = curves[len(bare.curves(common, 100, ["spec_decode"])) :]
  settings = lambda base: (base.temperature, base.top_k, base.top_p, base.min_p)
  known = {(x.base.method, *settings(x.base), x.seed) for x in added}
  assert {x for x in known if x[0] == "verifier" and x[2] != 0} == {
    ("verifier", *rest, seed)
    for rest in ((0.9, None, 0.8, None), (0.5, None, None, 0.1))
    for seed in (1, 4)
  }
  blocks = [x for x in added if x.base.method == "spec_decode"]
  assert [(x.base.gamma, x.seed, x.base.top_k) for x in blocks] == [
    (gamma, seed, 4) for gamma in (2, 3) for seed in (1, 4)
  ]
