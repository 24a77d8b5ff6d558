"""Measures what rounds of each block size take, by the program that decodes.

A row's gamma is chosen by costs that the program is handed. Handed costs at
which all but one block size are dear, every row takes that size: so the program
itself says what its rounds take, and nothing else is compiled.
"""

from collections.abc import Callable
import dataclasses
import logging
import pathlib

import numpy as np

from speccascade.decoding.drafting.draft_pace import CATCH_UP_WIDTH
from speccascade.generate.batches.batching import Batches
from speccascade.generate.points import least_times, pass_loops
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.generate.points.point import Point
from speccascade.runtime import processes
from speccascade.runtime.progress import note
from speccascade.settings import fields

_BUDGET_S = 20.0  # no turn of the sizes begins after it
# What is timed draws other numbers than any decode: costs that knew the draws
# of a row would let its gammas know them, too.
_TRIAL = 2**31 - 1

_BatchesAt = Callable[[Point], Batches]


def priced(
  point: Point, batches_at: _BatchesAt, file: pathlib.Path | None = None
) -> Point:
  """Returns a point with the costs that its gammas are chosen by.

  Args:
    point: a point. One whose gamma is not "adaptive", or whose costs are known,
      is returned as it is.
    batches_at: returns the batches that decode at a point. The rounds of the
      first batch of their first trial are timed.
    file: the file of an earlier start of this run; None where there is none.

  Raises:
    ValueError: the file holds no costs; or the models do not fit the method.
  """
  if not point.is_adaptive or point.draft_costs is not None:
    return point
  if file is not None and processes.agree(file.exists):
    costs = processes.agree(
      lambda: dataclasses.asdict(DraftCosts.read_own(file))
    )
    return dataclasses.replace(
      point, draft_costs=fields.build(DraftCosts, costs)
    )
  note("timing rounds")
  costs = measure(point, batches_at)
  note("")
  if not costs.may_pay:
    logging.warning(
      "no gamma pays: a round of each block size takes longer than the verifier"
      " alone for the tokens that the round may write"
    )
  return dataclasses.replace(point, draft_costs=costs)


def measure(point: Point, batches_at: _BatchesAt) -> DraftCosts:
  """Returns the costs of a point's rounds, by the least of some repeats.

  Args:
    point: a point whose gamma is "adaptive".
    batches_at: as in `priced`.

  Raises:
    ValueError: the models do not fit the method.
  """
  sizes = point.sizes
  decodes, prepared = {}, None
  for size in sizes:
    costs = DraftCosts.of_one_size(size, sizes)
    batches = batches_at(dataclasses.replace(point, draft_costs=costs))
    if prepared is None:
      batches.check()
      (_, examples), *_ = batches.trials
      prepared = batches.prepare(examples[: batches.num_rows], _TRIAL)
    decodes[size] = batches.bind(prepared)
  assert prepared is not None
  inputs, sampling = prepared.inputs, point.sampling
  verifier = prepared.verifier
  drafter = pass_loops.alone(prepared.drafter, verifier, CATCH_UP_WIDTH)
  nums = {
    size: max(int(np.max(decode().stats.num_blocks)), 1)
    for size, decode in decodes.items()
  }
  calls = decodes | {
    "verifier": pass_loops.prefill_call(verifier, inputs),
    "drafter": pass_loops.prefill_call(drafter, inputs),
    "catch_up": pass_loops.pass_loop(drafter, inputs, sampling, CATCH_UP_WIDTH),
  }
  if sizes[0]:
    calls["step"] = pass_loops.pass_loop(verifier, inputs, sampling, 1)
  least_s = least_times.least_seconds(calls, budget_s=_BUDGET_S)
  prefill_s = least_s["verifier"] + least_s["drafter"]
  # (The prompt is read before any round. A prefill that was disturbed must not
  # leave nothing for the rounds.)
  seconds = {
    size: max(least_s[size] - prefill_s, least_s[size] / 2) / num
    for size, num in nums.items()
  }
  # A narrower round takes no longer than a wider one.
  narrower = np.minimum.accumulate([seconds[size] for size in sizes][::-1])
  rounds_s = narrower[::-1]
  wide_s = least_s["catch_up"] / pass_loops.PASSES
  step_s = rounds_s[0] if not sizes[0] else least_s["step"] / pass_loops.PASSES
  # All processes of a job choose by the numbers of the first.
  rounds, catch_up = processes.agree(
    lambda: ((rounds_s / step_s).tolist(), float(wide_s / step_s))
  )
  return DraftCosts(sizes, tuple(rounds), catch_up)
