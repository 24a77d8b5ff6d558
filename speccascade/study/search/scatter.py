"""Whether timings are too noisy for the answer to be trusted.

Costs are the minimum of several rounds, and competitors take turns, so other
work on the machine does little harm while it comes and goes. Where the median
round took much longer than the fastest, the fastest was probably disturbed too.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from speccascade.study.evaluation.timing import CostLoops

# How much longer than the fastest round the median round may take.
LIMIT = 0.15


def scatter(seconds: Sequence[float]) -> float | None:
  """Returns how much longer the median round took than the least round.

  Args:
    seconds: the seconds that equal work took in each round.

  Returns:
    0.1 where the median round took a tenth longer. None where there is one
    round.

  >>> round(scatter([1.0, 1.3, 1.1, 1.2, 9.0]), 3)
  0.2
  """
  if len(seconds) < 2:
    return None
  least = float(np.min(seconds))
  return float(np.median(seconds)) / least - 1 if least > 0 else None


def scatter_of_loops(loops: CostLoops) -> dict[str, float | None]:
  """Returns the scatter of the verifier's passes, by the name of the pass."""
  by_pass = {}
  for width in loops.widths:
    name = f"a pass over {width} tokens"
    if width == 1:
      name = "a pass over a single token"
    by_pass[name] = scatter(loops.seconds[f"v{width}"])
  return by_pass


def warning(
  passes: Mapping[str, float | None], decodes: Mapping[str, float | None]
) -> str | None:
  """Returns the signs of a busy machine and what to do about it, or None.

  Args:
    passes: the scatter of the verifier's hot loops, by the name of the pass.
    decodes: the scatter of whole decodes over repeats, by the name of the
      point.
  """
  faults = [
    _describe_worst("passes", passes),
    _describe_worst("whole decodes", decodes),
  ]
  faults = [fault for fault in faults if fault is not None]
  if faults:
    return (
      f"timing noise, as from other work on the machine: {'; '.join(faults)}."
      " Costs, gamma and speed-ups may be off. Run this again on an idle"
      " machine, or raise ROUNDS, REPEATS and TIME_LIMIT_S"
    )
  scatters = [*passes.values(), *decodes.values()]
  if all(value is None for value in scatters):
    return (
      "everything was timed once, so timing noise is unknown; raise"
      " TIME_LIMIT_S for more rounds"
    )
  return None


def _describe_worst(
  kind: str, by_name: Mapping[str, float | None]
) -> str | None:
  """Returns how many timings of a kind scatter too much, and which most."""
  known = {name: x for name, x in by_name.items() if x is not None}
  wide = [name for name, x in known.items() if x > LIMIT]
  if not wide:
    return None
  worst = max(wide, key=known.get)
  return (
    f"median {1 + known[worst]:.3g}x the minimum for {worst}; over"
    f" {1 + LIMIT:g}x for {len(wide)} of {len(known)} {kind}"
  )
