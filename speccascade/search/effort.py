"""How much is measured for an answer, and how its time is bounded.

On a busy machine every step takes longer, and the number of steps depends on
what earlier steps find. The search is therefore bounded by a clock. Each part
of the search has a share of the time. When a part has used its share, it ends
after the step under way, with the results that it has.
"""

from collections.abc import Callable
import dataclasses
import time
from typing import Annotated

from speccascade.runtime import processes
from speccascade.runtime.progress import ProgressBar
from speccascade.settings import fields

# Shares of the time by which a part of the search ends. The last timing has the
# rest, and is made once at least.
ALONE = 0.15  # the verifier writes its texts
DRAFTERS = 0.6  # costs of the drafters, and SpecDecode with each drafter
SEARCH = 0.9  # points that are decoded for their quality


@fields.checked
@dataclasses.dataclass(frozen=True)
class Effort:
  """How much is measured; its values are checked.

  Attributes:
    rounds: the number of rounds in which hot loops are timed.
    time_limit_s: seconds after which no step begins that can be left out.
  """

  rounds: fields.Positive = 5
  time_limit_s: Annotated[float, fields.Bounds(0, low_open=True)] = 180.0


@dataclasses.dataclass
class Budget:
  """The time that a search may take, counted from when the budget is created.

  Attributes:
    limit_s: the limit in seconds.
    clock: returns seconds, from any origin.
    share: the share of the limit by which the part under way ends.
    cut: the names of the steps that were left out for want of time.
  """

  limit_s: float
  clock: Callable[[], float] = time.monotonic
  share: float = 1.0
  cut: list[str] = dataclasses.field(default_factory=list)

  def __post_init__(self):
    self._start = self.clock()

  def is_spent(self) -> bool:
    """Returns whether the part under way has used its share.

    All processes of a job return the answer of the first process, because each
    process must take the same steps.
    """
    end = self.share * self.limit_s
    return processes.agree(lambda: self.clock() - self._start >= end)

  def leaves_out(self, step: str) -> bool:
    """Returns whether the share is used up, and if so notes the step in `cut`.

    Args:
      step: the name of the step that is left out.
    """
    is_spent = self.is_spent()
    if is_spent and step not in self.cut:
      self.cut.append(step)
    return is_spent


class Steps:
  """The steps of a search on its bar.

  A part of the search may need fewer steps than were planned for it, or more.

  Args:
    bar: a bar whose total is the number of all planned steps.
  """

  def __init__(self, bar: ProgressBar):
    self._bar, self._num_of_part = bar, 0

  def begin(self, step: str):
    """Shows the name of the step that begins."""
    self._bar.note(step)

  def end(self):
    """Counts the step that was begun."""
    self._num_of_part += 1
    self._bar.update(1)

  def end_part(self, planned: int):
    """Moves the bar to where the plan has the end of the part.

    Args:
      planned: the number of steps that were planned for the part.
    """
    missing, self._num_of_part = planned - self._num_of_part, 0
    if missing > 0:
      self._bar.update(missing)
    elif missing < 0 and not self._bar.disable:
      # The bar is past the planned place already, so its end moves instead.
      self._bar.total -= missing
