"""Names the known errors that would write what the judged code wrote."""

import functools

from speccascade.judge import known_errors
from speccascade.judge import problems as asked
from speccascade.judge.enumeration import RAISED, completed, enumerated_law
from speccascade.judge.judged_runs import tokens_of_rounds, tokens_of_sampler
from speccascade.judge.judged_samples import p_value
from speccascade.judge.problems import ClaimedTarget, Law, Problem
from speccascade.judge.scripted import NotCoveredError

_SAME = 1e-5  # two enumerated laws are one
_NUM_PASSED = 8  # problems that passed, in which an error is looked for


def causes_of_step(
  seen: dict[Problem, Law], target: ClaimedTarget | None = None
) -> tuple[str, ...]:
  """Returns the errors that have the seen laws, on two problems at most."""
  some = [x for x in seen if all(text[:1] != (RAISED,) for text in seen[x])]
  some.sort(key=lambda problem: len(seen[problem]))
  names = []
  for error in known_errors.STEP_ERRORS if some else ():
    if error.applies(some[0]) and all(
      asked.distance(_step_error_law(error, problem, target), seen[problem])
      < _SAME
      for problem in (some[0], some[-1])
    ):
      names.append(error.name)
  return tuple(names)


def _step_error_law(
  error, problem: Problem, target: ClaimedTarget | None
) -> Law:
  step = known_errors.step_of(error)
  run = functools.partial(tokens_of_rounds, step, problem, 1)
  return completed(enumerated_law(run).probs, problem, target)


@functools.lru_cache(maxsize=256)
def _sampler_error_law(error, problem: Problem) -> Law | None:
  """Returns what an error writes; None where it writes what is right."""
  if not error.applies(problem):
    return None
  run = functools.partial(
    tokens_of_sampler, known_errors.sampler_of(error), problem, 0
  )
  try:
    return enumerated_law(run).probs
  except NotCoveredError:
    return None


def causes_of_sampler(seen: dict, passed: dict) -> tuple[str, ...]:
  """Returns the errors that explain what a sampler wrote, on two problems.

  Where several errors do, those are left out that would have failed in a
  problem that the sampler passed.

  Args:
    seen: of each problem that failed, the law that the sampler wrote and the
      line of the judgement.
    passed: of each problem that passed, the right law and the line.
  """
  some = [x for x in seen if all(text[:1] != (RAISED,) for text in seen[x][0])]
  some.sort(key=lambda problem: len(seen[problem][0]))
  errors = []
  for error in known_errors.KNOWN_ERRORS if some else ():
    for problem in {some[0], some[-1]}:
      written, line = seen[problem]
      law = _sampler_error_law(error, problem)
      if law is None:
        break
      if line.num_samples is None:
        if asked.distance(law, written) >= _SAME:
          break
      elif p_value(written, law) < 1e-4:
        break
    else:
      errors.append(error)
  if len(errors) > 1:
    small = sorted(passed, key=lambda problem: len(passed[problem][0]))
    errors = [
      error
      for error in errors
      if not any(
        _would_fail(error, problem, *passed[problem])
        for problem in small[:_NUM_PASSED]
      )
    ]
  return tuple(error.name for error in errors)


def _would_fail(error, problem: Problem, right: Law, line) -> bool:
  """Returns whether a judge would have noticed an error in a problem."""
  law = _sampler_error_law(error, problem)
  return law is not None and asked.distance(law, right) > line.bound
