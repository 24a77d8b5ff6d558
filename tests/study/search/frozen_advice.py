"""Searches on recorded measurements, and what each of them answers.

Chains whose distributions are tables write the texts. What passes cost and what
the clock says is made up, so the answers are the same on every machine.

  python -m tests.study.search.frozen_advice

writes the answers that `test_frozen_advice` compares with.
"""

import dataclasses
import functools
import json
import pathlib
import tempfile
from unittest import mock

import numpy as np

from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.study.evaluation import walltime
from speccascade.study.measuring import measure, point_timing
from speccascade.study.rows.results import ResultRow
from speccascade.study.search import (
  advice_page,
  advisor,
  forecast,
  halving,
  tree_page,
  tree_search,
)
from speccascade.study.search.cascade_space import Candidates, Criterion, Space
from speccascade.study.search.effort import Effort
from speccascade.study.search.plans import Plan
from speccascade.study.search.tree_search import WantedTrees
from speccascade.study.search.wanted import Wanted
from speccascade.tasks.inputs import Inputs
from tests.study.search import test_advisor, test_heads_advice

GOLDEN = pathlib.Path(__file__).parent / "golden" / "advice.json"
NUM = 32
V = {1: 1.0, 2: 1.1, 3: 1.25, 4: 1.3, 5: 1.45, 9: 2.0}
MODEL = Costs(1e-3, 0.1, 0.15, V, 0.1, 1.0)
HEADS = Costs(1e-3, 0.0, 0.0, V, 0.0, 1.0, {1: 0.1, 2: 0.14, 3: 0.2})
LOSSY = ("spec_cascade_opt", "spec_cascade_token_v3")
ADVICE = {
  "greedy": ({}, 0.0, Wanted(None, (), (1, 2, 3))),
  "lossy": ({}, 1.0, Wanted(5.0, LOSSY, (1, 3), num_decoded=3)),
  "twins": ({"with_twin": True}, 1.0, Wanted(None, (), (1, 2, 3))),
  "heads": ({"heads": True}, 1.0, Wanted(5.0, LOSSY, (1, 3), num_decoded=1)),
}
TREES = {
  "trees": ({}, Point("spec_decode", gamma=2, temperature=1.0), {}),
  "greedy trees": ({}, Point("spec_decode", gamma=2, temperature=0.0), {}),
  "lossy trees": (
    {},
    Point("spec_cascade_opt", 0.3, gamma=2, temperature=1.0),
    {"drawing": "without_replacement", "verification": "traversal"},
  ),
  "k_seq trees": (
    {},
    Point("spec_decode", gamma=2, temperature=1.0),
    {"drawing": "iid", "verification": "k_seq"},
  ),
  "trees of heads": (
    {"heads": True},
    Point("spec_decode", gamma=5, temperature=1.0),
    {},
  ),
}


def settings(folder, point):
  """Returns what every search is given: a pair, inputs, a point, a run."""
  return {
    "pair": PairSpec(drafter_checkpoint=("a", "b"), verifier_checkpoint="c"),
    "inputs": Inputs(
      task_feature_lengths={"inputs": 8},
      input_file="in.jsonl",
      num_examples=NUM,
    ),
    "point": point,
    "run": Run(folder, max_decode_len=12, progress=False),
  }


def pair(*, heads=False, with_twin=False):
  """Returns the chains, with a drafter, two drafters or draft heads."""
  if heads:
    return test_heads_advice.pair(NUM)
  return test_advisor.pair(NUM, with_twin=with_twin)


def cost_loops(study, points, *_, **__):
  """Returns hot loops, as `point_timing.cost_loops` does."""
  if not study.pair.drafts_alone:
    return test_heads_advice.tables_of(HEADS)
  return test_advisor.tables_of(MODEL, (1.0, 1.02))


def time_points(study, points, **_):
  """Returns latencies, as `time_points` does; wide blocks are best."""
  latencies = {}
  for point in points:
    num = point.draft_tree.num_drafts if point.is_tree else point.gamma
    alpha = point.alpha if point.spec.uses_alpha else 0.0
    ours = (0.8 - 0.05 * alpha) * (0.75 + 0.04 * (num - 4) ** 2)
    ours *= 0.95 if point.is_tree else 1.0
    noise = np.random.default_rng(num).uniform(0.97, 1.03, (3, 8))
    latencies[point] = walltime.latency(ours * noise, np.ones((3, 8)))
  return latencies


