"""Enumerates the law of code that draws by itself, and compares it."""

from collections.abc import Callable

import numpy as np

from speccascade.judge import paths
from speccascade.judge import problems as asked
from speccascade.judge.judgement import JudgedProblem
from speccascade.judge.problems import ClaimedTarget, Law, Problem
from speccascade.judge.replaced import replaced
from speccascade.judge.scripted import NotCoveredError, RandomSource, Script

RAISED = "raises"
AT_ZERO = (
  "a uniform of exactly 0 or next to 1 (about 1 float32 number in 2**24) leads"
  " to a token of probability 0"
)
_REPEATED = "the same random number was used more than once"


def enumerated_law(
  run: Callable[[Script], tuple], race_width: int | None = None
) -> paths.EnumeratedLaw:
  """Returns the law of code that draws by itself; errors are outcomes, too.

  Args:
    run: gets the script, for draws of the judge's own, and returns tokens.
    race_width: V, to take uniforms of V columns as the noise of a race.

  Raises:
    NotCoveredError: the code cannot be enumerated.
  """
  source = RandomSource()
  source.race_width = race_width
  with replaced(source) as begin:

    def scripted_run(script: Script):
      source.script = script
      begin()
      try:
        return run(script)
      except NotCoveredError:
        raise
      except Exception as error:
        message = str(error).partition("\n")[0]
        return RAISED, f"{type(error).__name__}: {message}"

    return paths.enumerate_law(scripted_run)


def completed(
  law: Law, problem: Problem, target: ClaimedTarget | None = None
) -> Law:
  """Returns the law of `problem.num_tokens` tokens that begin with a block's.

  What a block emits is cut, or completed with the claimed chain: the law is
  that chain's exactly if the block's tokens are the chain's.
  """
  q, p = problem.tables
  pi = p if target is None else np.asarray(target(q, p))
  whole: Law = {}
  for text, chance in law.items():
    if text[:1] == (RAISED,):
      whole[text] = whole.get(text, 0.0) + chance
      continue
    last = (*problem.prompt, *text)[-1]
    if not 0 <= last < problem.vocab_size:
      whole[text] = whole.get(text, 0.0) + chance
      continue
    rest = asked.chain(pi, last, max(0, problem.num_tokens - len(text)))
    for more, share in rest.items():
      key = (*text, *more)[: problem.num_tokens]
      whole[key] = whole.get(key, 0.0) + chance * share
  return whole


def compared(
  label, law: Law, claimed: Law, tolerance, note=""
) -> JudgedProblem:
  tv = asked.distance(law, claimed)
  passed = bool(tv <= tolerance) and not note
  raised = [text for text in law if text[:1] == (RAISED,)]
  if raised:
    note = f"with probability {law[raised[0]]:.3g} it raises {raised[0][1]}"
  return JudgedProblem(label, len(claimed), tv, tolerance, None, passed, note)


def judge_by_enumeration(
  problem, run, claimed, tolerance, warnings, **completing
):
  """Returns (`JudgedProblem`, law or None)."""
  try:
    try:
      result = enumerated_law(run)
    except NotCoveredError:
      result = enumerated_law(run, race_width=problem.vocab_size)
  except NotCoveredError as error:
    num = len(claimed)
    return (
      JudgedProblem(
        problem.label, num, None, tolerance, None, False, str(error)
      ),
      None,
    )
  law = result.probs
  if completing:
    law = completed(law, problem, **completing)
  supported = set(claimed)
  for text in result.at_zero:
    # What a block emits is the beginning of a text.
    if not any(whole[: len(text)] == text[: len(whole)] for whole in supported):
      warnings.add(AT_ZERO)
  if result.repeated:
    warnings.add(_REPEATED)
  return compared(problem.label, law, claimed, tolerance), law
