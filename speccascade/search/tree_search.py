"""Searches for the tree of drafts that pays for a pair, and times it.

The method decodes a few examples with a chain. Both models read these texts,
which gives the acceptance of each child by depth and rank. With the costs of
passes the best tree of each size follows. The clock then decides between these
trees and the best chains, in one interleaved run.
"""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
from typing import Annotated, Self

import numpy as np

from speccascade.analysis import draft_trees
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.decode_settings import Verification
from speccascade.decoding.records.draft_tree import DraftTree, Drawing
from speccascade.evaluation.efficiency import Costs
from speccascade.evaluation.timing import Latency
from speccascade.inference.batches.inputs import Inputs
from speccascade.inference.measuring import measure
from speccascade.inference.measuring.study import Study
from speccascade.inference.pair.pairs import ModelPair, PairSpec
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Measuring, Run
from speccascade.runtime import folders
from speccascade.runtime.progress import ProgressBar
from speccascade.search import advisor, rank_acceptance
from speccascade.search.effort import Budget, Effort, Steps
from speccascade.search.grid import StudyPoint
from speccascade.search.offers import make_monotone
from speccascade.search.optimal_share import shares_of_optimum
from speccascade.search.rank_acceptance import RankRates
from speccascade.search.searcher import LEAST
from speccascade.settings import fields

_NUM_CHAINS = 3  # chains that are timed: the best by costs, and its neighbours
_NUM_STEPS = 4


