"""Successive halving over K and lenience, by SWI or by measured time.

Every candidate decodes a few examples. The best third of the candidates gets
three times as many examples, until one candidate is left. Cascades that a
config names decode all examples, in one round.

A search leaves in OUTPUT_DIR `rows.jsonl` (a result row for each candidate and
round, appended when it is measured), `costs.json` (the cost of a call of each
drafter), `run.json` (the settings that a later start is compared with),
`report.md`, `report.csv` and `best.gin`.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import json
import math
import pathlib
from typing import Annotated

from speccascade.generate.pair.cascades import Cascade
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.runtime import files, folders, processes
from speccascade.runtime.progress import ProgressBar
from speccascade.settings import fields
from speccascade.study.measuring.study import Study
from speccascade.study.report import markdown, tables, templates
from speccascade.study.report.tables import Column
from speccascade.study.search import writer
from speccascade.study.search.candidates import run_rounds
from speccascade.study.search.cascade_space import (
  Candidates,
  CascadeCandidate,
  Contest,
  Criterion,
)
from speccascade.study.search.effort import Budget
from speccascade.study.search.ledger import Ledger
from speccascade.tasks.inputs import Inputs


@fields.checked
@dataclasses.dataclass(frozen=True)
class Rounds:
  """The rounds of a search; its values are checked.

  Attributes:
    first_examples: the number of examples in the first round. The last round
      has all examples.
    eta: each round has 1/eta of the candidates of the round before, on eta
      times as many examples.
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
) -> list[CascadeCandidate]:
  """Searches, writes the report, and returns the candidates, best first.

  Args:
    pair: the models; `drafter_checkpoint` is () for Max-Gram alone.
    inputs: the examples that are decoded in the last round.
    point: the method and the sampling.
    run: OUTPUT_DIR, and how examples are decoded. OUTPUT_DIR is a new folder,
      or the folder of the same search, which continues there. The run's seed
      draws the candidates too.
    candidates: the cascades that are compared.
    criterion: what makes one cascade better than another.
    rounds: how many candidates decode how many examples.

  Raises:
    ValueError: a setting, a model or an input does not fit.
  """
  num, first = inputs.num_examples, rounds.first_examples
  if candidates.cascades is None and num is not None and first > num:
    raise ValueError(
      f"FIRST_EXAMPLES is {first}; wanted 1 to NUM_EXAMPLES, {num}"
    )
  with folders.sole_writer(run.folder):
    sources = inputs.read(pair.vocabulary_path).fit_padding()
    models = pair.load(
      sources.vocabulary, needs_drafter=bool(pair.drafter_checkpoint)
    )
    study = Study(Session(models, sources, run))
    if candidates.cascades is not None:
      first = len(sources.examples)
    by_label = {
      cascade.label: cascade
      for cascade in candidates.all(len(models.drafters), run.seed)
    }
    contest = Contest(study, point, criterion)
    for cascade in by_label.values():
      # Raises where the cascade cannot be built.
      contest.study_of(contest.candidate(cascade, 1))
    rounds = dataclasses.replace(rounds, first_examples=first)
    ledger = Ledger(run.folder, _identity(contest, by_label, rounds))
    ledger.check()
    weights = _weights(contest, ledger)
    contest = dataclasses.replace(contest, weights=weights)
    ranking = halve(contest, list(by_label.values()), ledger, rounds)
    if processes.is_first():
      write(run.folder, contest, ranking)
    return ranking


def _identity(
  contest: Contest, labels: Iterable[str], rounds: Rounds
) -> dict[str, object]:
  """Returns the settings of a search that a later start may not change."""
  costs = contest.criterion.costs
  settings = contest.study.settings(contest.point, trials=1)
  return {
    "candidates": sorted(labels),
    "costs": costs if isinstance(costs, str) else list(costs),
    "first_examples": rounds.first_examples,
    "eta": rounds.eta,
    "objective": contest.criterion.name,
    **settings.to_dict(),
    "drafter": "",  # the candidates say it
  }


def _weights(contest: Contest, ledger: Ledger) -> tuple[float, ...]:
  """Returns the cost of a call of each drafter; `costs.json` stores it."""
  # A continued search ranks by the costs that its first start measured.
  path = ledger.folder / "costs.json"
  if processes.agree(path.exists):
    read = lambda: files.read_object(path, "drafters")["drafters"]
    return tuple(processes.agree(read))
  weights = contest.criterion.weights(contest.study, contest.point)
  weights = processes.agree(lambda: weights)
  ledger.open()
  if processes.is_first():
    files.write_whole(path, json.dumps({"drafters": weights}) + "\n")
  return tuple(weights)


