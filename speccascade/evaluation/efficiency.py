"""What decoding cost and how well drafts fared: (counts) -> numbers.

Each name has one meaning everywhere, in result rows, tables and docs; they are
listed in docs/definitions.md. A ratio whose denominator is 0 is None: a method
without blocks has no acceptance rate.
"""

import dataclasses

import numpy as np

from speccascade.decoding.types import Decoded, Stats


@dataclasses.dataclass(frozen=True)
class Counts:
  """Counters summed over examples, on the host. G = block size, 0 if no blocks.

  Attributes:
    num_examples: examples decoded.
    num_tokens: tokens emitted, EOS included.
    num_blocks: as in `types.Stats`, like what follows.
    drafted: tokens.
    examined: drafts.
    accepted: drafts.
    deferred: positions.
    drafter_calls: passes.
    calls_by_model: passes of each of the drafter's models.
    verifier_calls: positions or blocks.
    verifier_extends: passes.
    expected_acceptance: sum over examined drafts, a float.
    accepted_at: G + 1 counts.
    examined_by_position: G counts.
    accepted_by_position: G counts.
  """

  num_examples: int
  num_tokens: int
  num_blocks: int
  drafted: int
  examined: int
  accepted: int
  deferred: int
  drafter_calls: int
  calls_by_model: tuple[int, ...]
  verifier_calls: int
  verifier_extends: int
  expected_acceptance: float
  accepted_at: tuple[int, ...]
  examined_by_position: tuple[int, ...]
  accepted_by_position: tuple[int, ...]

  def __add__(self, other: "Counts") -> "Counts":
    def add(a, b):
      if not isinstance(a, tuple):
        return a + b
      if len(a) != len(b):
        raise ValueError(
          f"counts with {len(a)} and {len(b)} entries do not add; sum each"
          " gamma and each drafter on its own"
        )
      return tuple(x + y for x, y in zip(a, b))

    return Counts(
      **{
        field.name: add(getattr(self, field.name), getattr(other, field.name))
        for field in dataclasses.fields(self)
      }
    )

  def to_dict(self) -> dict:
    """Returns plain Python numbers and lists, for JSON."""
    values = dataclasses.asdict(self).items()
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values}

  @classmethod
  def from_dict(cls, values: dict) -> "Counts":
    """Returns the counts that `to_dict` wrote."""
    return cls(**{name: _frozen(value) for name, value in values.items()})


def _frozen(value):
  return tuple(value) if isinstance(value, list) else value


def row_counts(decoded: Decoded) -> list[Counts]:
  """Returns the counts of each row of a decoded batch."""
  columns = {"num_tokens": np.asarray(decoded.lengths).tolist()}
  for field in dataclasses.fields(Stats):
    columns[field.name] = np.asarray(
      getattr(decoded.stats, field.name)
    ).tolist()
  return [
    Counts(num_examples=1, **dict(zip(columns, map(_frozen, row))))
    for row in zip(*columns.values())
  ]


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


def draft_acceptance_rate(counts: Counts) -> float | None:
  """Returns accepted draft tokens / drafted tokens.

  Drafts after a verification, an EOS or the length limit count as drafted.
  """
  return ratio(counts.accepted, counts.drafted)


def acceptance_rate(counts: Counts) -> float | None:
  """Returns accepted / examined drafts, the first rejected one being examined.

  The estimator of the acceptance parameter of the i.i.d. model.
  """
  return ratio(counts.accepted, counts.examined)


def rejection_rate(counts: Counts) -> float | None:
  """Returns 1 - `acceptance_rate`."""
  return ratio(counts.examined - counts.accepted, counts.examined)


def expected_acceptance(counts: Counts) -> float | None:
  """Returns the mean over examined drafts of sum_v min(q, pi)."""
  return ratio(counts.expected_acceptance, counts.examined)


def mean_acceptance_length(counts: Counts) -> float | None:
  """Returns emitted tokens per block, the residual or bonus token counted."""
  return ratio(counts.num_tokens, counts.num_blocks)


def acceptance_histogram(counts: Counts) -> list[int]:
  """Returns at index j the blocks in which j drafts were accepted."""
  return list(counts.accepted_at) if counts.num_blocks else []


def acceptance_by_position(counts: Counts) -> list[float | None]:
  """Returns accepted / examined of the 1st, 2nd, ... draft of a block."""
  return [
    ratio(accepted, examined)
    for accepted, examined in zip(
      counts.accepted_by_position, counts.examined_by_position
    )
  ]


def deferral_rate(counts: Counts) -> float | None:
  """Returns verifier calls / tokens emitted.

  A sequential cascade calls the verifier at each position deferred, a
  speculative method once for each block.

  Source: the axis of Narasimhan et al., arXiv:2405.19261, Figure 1.
  """
  return ratio(counts.verifier_calls, counts.num_tokens)


def rule_deferral_rate(counts: Counts) -> float | None:
  """Returns emitted positions at which the rule deferred / tokens emitted."""
  return ratio(counts.deferred, counts.num_tokens)


def summary(counts: Counts) -> dict:
  """Returns every number of this module by name."""
  return {
    "draft_acceptance_rate": draft_acceptance_rate(counts),
    "acceptance_rate": acceptance_rate(counts),
    "rejection_rate": rejection_rate(counts),
    "expected_acceptance": expected_acceptance(counts),
    "mean_acceptance_length": mean_acceptance_length(counts),
    "acceptance_histogram": acceptance_histogram(counts),
    "acceptance_by_position": acceptance_by_position(counts),
    "deferral_rate": deferral_rate(counts),
    "rule_deferral_rate": rule_deferral_rate(counts),
    "drafter_calls_per_token": ratio(counts.drafter_calls, counts.num_tokens),
    "verifier_extends_per_token": ratio(
      counts.verifier_extends, counts.num_tokens
    ),
    "tokens_per_example": ratio(counts.num_tokens, counts.num_examples),
  }


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

  verifier_step_s: float
  c: float
  q2: float
  v: dict[int, float]
  drafter_prefill: float
  verifier_prefill: float

  def to_dict(self) -> dict:
    """Returns plain numbers, for JSON (whose keys are text)."""
    values = dataclasses.asdict(self)
    return {**values, "v": {str(n): cost for n, cost in self.v.items()}}

  @classmethod
  def from_dict(cls, values: dict) -> "Costs":
    """Returns the costs that `to_dict` wrote."""
    v = {int(n): cost for n, cost in values["v"].items()}
    return cls(**{**values, "v": v})


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
