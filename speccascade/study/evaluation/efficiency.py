"""Statistics of log-probabilities, and the speed-up that counts predict.

docs/definitions.md lists what each number means. Counts and their rates are in
`decode_counts`, and the costs of calls in `call_costs`.
"""

from collections.abc import Sequence

import numpy as np

from speccascade.generate.batches.decode_counts import Counts, ratio
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point

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
  """Returns how the distribution of the tokens relates to the verifier's p.

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


def is_predictable(point: Point) -> bool:
  """Returns whether counts and costs determine the speed of a point.

  They do not where calls are of several widths: where the drafter is a cascade
  itself or drafts a tree, where rows choose their gammas, and in BiLD.
  """
  spec = point.spec
  if point.is_adaptive:
    return False
  if spec.compose is not None or (spec.has_blocks and point.is_tree):
    return False
  return spec.execution.is_predictable


def num_heads(point: Point, num_distributions: int) -> int:
  """Returns how many distributions of draft heads a block draws from.

  Args:
    point: the method and its settings.
    num_distributions: how many the drafter gives at once; 0 where it gives one
      after another.
  """
  if not point.spec.has_blocks:
    return 0
  # One head more gives the distribution after the drafts, for a target that
  # uses it; see `HeadsDrafter`.
  wanted = point.widest if point.folds else point.widest + 1
  return min(wanted, num_distributions)


def predicted_at(
  point: Point, counts: Counts, costs: Costs, num_distributions: int = 0
) -> float | None:
  """Returns the factor that counts and costs predict; None if they cannot.

  Args:
    point: the method and its settings.
    counts: the counters of a decode at the point.
    costs: the costs of the pair.
    num_distributions: as in `num_heads`.
  """
  if not is_predictable(point):
    return None
  return predicted_speedup(
    counts,
    costs,
    width=point.verify_width,
    folds=point.folds,
    num_heads=num_heads(point, num_distributions),
  )
