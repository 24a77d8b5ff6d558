"""Turns counts of a decoding run into rates, and into a predicted speed-up.

Each rate has one name and one meaning in result rows, tables and docs;
docs/definitions.md lists them. A ratio with the denominator 0 is None: a method
without blocks has no acceptance rate.
"""

from collections.abc import Sequence
import dataclasses
from typing import Annotated, Any

import numpy as np

from speccascade.decoding.records.block_records import Decoded
from speccascade.settings import fields

_Cost = Annotated[float, fields.Bounds(0)]
# Hot loops and whole decodes agree on c up to this factor, or it is doubted.
_FAR = 2.0
_TINY = 1e-9  # keeps a c of 0 out of a denominator


@dataclasses.dataclass(frozen=True)
class Counts:
  """Counters summed over examples, on the host.

  The other counters than the first two have the names and meanings of
  `block_records.Stats`; the tuples are its arrays of one row.

  Counters that a method does not have are empty.

  Attributes:
    num_examples: examples decoded.
    num_tokens: tokens emitted, EOS included.
  """

  num_examples: fields.Count = 0
  num_tokens: fields.Count = 0
  num_blocks: fields.Count = 0
  drafted: fields.Count = 0
  examined: fields.Count = 0
  accepted: fields.Count = 0
  deferred: fields.Count = 0
  drafter_calls: fields.Count = 0
  calls_by_model: tuple[fields.Count, ...] = ()
  verifier_calls: fields.Count = 0
  verifier_extends: fields.Count = 0
  expected_acceptance: Annotated[float, fields.Bounds(0)] = 0.0
  accepted_at: tuple[fields.Count, ...] = ()
  examined_by_position: tuple[fields.Count, ...] = ()
  accepted_by_position: tuple[fields.Count, ...] = ()
  accepted_by_rank: tuple[tuple[fields.Count, ...], ...] = ()
  optimal_acceptance: Annotated[float, fields.Bounds(0)] = 0.0
  forced: fields.Count = 0

  def __post_init__(self):
    fields.freeze(self)

  @property
  def _knows_optimum(self) -> bool:
    """Whether the optimum is known of every block that examined a draft."""
    return self.optimal_acceptance > 0 or not any(self.examined_by_position[:1])

  def to_dict(self) -> dict[str, Any]:
    """Returns the counters by name; without forced tokens where none is one."""
    values = dataclasses.asdict(self)
    if not self.forced:  # younger than the first files
      del values["forced"]
    return values

  def __add__(self, other: "Counts") -> "Counts":
    """Returns the sums of both counters, entry by entry.

    Raises:
      ValueError: the counts come from different gammas or numbers of models.
    """
    sums = {
      name: _sum(value, getattr(other, name))
      for name, value in vars(self).items()
      if name not in ("accepted_by_rank", "optimal_acceptance")
    }
    # Counts that were written without these counters lack them, and so does a
    # sum with them.
    by_rank = self.accepted_by_rank, other.accepted_by_rank
    if all(by_rank):
      sums["accepted_by_rank"] = _sum(*by_rank)
    if self._knows_optimum and other._knows_optimum:
      sums["optimal_acceptance"] = (
        self.optimal_acceptance + other.optimal_acceptance
      )
    return Counts(**sums)


def _sum(left, right):
  """Returns the sum of two counters, which are numbers or nested tuples."""
  if not isinstance(left, tuple):
    return left + right
  if len(left) != len(right):
    raise ValueError(
      f"counts with {len(left)} and {len(right)} entries do not add; sum each"
      " gamma, each tree and each drafter on its own"
    )
  return tuple(map(_sum, left, right))


def row_counts(decoded: Decoded) -> list[Counts]:
  """Returns the counts of each row of a decoded batch."""
  columns = {**decoded.stats.by_name(), "num_tokens": decoded.lengths}
  values = {name: np.asarray(x).tolist() for name, x in columns.items()}
  return [
    Counts(
      num_examples=1, **{name: column[row] for name, column in values.items()}
    )
    for row in range(len(values["num_tokens"]))
  ]


