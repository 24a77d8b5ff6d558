"""Advice as text: the answer, what to paste, a small table, and JSON."""

from collections.abc import Sequence
import dataclasses

from speccascade.cli import macros
from speccascade.decoding.records.decode_settings import block_width
from speccascade.generate.points import advice_files
from speccascade.study.report import tables
from speccascade.study.report.tables import Column
from speccascade.study.rows.results import ResultRow
from speccascade.study.search import writer
from speccascade.study.search.advice import Advice
from speccascade.study.search.candidates import (
  DRAFTER,
  LEAST_SPEEDUP,
  Candidate,
  Expected,
  loss,
)
from speccascade.study.search.draft_kinds import kind_of
from speccascade.study.search.writer import WrittenAdvice

_MOST_OFFERS = 13  # lines of the table
# A drafter of so many tokens may gain from a draft vocabulary.
_MANY_TOKENS = 16384


def write(advice: Advice, argv: Sequence[str] = ()) -> str:
  """Writes advice.md, advice.json and advice.gin; returns the first of them.

  Args:
    advice: what the search found.
    argv: the command line that asked for advice. The command to paste is made
      from it; an empty one leaves the command out.
  """
  return answer(advice, argv).write(advice.study.run.folder, "advice")


def answer(advice: Advice, argv: Sequence[str] = ()) -> WrittenAdvice:
  """Returns the advice as text, as JSON values, and as settings.

  `inference.points.advice_files` reads a part of the JSON values.

  Args:
    advice: what the search found.
    argv: see `write`.
  """
  settings = advice.study.settings(advice.point)
  shown = _offers_of_interest(advice)
  # Later ones take the place of earlier ones: a timed offer knows most.
  offers = {
    offer.key: offer
    for offer in (*advice.offers, *advice.decoded, *advice.timed)
  }
  return WrittenAdvice(
    sentences=_sentences(advice),
    warnings=advice.warnings,
    bindings=advice.choice and _bindings(advice, advice.choice),
    is_timed=advice.lossless is not None,
    tables={"": tables.markdown(shown, _columns(advice))} if shown else {},
    details=_details(advice),
    values={
      "about": advice_files.about(advice.point, advice.study.pair),
      "task": settings.task,
      "split": settings.split,
      "num_examples": settings.num_examples,
      "max_loss": advice.wanted.max_loss,
      "choice": advice.choice and _offer(advice, advice.choice),
      "lossless": advice.lossless and _offer(advice, advice.lossless),
      "costs": {
        drafting.study.pair.drafter_name: dataclasses.asdict(drafting.costs)
        for drafting in advice.draftings
      },
      "verifier": advice.alone and _scores(advice.alone),
      **_tried(advice),
      "offers": [_offer(advice, offer) for offer in offers.values()],
    },
    command=_command(advice, argv) if argv else "",
  )


def _command(advice: Advice, argv: Sequence[str]) -> str:
  """Returns the command that decodes as advised."""
  values: dict[str, object] = {"METHOD": "verifier"}
  if advice.choice is not None:
    values = _bindings(advice, advice.choice)
  values["OUTPUT_DIR"] = f"{advice.study.run.folder}_decode"
  advice_macros = macros.macros("configs/runs/advise.gin")
  return writer.decode_command(argv, advice_macros, values)


def _sentences(advice: Advice) -> list[str]:
  """Returns what to use and how fast it is, or why nothing pays."""
  best, exact = advice.choice, advice.lossless
  if exact is None:
    return writer.sentences("untimed", None)
  if best is None:
    here, drafting = exact.here, advice.drafting_of(exact)
    return writer.sentences(
      "method_loses",
      exact,
      drafting.costs.v[block_width(here.gamma)],
      drafting.overhead_of(here.gamma),
      drafting.least_rate(LEAST_SPEEDUP),
      LEAST_SPEEDUP,
    )
  quality = _quality(best, advice) if best.row is not None else None
  # An early exit is named, since no setting names it.
  num_drafters = advice.num_drafters + len(advice.tried)
  num_drafters += len(advice.tried_exits)
  return writer.sentences("method_answer", best, exact, num_drafters, quality)


def _details(advice: Advice) -> list[str]:
  """Returns which examples were decoded, what passes cost, and more."""
  settings = advice.study.settings(advice.point)
  lines = writer.examples(settings, f"verifier {settings.verifier}")
  for drafting in advice.draftings:
    pair, costs = drafting.study.pair, drafting.costs
    describe = kind_of(pair).describe(pair.drafter_name, costs)
    lines += writer.sentences(
      "method_costs", describe, costs, drafting.overhead
    )
  quality = advice.alone.quality if advice.alone else {}
  metric = next(iter(quality), None)
  rows = [("the verifier", advice.alone)] + [
    (offer.study.pair.drafter_name, offer.row)
    for offer in advice.decoded
    if offer.point.method == DRAFTER
  ]
  scores = [(name, x.quality[metric]["value"]) for name, x in rows if metric]
  best = advice.choice or advice.lossless
  return [
    *lines,
    *writer.sentences("method_exits", advice),
    *writer.sentences("method_cuts", advice, _MANY_TOKENS),
    *writer.sentences("method_details", advice, best, metric, scores),
  ]