def halve(
  contest: Contest,
  cascades: Sequence[Cascade],
  ledger: Ledger,
  rounds: Rounds,
) -> list[CascadeCandidate]:
  """Runs the rounds; returns all candidates, best first.

  A candidate that took part in a later round ranks above one that did not.

  Args:
    contest: what the candidates have in common.
    cascades: the cascades that are compared.
    ledger: where rows are stored; a row that is there is not measured again.
    rounds: how many candidates decode how many examples.
  """
  study = contest.study
  num_all = len(study.examples)

  def propose(
    measured: Sequence[CascadeCandidate],
  ) -> Sequence[CascadeCandidate]:
    left, num = cascades, rounds.first_examples
    if measured:
      num = measured[-1].num_examples
      best = [x for x in _rank(measured) if x.num_examples == num]
      if num == num_all or len(best) == 1:
        return []
      num_best = max(1, len(best) // rounds.eta)
      left = [candidate.cascade for candidate in best[:num_best]]
      num *= rounds.eta
    return [contest.candidate(each, min(num, num_all)) for each in left]

  def measure(
    candidates: Sequence[CascadeCandidate],
  ) -> list[CascadeCandidate]:
    num = candidates[0].num_examples
    title = f"{len(candidates)} candidates, {num} examples"
    bar = ProgressBar(candidates, title, disable=not study.run.progress)
    return [contest.measure(candidate, ledger) for candidate in bar]

  return _rank(run_rounds(propose, measure, Budget(math.inf), "rounds"))


def _rank(measured: Sequence[CascadeCandidate]) -> list[CascadeCandidate]:
  """Returns each cascade's candidate of its last round, best first."""
  ranking = sorted(measured, key=lambda x: (-x.num_examples, -x.value))
  by_label: dict[str, CascadeCandidate] = {}
  for candidate in ranking:
    by_label.setdefault(candidate.cascade.label, candidate)
  return list(by_label.values())


def _line(scored: CascadeCandidate) -> dict[str, str]:
  """Returns the cells of a candidate's line, by the titles of the columns."""
  counts, latency = scored.row.counts, scored.row.latency
  speedup = rate = ""
  if latency is not None:
    speedup = writer.times(latency)
    rate = f"{_tokens_per_s(scored):.0f}"
  calls_per_token = [num / counts.num_tokens for num in scored.calls]
  return {
    "cascade": scored.cascade.label,
    "examples": str(scored.row.settings.num_examples),
    "SWI": f"{scored.swi:.3f}",
    "speed-up": speedup,
    "tokens/s": rate,
    "tokens/block": f"{counts.num_tokens / counts.num_blocks:.3f}",
    "verifier calls/token": f"{counts.verifier_calls / counts.num_tokens:.3f}",
    "drafter calls/token": " / ".join(f"{num:.3f}" for num in calls_per_token),
  }


def _tokens_per_s(scored: CascadeCandidate) -> float:
  """Returns how many tokens a timed candidate wrote in a second."""
  latency, counts = scored.row.latency, scored.row.counts
  return counts.num_tokens / (latency.walltime_s * latency.num_examples)


def write(
  folder: pathlib.Path, contest: Contest, ranking: Sequence[CascadeCandidate]
):
  """Writes report.md, report.csv and best.gin.

  Args:
    folder: OUTPUT_DIR.
    contest: what the candidates have in common.
    ranking: the candidates, best first.
  """
  lines = [_line(scored) for scored in ranking]
  columns = [Column(title, title) for title in lines[0]]
  study = contest.study
  task = f"{study.sources.task} {study.sources.split}".strip()
  page = templates.load("study/search/cascades.md").render(
    title=f"{study.pair.verifier_name} on {task}",
    legend=_legend(contest, ranking),
    titles=[*lines[0]],
    rows=[map(markdown.cell_text, line.values()) for line in lines],
  )
  answer = {
    "report.csv": tables.to_csv(lines, columns),
    "report.md": page,
    "best.gin": _gin(ranking[0].cascade),
  }
  writer.write(folder, answer)


def _legend(contest: Contest, ranking: Sequence[CascadeCandidate]) -> str:
  """Returns what the columns of the report's table mean."""
  study = contest.study
  names = [model.name for model in study.pair.drafters]
  speeds = [
    _tokens_per_s(scored) * scored.row.latency.relative_latency
    for scored in ranking
    if scored.row.latency is not None
  ]
  (legend,) = writer.sentences(
    "legend",
    contest.criterion,
    list(zip(names, contest.weights)),
    speeds,
    contest.point,
    study.run,
  )
  return legend


def _gin(cascade: Cascade) -> str:
  """Returns a config that sets a cascade, for configs/runs/cascade.gin."""
  macros = {
    "CASCADE_K": [list(row) for row in cascade.k],
    "CASCADE_K_MEANING": cascade.meaning,
    "LENIENCE": cascade.lenience,
    "MAX_GRAM": None if cascade.max_gram else False,
    "BIGRAMS": cascade.bigrams and str(cascade.bigrams),
    "NGRAMS": cascade.ngrams and str(cascade.ngrams),
    "INNER_VERIFICATION": cascade.verification,
  }
  if cascade.verification == "token":  # the default
    del macros["INNER_VERIFICATION"]
  macros = {name: x for name, x in macros.items() if x is not None}
  return writer.gin(macros, "Include after configs/runs/cascade.gin.")


def describe(ranking: Sequence[CascadeCandidate]) -> str:
  """Returns the best candidates in a few lines."""
  text = "best first (all of them: report.md):"
  for scored in ranking[:3]:
    text += f"\n  {scored.cascade.label}: SWI {scored.swi:.3f}"
    if scored.row.measured_speedup:
      text += f", speed-up {scored.row.measured_speedup:.3f}"
  return text
