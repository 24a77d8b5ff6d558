"""Calls the judged code, which may raise, exit, or never end."""

from collections.abc import Callable, Iterator
import contextlib
import signal
import threading

TIME_LIMIT_S = 60.0


class JudgedCodeError(Exception):
  """The judged code failed for good; the message says how, in one line."""


class _OutOfTime(BaseException):
  """Ends a call; code that catches every Exception does not catch it."""


def failure(error: BaseException) -> str:
  """Returns what was raised, in one line."""
  message = str(error).strip().partition("\n")[0]
  return f"{type(error).__name__}: {message}".removesuffix(": ")


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
