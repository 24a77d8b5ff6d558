"""Whether timings scatter so much that the answer should not be trusted.

The costs are the least of some rounds, and competitors take turns, so that work
of others does little harm while it comes and goes. Where the median round takes
much longer than the least, it does harm: the least itself was then found beside
other work.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from speccascade.evaluation.timing import CostLoops

# How much longer than the least round the median may take.
LIMIT = 0.15


def scatter(seconds: Sequence[float]) -> float | None:
  """Returns how much longer the median round took than the least.

  Args:
    seconds: of equal work, one number a round.

  Returns:
    0.1 where the median took a tenth longer; None of a single round, which
    tells nothing.

  >>> round(scatter([1.0, 1.3, 1.1, 1.2, 9.0]), 3)
  0.2
  """
  if len(seconds) < 2:
    return None
  least = float(np.min(seconds))
  return float(np.median(seconds)) / least - 1 if least > 0 else None


def of_loops(loops: CostLoops) -> dict[str, float | None]:
  """Returns the scatter of the verifier's passes, by what was passed."""
  names = {1: "a pass over a single token"}
  return {
    names.get(width, f"a pass over {width} tokens"): scatter(
      loops.seconds[f"v{width}"]
    )
    for width in loops.widths
  }


def warning(
  passes: Mapping[str, float | None], decodes: Mapping[str, float | None]
) -> str | None:
  """Returns what was seen of a busy machine, and what to do; or None.

  Args:
    passes: scatter of the verifier's hot loops, by what was passed.
    decodes: scatter of whole decodes over repeats, by what decoded.
  """
  kinds = ("passes", passes), ("whole decodes", decodes)
  if seen := [x for x in (_worst(*kind) for kind in kinds) if x]:
    return (
      "the timings scatter, as beside other work on the machine:"
      f" {'; '.join(seen)}. Costs, gamma and speed-ups may be off. Run this"
      " again on an idle machine, or with more rounds: greater ROUNDS, REPEATS"
      " and TIME_LIMIT_S"
    )
  known = [x for x in (*passes.values(), *decodes.values()) if x is not None]
  if not known:
    return (
      "each timing was made once, so that nothing tells whether other work on"
      " the machine disturbed it; a greater TIME_LIMIT_S leaves time for more"
    )
  return None


def _worst(kind: str, by_name: Mapping[str, float | None]) -> str | None:
  """Says how many timings of a kind scatter too much, and which does most."""
  known = {name: x for name, x in by_name.items() if x is not None}
  wide = [name for name, x in known.items() if x > LIMIT]
  if not wide:
    return None
  worst = max(wide, key=known.get)
  return (
    f"of {worst} the median round took {known[worst]:.0%} longer than the"
    f" least, and {len(wide)} of {len(known)} {kind} scatter by more than"
    f" {LIMIT:.0%}"
  )
