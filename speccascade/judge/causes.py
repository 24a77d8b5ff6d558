"""Names the known errors that would write what the judged code wrote."""

import functools

from speccascade.judge import known_errors
from speccascade.judge import problems as asked
from speccascade.judge.enumeration import RAISED, completed, enumerated_law
from speccascade.judge.judged_code import tokens_of_rounds, tokens_of_sampler
from speccascade.judge.judged_samples import p_value
from speccascade.judge.judgement import JudgedAnswer
from speccascade.judge.problems import ClaimedTarget, Law, Problem
from speccascade.judge.scripted import NotCoveredError

_SAME = 1e-5  # two enumerated distributions are one
_FITS = 1e-4  # samples are of a distribution whose p-value is at least so much


def causes_of_step(
  failed: dict[Problem, JudgedAnswer],
  passed: dict[Problem, JudgedAnswer],
  target: ClaimedTarget | None = None,
) -> tuple[str, ...]:
  """Returns the errors that have the distributions of a step.

  An error has the distribution of the smallest failed problem and of the
  largest, and those of all problems that passed.

  Args:
    failed: the problems that failed, with their enumerated distributions.
    passed: the problems that passed.
    target: the claimed distribution.
  """
  some = _smallest_and_largest(failed)
  names = []
  for error in known_errors.STEP_ERRORS if some else ():
    asked_in_turn = {x: failed[x] for x in some} | passed
    if error.applies(some[0]) and all(
      asked.distance(_step_error_law(error, problem, target), answer.law)
      < _SAME
      for problem, answer in asked_in_turn.items()
    ):
      names.append(error.name)
  return tuple(names)


def _smallest_and_largest(failed: dict[Problem, JudgedAnswer]) -> list[Problem]:
  """Returns two of the problems in which no run raised; none if there are."""
  some = [
    problem
    for problem, answer in failed.items()
    if all(text[:1] != (RAISED,) for text in answer.law)
  ]
  some.sort(key=lambda problem: len(failed[problem].law))
  return list(dict.fromkeys((some[0], some[-1]))) if some else []


def _step_error_law(
  error, problem: Problem, target: ClaimedTarget | None
) -> Law:
  step = known_errors.step_of(error)
  run = functools.partial(tokens_of_rounds, step, problem, 1)
  return completed(enumerated_law(run).probs, problem, target)


@functools.lru_cache(maxsize=1024)
def _sampler_error_law(error, problem: Problem) -> Law | None:
  """Returns what an error writes; None where that is not known."""
  # Where the error has no effect, that is what is right.
  if not error.applies(problem):
    return problem.claimed()
  if problem.num_tokens > error.most_tokens:
    return None
  run = functools.partial(
    tokens_of_sampler, known_errors.sampler_of(error), problem, 0
  )
  try:
    return enumerated_law(run).probs
  except NotCoveredError:
    return None


def causes_of_sampler(
  failed: dict[Problem, JudgedAnswer], passed: dict[Problem, JudgedAnswer]
) -> tuple[str, ...]:
  """Returns the errors that explain what a sampler wrote.

  An error writes the same in the smallest failed problem and in the largest,
  and in all problems that passed.

  Args:
    failed: the problems that failed, with what the sampler wrote: a
      distribution, or counted samples.
    passed: the problems that passed.
  """
  some = _smallest_and_largest(failed)
  answers = failed | passed
  # Small ones first: the distributions of errors are enumerated fast there.
  asked_in_turn = sorted(
    [*some, *passed], key=lambda x: (x.gamma, x.num_tokens, x.vocab_size)
  )
  names = []
  for error in known_errors.KNOWN_ERRORS if some else ():
    for form in error.variants():
      if (
        form.applies(some[0])
        and _sampler_error_law(form, some[0]) is not None
        and not any(_refutes(form, x, answers[x]) for x in asked_in_turn)
      ):
        names.append(error.name)
        break
  return tuple(names)


def _refutes(error, problem: Problem, answer: JudgedAnswer) -> bool:
  """Returns whether an error would have written something else."""
  law = _sampler_error_law(error, problem)
  if law is None:
    return False
  if answer.line.num_samples is None:
    return asked.distance(law, answer.law) >= _SAME
  return p_value(answer.law, law) < _FITS
