"""What decoding cost and how well drafts fared: (counts) -> numbers.

Each name has one meaning everywhere, in result rows, tables and docs; they are
listed in docs/definitions.md. A ratio whose denominator is 0 is None: a method
without blocks has no acceptance rate.
"""

from collections.abc import Sequence
import dataclasses
import operator
from typing import Annotated

import numpy as np

from speccascade.decoding.types import Decoded
from speccascade.settings import fields

_Cost = Annotated[float, fields.Bounds(0)]


@dataclasses.dataclass(frozen=True)
class Counts:
  """Counters summed over examples, on the host: those of `types.Stats`, and

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

  def __post_init__(self):
    fields.freeze(self)

  def __add__(self, other: "Counts") -> "Counts":
    sums = {}
    for name, ours in vars(self).items():
      theirs = getattr(other, name)
      if not isinstance(ours, tuple):
        sums[name] = ours + theirs
      elif len(ours) == len(theirs):
        sums[name] = tuple(map(operator.add, ours, theirs))
      else:
        raise ValueError(
          f"counts with {len(ours)} and {len(theirs)} entries do not add; sum"
          " each gamma and each drafter on its own"
        )
    return Counts(**sums)


def row_counts(decoded: Decoded) -> list[Counts]:
  """Returns the counts of each row of a decoded batch."""
  columns = {**vars(decoded.stats), "num_tokens": decoded.lengths}
  values = [np.asarray(column).tolist() for column in columns.values()]
  return [Counts(1, **dict(zip(columns, row))) for row in zip(*values)]


def total(counts: list[Counts]) -> Counts:
  """Returns the sum of one or more counts.

  Raises:
    ValueError: there are none.
  """
  if not counts:
    raise ValueError("no examples were decoded; there is nothing to sum")
  first, *rest = counts
  return sum(rest, start=first)


def ratio(numerator: float, denominator: float) -> float | None:
  """Returns numerator / denominator, None where the denominator is 0."""
  return numerator / denominator if denominator else None


def summary(counts: Counts) -> dict:
  """Returns what counts tell, by name.

  draft_acceptance_rate: accepted draft tokens / drafted tokens. Drafts after a
    verification, an EOS or the length limit count as drafted.
  acceptance_rate: accepted / examined drafts, the first rejected one being
    examined; the estimator of the acceptance parameter of the i.i.d. model.
  rejection_rate: 1 - acceptance_rate.
  expected_acceptance: the mean over examined drafts of sum_v min(q, pi).
  mean_acceptance_length: emitted tokens per block, the residual or bonus token
    counted.
  acceptance_histogram: at index j the blocks in which j drafts were accepted.
  acceptance_by_position: accepted / examined of the 1st, 2nd, ... draft of a
    block.
  deferral_rate: verifier calls / tokens emitted. A sequential cascade calls the
    verifier at each position deferred, a speculative method once for each
    block. It is the axis of Narasimhan et al., arXiv:2405.19261, Figure 1.
  rule_deferral_rate: emitted positions at which the rule deferred / tokens
    emitted.
  drafter_calls_per_token, verifier_extends_per_token: passes / tokens emitted.
  tokens_per_example: tokens emitted / examples.
  """
  c = counts
  positions = zip(c.accepted_by_position, c.examined_by_position)
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
  }


def mean_log_probs(parts: Sequence[dict]) -> dict[str, float | None] | None:
  """Returns means over the tokens at which each law is known, in nats.

  None stands for a law that is known nowhere, and for one that gives some token
  nothing: its mean is no number.

  Args:
    parts: of each the fields of `types.LogProbs`, arrays or lists with None for
      NaN; none, where nothing was recorded, give None.
  """

  def mean(name):
    values = [np.asarray(part[name], float).ravel() for part in parts]
    values = np.concatenate(values)
    total, num = float(np.nansum(values)), int(np.sum(~np.isnan(values)))
    return ratio(total, num) if np.isfinite(total) else None

  return {name: mean(name) for name in parts[0]} if parts else None


@dataclasses.dataclass(frozen=True)
class Costs:
  """What calls cost, in units of one single-token verifier step.

  Attributes:
    verifier_step_s: that unit, in seconds.
    c: one single-token drafter step.
    q2: the drafter's block of two tokens.
    v: the verifier's block of N tokens, by N.
    drafter_prefill: encoding one source, drafter.
    verifier_prefill: encoding one source, verifier.
  """

  verifier_step_s: _Cost
  c: _Cost
  q2: _Cost
  v: dict[int, _Cost]
  drafter_prefill: _Cost
  verifier_prefill: _Cost


def predicted_speedup(
  counts: Counts, costs: Costs, *, width: int = 1, folds: bool = False
) -> float | None:
  """Returns tokens / cost of the calls made: the speed-up over the verifier.

  For a full block of gamma drafts this is mean_acceptance_length over
  (gamma - 1) c + q2 + v where the drafter's catch-up folds into its next call,
  and over (gamma + 1) c + v where the exact bonus asks for its own call
  (`analysis.speedup.block_cost`); blocks cut short by an unsure drafter and
  sequential cascades cost what they called. Encoders are left out.

  Args:
    counts: the run's counters.
    costs: measured in the same run.
    width: tokens that one verifier pass feeds: gamma + 1, or 1.
    folds: whether each block's first drafter call feeds two tokens.

  Returns:
    The factor; None where nothing was called, or `costs` lack `width`.
  """
  if counts.verifier_extends and width not in costs.v:
    return None
  drafting = counts.drafter_calls * costs.c
  if folds:
    drafting += counts.num_blocks * (costs.q2 - costs.c)
  verifying = counts.verifier_extends * costs.v.get(width, 0.0)
  return ratio(counts.num_tokens, drafting + verifying)
