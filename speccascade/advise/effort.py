"""How much is measured for an answer, and how its time is bounded.

On a busy machine every step takes longer, and the number of steps follows from
what the steps find. So the whole is bounded by a clock: each part of the search
has a share of the time, and when that is spent the part ends after what is
under way, with what it has.
"""

from collections.abc import Callable
import dataclasses
import time
from typing import Annotated

from speccascade.runtime import processes
from speccascade.runtime.progress import ProgressBar
from speccascade.settings import fields

# Shares of the time by which a part of the search ends. What is timed last has
# the rest, and is timed once at least.
ALONE = 0.15  # the verifier's own texts
DRAFTERS = 0.6  # their costs, and SpecDecode with each
SEARCH = 0.9  # points that are decoded for their quality


@fields.checked
@dataclasses.dataclass(frozen=True)
class Effort:
  """How much is measured; checked when made.

  Attributes:
    rounds: in which hot loops are timed.
    time_limit_s: seconds after which no step is begun that can be left out.
  """

  rounds: fields.Positive = 5
  time_limit_s: Annotated[float, fields.Bounds(0, low_open=True)] = 180.0


@dataclasses.dataclass
class Budget:
  """The time that a search may take, from when it is made.

  Attributes:
    limit_s: seconds.
    clock: seconds, from any origin.
    share: of the limit, by which the part under way ends.
    cut: what was left out for want of time, in words.
  """

  limit_s: float
  clock: Callable[[], float] = time.monotonic
  share: float = 1.0
  cut: list[str] = dataclasses.field(default_factory=list)

  def __post_init__(self):
    self._start = self.clock()

  def is_spent(self) -> bool:
    """Whether the part under way has used its share; all processes agree."""
    end = self.share * self.limit_s
    return processes.agreed(lambda: self.clock() - self._start >= end)

  def leaves_out(self, what: str) -> bool:
    """Returns whether the share is used, and then notes what is left out."""
    is_spent = self.is_spent()
    if is_spent and what not in self.cut:
      self.cut.append(what)
    return is_spent


class Steps:
  """Steps of a search, of which a part may need fewer than planned, or more.

  Args:
    bar: whose total is the sum of all planned steps.
  """

  def __init__(self, bar: ProgressBar):
    self._bar, self._done = bar, 0

  def begin(self, what: str):
    """Says what is being done."""
    self._bar.note(what)

  def end(self):
    """Counts the step that was begun."""
    self._done += 1
    self._bar.update(1)

  def end_part(self, planned: int):
    """Lets the bar stand where the part ends that had so many steps planned."""
    more, self._done = planned - self._done, 0
    if more > 0:
      self._bar.update(more)
    elif more < 0 and not self._bar.disable:
      self._bar.total -= more