def _quality(offer: Candidate, advice: Advice) -> dict[str, object]:
  """Returns an offer's quality, the verifier's, and the difference."""
  metric = next(iter(offer.row.quality))
  mine, large = (x.quality[metric]["value"] for x in (offer.row, advice.alone))
  lost = loss(offer.row, advice.alone)
  return {
    "metric": metric,
    "value": mine,
    "large": large,
    "gain": (mine - large, -lost.high, -lost.low),
  }


def _offers_of_interest(advice: Advice) -> list[Candidate]:
  """Returns the offers of the table: the answer, then the fastest decoded."""
  timed = {(*x.method, x.point): x for x in advice.timed}
  # A decoded offer that was timed later is there with its latency.
  others = [timed.get((*x.method, x.point), x) for x in advice.decoded]
  first = [x for x in (advice.choice, advice.lossless) if x is not None]
  if not first:
    first = advice.offers[:1]  # what is promised, and was not timed
  ranked = [*first, *sorted(others, key=lambda x: -x.here.speedup)]
  return list({id(offer): offer for offer in ranked}.values())[:_MOST_OFFERS]


def _columns(advice: Advice) -> list[Column]:
  """Returns the columns of the table, whose lines are offers."""

  def accepted(offer: Candidate) -> str:
    rates = [
      f"{rate:.2f}" for rate in offer.here.by_position if rate is not None
    ]
    return " ".join(rate.lstrip("0") for rate in rates)

  def mark(offer: Candidate) -> str | None:
    return "chosen" if offer is advice.choice else None

  columns = [
    Column("", mark),
    Column("drafter", lambda offer: offer.study.pair.drafter_name),
    Column("method", "point.method"),
    Column("alpha", lambda offer: offer.study.settings(offer.point).alpha),
    Column("gamma", lambda offer: offer.here.gamma or None),
    Column("accepted, by position", accepted),
    Column("certified", lambda offer: advice.certified.get(offer.key), 2),
    Column("tokens/block", "here.tokens", 2),
    Column("steps/block", "here.steps", 2),
    Column("predicted", lambda offer: tables.speedup(offer.here.latency), 2),
    Column("measured", lambda offer: tables.speedup(offer.measured), 2),
    Column("seconds an answer", "measured.walltime_s", 4),
    Column("relative length", "relative_length", 2),
    Column(
      "if a block is one step", lambda x: tables.speedup(x.one_step.latency), 2
    ),
    Column("gamma then", lambda offer: offer.one_step.gamma or None),
  ]
  quality = advice.alone.quality if advice.alone else {}
  for metric in [*quality][:1]:
    columns.append(Column(metric, f"row.quality.{metric}.value", 1))
  return columns


def _bindings(advice: Advice, offer: Candidate) -> dict[str, object]:
  """Returns the macros that make a decode of an offer, by name."""
  settings = offer.study.settings(offer.point)
  values = {
    "METHOD": settings.method,
    "ALPHA": settings.alpha,
    "GAMMA": settings.gamma,
  }
  values = {name: value for name, value in values.items() if value is not None}
  if exit_macros := advice.exits.bindings(offer.study):
    values |= exit_macros
  elif advice.num_drafters > 1:
    drafter = offer.study.pair.drafters[0]
    values["DRAFTER_CHECKPOINT"] = drafter.setting or drafter.source
    if drafter.setting:
      # A drafter that is made of the verifier has no setting of its kernels.
      values["DRAFTER_KERNEL_DTYPE"] = None
  for tried in advice.tried:
    if tried.cut.study is offer.study:
      values["DRAFT_VOCABULARY"] = tried.cut.setting
  return values


def _offer(advice: Advice, offer: Candidate) -> dict:
  """Returns an offer as JSON values."""
  settings = offer.study.settings(offer.point)
  return {
    "drafter": settings.drafter,
    "method": settings.method,
    "alpha": settings.alpha,
    "gamma": settings.gamma,
    "certified": advice.certified.get(offer.key),
    "expected": _expected(offer.here),
    "block_is_one_step": _expected(offer.one_step),
    "measured": offer.measured and tables.speedup(offer.measured)._asdict(),
    "seconds_per_answer": offer.measured and offer.measured.walltime_s,
    "relative_length": (
      offer.relative_length and offer.relative_length._asdict()
    ),
    "quality": offer.row and _scores(offer.row),
  }


def _tried(advice: Advice) -> dict:
  """Returns the drafters that were tried without being named, as JSON values.

  They are the early exits and the draft vocabularies; either may be missing.
  """
  tried = {
    "early_exits": [(x, x.setting) for x in advice.tried_exits],
    "draft_vocabularies": [(x, x.cut.setting) for x in advice.tried],
  }
  return {
    name: [
      {
        "drafter": each.offer.study.pair.drafter_name,
        "setting": setting,
        "c": each.c,
        "expected": _expected(each.offer.here),
      }
      for each, setting in of_name
    ]
    for name, of_name in tried.items()
    if of_name
  }


def _expected(expected: Expected) -> dict:
  """Returns what is expected of an offer, as JSON values."""
  return {
    "gamma": expected.gamma or None,
    "tokens_per_block": expected.tokens,
    "steps_per_block": expected.steps,
    "acceptance_by_position": list(expected.by_position),
    "speedup": tables.speedup(expected.latency)._asdict(),
  }


def _scores(row: ResultRow) -> dict:
  """Returns the scores of a row and their intervals, without replicates."""
  return {
    metric: {name: score[name] for name in ("value", "low", "high")}
    for metric, score in row.quality.items()
  }
