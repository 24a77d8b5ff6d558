"""The counters of a decode, and the rates computed from them.

Each rate has one name and one meaning in result rows, tables and docs;
docs/definitions.md lists them. A ratio with the denominator 0 is None: a method
without blocks has no acceptance rate.
"""

from collections.abc import Sequence
import dataclasses
from typing import Annotated, Any

import numpy as np

from speccascade.decoding.laws.phases import BY_PHASE
from speccascade.decoding.records.block_records import Decoded
from speccascade.settings import fields

_OF_SOME = ("accepted_by_rank", *BY_PHASE)  # not of every decode
# Younger than the first files.
LEFT_OUT = ("forced", "past_window", *BY_PHASE, "marked")


@dataclasses.dataclass(frozen=True)
class Counts:
  """Counters summed over examples, on the host.

  The other counters than these have the names and meanings of
  `block_records.Stats`; the tuples are its arrays of one row.

  Counters that a method does not have are empty.

  Attributes:
    num_examples: examples decoded.
    num_tokens: tokens emitted, EOS included.
    marked: examples with a token after the marker.
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
  past_window: fields.Count = 0
  tokens_by_phase: tuple[fields.Count, ...] = ()
  examined_by_phase: tuple[fields.Count, ...] = ()
  accepted_by_phase: tuple[fields.Count, ...] = ()
  marked: fields.Count = 0

  def __post_init__(self):
    fields.freeze(self)

  @property
  def _knows_optimum(self) -> bool:
    """Whether the optimum is known of every block that examined a draft."""
    return self.optimal_acceptance > 0 or not any(self.examined_by_position[:1])

  def to_dict(self) -> dict[str, Any]:
    """Returns the counters by name, without some that are 0."""
    values = dataclasses.asdict(self)
    for name in LEFT_OUT:
      if not values[name]:
        del values[name]
    return values

  def __add__(self, other: "Counts") -> "Counts":
    """Returns the sums of both counters, entry by entry.

    Raises:
      ValueError: the counts come from different gammas or numbers of models.
    """
    sums = {
      name: _sum(value, getattr(other, name))
      for name, value in vars(self).items()
      if name not in (*_OF_SOME, "optimal_acceptance")
    }
    # Counts that were written without these counters lack them, and so does a
    # sum with them.
    for name in _OF_SOME:
      both = getattr(self, name), getattr(other, name)
      if all(both):
        sums[name] = _sum(*both)
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
  if (by_phase := columns.get("tokens_by_phase")) is not None:
    columns["marked"] = (np.asarray(by_phase)[:, 1] > 0).astype(int)
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


def summary(counts: Counts, *, adaptive: bool = False) -> dict:
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
  forced_rate: tokens that were not drafted, since a mask allowed no other /
    tokens emitted. Only texts with such tokens have it.
  past_window_rate: blocks without drafts past the window of the drafter /
    blocks. Only texts with such blocks have it.
  drafter_calls_per_token: passes of the drafter / tokens emitted.
  verifier_extends_per_token: passes of the verifier / tokens emitted.
  tokens_per_example: tokens emitted / examples.
  tokens_by_phase: tokens emitted before the marker, and after it / examples.
    Only texts with phases of alpha have it and the next two rates.
  acceptance_rate_by_phase: accepted drafts / examined drafts, of each phase.
  marked_rate: examples with a token after the marker / examples.
  mean_gamma: drafted tokens / blocks. Only an adaptive gamma has this mean.

  Args:
    counts: the counts.
    adaptive: whether each block chose how many tokens it drafts.
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
  if adaptive:
    others["mean_gamma"] = ratio(c.drafted, c.num_blocks)
  if c.forced:
    others["forced_rate"] = ratio(c.forced, c.num_tokens)
  if c.tokens_by_phase:
    phases = zip(c.accepted_by_phase, c.examined_by_phase)
    others["tokens_by_phase"] = [
      ratio(num, c.num_examples) for num in c.tokens_by_phase
    ]
    others["acceptance_rate_by_phase"] = [ratio(*phase) for phase in phases]
    others["marked_rate"] = ratio(c.marked, c.num_examples)
  if c.past_window:
    others["past_window_rate"] = ratio(c.past_window, c.num_blocks)
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
