"""The three judges: of a verify function, of a step, and of a whole sampler."""

import collections
from collections.abc import Callable, Iterable
import dataclasses
import functools

import numpy as np

from speccascade.judge import goodness, intervals, known_errors, paths
from speccascade.judge import problems as asked
from speccascade.judge.judgement import JudgedProblem, Judgement
from speccascade.judge.problems import ClaimedTarget, Law, Problem
from speccascade.judge.replaced import replaced
from speccascade.judge.scripted import NotCoveredError, RandomSource, Script

EXACT = 2e-6  # of code in float32
SAME = 1e-5  # two enumerated laws are one
RAISED = "raises"

_AT_ZERO = (
  "a uniform of exactly 0 or next to 1 (about 1 float32 number in 2**24) leads"
  " to a token of probability 0"
)
_REPEATED = "the same random number was used more than once"


def judge_verify(
  verify: intervals.Verify,
  *,
  target: ClaimedTarget | None = None,
  tolerance: float = EXACT,
  only: str = "",
) -> Judgement:
  """Judges a verify function whose uniforms are arguments, exactly.

  Args:
    verify: from (tokens [B, G], q [B, G, V], p [B, G+1, V], u_accept [B, G],
      u_draw [B]) to (num_accepted [B], token [B]): how many drafts stand, and
      the token after them. `rows` makes one of a function of a single row.
    target: the claimed distribution, a function of the rows (q, p); None is p.
    tolerance: the largest total variation that passes.
    only: the problems to ask: those whose label has this text.
  """
  judged, seen, warnings = [], {}, set()
  for problem in _those(only, asked.step_problems()):
    result = intervals.verify_law(verify, problem)
    note = ""
    if result.wrong_probes:
      note = (
        f"{result.wrong_probes} of {result.num_probes} random uniforms are"
        " decided otherwise: the function compares uniforms with each other"
      )
    if result.at_zero:
      warnings.add(_AT_ZERO)
    claimed = problem.claimed(target)
    law = completed(result.law, problem, target)
    line = _exact(problem.label, law, claimed, tolerance, note)
    judged.append(line)
    if not line.passed:
      seen[problem] = law
  causes = _causes(seen, functools.partial(_step_error_law, target=target))
  return _judgement(verify, judged, causes, warnings)


def judge_step(
  step: Callable,
  *,
  target: ClaimedTarget | None = None,
  tolerance: float = EXACT,
  only: str = "",
) -> Judgement:
  """Judges a verifier step that draws by itself, exactly.

  Args:
    step: from (tokens [G], q [G, V], p [G+1, V]), NumPy arrays of one row, to
      the tokens that the block emits: the accepted drafts, and one more.
    target: the claimed distribution, a function of the rows (q, p); None is p.
    tolerance: the largest total variation that passes.
    only: the problems to ask: those whose label has this text.
  """
  judged, seen, warnings = [], {}, set()
  for problem in _those(only, (*asked.step_problems(), TWO_ROUNDS)):
    num_rounds = 2 if problem is TWO_ROUNDS else 1
    claimed = problem.claimed(target)
    run = functools.partial(_rounds, step, problem, num_rounds)
    line, law = _enumerated(
      problem, run, claimed, tolerance, warnings, target=target
    )
    judged.append(line)
    if not line.passed and law is not None and num_rounds == 1:
      seen[problem] = law
  causes = _causes(seen, functools.partial(_step_error_law, target=target))
  return _judgement(step, judged, causes, warnings)


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
) -> Judgement:
  """Judges a whole sampler, by samples or by enumeration.

  Args:
    sampler: from (`Problem`, seed) to the tokens after the prompt; of a problem
      with several prompts to the tokens of each. Tokens after
      `problem.num_tokens` are cut.
    settings: those of "temperature", "top_k" and "top_p" that it takes.
    num_rows: more than 1 if it takes problems of several prompts.
    target: the claimed distribution, a function of the rows (q, p); None is p.
    claimed: the claimed distribution of whole texts, where it is no chain of
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
  """
  wrong = set(settings) - {"temperature", "top_k", "top_p"}
  if wrong:
    raise ValueError(
      f"settings has {', '.join(sorted(wrong))}; it takes temperature, top_k"
      " and top_p"
    )
  questions = _those(only, asked.sampler_problems(tuple(settings), num_rows))
  judged, seen, warnings = [], {}, set()
  for problem in questions:
    right = claimed(problem) if claimed else problem.claimed(target)
    if exact:
      run = functools.partial(_whole, sampler, problem, seed)
      line, law = _enumerated(problem, run, right, tolerance, warnings)
    else:
      level = false_alarm / len(questions)
      line, law = _sampled(
        sampler, problem, right, resolution, level, batch, seed
      )
    judged.append(line)
    if not line.passed and law is not None:
      seen[problem] = law, line
  causes = _sampler_causes(seen)
  return _judgement(sampler, judged, causes, warnings)


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


