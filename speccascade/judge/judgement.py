"""What a judge says: each problem with its total variation, and the cause."""

import dataclasses


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
  """

  label: str
  num_outcomes: int
  tv: float | None
  bound: float
  num_samples: int | None
  passed: bool
  note: str = ""

  def line(self) -> str:
    """Returns a line of the table."""
    tv = "-" if self.tv is None else format(self.tv, ".6f")
    size = "all paths" if self.num_samples is None else f"{self.num_samples:,}"
    word = "right" if self.passed else "WRONG"
    if self.tv is None:
      word = "open "
    columns = f"{word}  {tv:>8} ({self.bound:.2g})  {size:>9}  {self.label}"
    return f"{columns}: {self.note}" if self.note else columns


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
    failed = [problem for problem in self.problems if not problem.passed]
    failed = [problem for problem in failed if problem.tv is not None] or failed
    return min(failed, key=lambda x: x.num_outcomes, default=None)

  @property
  def verdict(self) -> str:
    """The result in one or two sentences."""
    num = len(self.problems)
    worst = self.smallest
    if worst is None:
      return f"{self.name}: right in all {num} problems."
    if worst.tv is None:
      num_open = sum(problem.tv is None for problem in self.problems)
      return (
        f"{self.name}: not judged in {num_open} of {num} problems:"
        f" {worst.note}."
      )
    failed = sum(
      not problem.passed and problem.tv is not None for problem in self.problems
    )
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
