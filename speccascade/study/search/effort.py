"""How much is measured for an answer, and how its time is bounded.

On a busy machine every step takes longer, and the number of steps depends on
what earlier steps find. The search is therefore bounded by a clock. Each part
of the search has a share of the time. When a part has used its share, it ends
after the step under way, with the results that it has. What an answer cannot do
without is measured once all the same, and nothing begins after the whole limit.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import math
import time
from typing import Annotated

from speccascade.runtime import processes
from speccascade.runtime.progress import ProgressBar
from speccascade.settings import fields


@fields.checked
@dataclasses.dataclass(frozen=True)
class Effort:
  """How much is measured; its values are checked.

  Attributes:
    rounds: the number of rounds in which hot loops are timed.
    time_limit_s: seconds after which nothing begins: neither a compilation nor
      a decode.
  """

  rounds: fields.Positive = 5
  time_limit_s: Annotated[float, fields.Bounds(0, low_open=True)] = 180.0

  @contextlib.contextmanager
  def begin(self, name: str, num: int, progress: bool) -> Iterator["Steps"]:
    """Yields the steps of a search, whose time begins here.

    Args:
      name: the name of the search.
      num: the number of all planned steps.
      progress: whether to show a bar.
    """
    with ProgressBar(
      total=num,
      desc=name,
      unit="step",
      disable=not progress,
      limit_s=self.time_limit_s,
    ) as bar:
      yield Steps(bar, Budget(self.time_limit_s))


class TimeIsUp(Exception):
  """The time of a search was over before a step that it needs."""


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
    if self.limit_s == math.inf:
      return False
    end = self.share * self.limit_s
    return processes.agree(lambda: self.clock() - self._start >= end)

  def is_over(self) -> bool:
    """Returns whether the whole limit is past, so that nothing may begin."""
    if self.limit_s == math.inf:
      return False
    return processes.agree(lambda: self.clock() - self._start >= self.limit_s)

  def leaves_out(self, step: str, *, is_needed: bool = False) -> bool:
    """Returns whether a step may not begin, and if so notes it in `cut`.

    Args:
      step: the name of the step.
      is_needed: whether an answer needs the step. It then may begin after the
        share of the part under way, and not after the limit.
    """
    is_left_out = self.is_over() if is_needed else self.is_spent()
    if is_left_out and step not in self.cut:
      self.cut.append(step)
    return is_left_out

  def begin(self, step: str):
    """Raises TimeIsUp where a step that an answer needs may not begin."""
    if self.leaves_out(step, is_needed=True):
      raise TimeIsUp(step)

  def tick_of(self, step: str) -> Callable[[int], None]:
    """Returns a `Tick` that ends a step before another compilation begins."""

    def tick(num: int):
      # A compilation ticks with 0, a decode with 1 or more.
      if num == 0:
        self.begin(step)

    return tick

  def warning(self) -> str | None:
    """Returns the sentence that says what was left out, or None."""
    if not self.cut:
      return None
    return (
      f"TIME_LIMIT_S of {self.limit_s:g} s left out {', '.join(self.cut)}: what"
      " was left out may be faster; give more time, or an idle machine"
    )


class Steps:
  """The steps of a search on its bar, none of which begins after the limit.

  A part of the search may need fewer steps than were planned for it, or more.

  Args:
    bar: a bar whose total is the number of all planned steps.
    budget: the time that the search may take; it is an attribute, too.
  """

  def __init__(self, bar: ProgressBar, budget: Budget):
    self.budget = budget
    self._bar, self._num_of_part = bar, 0

  @contextlib.contextmanager
  def step(self, name: str) -> Iterator[None]:
    """Shows the name of the step inside, and counts the step.

    Raises:
      TimeIsUp: the time is over, so that the step may not begin.
    """
    self.budget.begin(name)
    self._bar.note(name)
    yield
    self._num_of_part += 1
    self._bar.update(1)

  @contextlib.contextmanager
  def uncounted(self, name: str) -> Iterator[None]:
    """Shows the name of what is inside, as `step` does; the bar stays."""
    self.budget.begin(name)
    self._bar.note(name)
    yield

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