def total(counts: list[Counts]) -> Counts:
  """Returns the sum of one or more counts.

  Raises:
    ValueError: the list is empty.
  """
  if not counts:
    raise ValueError("no examples were decoded; there is nothing to sum")
  first, *rest = counts
  return sum(rest, start=first)


def ratio(numerator: float, denominator: float) -> float | None:
  """Returns numerator / denominator, None where the denominator is 0."""
  return numerator / denominator if denominator else None


def summary(counts: Counts) -> dict:
  """Returns the rates of counts, by name.

  draft_acceptance_rate: accepted drafts / drafted tokens. Drafts after a
    rejected draft, an EOS or the length limit count as drafted.
  acceptance_rate: accepted drafts / examined drafts. The first rejected draft
    of a block counts as examined. This rate estimates the acceptance rate of
    the model in which drafts are accepted independently with one probability.
  rejection_rate: 1 - acceptance_rate.
  expected_acceptance: the mean over examined drafts of sum_v min(q, pi).
  mean_acceptance_length: emitted tokens / blocks. The residual or bonus token
    of a block counts.
  acceptance_histogram: at index j the number of blocks in which j drafts were
    accepted.
  acceptance_by_position: accepted / examined for the 1st, 2nd, ... draft of a
    block.
  acceptance_by_rank: for each depth of a tree, at index b the blocks in which
    the child of rank b was accepted / the blocks that examined the depth. The
    rank of a draft is its place among its siblings. A list ends with the last
    rank that was ever accepted. Only trees have this rate.
  share_of_optimum: blocks of trees that accepted a draft of the first place /
    the sum over blocks of the largest chance that any exact verification
    accepts one. It is an estimate, which may exceed 1 by chance. Only trees
    whose optimum was recorded have it.
  deferral_rate: verifier calls / tokens emitted. A sequential cascade calls the
    verifier at each deferred position, a speculative method once for each
    block. It is the axis of Narasimhan et al., arXiv:2405.19261, Figure 1.
  rule_deferral_rate: emitted positions at which the rule deferred / tokens
    emitted.
  forced_rate: tokens that nobody drafted, since a mask allowed no other /
    tokens emitted. Only texts with such tokens have it.
  drafter_calls_per_token: passes of the drafter / tokens emitted.
  verifier_extends_per_token: passes of the verifier / tokens emitted.
  tokens_per_example: tokens emitted / examples.
  """
  c = counts
  positions = zip(c.accepted_by_position, c.examined_by_position)
  others: dict[str, Any] = {}
  if c.accepted_by_rank:
    others["acceptance_by_rank"] = [
      [ratio(accepted, examined) for accepted in _until_last(by_rank)]
      for by_rank, examined in zip(c.accepted_by_rank, c.examined_by_position)
    ]
  if c.optimal_acceptance:
    others["share_of_optimum"] = ratio(
      c.accepted_by_position[0], c.optimal_acceptance
    )
  if c.forced:
    others["forced_rate"] = ratio(c.forced, c.num_tokens)
  return {
    "draft_acceptance_rate": ratio(c.accepted, c.drafted),
    "acceptance_rate": ratio(c.accepted, c.examined),
    "rejection_rate": ratio(c.examined - c.accepted, c.examined),
    "expected_acceptance": ratio(c.expected_acceptance, c.examined),
    "mean_acceptance_length": ratio(c.num_tokens, c.num_blocks),
    "acceptance_histogram": list(c.accepted_at) if c.num_blocks else [],
    "acceptance_by_position": [ratio(*position) for position in positions],
    "deferral_rate": ratio(c.verifier_calls, c.num_tokens),
    "rule_deferral_rate": ratio(c.deferred, c.num_tokens),
    "drafter_calls_per_token": ratio(c.drafter_calls, c.num_tokens),
    "verifier_extends_per_token": ratio(c.verifier_extends, c.num_tokens),
    "tokens_per_example": ratio(c.num_tokens, c.num_examples),
    **others,
  }