def _judgement(of, judged, causes, warnings) -> Judgement:
  name = getattr(of, "__qualname__", None) or type(of).__name__
  return Judgement(name, tuple(judged), causes, tuple(sorted(warnings)))


def _exact(label, law: Law, claimed: Law, tolerance, note="") -> JudgedProblem:
  tv = asked.distance(law, claimed)
  passed = bool(tv <= tolerance) and not note
  raised = [text for text in law if text[:1] == (RAISED,)]
  if raised:
    note = f"with probability {law[raised[0]]:.3g} it raises {raised[0][1]}"
  return JudgedProblem(label, len(claimed), tv, tolerance, None, passed, note)


# A step, and code that draws by itself.


TWO_ROUNDS = Problem(
  "two rounds, V = 2, gamma 1", *asked.random_logits(2, 1), 1, 4
)


def _those(only: str, problems: Iterable[Problem]) -> list[Problem]:
  """Returns the problems whose label has a text."""
  problems = list(problems)
  some = [problem for problem in problems if only in problem.label]
  if not some:
    labels = "; ".join(problem.label for problem in problems)
    raise ValueError(f"no problem has {only!r} in its label: {labels}")
  return some


def tokens_of(what) -> tuple:
  """Returns a tuple of integers from a list, an array or a tensor.

  Raises:
    ValueError: it is no list of tokens.
  """
  if hasattr(what, "detach"):
    what = what.detach().cpu().numpy()
  array = np.asarray(what)
  if array.dtype.kind not in "iu":
    raise ValueError(
      f"tokens are of type {array.dtype}; return a list or an array of integers"
    )
  return tuple(array.reshape(-1).tolist())


def _rounds(step, problem: Problem, num_rounds: int, script: Script) -> tuple:
  """Returns the tokens of some rounds, whose drafts the judge draws."""
  q_table, p_table = problem.tables
  text: list[int] = list(problem.prompt)
  for block in range(num_rounds):
    drafts: list[int] = []
    path = [text[-1]]
    for i in range(problem.gamma):
      state = ("drafts of the judge", block, i)
      drafts.append(script.choice(state, q_table[path[-1]].tolist()))
      path.append(drafts[-1])
    q, p = q_table[path[:-1]], p_table[path]
    emitted = tokens_of(step(np.array(drafts), q.copy(), p.copy()))
    if not 1 <= len(emitted) <= problem.gamma + 1:
      raise ValueError(
        f"a block of {problem.gamma} drafts emits {len(emitted)} tokens"
      )
    if not all(0 <= token < problem.vocab_size for token in emitted):
      raise ValueError(f"{emitted} has tokens outside the vocabulary")
    text += emitted
  return tuple(text[len(problem.prompt) :])


def _whole(sampler, problem: Problem, seed: int, script: Script) -> tuple:
  """Returns the tokens of a sampler."""
  return _texts(sampler(problem, seed), problem)


def _texts(written, problem: Problem) -> tuple:
  """Returns the text of the row, or the texts of the rows, cut."""
  several = len(problem.prompts) > 1
  texts = (
    [tokens_of(row) for row in written] if several else [tokens_of(written)]
  )
  for text in texts:
    if len(text) < problem.num_tokens:
      raise ValueError(
        f"the sampler wrote {len(text)} tokens of {problem.num_tokens}"
      )
  cut = tuple(text[: problem.num_tokens] for text in texts)
  return cut if several else cut[0]


def _count(written, problem: Problem, num_rows: int) -> dict[tuple, int]:
  """Returns how often a batch has each text, or each tuple of texts."""
  texts = np.array([text[: problem.num_tokens] for text in written])
  if texts.shape != (len(problem.prompts), problem.num_tokens):
    raise ValueError(
      f"the sampler wrote an array {texts.shape} for {len(problem.prompts)}"
      f" prompts and {problem.num_tokens} tokens"
    )
  groups = texts.reshape(-1, num_rows, problem.num_tokens)
  seen, counts = np.unique(groups, axis=0, return_counts=True)
  keys = [tuple(tokens_of(row) for row in group) for group in seen]
  return {
    key if num_rows > 1 else key[0]: int(num) for key, num in zip(keys, counts)
  }


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


