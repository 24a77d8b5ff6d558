"""Successive halving over K and lenience, by SWI or by measured time.

Every candidate decodes a few examples; the best third goes on to three times as
many, until one is left. Cascades that are given by name all decode all of them,
once. Leaves in OUTPUT_DIR: `rows.jsonl` (a result row for
each candidate and round, appended as it is measured), `costs.json` (the
drafters' in use), `run.json` (what is being searched; a later start compares
itself with it), `report.md`, `report.csv` and `best.gin`.
"""

from collections.abc import Sequence
import dataclasses
import json
from typing import Annotated

from speccascade import fields, files, folders, processes
from speccascade.cascade_search import cascade_report
from speccascade.cascade_search.candidates import (
  Candidates,
  Contest,
  Criterion,
  Scored,
)
from speccascade.inference import results
from speccascade.inference.cascades import Cascade
from speccascade.inference.inputs import Inputs
from speccascade.inference.pair import PairSpec
from speccascade.inference.point import Point
from speccascade.inference.results import ResultFile
from speccascade.inference.run_folder import RunFolder
from speccascade.inference.settings import Run
from speccascade.inference.study import Study
from speccascade.progress import ProgressBar


@fields.checked
@dataclasses.dataclass(frozen=True)
class Rounds:
  """The rounds of a search; checked when made.

  Attributes:
    first_examples: of the first round; the last one has all.
    eta: each round keeps 1/eta of the candidates on eta times the examples.
  """

  first_examples: fields.Positive = 9
  eta: Annotated[int, fields.Bounds(2, 1024)] = 3


@fields.checked
def search(
  *,
  pair: PairSpec,
  inputs: Inputs,
  point: Point,
  run: Run,
  candidates: Candidates = Candidates(),
  criterion: Criterion = Criterion(),
  rounds: Rounds = Rounds(),
) -> list[Scored]:
  """Searches, writes the report, and returns the candidates, best first.

  Args:
    pair: the models; `drafter_checkpoint` () for Max-Gram alone.
    inputs: what is decoded in the last round.
    point: method and sampling.
    run: OUTPUT_DIR, a new folder or that of the same search, which is taken up,
      and how it decodes; its seed draws the candidates too.
    candidates: what is compared.
    criterion: what is best.
    rounds: how it is found.

  Raises:
    ValueError: a setting, a model or an input does not fit.
  """
  num, first = inputs.num_examples, rounds.first_examples
  if candidates.cascades is None and num is not None and first > num:
    raise ValueError(
      f"FIRST_EXAMPLES is {first}; wanted 1 to NUM_EXAMPLES, {num}"
    )
  with folders.sole_writer(run.folder):
    sources = inputs.read(pair.brought).fitted()
    models = pair.load(
      sources.vocabulary, needs_drafter=bool(pair.drafter_checkpoint)
    )
    study = Study(models, sources, run)
    if candidates.cascades is not None:
      first = len(sources.examples)
    by_label = {
      cascade.label: cascade
      for cascade in candidates.all(len(models.drafters), run.seed)
    }
    for cascade in by_label.values():  # whether each can be built
      Contest(study, point, criterion).study_of(cascade, 1)
    costs = criterion.costs
    asked = {
      "candidates": sorted(by_label),
      "costs": costs if isinstance(costs, str) else list(costs),
      "first_examples": first,
      "eta": rounds.eta,
      "objective": criterion.name,
      **dataclasses.asdict(study.settings(point, trials=1)) | {"drafter": ""},
    }
    folder = RunFolder(run.folder, asked, results.FILE_NAME)
    folder.check()
    path = run.folder / "costs.json"  # measured once
    if processes.agreed(path.exists):
      read = lambda: files.read_object(path, "drafters")["drafters"]
      weights = processes.agreed(read)
    else:
      weights = criterion.weights(study, point)
      weights = processes.agreed(lambda: weights)
      folder.open()
      if processes.is_first():
        files.write_whole(path, json.dumps({"drafters": weights}) + "\n")
    contest = Contest(study, point, criterion, tuple(weights))
    ranking = halve(
      contest,
      list(by_label.values()),
      ResultFile(run.folder / results.FILE_NAME),
      dataclasses.replace(rounds, first_examples=first),
    )
    if processes.is_first():
      cascade_report.write(run.folder, contest, ranking)
    return ranking


def halve(
  contest: Contest,
  cascades: Sequence[Cascade],
  file: ResultFile,
  rounds: Rounds,
) -> list[Scored]:
  """Runs the rounds; returns all candidates, the later their end the better.

  Args:
    contest: what they have in common.
    cascades: the candidates.
    file: where rows are kept; what stands there is not measured again.
    rounds: how many decode what.
  """
  ranking, going = [], list(cascades)
  num, most = rounds.first_examples, len(contest.study.examples)
  while True:
    num = min(num, most)
    bar = ProgressBar(
      going,
      f"{len(going)} candidates, {num} examples",
      disable=not contest.study.run.progress,
    )
    scored = [contest.measure(cascade, num, file) for cascade in bar]
    scored.sort(key=lambda candidate: -candidate.value)
    kept = max(1, len(scored) // rounds.eta)
    if num == most or len(scored) == 1:
      return scored + ranking
    ranking = scored[kept:] + ranking
    going, num = [s.cascade for s in scored[:kept]], num * rounds.eta
