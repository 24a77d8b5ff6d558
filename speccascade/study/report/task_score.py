"""Turns a folder of results into a score, by a task card.

The score of a point is how many times as fast as the baseline its answers are:
the lower end of the paired 95% interval, so that a few lucky timings win
nothing. A point that fails the gate of quality, or differs from what the card
fixes, has none. The score of a folder is that of its best point.
"""

from collections.abc import Sequence
import dataclasses
import functools
import json
import pathlib
from typing import Any

from speccascade.runtime import files
from speccascade.settings import fields
from speccascade.study.report import folder_rows, tables
from speccascade.study.report.frontier import IntervalEstimate
from speccascade.study.report.measured import Measured
from speccascade.study.report.tables import Column
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultRow
from speccascade.study.task_cards import BASELINE, TaskCard

_TOLERANCE = 1e-6  # of a metric that is computed again
# What else an entry and its baseline have in common; see `_is_baseline_of`.
_SHARED = ("seed", "limits", "dtype")


@dataclasses.dataclass(frozen=True, eq=False)
class ScoredPoint:
  """A point of an entry.

  Attributes:
    point: the point.
    baseline: the verifier alone.
    card: the card.
    problems: what does not fit the card; often empty.
  """

  point: Measured
  baseline: Measured
  card: TaskCard
  problems: Sequence[str] = ()

  @functools.cached_property
  def gain(self) -> IntervalEstimate:
    """The quality minus the baseline's, in pairs."""
    return self.point.quality_gap(self.baseline)

  @property
  def passes(self) -> bool:
    """Whether the quality passes the gate; see `TaskCard.margin`."""
    return self.gain.bounds[0] >= -self.card.margin

  @property
  def score(self) -> float | None:
    """How many times as fast its answers surely are; None without a score."""
    if self.problems or not self.passes or self.point.speed is None:
      return None
    return self.point.speed.bounds[0]

  def to_json(self) -> dict[str, Any]:
    """Returns the point as JSON values."""
    settings, point = self.point.settings, self.point
    estimates = {
      "quality": point.quality,
      "gain": self.gain,
      "times_as_fast": point.speed,
      "relative_length": point.relative_length,
    }
    return {
      "cell": settings.cell,
      **{name: getattr(settings, name) for name in ("method", "alpha")},
      "drafter": settings.drafter,
      **{name: x and x._asdict() for name, x in estimates.items()},
      "seconds_per_answer": point.seconds_per_answer,
      "passes": self.passes,
      "problems": list(self.problems),
      "score": self.score,
    }


_COLUMNS = (
  Column("cell", "point.settings.cell"),
  Column("method", "point.name"),
  Column("alpha", "point.settings.alpha"),
  Column("quality", "point.quality", 1, has_interval=True),
  Column("minus the baseline's", "gain", 2, has_interval=True),
  Column("gate", lambda each: "passed" if each.passes else "failed"),
  Column("seconds an answer", "point.seconds_per_answer", 4),
  Column("relative length", "point.relative_length", 2, has_interval=True),
  Column("times as fast", "point.speed", 2, has_interval=True),
  Column("score", "score", 2),
)


