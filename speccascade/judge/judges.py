"""The three judges: of a verify function, of a step, and of a whole sampler."""

from collections.abc import Callable, Iterable
import functools

import numpy as np

from speccascade.judge import intervals
from speccascade.judge import problems as asked
from speccascade.judge.causes import causes_of_sampler, causes_of_step
from speccascade.judge.enumeration import (
  AT_ZERO,
  compared,
  completed,
  failed,
  judge_by_enumeration,
)
from speccascade.judge.judged_code import (
  TIME_LIMIT_S,
  JudgedCodeError,
  tokens_of_rounds,
  tokens_of_sampler,
)
from speccascade.judge.judged_samples import judge_by_samples
from speccascade.judge.judgement import JudgedAnswer, Judgement
from speccascade.judge.problems import ClaimedTarget, Law, Problem

EXACT = 2e-6  # of code in float32
TWO_ROUNDS = Problem(
  "two rounds, V = 2, gamma 1", *asked.random_logits(2, 1), 1, 4
)


def judge_verify(
  verify: intervals.Verify,
  *,
  target: ClaimedTarget | None = None,
  tolerance: float = EXACT,
  only: str = "",
  time_limit_s: float = TIME_LIMIT_S,
) -> Judgement:
  """Judges a verify function whose uniforms are arguments, exactly.

  Args:
    verify: from (tokens [B, G], q [B, G, V], p [B, G+1, V], u_accept [B, G],
      u_draw [B]) to (num_accepted [B], token [B]): how many drafts are
      accepted, and the token after them. `rows` makes one of a function of a
      single row.
    target: the claimed distribution, a function of the rows (q, p); None is p.
    tolerance: the largest total variation that passes.
    only: the problems to ask: those whose label has this text.
    time_limit_s: seconds that one call may take.

  Raises:
    ValueError: an argument is out of its range.
  """
  _check(verify, "verify", tolerance=tolerance, time_limit_s=time_limit_s)

  def ask(problem: Problem) -> JudgedAnswer:
    claimed = problem.claimed(target)
    try:
      result = intervals.verify_law(verify, problem, time_limit_s)
    except JudgedCodeError as error:
      return JudgedAnswer(failed(problem, claimed, tolerance, error))
    note = ""
    if result.wrong_probes:
      note = (
        f"{result.wrong_probes} of {result.num_probes} random uniforms are"
        " decided otherwise: the function compares uniforms with each other"
      )
    law = completed(result.law, problem, target)
    return JudgedAnswer(
      compared(problem.label, law, claimed, tolerance, note),
      law,
      {AT_ZERO} if result.at_zero else set(),
    )

  problems = _those(only, asked.step_problems())
  return _judge(verify, problems, ask, causes_of_step, target)


def judge_step(
  step: Callable,
  *,
  target: ClaimedTarget | None = None,
  tolerance: float = EXACT,
  only: str = "",
  time_limit_s: float = TIME_LIMIT_S,
) -> Judgement:
  """Judges a verifier step that draws by itself, exactly.

  Args:
    step: from (tokens [G], q [G, V], p [G+1, V]), NumPy arrays of one row, to
      the tokens that the block emits: the accepted drafts, and one more.
    target: the claimed distribution, a function of the rows (q, p); None is p.
    tolerance: the largest total variation that passes.
    only: the problems to ask: those whose label has this text.
    time_limit_s: seconds that one call may take.

  Raises:
    ValueError: an argument is out of its range.
  """
  _check(step, "step", tolerance=tolerance, time_limit_s=time_limit_s)

  def ask(problem: Problem) -> JudgedAnswer:
    num_rounds = 2 if problem is TWO_ROUNDS else 1
    run = functools.partial(tokens_of_rounds, step, problem, num_rounds)
    claimed = problem.claimed(target)
    answer = judge_by_enumeration(
      problem,
      run,
      claimed,
      tolerance,
      time_limit_s,
      of_block=True,
      target=target,
    )
    # The distributions of known errors are those of one round.
    return answer if num_rounds == 1 else answer._replace(law=None)

  problems = _those(only, (*asked.step_problems(), TWO_ROUNDS))
  return _judge(step, problems, ask, causes_of_step, target)


