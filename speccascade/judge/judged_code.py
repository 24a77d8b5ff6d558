"""Calls the judged code, which may never end; reads the tokens it writes."""

from collections.abc import Callable, Iterator
import contextlib
import inspect
import signal
import threading

import numpy as np

from speccascade.judge.problems import Problem
from speccascade.judge.scripted import Script
from speccascade.runtime.named_functions import failure

TIME_LIMIT_S = 60.0


class JudgedCodeError(Exception):
  """The judged code failed for good; the message says how, in one line."""


class _OutOfTime(BaseException):
  """Ends a call; code that catches every Exception does not catch it."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
  """Ends what runs longer, in the main thread of systems that have alarms.

  Raises:
    JudgedCodeError: it ran out of time.
  """
  has_alarm = hasattr(signal, "setitimer")
  if not has_alarm or threading.current_thread() is not threading.main_thread():
    yield
    return

  def end(number, frame):
    raise _OutOfTime

  handler = signal.signal(signal.SIGALRM, end)
  # Again each second, should the code catch the first.
  before = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
  try:
    yield
  except _OutOfTime:
    raise JudgedCodeError(
      f"a call did not end in {seconds:g} s (time_limit_s)"
    ) from None
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    if before[0]:
      signal.setitimer(signal.ITIMER_REAL, *before)


def called(function: Callable, *args, time_limit_s: float = TIME_LIMIT_S):
  """Returns what judged code returns.

  Raises:
    JudgedCodeError: it raised, exited, or ran out of time.
  """
  try:
    with limited(time_limit_s):
      return function(*args)
  except JudgedCodeError:
    raise
  except (Exception, SystemExit) as error:
    raise JudgedCodeError(f"it raises {failure(error)}") from error


def tokens_of(what) -> tuple:
  """Returns a tuple of integers from a list, an array or a tensor.

  Raises:
    ValueError: it is not a list of tokens.
  """
  wanted = "return a list or an array of integers"
  if hasattr(what, "detach"):
    what = what.detach().cpu().numpy()
  if inspect.iscoroutine(what):
    what.close()  # Python would warn that none awaited it.
  try:
    array = np.asarray(what)
  except ValueError as error:  # Lists of unequal lengths.
    raise ValueError(f"it returned a ragged {_kind(what)}; {wanted}") from error
  if array.dtype == object or array.dtype.kind in "USV":
    raise ValueError(f"it returned {_kind(what)}; {wanted}")
  if array.size and array.dtype.kind not in "iu":
    raise ValueError(f"tokens are of type {array.dtype}; {wanted}")
  return tuple(array.reshape(-1).tolist())


def _kind(what) -> str:
  """Returns the name of a value's type, or None."""
  return "None" if what is None else type(what).__name__


def tokens_of_rounds(
  step, problem: Problem, num_rounds: int, script: Script
) -> tuple:
  """Returns the tokens of some rounds, whose drafts the judge draws."""
  text: list[int] = list(problem.prompt)
  for block in range(num_rounds):
    drafts: list[int] = []
    rows = [problem.rows(text)]
    for i in range(problem.gamma):
      state = ("drafts of the judge", block, i)
      drafts.append(script.choice(state, rows[-1][0].tolist()))
      rows.append(problem.rows(text + drafts))
    q, p = (np.array(x) for x in zip(*rows))
    emitted = tokens_of(step(np.array(drafts), q[:-1], p))
    if not 1 <= len(emitted) <= problem.gamma + 1:
      raise ValueError(
        f"a block of {problem.gamma} drafts emits {len(emitted)} tokens"
      )
    check_vocabulary(emitted, problem)
    text += emitted
  return tuple(text[len(problem.prompt) :])


def check_rows(written, problem: Problem):
  """Raises ValueError unless there is a row of tokens for each prompt."""
  num = len(problem.prompts)
  # (Rows of several lengths are not an array.)
  if not isinstance(written, list | tuple) and np.ndim(written) == 0:
    what = _kind(written)
  elif len(written) != num:
    what = f"{len(written)} rows"
  elif not all(hasattr(row, "__len__") and np.ndim(row) for row in written):
    what = "one row"
  else:
    return
  raise ValueError(
    f"it returned {what} for {num} prompts; return the tokens of each"
  )


def check_vocabulary(text: tuple, problem: Problem):
  """Raises ValueError if a text has a token that no problem's table has."""
  outside = [x for x in text if not 0 <= x < problem.vocab_size]
  if outside:
    raise ValueError(
      f"token {outside[0]} is outside the vocabulary, which is 0 to"
      f" {problem.vocab_size - 1}"
    )


def tokens_of_sampler(
  sampler, problem: Problem, seed: int, script: Script
) -> tuple:
  """Returns the tokens of a sampler."""
  return tokens_of_rows(sampler(problem, seed), problem)


def tokens_of_rows(written, problem: Problem) -> tuple:
  """Returns the text of the row, or the texts of the rows, truncated."""
  several = len(problem.prompts) > 1
  rows = written if several else [written]
  if several:
    check_rows(rows, problem)
  texts = [tokens_of(row) for row in rows]
  cut = tuple(problem.cut(text) for text in texts)
  for text in cut:
    ended = problem.eos is not None and text[-1:] == (problem.eos,)
    if len(text) < problem.num_tokens and not ended:
      raise ValueError(
        f"the sampler wrote {len(text)} tokens of {problem.num_tokens}"
      )
    check_vocabulary(text, problem)
  return cut if several else cut[0]
