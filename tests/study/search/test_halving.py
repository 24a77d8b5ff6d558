"""The search for K and lenience: its space, its rounds, its report."""

import dataclasses
import types

import pytest

from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.batches.sources import Sources
from speccascade.generate.pair.cascades import Cascade
from speccascade.generate.pair.model_loading import Model
from speccascade.generate.pair.pairs import ModelPair, PairSpec
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.evaluation import walltime
from speccascade.study.measuring import measure, point_timing
from speccascade.study.measuring.study import Study
from speccascade.study.rows import results
from speccascade.study.search import halving
from speccascade.study.search.cascade_space import (
  Candidates,
  Contest,
  Criterion,
  Space,
  baselines,
)
from speccascade.study.search.ledger import Ledger
from speccascade.tasks.inputs import Inputs
from tests.decoding.drafting import models
from tests.generate import tiny

WIDTHS = range(1, 10)
REPORT = ("best.gin", "costs.json", "report.csv", "report.md")


def markov(name, seed):
  lm = models.AuditedLM(models.tables(seed, 4, 13, likeness=0.8))
  return Model(lm, name, f"/{name}")


@pytest.fixture
def contest():
  drafters = (markov("medium", 1), markov("small", 2))
  pair = ModelPair(drafters, markov("large", 0))
  sources = Sources(
    [types.SimpleNamespace(tokens=(1,), index=0)] * 20,
    tiny.Vocabulary(),
    8,
    "words",
    "test",
  )
  run = Run(max_decode_len=8, batch_size=2, progress=False)
  point = Point("cascade_drafting", temperature=0.0)
  study = Study(Session(pair, sources, run))
  return Contest(study, point, Criterion(), weights=(0.25, 0.125))


def test_space():
  space = Space((1, 2), (0, 3), (1,), (4,), (5, 6), leniences=(1.0, 3.0))
  tried = space.cascades(2)
  assert len({cascade.label for cascade in tried}) == len(tried) == 2**4
  assert tried[0].k == ((1, 0, 4), (0, 1, 5), (0, 0, 5))
  wide = [c.k for c in space.cascades(3) if c.k[0] == (1, 3, 0, 4)]
  assert wide[0] == ((1, 3, 0, 4), (0, 1, 0, 5), (0, 0, 1, 5), (0, 0, 0, 5))
  assert [c.k for c in space.cascades(0)] == [((4,),)]
  plain = [cascade.k for cascade in baselines(1)]
  assert plain[0] == ((3, 0), (0, 0))
  assert plain[-1] == ((0, 8), (0, 0))


@pytest.fixture
def count(monkeypatch):
  """Replaces the decoding: a candidate needs 100 / width blocks."""
  calls = []

  def measured(study, points, file, tick):
    (point,) = points
    settings = study.settings(point)
    if settings not in file:
      k = study.pair.composed_name.split("K=")[1]
      calls.append((k, len(study.examples)))
      file.append(row_of(study, point, good=int(k.split("-")[0])))
    return [row for row in file.rows if row.settings == settings]

  monkeypatch.setattr(measure, "measure", measured)
  return calls