def _until_last(counts: Sequence[int]) -> Sequence[int]:
  """Returns counts without the zeros at their end."""
  num = max((i for i, count in enumerate(counts, 1) if count), default=0)
  return counts[:num]


# The fields of `block_records.LogProbs` that are log-probabilities.
_DISTRIBUTIONS = ("pi", "p", "q", "p1", "q1")
# A token is unlikely if samplers in common use would leave it out.
TOP_P, MIN_P = 0.95, 0.05


def mean_log_probs(parts: Sequence[dict]) -> dict[str, float | None] | None:
  """Returns the mean log probability that each distribution gave the tokens.

  A mean is over the tokens at which the distribution is known, in nats. It is
  None for a distribution that is known nowhere, and for one that gives some
  token the probability 0, whose mean would be -inf.

  Args:
    parts: dicts with the fields of `block_records.LogProbs`; values are arrays,
      or lists with None for NaN.

  Returns:
    {field: mean}; None where `parts` is empty, because nothing was recorded.
  """
  if not parts:
    return None

  def mean(name):
    return _mean(_known(parts, name))

  return {name: mean(name) for name in _DISTRIBUTIONS if name in parts[0]}


def sharpness(parts: Sequence[dict]) -> dict[str, float | None] | None:
  """Returns how the distribution of the tokens stands to the verifier's p.

  p is the verifier at temperature 1, unfiltered, also where tokens are sampled
  at another temperature or with a filter.

  entropy: the mean entropy of pi, in nats.
  overshoot: the geometric mean of max_v pi(v) / p(v): how many times as likely
    as under p a token may become.
  largest_overshoot: the largest max_v pi(v) / p(v).
  outside_top_p: the share of tokens that top-p .95 of p leaves out.
  outside_min_p: the share of tokens that min-p .05 of p leaves out.

  Args:
    parts: as in `mean_log_probs`.

  Returns:
    {name: number}. A number is None where it is known of no token, and where it
    is infinite. None where nothing was recorded, or without these fields.
  """
  if not parts or "overshoot" not in parts[0]:
    return None
  overshoot = _known(parts, "overshoot")
  typical = _mean(overshoot)
  largest = float(np.max(overshoot)) if overshoot.size else np.inf
  # In float32 the whole of p may sum to a little less than 1.
  is_outside = _known(parts, "ahead") >= TOP_P
  is_small = _known(parts, "margin") > -np.log(MIN_P)
  return {
    "entropy": _mean(_known(parts, "entropy")),
    "overshoot": None if typical is None else float(np.exp(typical)),
    "largest_overshoot": float(np.exp(largest)) if largest < 700 else None,
    "outside_top_p": _mean(is_outside.astype(float)),
    "outside_min_p": _mean(is_small.astype(float)),
  }


def _known(parts: Sequence[dict], name: str) -> np.ndarray:
  """Returns the known values of a field of `LogProbs`, [N] float64."""
  values = [np.asarray(part[name], float).ravel() for part in parts]
  values = np.concatenate(values)
  return values[~np.isnan(values)]


def _mean(values: np.ndarray) -> float | None:
  """Returns the mean; None where there is no value, or an infinite one."""
  total = float(np.sum(values))
  return ratio(total, values.size) if np.isfinite(total) else None


