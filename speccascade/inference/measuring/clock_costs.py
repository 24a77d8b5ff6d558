"""Checks the cost of a drafter step against whole decodes of both models.

Hot loops time one pass after another, and may flatter a pass that a decode does
not make alone. Where the drafter and the verifier were timed alone, on the same
examples in turns, their seconds a token say what a step of the drafter takes,
in steps of the verifier: that is the cost which counts.
"""

from collections.abc import Mapping, Sequence

from speccascade.evaluation.efficiency import Costs
from speccascade.evaluation.timing import Latency
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows.results import ResultRow

DRAFTER = "drafter"


def clock_c(drafter: Latency | None, verifier: Latency | None) -> float | None:
  """Returns a drafter step in steps of the verifier, by whole decodes.

  Args:
    drafter: of the drafter alone.
    verifier: of the verifier alone, in the same run on the same examples.

  Returns:
    The ratio of their seconds a token, in which neither an encoder nor the
    fixed cost of a call has a part; None where one of the two is not known.
  """
  if drafter is None or verifier is None:
    return None
  if drafter.token_s is None or verifier.token_s is None:
    return None
  return drafter.token_s / verifier.token_s


def checked(
  study: Study,
  alone: Point,
  costs: Costs | None,
  latencies: Mapping[Point, Latency],
  rows: Sequence[ResultRow] = (),
) -> Costs | None:
  """Returns costs with the c of whole decodes, if both models were timed.

  Args:
    study: the models, the examples and the settings of all points.
    alone: the verifier alone at the sampling.
    costs: the costs by hot loops; None, or those of draft heads, which write
      nothing alone, stay as they are.
    latencies: what was timed in turns just now.
    rows: rows of earlier turns, which count where the drafter alone was timed
      in those.
  """
  if costs is None or costs.heads:
    return costs
  drafter = alone.of(DRAFTER)
  c = clock_c(latencies.get(drafter), latencies.get(alone))
  if c is None:
    by_key = {row.key: row.latency for row in rows}
    keys = [study.settings(point).key for point in (drafter, alone)]
    c = clock_c(*map(by_key.get, keys))
  return costs if c is None else costs.by_clock(c)
