"""Enumerates the distribution of code that draws by itself, and compares it."""

from collections.abc import Callable
import itertools

from speccascade.judge import paths
from speccascade.judge import problems as asked
from speccascade.judge.judged_code import (
  TIME_LIMIT_S,
  JudgedCodeError,
  failure,
  limited,
)
from speccascade.judge.judgement import JudgedAnswer, JudgedProblem
from speccascade.judge.problems import ClaimedTarget, Law, Problem
from speccascade.judge.replaced import SOURCE, replaced
from speccascade.judge.scripted import NotCoveredError, Script

RAISED = "raises"
AT_ZERO = (
  "a uniform of exactly 0 or next to 1 (about 1 float32 number in 2**24) leads"
  " to a token of probability 0"
)
_REPEATED = "the same random number was used more than once"


def enumerated_law(
  run: Callable[[Script], tuple],
  race_width: int | None = None,
  time_limit_s: float = TIME_LIMIT_S,
) -> paths.EnumeratedLaw:
  """Returns the distribution of code that draws by itself; errors are outcomes,
  too.

  Args:
    run: gets the script, for draws of the judge's own, and returns tokens.
    race_width: V, to take uniforms of V columns as the noise of a race.
    time_limit_s: seconds that a run may take.

  Raises:
    JudgedCodeError: a run took longer.
    NotCoveredError: the code cannot be enumerated.
  """
  source, seeds = SOURCE, itertools.count()
  source.race_width = race_width
  with replaced(source) as begin:

    def scripted_run(script: Script):
      source.script = script
      begin(next(seeds))
      source.active = True
      try:
        with limited(time_limit_s):
          return run(script)
      except (NotCoveredError, JudgedCodeError):
        raise
      except (Exception, SystemExit) as error:
        return RAISED, failure(error)
      finally:
        source.active = False

    return paths.enumerate_law(scripted_run)


def completed(
  law: Law, problem: Problem, target: ClaimedTarget | None = None
) -> Law:
  """Returns the distribution of `problem.num_tokens` tokens that begin with a
  block's.

  What a block emits is truncated, or completed with the claimed chain: the
  distribution is that chain's exactly if the block's tokens are the chain's.
  """
  pi = problem.targets(target)
  whole: Law = {}
  for text, chance in law.items():
    if text[:1] == (RAISED,):
      whole[text] = whole.get(text, 0.0) + chance
      continue
    if not 0 <= text[-1] < problem.vocab_size:
      whole[text] = whole.get(text, 0.0) + chance
      continue
    before = (*problem.prompt, *text)
    rest = asked.chain(pi, before, max(0, problem.num_tokens - len(text)))
    for more, share in rest.items():
      key = (*text, *more)[: problem.num_tokens]
      whole[key] = whole.get(key, 0.0) + chance * share
  return whole


def failed(problem, claimed, bound, error) -> JudgedProblem:
  """Returns the line of a problem in which the judged code failed for good."""
  num = len(claimed)
  return JudgedProblem(
    problem.label, num, 1.0, bound, None, False, str(error), True
  )


def compared(
  label, law: Law, claimed: Law, tolerance, note=""
) -> JudgedProblem:
  tv = asked.distance(law, claimed)
  passed = bool(tv <= tolerance) and not note
  raised = [text for text in law if text[:1] == (RAISED,)]
  if raised:
    note = f"with probability {law[raised[0]]:.3g} it raises {raised[0][1]}"
  return JudgedProblem(
    label, len(claimed), tv, tolerance, None, passed, note, bool(raised)
  )


def judge_by_enumeration(
  problem: Problem,
  run: Callable[[Script], tuple],
  claimed: Law,
  tolerance: float,
  time_limit_s: float,
  *,
  of_block: bool = False,
  target: ClaimedTarget | None = None,
) -> JudgedAnswer:
  """Judges code by all its paths; what a block emits is completed."""
  limit = {"time_limit_s": time_limit_s}
  try:
    try:
      result = enumerated_law(run, **limit)
    except NotCoveredError:
      result = enumerated_law(run, race_width=problem.vocab_size, **limit)
  except JudgedCodeError as error:
    return JudgedAnswer(failed(problem, claimed, tolerance, error))
  except NotCoveredError as error:
    num = len(claimed)
    return JudgedAnswer(
      JudgedProblem(
        problem.label, num, None, tolerance, None, False, str(error)
      )
    )
  law = completed(result.probs, problem, target) if of_block else result.probs
  warnings = set()
  for text in result.at_zero:
    # What a block emits is the beginning of a text.
    if not any(whole[: len(text)] == text[: len(whole)] for whole in claimed):
      warnings.add(AT_ZERO)
  if result.repeated:
    warnings.add(_REPEATED)
  line = compared(problem.label, law, claimed, tolerance)
  return JudgedAnswer(line, law, warnings)