def measured(study, points, file, tick):
  """Returns rows, as `measure.measure` does: a wide first entry is good."""
  for point in points:
    if study.settings(point) in file:
      continue
    k = study.pair.composed_name.split("K=")[1]
    num = 30 + sum(map(int, k.replace(",", "-").split(" ")[0].split("-")))
    counts = Counts(
      *(len(study.examples), 100, 40),
      calls_by_model=(8,) * len(study.pair.composed.models),
      verifier_calls=num,
    )
    file.append(ResultRow(study.settings(point), "", counts, {}, {}))
  rows = {row.settings: row for row in file.rows}
  return [rows[study.settings(point)] for point in points]


def files_of(folder):
  """Returns the files that a search wrote, but for what a machine decides."""
  files = {}
  for path in sorted(pathlib.Path(folder).iterdir()):
    text = path.read_text().replace(str(folder), "FOLDER")
    if path.suffix == ".json":
      values = json.loads(text)
      values.pop("environment", None)
      values.pop("sentences", None)  # they are in the Markdown, too
      files[path.name] = values
    elif path.suffix != ".jsonl" and path.name != "config.gin":
      lines = text.splitlines()
      files[path.name] = [x for x in lines if ", verifier p" not in x]
  return files


def advice(name, folder):
  """Returns the files of advice."""
  _, temperature, wanted = ADVICE[name]
  point = Point("verifier", gamma="auto", temperature=temperature)
  answer = advisor.advise(
    **settings(folder, point), wanted=wanted, effort=Effort()
  )
  advice_page.write(answer, ["x", "--gin_file=a.gin", "--gin.MAX_LOSS=5"])
  return files_of(folder)


def tree_advice(name, folder):
  """Returns the files of advice on trees."""
  _, point, wanted = TREES[name]
  wanted = {"sizes": (2, 4, 8), "max_children": 3, "max_depth": 4} | wanted
  answer = tree_search.search(
    **settings(folder, point),
    trees=WantedTrees(**wanted),
    effort=Effort(),
  )
  tree_page.write(answer)
  return files_of(folder)


def cascades(folder):
  """Returns the files of a search for a cascade."""
  point = Point("cascade_drafting", temperature=0.0)
  parts = settings(folder, point)
  run = dataclasses.replace(parts["run"], batch_size=8)
  ranking = halving.search(
    **parts | {"run": run},
    candidates=Candidates(space=Space(first=(1, 2)), num_candidates=9),
    criterion=Criterion(costs=(0.5, 0.25)),
    rounds=halving.Rounds(first_examples=4),
  )
  return files_of(folder) | {"printed": halving.describe(ranking)}


def swept(folder):
  """Returns what a sweep is going to measure."""
  parts = settings(folder, Point("spec_decode"))
  parts["common"] = parts.pop("point")
  plan = Plan(methods=LOSSY, gammas=(2, 3), alphas="adaptive", budget=5)
  ahead = dataclasses.asdict(forecast.forecast(**parts, plan=plan))
  names = ("num_points", "most_points", "num_programs")
  return {name: ahead[name] for name in names}


ANSWERS = {
  **{name: functools.partial(advice, name) for name in ADVICE},
  **{name: functools.partial(tree_advice, name) for name in TREES},
  "cascades": cascades,
  "sweep": swept,
}


def answer(name, folder):
  """Returns what a search answers on the recorded measurements."""
  drafters = {"cascades": {"with_twin": True}, "sweep": {}}
  drafters |= {name: each[0] for name, each in (ADVICE | TREES).items()}
  of_rows = measured if name == "cascades" else measure.measure
  with mock.patch.object(measure, "measure", of_rows):
    return on_recorded_measurements(
      lambda: ANSWERS[name](folder), **drafters[name]
    )


def on_recorded_measurements(ask, **drafters):
  """Returns what `ask()` returns where models and clock are recorded."""
  models = pair(**drafters)
  read = mock.patch.multiple(
    PairSpec,
    load=lambda self, vocabulary, **_: models,
    vocabulary_path=None,
    draft_vocabulary=None,
  )
  inputs = mock.patch.object(
    Inputs, "read", return_value=test_advisor.sources(NUM)
  )
  clock = mock.patch.multiple(
    point_timing,
    cost_loops=cost_loops,
    check_costs=lambda study, point, costs, **_: costs,
    time_points=time_points,
  )
  with read, inputs, clock:
    return ask()


if __name__ == "__main__":
  answers = {}
  for each in ANSWERS:
    with tempfile.TemporaryDirectory() as out:
      answers[each] = answer(each, pathlib.Path(out))
  GOLDEN.write_text(json.dumps(answers, indent=1) + "\n")
