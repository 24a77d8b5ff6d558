"""What a judge says: each problem with its total variation, and the cause."""

from collections.abc import Set
import dataclasses
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class JudgedProblem:
  """One problem that a sampler was asked.

  Attributes:
    label: what was asked.
    num_outcomes: how many outcomes the right distribution has.
    tv: the total variation of what the sampler wrote from that; None where
      the sampler could not be judged, as the note says.
    bound: the largest total variation that passes.
    num_samples: of a sampled answer; None where it was enumerated.
    passed: whether the distribution is right.
    note: what else was seen, in a few words.
    raised: whether the judged code failed: it raised, did not end, or returned
      what are not tokens.
  """

  label: str
  num_outcomes: int
  tv: float | None
  bound: float
  num_samples: int | None
  passed: bool
  note: str = ""
  raised: bool = False

  def line(self) -> str:
    """Returns a line of the table."""
    tv = "-" if self.tv is None else format(self.tv, ".6f")
    size = "all paths" if self.num_samples is None else f"{self.num_samples:,}"
    word = "right" if self.passed else "WRONG"
    if self.raised:
      word = "FAILS"
    elif self.tv is None:
      word = "open "
    columns = f"{word}  {tv:>8} ({self.bound:.2g})  {size:>9}  {self.label}"
    return f"{columns}: {self.note}" if self.note else columns


class JudgedAnswer(NamedTuple):
  """What came of one problem.

  Attributes:
    line: the line of the judgement.
    law: what the judged code wrote, as probabilities or as counted samples;
      None where that is not known.
    warnings: what does not show in a distribution, a sentence each.
  """

  line: JudgedProblem
  law: dict | None = None
  warnings: Set[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Judgement:
  """What a judge says of a sampler.

  Attributes:
    name: of the sampler.
    problems: each `JudgedProblem`, in the order in which they were asked.
    causes: names of the known errors that write the same as the sampler does
      where it is wrong; empty where none does.
    warnings: what does not show in a distribution, a sentence each.
  """

  name: str
  problems: tuple[JudgedProblem, ...]
  causes: tuple[str, ...] = ()
  warnings: tuple[str, ...] = ()

  @property
  def passed(self) -> bool:
    """Whether all distributions are right."""
    return all(problem.passed for problem in self.problems)

  @property
  def smallest(self) -> JudgedProblem | None:
    """The failing problem of the fewest outcomes; None where all passed."""
    failed = self._wrong or self._raised or self._open
    return min(failed, key=lambda x: x.num_outcomes, default=None)

  @property
  def _wrong(self) -> list[JudgedProblem]:
    return [
      x for x in self.problems if not (x.passed or x.raised or x.tv is None)
    ]

  @property
  def _raised(self) -> list[JudgedProblem]:
    return [x for x in self.problems if x.raised]

  @property
  def _open(self) -> list[JudgedProblem]:
    return [x for x in self.problems if x.tv is None]

  @property
  def exit_code(self) -> int:
    """0: right; 1: wrong in a problem; 2: the code failed; 3: not judged.

    The first of 1, 2 and 3 that holds in a problem; 0 where none does.
    """
    if self._wrong:
      return 1
    if self._raised:
      return 2
    return 3 if self._open else 0

  @property
  def verdict(self) -> str:
    """The result in one or two sentences."""
    num = len(self.problems)
    worst = self.smallest
    if worst is None:
      return f"{self.name}: right in all {num} problems."
    if self.exit_code == 3:
      return (
        f"{self.name}: not judged in {len(self._open)} of {num} problems:"
        f" {worst.note}."
      )
    if self.exit_code == 2:
      return (
        f"{self.name}: fails in {len(self._raised)} of {num} problems:"
        f" {worst.note} ({worst.label})."
      )
    failed = len(self._wrong)
    note = f" ({worst.note})" if worst.note else ""
    text = (
      f"{self.name}: WRONG in {failed} of {num} problems. The smallest:"
      f" {worst.label}, TV {worst.tv:.4f}{note}."
    )
    if self.causes:
      return f"{text} Likely cause: {'; or '.join(self.causes)}."
    return f"{text} It is none of the known errors (docs/judge.md)."

  def __str__(self) -> str:
    lines = ["       TV (bound)         samples    problem"]
    lines += [problem.line() for problem in self.problems]
    lines += [f"Note: {warning}" for warning in self.warnings]
    return "\n".join([*lines, self.verdict])

  def check(self):
    """Raises AssertionError with the table unless all passed."""
    if not self.passed:
      raise AssertionError(str(self))
