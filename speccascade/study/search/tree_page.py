"""Advice on trees as text: the answer, what to paste, tables, and JSON."""

import numpy as np

from speccascade.generate.points.point import Point
from speccascade.study.report import tables
from speccascade.study.report.frontier import IntervalEstimate
from speccascade.study.report.tables import Column
from speccascade.study.search import writer
from speccascade.study.search.candidates import (
  LEAST_SPEEDUP,
  Candidate,
  by_clock,
)
from speccascade.study.search.draft_kinds import kind_of
from speccascade.study.search.tree_search import TreeAdvice
from speccascade.study.search.writer import WrittenAdvice, times

# Titles of tables.
_ACCEPTANCE = (
  "probability that each child is accepted, by the number of children"
)
_SIZES = "predicted tokens per block of the best tree of each size"


def write(advice: TreeAdvice) -> str:
  """Writes trees.md, trees.json and trees.gin; returns the first of them."""
  return answer(advice).write(advice.study.run.folder, "trees")


def answer(advice: TreeAdvice) -> WrittenAdvice:
  """Returns the advice as text, as JSON values, and as settings."""
  pages = {}
  if advice.offers:
    pages[""] = tables.markdown(advice.offers, _columns(advice))
  if advice.acceptance is not None:
    pages[_ACCEPTANCE] = _acceptance_table(advice.acceptance)
  if advice.tokens_by_size is not None:
    pages[_SIZES] = _sizes_table(advice.tokens_by_size)
  return WrittenAdvice(
    sentences=_sentences(advice),
    warnings=advice.warnings,
    bindings=advice.choice and _bindings(advice.choice.point),
    is_timed=bool(advice.timed),
    tables=pages,
    details=_details(advice),
    values={
      "choice": advice.choice and _offer(advice.choice, advice),
      "offers": [_offer(offer, advice) for offer in advice.offers],
      "acceptance": _list(advice.acceptance),
      "tokens_by_size": _list(advice.tokens_by_size),
    },
  )


def _sentences(advice: TreeAdvice) -> list[str]:
  """Returns which tree to use, or that a chain is best, or nothing pays."""
  best, method = advice.choice, advice.point.method
  if not advice.timed:
    return writer.sentences("untimed", method)
  if best is None:
    fastest = min(advice.timed, key=by_clock)
    return writer.sentences("tree_loses", method, fastest)
  trees = [x for x in advice.timed if x.point.is_tree]
  return writer.sentences(
    "tree_answer",
    method,
    best,
    advice.chain,
    _beside(best, advice.chain),
    min(trees, key=by_clock, default=None),
  )


def _beside(offer: Candidate, other: Candidate) -> IntervalEstimate:
  """Returns how many times as fast an offer is as another."""
  # The resamples of both are of the same examples.
  ratio = other.measured.relative_latency / offer.measured.relative_latency
  replicates = np.divide(other.measured.replicates, offer.measured.replicates)
  low, high = np.quantile(replicates, [0.025, 0.975])
  return IntervalEstimate(float(ratio), float(low), float(high))


def _columns(advice: TreeAdvice) -> list[Column]:
  """Returns the columns of the table, whose lines are offers."""

  def shape(offer: Candidate) -> str:
    return " ".join(map(str, offer.parents)) if offer.point.is_tree else "chain"

  def clock(offer: Candidate) -> str | None:
    return offer.measured and times(offer.measured)

  def beside(offer: Candidate) -> str | None:
    if offer.measured is None:
      return None
    return "{:.2f} [{:.2f}, {:.2f}]".format(*_beside(offer, advice.chain))

  return [
    Column("", lambda x: "chosen" if x is advice.choice else None),
    Column("parents", shape),
    Column("drafts", lambda x: len(x.parents)),
    Column("depth", "point.gamma"),
    Column("tokens/block", "here.tokens", 2),
    Column("steps/block", "here.steps", 2),
    Column("predicted", "here.speedup", 2),
    Column("measured", clock),
    Column("seconds an answer", "measured.walltime_s", 4),
    Column("relative length", "relative_length", 2),
    Column("over the chain", beside),
    Column("share of the optimum", "optimum", 3),
  ]


def _acceptance_table(acceptance: np.ndarray) -> str:
  """Returns the acceptance of each rank by depth, as a table."""
  depths, num, _ = acceptance.shape
  lines = [
    (depth + 1, count, acceptance[depth, count - 1, :count])
    for depth in range(depths)
    for count in range(1, num + 1)
  ]
  ranks = [
    Column(
      f"rank {rank + 1}",
      lambda line, rank=rank: line[2][rank] if rank < line[1] else None,
      3,
    )
    for rank in range(num)
  ]
  return tables.markdown(
    lines,
    [
      Column("depth", lambda line: line[0]),
      Column("children", lambda line: line[1]),
      *ranks,
    ],
  )


def _sizes_table(tokens_by_size: np.ndarray) -> str:
  """Returns the expected tokens by number of drafts, as a table."""
  lines = [
    (num, tokens)
    for num, tokens in enumerate(tokens_by_size)
    if num and np.isfinite(tokens)
  ]
  return tables.markdown(
    lines,
    [
      Column("drafts", lambda line: line[0]),
      Column("tokens/block", lambda line: line[1], 2),
    ],
  )


def _details(advice: TreeAdvice) -> list[str]:
  """Returns which examples were decoded, and what passes cost."""
  settings = advice.study.settings(advice.point)
  models = f"verifier {settings.verifier}, drafter {settings.drafter}"
  costs, kind = advice.costs, kind_of(advice.study.pair)
  describe = kind.describe("the drafter", costs) if costs else ""
  return [
    *writer.examples(settings, models),
    *writer.sentences(
      "tree_details", describe, costs, kind.levels, LEAST_SPEEDUP
    ),
  ]


def _bindings(point: Point) -> dict[str, object]:
  """Returns the macros that make a decode of a point."""
  settings: dict[str, object] = {"METHOD": point.method}
  if point.spec.uses_alpha:
    settings["ALPHA"] = float(f"{point.alpha:g}")
  settings["GAMMA"] = point.gamma
  if point.is_tree:
    settings |= {
      "TREE": point.tree,
      "DRAWING": point.drawing,
      "VERIFICATION": point.verification,
    }
  return settings


def _list(values: np.ndarray | None) -> list | None:
  """Returns an array as JSON has it; None for what is not known."""
  if values is None:
    return None
  return np.where(np.isfinite(values), values, None).tolist()


def _offer(offer: Candidate, advice: TreeAdvice) -> dict:
  """Returns an offer as JSON values."""
  measured = beside = None
  if offer.measured is not None:
    measured = tables.speedup(offer.measured)._asdict()
    beside = _beside(offer, advice.chain)._asdict()
  return {
    "parents": [*offer.parents],
    "is_chain": not offer.point.is_tree,
    "gamma": offer.point.gamma,
    "pass_width": offer.point.block_width,
    "tokens_per_block": offer.here.tokens,
    "steps_per_block": offer.here.steps,
    "share_of_optimum": offer.optimum,
    "measured": measured,
    "beside_the_chain": beside,
  }