def row_of(study, point, good) -> results.ResultRow:
  counts = Counts(
    *(len(study.examples), 100, 100 // good),
    calls_by_model=(8,) * len(study.pair.composed.models),
    verifier_calls=100 // good,
  )
  return results.ResultRow(study.settings(point), "CS Drafting", counts, {}, {})


def scored(contest, cascade, num=2, **changes):
  """A candidate that needs 25 blocks for 100 tokens."""
  candidate = contest.candidate(cascade, num)
  row = row_of(contest.study_of(candidate), contest.point, good=4)
  row = dataclasses.replace(row, **changes)
  return contest.score(dataclasses.replace(candidate, row=row))


def summary(ranking):
  """What a search says of its candidates, in order."""
  return [(x.cascade, x.row, x.calls, x.swi, x.value) for x in ranking]


def chain(width):
  return Cascade(k=((width, 0, 0), (0, 0, 0), (0, 0, 0)))


def test_halving_keeps_the_best_and_resumes(contest, count, tmp_path):
  cascades = [chain(width) for width in WIDTHS]
  rounds = halving.Rounds(first_examples=2, eta=3)
  path = tmp_path / "rows.jsonl"
  ledger = lambda: Ledger(tmp_path, {})
  ranking = halving.halve(contest, cascades, ledger(), rounds)
  assert [scored.cascade.k[0][0] for scored in ranking] == [*reversed(WIDTHS)]
  # Nine on 2 examples, three on 6, one on 18.
  assert [num for _, num in count] == [2] * 9 + [6] * 3 + [18]
  best = ranking[0]
  assert best.row.settings.num_examples == 18
  # 100 tokens over 11 verifier calls and 8 calls of the medium model.
  assert best.calls == (8, 0)
  assert best.swi == pytest.approx(100 / (11 + 8 * 0.25))
  # A search that was killed within a line continues from the whole ones.
  text = path.read_text()
  cut = text.index("\n", len(text) // 2) + 1
  path.write_text(text[: cut + 25])
  done = text[:cut].count("\n")
  count.clear()
  again = halving.halve(contest, cascades, ledger(), rounds)
  assert summary(again) == summary(ranking)
  assert len(count) == 13 - done
  assert path.read_text() == text


def test_calls_and_speeds_are_in_the_report(contest, tmp_path):
  cascade = Cascade(k=((2, 1, 3), (0, 1, 3), (0, 0, 3)), lenience=3.0)
  candidate = scored(contest, cascade)
  # The medium model once; the small one below it, and after it.
  assert candidate.calls == (8, 16)
  assert candidate.swi == pytest.approx(100 / (25 + 8 * 0.25 + 16 * 0.125))
  # 100 tokens in 5 * 0.1 s; the verifier took twice as long.
  latency = walltime.Latency(0.1, (0.1,), 0.5, 0.4, 0.625, 5, 1)
  ranking = [candidate, scored(contest, chain(2), 5, latency=latency)]
  halving.write(tmp_path, contest, ranking)
  report = (tmp_path / "report.md").read_text()
  label = "K=2-1-3,0-1-3,0-0-3 l=3 max_gram"
  for text in (
    f"| {label} | 2 | 3.448 |  |  | 4.000 |",
    "medium 0.25, small 0.125",
    "| 2.00 [1.60, 2.50] | 200 |",
    "100 to 100 tokens/s in turns with the others",
  ):
    assert text in report
  assert len((tmp_path / "report.csv").read_text().splitlines()) == 3
  assert f"{label}: SWI 3.448" in halving.describe(ranking)


def test_best_gin_says_all_that_differs(contest, tmp_path):
  for k, settings, more in (
    ([[2, 0, 0], [0, 0, 0], [0, 0, 0]], {}, []),
    (
      [[2, 0], [0, 0]],
      {"max_gram": False, "verification": "block"},
      ["MAX_GRAM = False", 'INNER_VERIFICATION = "block"'],
    ),
  ):
    best = scored(contest, Cascade(k=k, lenience=2.0, **settings))
    halving.write(tmp_path, contest, [best])
    assert (tmp_path / "best.gin").read_text().splitlines()[1:] == [
      f"CASCADE_K = {k}",
      'CASCADE_K_MEANING = "increments"',
      "LENIENCE = 2.0",
      *more,
    ]


def test_costs(contest):
  asked = (contest.study, contest.point)
  weights = lambda costs: Criterion(costs=costs).weights(*asked)
  assert weights([0.5, 0.25]) == [0.5, 0.25]
  assert weights("parameters") == [1.0, 1.0]
  for wrong in ([0.5], "guessed"):
    with pytest.raises(ValueError, match=r"wanted 'parameters'.* or"):
      weights(wrong)


def test_measured_costs_are_those_of_each_drafter_alone(contest, monkeypatch):
  steps = {"medium": 0.5, "small": 0.25}

  def costs(study, points):
    (alone,) = points
    assert alone.sampling.greedy
    assert alone.verify_width == 1  # passes over one token
    return Costs(1e-3, steps[study.pair.drafter_name], 1.0, {1: 1.0}, 1.0, 1.0)

  def by_clock(study, point, costs):
    # Whole decodes of each drafter alone have the last word.
    assert len(study.timed_examples) > 1
    return costs.by_clock(2 * costs.c)

  monkeypatch.setattr(point_timing, "measure_costs", costs)
  monkeypatch.setattr(point_timing, "check_costs", by_clock)
  criterion = Criterion(costs="measured")
  assert criterion.weights(contest.study, contest.point) == [1.0, 0.5]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("search")
  (folder / "in.txt").write_text("one two one two\nthree\nfour five\n")
  return {
    "verifier_checkpoint": tiny.save(folder / "large" / "checkpoint_7", 1),
    "input_file": str(folder / "in.txt"),
  }


def run(files, folder, **changes):
  settings = {
    "output_dir": folder,
    "task_feature_lengths": {"inputs": 8},
    "vocabulary": tiny.Vocabulary(),
    "num_examples": 3,
    "first_examples": 1,
    "eta": 3,
    "space": Space(copied=(2,)),
    "method": "cascade_drafting",
    "temperature": 0.0,
    "max_decode_len": 6,
    "batch_size": 1,
    "progress": False,
    "objective": "swi",
    "costs": "parameters",
  }
  settings |= {**files, **changes}
  name, costs = settings.pop("objective"), settings.pop("costs")
  objects = tiny.objects(
    settings,
    pair=PairSpec,
    inputs=Inputs,
    point=Point,
    run=Run,
    candidates=Candidates,
    rounds=halving.Rounds,
  )
  criterion = Criterion(name, costs, repeats=1)
  return halving.search(criterion=criterion, **objects)


@pytest.mark.parametrize("objective", ["swi", "walltime"])
def test_a_whole_search(files, tmp_path, objective):
  """Max-Gram alone: the only costs are the verifier's."""
  folder = tmp_path / "out"
  ranking = run(files, folder, objective=objective)
  assert len(ranking) == 4
  best = ranking[0]
  assert best.row.settings.num_examples == 3
  assert best.swi >= 1
  if objective == "walltime":
    assert best.value == best.row.measured_speedup > 0
  files_of = sorted(path.name for path in folder.iterdir())
  assert files_of == [*REPORT, "rows.jsonl", "run.json"]
  before = (folder / "rows.jsonl").read_text()
  again = run(files, folder, objective=objective)
  assert [x.cascade for x in again] == [x.cascade for x in ranking]
  assert (folder / "rows.jsonl").read_text() == before
  with pytest.raises(ValueError, match="another run: seed is 0 there"):
    run(files, folder, objective=objective, seed=1)


def test_given_cascades_all_decode_everything(files, tmp_path):
  cascades = [Cascade(k=((2,),)), Cascade(k=((4,),))]
  ranking = run(files, tmp_path / "out", cascades=cascades)
  assert {scored.cascade for scored in ranking} == set(cascades)
  assert {scored.row.settings.num_examples for scored in ranking} == {3}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"first_examples": 4}, "FIRST_EXAMPLES is 4; .*to NUM_EXAMPLES"),
    ({"costs": [0.1]}, r"COSTS is \[0.1\]"),
  ],
)
def test_wrong_settings(files, tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    run(files, tmp_path / "out", **changes)
  assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(files, tmp_path, other_job):
  (tmp_path / "rows.jsonl").write_text("mine")
  with pytest.raises(ValueError, match="of an unknown run"):
    run(files, tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
  other_job(tmp_path)
  with pytest.raises(ValueError, match="written to by process"):
    run(files, tmp_path)