def judge_sampler(
  sampler: Callable,
  *,
  settings: Iterable[str] = (),
  num_rows: int = 1,
  target: ClaimedTarget | None = None,
  claimed: Callable[[Problem], Law] | None = None,
  exact: bool = False,
  tolerance: float = EXACT,
  resolution: float = 0.05,
  false_alarm: float = 1e-3,
  batch: int | None = None,
  seed: int = 0,
  only: str = "",
  time_limit_s: float = TIME_LIMIT_S,
) -> Judgement:
  """Judges a whole sampler, by samples or by enumeration.

  Args:
    sampler: from (`Problem`, seed) to the tokens after the prompt; of a problem
      with several prompts to the tokens of each. Tokens after
      `problem.num_tokens` are dropped.
    settings: those of "temperature", "top_k" and "top_p" that it takes.
    num_rows: more than 1 if it takes problems of several prompts.
    target: the claimed distribution, a function of the rows (q, p); None is p.
    claimed: the claimed distribution of whole texts, where it is not a chain of
      targets: a function from a problem to the probability of each text.
    exact: whether its random functions are replaced, and its distribution is
      enumerated; it is sampled otherwise.
    tolerance: the largest total variation that passes an enumeration.
    resolution: the total variation that samples are to notice; the number of
      samples grows with its inverse squared.
    false_alarm: how often a right sampler may be called wrong by samples.
    batch: rows that samples are drawn in; `problem.prompts` has so many then.
      None draws row by row.
    seed: the first one.
    only: the problems to ask: those whose label has this text.
    time_limit_s: seconds that one call may take.

  Raises:
    ValueError: an argument is out of its range.
  """
  if isinstance(settings, str):
    settings = [x for x in settings.split(",") if x]
  _check(
    sampler,
    "sampler",
    num_rows=num_rows,
    tolerance=tolerance,
    resolution=resolution,
    false_alarm=false_alarm,
    batch=batch,
    seed=seed,
    time_limit_s=time_limit_s,
  )
  if batch is not None and batch < num_rows:
    raise ValueError(
      f"batch is {batch} and num_rows {num_rows}; a batch holds all rows of a"
      " problem, so batch must be num_rows or more"
    )
  wrong = set(settings) - {"temperature", "top_k", "top_p"}
  if wrong:
    raise ValueError(
      f"settings has {', '.join(sorted(wrong))}; it takes temperature, top_k"
      " and top_p"
    )
  questions = _those(only, asked.sampler_problems(tuple(settings), num_rows))
  level = false_alarm / len(questions)

  def ask(problem: Problem) -> JudgedAnswer:
    right = claimed(problem) if claimed else problem.claimed(target)
    if exact:
      run = functools.partial(tokens_of_sampler, sampler, problem, seed)
      return judge_by_enumeration(problem, run, right, tolerance, time_limit_s)
    return judge_by_samples(
      sampler,
      problem,
      right,
      resolution=resolution,
      level=level,
      batch=batch,
      seed=seed,
      time_limit_s=time_limit_s,
    )

  return _judge(sampler, questions, ask, causes_of_sampler)


def rows(verify: Callable) -> intervals.Verify:
  """Returns a verify function of many rows, for `judge_verify`.

  Args:
    verify: of one row: (tokens [G], q [G, V], p [G+1, V], u_accept [G], u_draw)
      to (num_accepted, token).
  """

  @functools.wraps(verify)
  def of_rows(*arrays):
    return tuple(np.array([verify(*row) for row in zip(*arrays)]).T)

  return of_rows


def _judge(
  code: Callable,
  problems: Iterable[Problem],
  ask: Callable[[Problem], JudgedAnswer],
  name_causes: Callable[..., tuple[str, ...]],
  *claim: ClaimedTarget | None,
) -> Judgement:
  """Asks problem after problem, and names what is wrong."""
  judged, failed, passed, warnings = [], {}, {}, set()
  for problem in problems:
    answer = ask(problem)
    judged.append(answer.line)
    warnings |= answer.warnings
    if len(judged) == 1 and answer.line.raised and answer.line.tv == 1:
      break  # Code that always fails need not be run on the others.
    if answer.law is not None:
      (passed if answer.line.passed else failed)[problem] = answer
  name = getattr(code, "__qualname__", None) or type(code).__name__
  causes = name_causes(failed, passed, *claim)
  return Judgement(name, tuple(judged), causes, tuple(sorted(warnings)))


# Argument -> (whether a value will do, what is wanted).
_RANGES: dict[str, tuple[Callable, str]] = {
  "tolerance": (lambda x: 0 < x < 1, "a number above 0 and below 1"),
  "resolution": (lambda x: 0 < x < 1, "a number above 0 and below 1"),
  "false_alarm": (lambda x: 0 < x < 1, "a number above 0 and below 1"),
  "time_limit_s": (lambda x: 0 < x < 1e6, "seconds, above 0 and below 1e6"),
  "num_rows": (lambda x: x in (1, 2), "1 or 2"),
  "batch": (lambda x: x is None or int(x) == x >= 1, "an integer above 0"),
  "seed": (lambda x: int(x) == x >= 0, "an integer, 0 or more"),
}


def _check(function, kind: str, **given):
  """Raises ValueError unless the arguments of a judge are in their ranges."""
  if not callable(function):
    raise ValueError(
      f"the {kind} is of type {type(function).__name__}; give a function"
    )
  for name, value in given.items():
    fits, wanted = _RANGES[name]
    try:
      right = bool(fits(value))
    except (TypeError, ValueError, OverflowError):
      right = False
    if not right:
      raise ValueError(f"{name} is {value!r}; wanted {wanted}")


def _those(only: str, problems: Iterable[Problem]) -> list[Problem]:
  """Returns the problems whose label has a text."""
  problems = list(problems)
  some = [problem for problem in problems if only in problem.label]
  if not some:
    labels = "; ".join(problem.label for problem in problems)
    raise ValueError(f"no problem has {only!r} in its label: {labels}")
  return some