def _enumerated(problem, run, claimed, tolerance, warnings, **completing):
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
      warnings.add(_AT_ZERO)
  if result.repeated:
    warnings.add(_REPEATED)
  return _exact(problem.label, law, claimed, tolerance), law


# Samples.


def _sampled(sampler, problem, claimed, resolution, level, batch, seed):
  """Returns (`JudgedProblem`, counts or None)."""
  keys = list(claimed)
  expected = np.array([claimed[key] for key in keys])
  num = goodness.num_samples(expected, resolution, level / 2)
  counts: collections.Counter = collections.Counter()
  num_rows = len(problem.prompts)
  try:
    if batch is None:
      for i in range(num):
        counts[_texts(sampler(problem, seed + i), problem)] += 1
    else:
      times = max(1, batch // num_rows)
      wide = dataclasses.replace(problem, prompts=problem.prompts * times)
      for i in range(-(-num // times)):
        counts.update(_count(sampler(wide, seed + i), wide, num_rows))
  except Exception as error:
    note = f"raises {type(error).__name__}: {error}".partition("\n")[0]
    return JudgedProblem(problem.label, len(keys), 1, 0, 0, False, note), None
  total = sum(counts.values())
  tv = 1 - sum(min(counts.get(key, 0) / total, claimed[key]) for key in claimed)
  bound = goodness.noise_floor(expected, total, level / 2)
  fit = p_value(counts, claimed)
  passed = bool(fit >= level / 2 and tv <= bound)
  note = "" if passed else f"p = {fit:.1e}"
  outside = set(counts) - {key for key in keys if claimed[key] > 0}
  if outside:
    note = f"wrote {min(outside)}, which has probability 0"
  line = JudgedProblem(problem.label, len(keys), tv, bound, total, passed, note)
  return line, counts


def p_value(counts: dict, law: Law) -> float:
  """Returns the p-value of counted texts, by chi-square."""
  keys = sorted(counts.keys() | law.keys())
  return goodness.p_value(
    np.array([counts.get(key, 0) for key in keys]),
    np.array([law.get(key, 0.0) for key in keys]),
  )


# Likely causes.


def _causes(seen: dict[Problem, Law], law_of_error) -> tuple[str, ...]:
  """Returns the errors that have the seen laws, on two problems at most."""
  some = [x for x in seen if all(text[:1] != (RAISED,) for text in seen[x])]
  some.sort(key=lambda problem: len(seen[problem]))
  names = []
  for error in known_errors.STEP_ERRORS if some else ():
    if error.applies(some[0]) and all(
      asked.distance(law_of_error(error, problem), seen[problem]) < SAME
      for problem in (some[0], some[-1])
    ):
      names.append(error.name)
  return tuple(names)


def _step_error_law(error, problem: Problem, target) -> Law:
  step = known_errors.step_of(error)
  run = functools.partial(_rounds, step, problem, 1)
  return completed(enumerated_law(run).probs, problem, target)


@functools.lru_cache(maxsize=256)
def _sampler_error_law(error, problem: Problem) -> Law | None:
  """Returns what an error writes; None where it writes what is right."""
  if not error.applies(problem):
    return None
  run = functools.partial(_whole, known_errors.sampler_of(error), problem, 0)
  try:
    return enumerated_law(run).probs
  except NotCoveredError:
    return None


def _sampler_causes(seen: dict) -> tuple[str, ...]:
  """Returns the errors that explain what a sampler wrote, on two problems."""
  some = [x for x in seen if all(text[:1] != (RAISED,) for text in seen[x][0])]
  some.sort(key=lambda problem: len(seen[problem][0]))
  names = []
  for error in known_errors.KNOWN_ERRORS if some else ():
    for problem in {some[0], some[-1]}:
      written, line = seen[problem]
      law = _sampler_error_law(error, problem)
      if law is None:
        break
      if line.num_samples is None:
        if asked.distance(law, written) >= SAME:
          break
      elif p_value(written, law) < 1e-4:
        break
    else:
      names.append(error.name)
  return tuple(names)
