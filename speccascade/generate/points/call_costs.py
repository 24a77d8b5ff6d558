"""The costs of model calls: `Costs`."""

import dataclasses
from typing import Annotated

import numpy as np

from speccascade.settings import fields

_Cost = Annotated[float, fields.Bounds(0)]
# Hot loops and whole decodes agree on c up to this factor, or it is doubted.
_FAR = 2.0
_TINY = 1e-9  # keeps a c of 0 out of a denominator


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
      is here, see `by_clock`; None where c is that of hot loops.
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

  def at_most(self, other: "Costs") -> "Costs":
    """Returns the costs of a drafter that does less in a step than another one.

    Where the clock says that a step took longer, it was disturbed, and the
    step counts as long as the other drafter's.

    Args:
      other: the costs of the other drafter with the same verifier.
    """
    heads = {
      num: min(cost, other.heads.get(num, cost))
      for num, cost in self.heads.items()
    }
    c, q2 = min(self.c, other.c), min(self.q2, other.q2)
    return dataclasses.replace(self, c=c, q2=q2, heads=heads)

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