@dataclasses.dataclass(frozen=True)
class Costs:
  """Measured costs of model calls, in units of one single-token verifier step.

  Attributes:
    verifier_step_s: seconds of one single-token verifier step, the unit.
    c: the cost of one single-token drafter step; of draft heads the cost of
      drawing from as many heads as any block does.
    q2: the cost of a drafter pass over two tokens; of draft heads it is c.
    v: the cost of a verifier pass over N tokens, by N.
    drafter_prefill: the cost of the drafter's encoding one source.
    verifier_prefill: the cost of the verifier's encoding one source.
    heads: the cost of drawing from the first N draft heads, by N; of look-ahead
      embeddings the cost of a pass that gives the first N distributions. Empty
      where the drafter is a language model.
    loop_c: the c that hot loops gave, where whole decodes gave the c that
      stands here, see `by_clock`; None where c is that of hot loops.
  """

  verifier_step_s: _Cost
  c: _Cost
  q2: _Cost
  v: dict[int, _Cost]
  drafter_prefill: _Cost
  verifier_prefill: _Cost
  heads: dict[int, _Cost] = dataclasses.field(default_factory=dict)
  loop_c: _Cost | None = None

  def by_clock(self, c: float) -> "Costs":
    """Returns the costs with the c that whole decodes of both models gave.

    A pass over two tokens of the drafter differs from its loop's as a pass over
    one token does, and costs no less than that one. The costs of draft heads,
    which write nothing alone, stay as they are.

    Args:
      c: seconds a token of the drafter alone over those of the verifier alone.
    """
    if self.heads:
      return self
    q2 = max(c, self.q2 + c - self.c)
    return dataclasses.replace(self, c=c, q2=q2, loop_c=self.c)

  @property
  def doubt(self) -> str | None:
    """What hot loops and whole decodes say of c, if they differ by a factor.

    None where they are within `_FAR` of each other, or where only one of them
    is known.
    """
    if self.loop_c is None:
      return None
    if 1 / _FAR <= self.c / max(self.loop_c, _TINY) <= _FAR:
      return None
    return (
      f"hot loops give c = {self.loop_c:.3g}, and whole decodes of both models"
      f" alone c = {self.c:.3g}, without the encoders and what a call costs;"
      " all that is modelled takes the latter"
    )

  def drawing(self, num_heads: int) -> float:
    """Returns the cost of drawing from the first draft heads.

    Between the numbers of heads that were measured it is interpolated, and
    beyond them it is the cost of the nearest number.

    Args:
      num_heads: the number of heads that draft a block.

    >>> Costs(1.0, 0.4, 0.4, {1: 1.0}, 0.0, 1.0, {1: 0.2, 3: 0.8}).drawing(2)
    0.5
    """
    nums = sorted(self.heads)
    costs = [self.heads[num] for num in nums]
    return float(np.interp(num_heads, nums, costs))


def predicted_speedup(
  counts: Counts,
  costs: Costs,
  *,
  width: int = 1,
  folds: bool = False,
  num_heads: int = 0,
) -> float | None:
  """Returns the speed-up over the verifier alone that calls and costs predict.

  It is the tokens divided by the cost of all calls. For full blocks of gamma
  drafts it equals the mean acceptance length divided by
  `analysis.speedup.block_cost`: (gamma - 1) c + q2 + v where the drafter's
  catch-up folds into its next call, (gamma + 1) c + v where the exact bonus
  needs a drafter call of its own. The cost of blocks that an unsure drafter cut
  short, and of sequential cascades, is the cost of the calls they made.
  Encoders are left out. Draft heads cost as much in every block, since the
  program of a round evaluates them in a first block, too, which drafts nothing.

  Forced tokens cost no call, and the call after a run of them reads the whole
  run. It is priced at q2, the only price of several tokens that is measured. As
  runs are not counted, each forced token counts as one, while there are calls.

  Args:
    counts: the run's counters.
    costs: costs measured in the same run.
    width: tokens that one verifier pass feeds: gamma + 1, or 1.
    folds: whether each block's first drafter call feeds two tokens.
    num_heads: how many heads are drawn from in a block, where the costs are
      those of draft heads.

  Returns:
    The factor; None where nothing was called, or `costs` has no `width`.
  """
  if counts.verifier_extends and width not in costs.v:
    return None
  drafting = counts.drafter_calls * costs.c
  if costs.heads:
    drafting = counts.num_blocks * costs.drawing(num_heads)
  else:
    # A call that feeds several tokens costs q2 in place of c: one of each block
    # where the catch-up folds into it, and those that read forced tokens.
    several = counts.forced + (counts.num_blocks if folds else 0)
    drafting += min(several, counts.drafter_calls) * (costs.q2 - costs.c)
  verifying = counts.verifier_extends * costs.v.get(width, 0.0)
  return ratio(counts.num_tokens, drafting + verifying)
