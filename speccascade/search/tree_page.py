"""Advice on trees as text: the answer, what to paste, tables, and JSON."""

import json

import numpy as np

from speccascade.inference.measuring.environment import device_name, environment
from speccascade.report import tables
from speccascade.report.tables import Column
from speccascade.runtime import files
from speccascade.search.searcher import LEAST
from speccascade.search.tree_search import TreeAdvice, TreeOffer
from speccascade.search.wording import bullets, drafting_costs, times


def write(advice: TreeAdvice) -> str:
  """Writes trees.md, trees.json and trees.gin; returns the first of them."""
  folder, markdown = advice.study.run.folder, text(advice)
  values = json.dumps(as_json(advice), indent=1, allow_nan=False)
  files.write_whole(folder / "trees.json", values + "\n")
  files.write_whole(folder / "trees.gin", snippet(advice))
  files.write_whole(folder / "trees.md", markdown)
  return markdown


def text(advice: TreeAdvice) -> str:
  """Returns the answer, what to paste, and the tables that it rests on."""
  lines = [*answer(advice), *(f"warning: {x}" for x in advice.warnings)]
  parts = [
    bullets(lines),
    f"in a config:\n\n```\n{snippet(advice)}```\n",
    tables.markdown(advice.offers, _columns(advice)),
    "the chance that each child is accepted, in a place with as many children:"
    "\n",
    _acceptance_table(advice),
    "expected tokens of a block, for the best tree of each number of drafts:\n",
    _sizes_table(advice),
    bullets(details(advice)),
  ]
  return "\n".join(parts)


def answer(advice: TreeAdvice) -> list[str]:
  """Returns which tree to use, or that a chain is best, or nothing pays."""
  best, chain = advice.choice, advice.chain
  method = chain.point.method
  if best is None:
    fastest = min(advice.offers, key=lambda x: x.measured.relative_latency)
    return [
      f"nothing pays with {method}: use the verifier alone. The best is"
      f" {_name(fastest)}, {times(fastest.measured)} times as fast",
      _sum(fastest),
    ]
  lines = [
    f"use {method} with {_name(best)}: {times(best.measured)} times as fast as"
    f" the verifier by the clock ({best.speedup:.2f} by its passes alone)"
  ]
  if best.is_chain:
    trees = [x for x in advice.offers if not x.is_chain]
    if trees:
      tree = min(trees, key=lambda x: x.measured.relative_latency)
      lines.append(f"no tree is faster; the fastest is {_name(tree)}")
      lines.append(_sum(tree))
    return lines
  ratio, low, high = _beside(best, chain)
  lines.append(
    f"compared with the fastest chain, {_name(chain)}, it is {ratio:.2f}"
    f" [{low:.2f}, {high:.2f}] times as fast"
    + (": the clock does not tell the two apart" if low <= 1 <= high else "")
  )
  return lines


def _sum(offer: TreeOffer) -> str:
  """Returns the sentence that says what a block of an offer costs."""
  return (
    f"why: a block of {_name(offer)} writes {offer.tokens:.2f} tokens, and its"
    f" passes cost {offer.steps:.2f} steps of the verifier; the loop around"
    " them costs more on top"
  )


def _beside(offer: TreeOffer, other: TreeOffer) -> tuple[float, float, float]:
  """Returns how many times as fast one offer is as another, and the interval.

  The resamples of both are of the same examples.
  """
  ratio = other.measured.relative_latency / offer.measured.relative_latency
  replicates = np.divide(other.measured.replicates, offer.measured.replicates)
  low, high = np.quantile(replicates, [0.025, 0.975])
  return float(ratio), float(low), float(high)


def _name(offer: TreeOffer) -> str:
  """Returns what an offer is, in words."""
  if offer.is_chain:
    return f"a chain of {offer.point.gamma}"
  return f"a tree of {len(offer.parents)} drafts, {offer.point.gamma} deep"