@dataclasses.dataclass(frozen=True)
class TaskScore:
  """What a folder scores.

  Attributes:
    name: the name of the card.
    card: the card.
    points: the points, the best first.
  """

  name: str
  card: TaskCard
  points: Sequence[ScoredPoint]

  @property
  def best(self) -> ScoredPoint | None:
    """The point with the highest score; None where none has one."""
    scored = [point for point in self.points if point.score is not None]
    return max(scored, key=lambda each: each.score, default=None)

  @property
  def text(self) -> str:
    """The score, the table of points, and what does not fit the card."""
    best = self.best
    if best is None:
      head = (
        f"{self.name}: no score: no point fits the card and passes its gate"
        f" ({self.card.gate})"
      )
    else:
      head = (
        f"{self.name}: score {best.score:.2f}, {best.point.typed} at"
        f" {best.point.settings.cell}"
      )
    problems = dict.fromkeys(
      f"- {each.point.typed}: {problem}"
      for each in self.points
      for problem in each.problems
    )
    table = tables.markdown(self.points, _COLUMNS)
    return "\n".join([head, "", table.rstrip(), *problems])

  def to_json(self) -> str:
    """Returns the score and all points as JSON."""
    values = {
      "card": self.name,
      "metric": self.card.metric,
      "margin": self.card.margin,
      "score": self.best and self.best.score,
      "points": [point.to_json() for point in self.points],
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def score(
  name: str,
  card: TaskCard,
  results_dir: pathlib.Path,
  exact_dir: pathlib.Path | None = None,
) -> TaskScore:
  """Returns what a folder scores.

  Args:
    name: the name of the card.
    card: the card.
    results_dir: the folder of a sweep with the baseline in it, or of a decode.
    exact_dir: the folder that has the baseline; None takes `results_dir`.

  Raises:
    ValueError: a folder cannot be read, or there is no baseline.
  """
  path, *examples = folder_rows.find(results_dir)
  rows, _ = folder_rows.read(path, *examples)
  others = [] if exact_dir is None else folder_rows.read_exact(exact_dir, rows)
  baselines = [
    row for row in (*others, *rows) if row.settings.method == BASELINE
  ]
  # The records of a decode are scored again; a sweep keeps no records.
  is_decode = path.name.startswith(results.METRICS)
  again = _problems_of_records(card, rows[0], *examples) if is_decode else []
  points = []
  for row in rows:
    fitting = [x for x in baselines if _is_baseline_of(x, row)]
    if row.settings.method == BASELINE and not is_decode:
      continue
    if not fitting:
      raise ValueError(
        f"{results_dir} has no row of METHOD {BASELINE!r} with the verifier and"
        f" the sampling of {row.settings.method}: sweep with it, or name the"
        " folder of its decode by --exact_dir"
      )
    # Of another seed or dtype only where there is no other baseline.
    exact = min(fitting, key=lambda each: len(_differences(row, each)))
    problems = [*again, *_problems(card, row), *_differences(row, exact)]
    if not _scores(row, exact, card.metric):
      raise ValueError(
        f"{results_dir} has no {card.metric!r} of {row.settings.method} or of"
        f" the {BASELINE}: decode with references, and METRICS that has"
        f" {card.scored_by!r}"
      )
    point, baseline = (
      Measured((each,), card.metric, exact=(exact,)) for each in (row, exact)
    )
    points.append(ScoredPoint(point, baseline, card, tuple(problems)))
  order = lambda each: -(each.score if each.score is not None else -1.0)
  return TaskScore(name, card, sorted(points, key=order))


def _scores(row: ResultRow, exact: ResultRow, metric: str) -> bool:
  return metric in row.quality and metric in exact.quality


def _is_baseline_of(exact: ResultRow, row: ResultRow) -> bool:
  """Returns whether a row of the verifier alone is of a row's sampling."""
  names = (
    "task",
    "split",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "verifier",
  )
  return all(
    getattr(exact.settings, name) == getattr(row.settings, name)
    for name in names
  )


def _problems(card: TaskCard, row: ResultRow) -> list[str]:
  """Returns what of a row is not as a card fixes it."""
  problems = [
    f"{name} is {given!r}, and the card fixes {wanted!r}"
    for name, wanted in card.fixed.items()
    if (given := getattr(row.settings, name)) != wanted
  ]
  given = row.num_parameters.get("verifier")
  if given != card.verifier_parameters:
    problems.append(
      f"the verifier has {given} parameters, and the card fixes"
      f" {card.verifier_parameters}"
    )
  num = row.latency.num_examples if row.latency else 0
  if num < card.num_timed:
    problems.append(
      f"{num} examples were timed, and the card wants {card.num_timed}: set"
      f" NUM_TIMED={card.num_timed}"
    )
  return problems


def _differences(row: ResultRow, exact: ResultRow) -> list[str]:
  """Returns in what an entry and its baseline differ that is not free."""
  differences = [
    f"{name} is {own!r}, and {other!r} of the baseline"
    for name in _SHARED
    if (own := getattr(row.settings, name))
    != (other := getattr(exact.settings, name))
  ]
  own, other = (x.environment.get("device") for x in (row, exact))
  if own != other:
    differences.append(f"the device is {own}, and {other} of the baseline")
  return differences


def _problems_of_records(
  card: TaskCard, row: ResultRow, predictions: pathlib.Path | None = None
) -> list[str]:
  """Returns how the records of a decode contradict its row."""
  from speccascade.tasks import quality  # which imports sacrebleu

  if predictions is None:
    return [f"there is no {results.PREDICTIONS}, so nothing is scored again"]
  texts, references, num_tokens = [], [], 0
  for number, line in enumerate(results.read_lines(predictions), start=1):
    try:
      record = fields.of_json(line)
      texts.append(str(record["prediction"]))
      references.append(list(record["targets"]))
      num_tokens += len(record["aux"]["tokens"])
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(
        f"{predictions} line {number} is not a decoded example with targets"
        f" ({error!r}); decode again"
      ) from error
  problems, counts = [], row.counts
  if (len(texts), num_tokens) != (counts.num_examples, counts.num_tokens):
    problems.append(
      f"the records are {len(texts)} with {num_tokens} tokens, and the row"
      f" counts {counts.num_examples} with {counts.num_tokens}"
    )
  stated = row.quality.get(card.metric, {}).get("value")
  scores = quality.evaluate([card.scored_by], texts, references)
  found = scores[card.metric]["value"]
  if stated is None or abs(stated - found) > _TOLERANCE:
    problems.append(
      f"the records have {found:.4f} {card.metric}, and the row states {stated}"
    )
  return problems


def write(output_file: pathlib.Path, scored: TaskScore) -> None:
  """Writes a score as JSON."""
  files.write_whole(output_file, scored.to_json())
