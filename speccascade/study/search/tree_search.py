"""Searches for the tree of drafts that pays for a pair, and times it.

The method decodes a few examples with a chain. Both models read these texts,
which gives the acceptance of each child by depth and rank. With the costs of
passes the best tree of each size follows. The clock then decides between these
trees and the best chains, in one interleaved run.
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import pathlib
from typing import Annotated, Self

import numpy as np

from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.decode_settings import Verification
from speccascade.decoding.records.draft_tree import DraftTree, Drawing
from speccascade.generate.pair.pairs import ModelPair, PairSpec
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.runtime import folders
from speccascade.settings import fields
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.papers import blocks, draft_trees
from speccascade.study.search import acceptance
from speccascade.study.search.candidates import (
  Candidate,
  Expected,
  by_clock,
  by_promise,
  read_study,
  time_in_turns,
)
from speccascade.study.search.draft_kinds import kind_of
from speccascade.study.search.effort import Effort, Steps, TimeIsUp
from speccascade.study.search.offers import measure_costs
from speccascade.tasks.inputs import Inputs

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
    most = min(self.max_depth, pair.most_drafts)
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


@dataclasses.dataclass(eq=False)
class TreeAdvice:
  """What a search for a tree found. It grows during the search.

  Attributes:
    study: the pair and the examples.
    point: the method and its sampling.
    offers: chains, and the best tree of each size; timed, but where the time
      was over.
    acceptance: [D, K, K], by depth, number of children and rank; None until
      it is known, as are the next two.
    tokens_by_size: the tokens of a block of the best tree of n drafts, at n.
    costs: what passes cost.
    warnings: why the answer may be wrong; often empty.
  """

  study: Study
  point: Point
  offers: Sequence[Candidate] = ()
  acceptance: np.ndarray | None = None
  tokens_by_size: np.ndarray | None = None
  costs: Costs | None = None
  warnings: list[str] = dataclasses.field(default_factory=list)

  @property
  def timed(self) -> list[Candidate]:
    """The candidates that were timed."""
    return [offer for offer in self.offers if offer.measured is not None]

  @property
  def choice(self) -> Candidate | None:
    """The fastest timed candidate; None where nothing pays."""
    paying = [offer for offer in self.offers if offer.pays]
    return min(paying, key=by_clock, default=None)

  @property
  def chain(self) -> Candidate | None:
    """The fastest timed chain."""
    chains = [offer for offer in self.timed if not offer.point.is_tree]
    return min(chains, key=by_clock, default=None)


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

  `tree_page.write` writes the files of the advice.

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
    ValueError: a setting, a model or an input does not fit; or the pair's
      drafter is a cascade, whose passes have no single cost.
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
    study = read_study(pair, inputs, run, measuring)
    trees = trees.for_pair(study.pair)
    gamma = min(point.gamma, study.pair.most_drafts)
    point = dataclasses.replace(point, gamma=gamma)
    Candidate(study, point).check()
    on_start(run.folder)
    advice = TreeAdvice(study, point)
    with effort.begin("trees", _NUM_STEPS, run.progress) as steps:
      budget = steps.budget
      # The budget knows what was left out.
      with contextlib.suppress(TimeIsUp):
        _search_all(advice, trees, effort.rounds, steps)
  if advice.costs is not None and advice.costs.doubt:
    advice.warnings.append(advice.costs.doubt)
  repeats = study.measuring.repeats
  if any(offer.measured.repeats < repeats for offer in advice.timed):
    advice.warnings.append(
      f"TIME_LIMIT_S of {budget.limit_s:g} s ended the timing early: give more"
      " time, or an idle machine"
    )
  advice.warnings += filter(None, [budget.warning()])
  return advice


def _search_all(
  advice: TreeAdvice, trees: WantedTrees, rounds: int, steps: Steps
):
  """Fills the advice in, as far as the time goes."""
  study, point, budget = advice.study, advice.point, steps.budget
  first_drafts = study.pair.first_block_drafts
  with steps.step(f"texts of {point.spec.label}"):
    texts = study.batches(point).decode_all(study.examples, 0)
  with steps.step("acceptance by depth and rank"):
    rates = acceptance.rank_rates_along(
      study,
      point,
      texts,
      drawing=trees.drawing,
      verification=trees.verification,
      max_children=trees.max_children,
      max_depth=trees.max_depth,
    )
    advice.acceptance = blocks.acceptance_by_depth(
      rates, texts.lengths, trees.max_depth, first_drafts=first_drafts
    )
  budget.share = 0.6
  sizes = sorted({1, 2, 4, trees.max_depth, *trees.sizes})
  chains = [dataclasses.replace(point, gamma=size) for size in sizes]
  advice.costs, _ = measure_costs(
    study, chains, rounds, steps, "costs of passes", is_needed=True
  )
  advice.offers, advice.tokens_by_size = offers_of(
    study, point, trees, rates, advice.acceptance, texts, advice.costs
  )
  with steps.uncounted("shares of the optimum"):
    nums = {_num_first(offer) for offer in advice.offers}
    optimum = acceptance.shares_of_optimum(
      study, point, nums, rates, texts, trees.drawing
    )
    advice.offers = [
      dataclasses.replace(offer, optimum=optimum.get(_num_first(offer)))
      for offer in advice.offers
    ]
  budget.share = 1.0
  advice.offers = time_in_turns(advice.offers, steps, "timing")


def offers_of(
  study: Study,
  point: Point,
  trees: WantedTrees,
  rates: np.ndarray,
  acceptance: np.ndarray,
  texts: Decoded,
  costs: Costs,
) -> tuple[list[Candidate], np.ndarray]:
  """Returns the chains and trees to time, each once, and tokens by size.

  Args:
    study: the pair, and the sources of the texts.
    point: the method and its sampling.
    trees: which trees are in question.
    rates: what `acceptance.rank_rates_along` returns.
    acceptance: [D, K, K], see `blocks.acceptance_by_depth`.
    texts: the texts of the rates.
    costs: passes by width.

  Returns:
    The candidates, chains first; and [M + 1], the expected tokens of a block of
    the best tree of n drafts, where M is the largest size.
  """
  num = max(trees.sizes)
  widths = sorted(costs.v)
  pass_cost = np.interp(
    np.arange(num + 1) + 1, widths, [costs.v[width] for width in widths]
  )
  longest = min(trees.max_depth, num)
  kind = kind_of(study.pair)
  drafting_cost = [
    kind.tree_steps(costs, point, levels) for levels in range(longest + 1)
  ]

  def offer(parents: Sequence[int]) -> Candidate:
    tree = DraftTree(tuple(parents))
    of_texts = blocks.blocks(
      rates,
      texts.lengths,
      tree.parents,
      first_drafts=study.pair.first_block_drafts,
    )
    steps = float(drafting_cost[tree.depth] + pass_cost[tree.num_drafts])
    expected = Expected.of(tree.depth, of_texts, texts.lengths, steps)
    return Candidate(study, trees.point(point, parents), expected)

  chains = [offer(blocks.chain(depth)) for depth in range(1, longest + 1)]
  best = max(chains, key=by_promise)
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


def _num_first(offer: Candidate) -> int:
  """Returns the number of drafts at the first place of a block."""
  return offer.parents.count(draft_trees.ROOT)