def _columns(advice: TreeAdvice) -> list[Column]:
  """Returns the columns of the table, whose lines are offers."""

  def shape(offer: TreeOffer) -> str:
    if offer.is_chain:
      return "chain"
    return " ".join(map(str, offer.parents))

  def beside(offer: TreeOffer) -> str:
    ratio, low, high = _beside(offer, advice.chain)
    return f"{ratio:.2f} [{low:.2f}, {high:.2f}]"

  return [
    Column("", lambda x: "chosen" if x is advice.choice else None),
    Column("parents", shape),
    Column("drafts", lambda x: len(x.parents)),
    Column("depth", "point.gamma"),
    Column("tokens/block", "tokens", 2),
    Column("steps/block", "steps", 2),
    Column("expected", "speedup", 2),
    Column("by the clock", lambda x: times(x.measured)),
    Column("over the chain's speed", beside),
    Column("share of the optimum", "optimum", 3),
  ]


def _acceptance_table(advice: TreeAdvice) -> str:
  """Returns the acceptance of each rank by depth, as a table."""
  depths, num, _ = advice.acceptance.shape
  lines = [
    (depth + 1, count, advice.acceptance[depth, count - 1, :count])
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


def _sizes_table(advice: TreeAdvice) -> str:
  """Returns the expected tokens by number of drafts, as a table."""
  lines = [
    (num, tokens)
    for num, tokens in enumerate(advice.tokens_by_size)
    if num and np.isfinite(tokens)
  ]
  return tables.markdown(
    lines,
    [
      Column("drafts", lambda line: line[0]),
      Column("tokens/block", lambda line: line[1], 2),
    ],
  )


def details(advice: TreeAdvice) -> list[str]:
  """Returns which examples were decoded, and what passes cost."""
  settings = advice.study.settings(advice.chain.point)
  where = f"{settings.task} {settings.split}".strip()
  costs = advice.costs
  passes = ", ".join(
    f"{costs.v[width]:.2f} over {width}" for width in sorted(costs.v)[1:]
  )
  levels = "a level of a tree is expected to cost the drafter one step"
  if costs.heads:
    levels = "the heads draft all levels of a tree at once"
  return [
    f"{settings.num_examples} examples of {where} at temperature"
    f" {settings.temperature:g}, verifier {settings.verifier}, drafter"
    f" {settings.drafter}, on {device_name()}",
    f"{drafting_costs('the drafter', costs)} of one of the verifier"
    f" ({1e3 * costs.verifier_step_s:.2f} ms); a pass of the verifier costs"
    f" {passes}",
    f"tokens of a block are expected from the distributions along the texts;"
    f" {levels}",
    f"an offer pays whose speed-up is above {LEAST} by its whole interval",
  ]


def snippet(advice: TreeAdvice) -> str:
  """Returns the settings to paste into the config of a decode."""
  offer = advice.choice
  if offer is None:
    return '# Nothing pays.\nMETHOD = "verifier"\n'
  point = offer.point
  lines = [f'METHOD = "{point.method}"', f"GAMMA = {point.gamma}"]
  if point.spec.uses_alpha:
    lines.insert(1, f"ALPHA = {point.alpha:g}")
  if point.is_tree:
    lines += [
      f"TREE = {point.tree}",
      f'DRAWING = "{point.drawing}"',
      f'VERIFICATION = "{point.verification}"',
    ]
  return "".join(f"{line}\n" for line in lines)


def as_json(advice: TreeAdvice) -> dict:
  """Returns all that the search found, as JSON values."""
  return {
    "sentences": [*answer(advice), *details(advice)],
    "warnings": [*advice.warnings],
    "choice": advice.choice and _offer(advice.choice, advice),
    "offers": [_offer(offer, advice) for offer in advice.offers],
    "acceptance": advice.acceptance.tolist(),
    "tokens_by_size": [
      float(x) if np.isfinite(x) else None for x in advice.tokens_by_size
    ],
    "environment": environment(),
  }


def _offer(offer: TreeOffer, advice: TreeAdvice) -> dict:
  """Returns an offer as JSON values."""
  names = ("value", "low", "high")
  beside = _beside(offer, advice.chain)
  return {
    "parents": [*offer.parents],
    "is_chain": offer.is_chain,
    "gamma": offer.point.gamma,
    "pass_width": offer.point.block_width,
    "tokens_per_block": offer.tokens,
    "steps_per_block": offer.steps,
    "share_of_optimum": offer.optimum,
    "measured": tables.speedup(offer.measured)._asdict(),
    "beside_the_chain": dict(zip(names, beside)),
  }