@fields.checked
@dataclasses.dataclass(frozen=True)
class WantedTrees:
  """Which trees are in question; checked when the record is made.

  Attributes:
    sizes: the numbers of drafts for which the best tree is searched.
    max_children: the most children of one node.
    max_depth: the most levels of a tree, and the longest chain. With draft
      heads it is at most the number of heads.
    drawing: how children are chosen, see `draft_tree.DRAWINGS`.
    verification: how a tree is verified.
  """

  sizes: Annotated[
    Sequence[Annotated[int, fields.Bounds(2, 256)]], fields.NOT_EMPTY
  ] = (4, 8, 16)
  max_children: Annotated[int, fields.Bounds(2, 16)] = 4
  max_depth: Annotated[int, fields.Bounds(1, 64)] = 8
  drawing: Drawing = "greedy_and_random"
  verification: Verification = "token"

  def __post_init__(self):
    # A point says whether the verification takes trees, and this drawing.
    try:
      self.point(Point("spec_decode"), (-1, -1))
    except fields.SettingError as error:
      raise fields.SettingError(error.name, error.fault, WantedTrees) from error

  def for_pair(self, pair: ModelPair) -> Self:
    """Returns the trees that a pair can draft."""
    if not pair.has_heads:
      return self
    most = min(self.max_depth, pair.num_distributions)
    return dataclasses.replace(self, max_depth=most)

  def point(self, common: Point, parents: Sequence[int]) -> Point:
    """Returns the point of a tree; a tree of one branch is a chain.

    Args:
      common: method and sampling.
      parents: the tree, level by level.

    Raises:
      ValueError: the verification does not take trees that are drawn so.
    """
    tree = DraftTree(tuple(parents))
    if tree.is_chain:
      return dataclasses.replace(common, gamma=tree.depth)
    return dataclasses.replace(
      common,
      gamma=tree.depth,
      tree=tree.parents,
      drawing=self.drawing,
      verification=self.verification,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class TreeOffer:
  """A tree or a chain, and what a block of it yields.

  Attributes:
    point: the method with the tree.
    parents: the tree, level by level.
    tokens: the tokens of a block along the texts, by the measured acceptance.
    steps: the cost of the passes of a block, in steps of the verifier.
    optimum: the acceptance at the first place of a block, as a share of the
      largest that any exact verification reaches with drafts drawn so; None
      where it was not worked out.
    measured: the latency by the clock; None until the point was timed.
  """

  point: Point
  parents: tuple[int, ...]
  tokens: float
  steps: float
  optimum: float | None = None
  measured: Latency | None = None

  @property
  def speedup(self) -> float:
    """How many times as fast as the verifier alone, by the passes alone."""
    return self.tokens / self.steps

  @property
  def is_chain(self) -> bool:
    """Whether it is a chain."""
    return not self.point.is_tree


@dataclasses.dataclass(frozen=True, eq=False)
class TreeAdvice:
  """What a search for a tree found.

  Attributes:
    choice: the fastest offer by the clock; None where nothing pays.
    chain: the fastest chain by the clock.
    offers: the timed offers: chains, and the best tree of each size.
    acceptance: [D, K, K], by depth, number of children and rank.
    tokens_by_size: the tokens of a block of the best tree of n drafts, at n.
    costs: what passes cost.
    study: the pair and the examples.
    warnings: why the answer may be wrong; often empty.
  """

  choice: TreeOffer | None
  chain: TreeOffer
  offers: Sequence[TreeOffer]
  acceptance: np.ndarray
  tokens_by_size: np.ndarray
  costs: Costs
  study: Study
  warnings: Sequence[str] = ()


def search(
  *,
  pair: PairSpec,
  inputs: Inputs,
  point: Point,
  run: Run,
  measuring: Measuring = Measuring(),
  trees: WantedTrees = WantedTrees(),
  effort: Effort = Effort(),
  on_start: Callable[[pathlib.Path], object] = lambda folder: None,
) -> TreeAdvice:
  """Returns the tree that pays for a pair, or that a chain or nothing does.

  `trees.write` writes the files of the advice.

  Args:
    pair: the verifier, and one drafter or its draft heads.
    inputs: a few dozen examples.
    point: method, sampling and bonus. Its gamma is that of the chain that
      writes the texts; a gamma above the number of draft heads is cut to it.
    run: OUTPUT_DIR, and how examples are decoded.
    measuring: repeats; all examples are timed.
    trees: which trees are in question.
    effort: the number of rounds, and the time that the search may take.
    on_start: called with OUTPUT_DIR once the models and inputs are read.

  Raises:
    ValueError: a setting, a model or an input does not fit.
  """
  if not point.spec.takes_trees:
    raise ValueError(
      f"METHOD is {point.method}, which drafts no trees; set a speculative"
      " method with one drafter"
    )
  if point.is_tree or point.draft_length != "fixed":
    raise ValueError(
      "the search for a tree begins with a chain of GAMMA drafts; leave TREE,"
      " DRAFTS and DRAFT_LENGTH out"
    )
  with folders.sole_writer(run.folder):
    study = advisor.read_study(pair, inputs, run, measuring)
    trees = trees.for_pair(study.pair)
    if study.pair.has_heads:
      gamma = min(point.gamma, study.pair.num_distributions)
      point = dataclasses.replace(point, gamma=gamma)
    StudyPoint(study, point).check()
    on_start(run.folder)
    with ProgressBar(
      total=_NUM_STEPS,
      desc="trees",
      unit="step",
      disable=not run.progress,
      limit_s=effort.time_limit_s,
    ) as bar:
      budget = Budget(effort.time_limit_s)
      return search_study(
        study, point, trees, effort.rounds, budget, Steps(bar)
      )


def search_study(
  study: Study,
  point: Point,
  trees: WantedTrees,
  rounds: int,
  budget: Budget,
  steps: Steps,
) -> TreeAdvice:
  """Returns what `search` returns, of models and examples that are read.

  Raises:
    ValueError: the pair's drafter is a cascade, which has no single cost.
  """
  steps.begin(f"texts of {point.spec.label}")
  texts = study.batches(point).decode_all(study.examples, 0)
  steps.end()
  steps.begin("acceptance by depth and rank")
  rates = rank_acceptance.rank_rates_along(
    study,
    point,
    texts,
    drawing=trees.drawing,
    verification=trees.verification,
    max_children=trees.max_children,
    max_depth=trees.max_depth,
  )
  acceptance = rank_acceptance.by_depth(rates, texts, trees.max_depth)
  steps.end()
  steps.begin("costs of passes")
  budget.share = 0.6
  costs = _measure_costs(study, point, trees, rounds, budget)
  offers, tokens_by_size = offers_of(
    point, trees, rates, acceptance, texts, costs
  )
  nums = {_num_first(offer) for offer in offers}
  optimum = shares_of_optimum(study, point, nums, rates, texts, trees.drawing)
  offers = [
    dataclasses.replace(offer, optimum=optimum.get(_num_first(offer)))
    for offer in offers
  ]
  steps.end()
  steps.begin("the clock")
  budget.share = 1.0
  latencies = measure.time_points(
    study, [offer.point for offer in offers], is_over=budget.is_spent
  )
  timed = [
    dataclasses.replace(offer, measured=latencies[offer.point])
    for offer in offers
  ]
  steps.end()
  warnings = [costs.doubt] if costs.doubt else []
  if any(offer.measured.repeats < study.measuring.repeats for offer in timed):
    warnings.append(
      f"TIME_LIMIT_S of {budget.limit_s:g} s ended the timing early: give more"
      " time, or an idle machine"
    )
  paying = [x for x in timed if 1 / x.measured.relative_high > LEAST]
  return TreeAdvice(
    choice=min(paying, key=_by_clock, default=None),
    chain=min((x for x in timed if x.is_chain), key=_by_clock),
    offers=timed,
    acceptance=acceptance,
    tokens_by_size=tokens_by_size,
    costs=costs,
    study=study,
    warnings=warnings,
  )


def _by_clock(offer: TreeOffer) -> float:
  return offer.measured.relative_latency


def _measure_costs(
  study: Study,
  point: Point,
  trees: WantedTrees,
  rounds: int,
  budget: Budget,
) -> Costs:
  """Returns the costs of passes over as many tokens as trees have nodes."""
  sizes = sorted({1, 2, 4, trees.max_depth, *trees.sizes})
  loops = measure.cost_loops(
    study,
    [dataclasses.replace(point, gamma=size) for size in sizes],
    rounds,
    is_over=budget.is_spent,
  )
  if loops is None:
    raise ValueError(
      f"the drafter is {study.pair.drafter_name}, a cascade, whose steps have"
      " no one cost: search for a tree with one drafter"
    )
  return measure.check_costs(
    study, point, make_monotone(loops.costs), is_over=budget.is_spent
  )


def offers_of(
  point: Point,
  trees: WantedTrees,
  rates: RankRates,
  acceptance: np.ndarray,
  texts: Decoded,
  costs: Costs,
) -> tuple[list[TreeOffer], np.ndarray]:
  """Returns the chains and trees to time, each once, and tokens by size.

  Args:
    point: the method and its sampling.
    trees: which trees are in question.
    rates: what `rank_acceptance.rank_rates_along` returns.
    acceptance: [D, K, K], see `rank_acceptance.by_depth`.
    texts: the texts of the rates.
    costs: passes by width.

  Returns:
    The offers, chains first; and [M + 1], the expected tokens of a block of the
    best tree of n drafts, where M is the largest size.
  """
  num = max(trees.sizes)
  widths = sorted(costs.v)
  pass_cost = np.interp(
    np.arange(num + 1) + 1, widths, [costs.v[width] for width in widths]
  )

  longest = min(trees.max_depth, num)
  drafting_cost = [_drafting_cost(costs, point, d) for d in range(longest + 1)]

  def offer(parents: Sequence[int]) -> TreeOffer:
    tree = DraftTree(tuple(parents))
    drafting = drafting_cost[tree.depth]
    return TreeOffer(
      point=trees.point(point, parents),
      parents=tree.parents,
      tokens=rank_acceptance.tokens_per_block(rates, texts, parents),
      steps=float(drafting + pass_cost[tree.num_drafts]),
    )

  chains = [offer(range(-1, depth - 1)) for depth in range(1, longest + 1)]
  best = max(chains, key=lambda chain: chain.speedup)
  first = max(0, min(best.point.gamma - 2, len(chains) - _NUM_CHAINS))
  found = {
    chain.parents: chain for chain in chains[first : first + _NUM_CHAINS]
  }
  limits = {
    "max_children": trees.max_children,
    "max_depth": longest,
  }
  for size in sorted(trees.sizes):
    if size > sum(
      trees.max_children**depth for depth in range(1, trees.max_depth + 1)
    ):
      continue
    tree = draft_trees.best_tree(
      acceptance,
      pass_cost,
      drafting_cost,
      min_nodes=size,
      max_nodes=size,
      **limits,
    )
    found.setdefault(tree.parents, offer(tree.parents))
  table = draft_trees.best_tree(
    acceptance, pass_cost, drafting_cost, max_nodes=num, **limits
  ).table
  return list(found.values()), table.max(axis=0)


def _drafting_cost(costs: Costs, point: Point, depth: int) -> float:
  """Returns the cost of drafting a tree.

  A drafter makes a pass for each level. Draft heads draft all levels at once,
  and ask one head more where the target uses the distribution after the drafts.

  Args:
    costs: the costs of the pair.
    point: the method.
    depth: the levels of the tree; no drafting costs nothing.
  """
  if not costs.heads:
    return costs.c * depth
  if not depth:
    return 0.0
  return costs.drawing(depth if point.folds else depth + 1)


def _num_first(offer: TreeOffer) -> int:
  """Returns the number of drafts at the first place of a block."""
  return offer.parents.count(draft_trees.ROOT)
