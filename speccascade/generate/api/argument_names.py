"""Errors of the Python API name arguments as the caller writes them.

The checks below the API serve the commands, too, whose settings are macros:
they say STOP where a caller writes `stop=`. `names_arguments` rewrites what
they raise, so that a check has one message.
"""

from collections.abc import Callable, Collection
import functools
import inspect
import re
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

# Macros that are arguments under other names.
_OTHERS = {
  "DRAFTER_CHECKPOINT": "drafter",
  "VERIFIER_CHECKPOINT": "verifier",
  "TASK_FEATURE_LENGTHS": "max_input_len",
}
# What `load_pair` takes; a message of a pair's methods may name it.
_OF_MODELS = (
  *("drafter", "verifier", "mesh", "dtype", "kernel_dtype"),
  *("drafter_kernel_dtype", "vocabulary", "drafter_vocabulary"),
  "draft_vocabulary",
)
# A quoted value, which stays; or a macro, and whether it is assigned. (A path
# may have a word in capitals. The quote of "model's" opens nothing.)
_PARTS = re.compile(
  r"""(?<!\w)(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?<![\w/.\-])(?P<macro>[A-Z][A-Z0-9_]+)(?![\w/])(?P<assigned>\ =\ )?""",
  re.VERBOSE,
)


def names_arguments(
  function: Function, of: Callable[..., Any] | None = None
) -> Function:
  """Returns a function whose errors name arguments in lower case.

  Args:
    function: the function.
    of: the function that was called with the arguments; None for this one.
  """
  known = (*inspect.signature(of or function).parameters, *_OF_MODELS)

  @functools.wraps(function)
  def call(*args: Any, **kwargs: Any) -> Any:
    try:
      return function(*args, **kwargs)
    except Exception as error:
      # (The error stays what it is, with its traceback.)
      if error.args and isinstance(error.args[0], str):
        error.args = (renamed(error.args[0], known), *error.args[1:])
      raise

  wrapped: Any = call
  return wrapped


def renamed(message: str, known: Collection[str]) -> str:
  """Returns a message in which macros are arguments.

  Args:
    message: the message.
    known: names of arguments. A macro that is none of them stays, as does what
      stands in quotes or in a path.

  >>> renamed("STOP has 'STOP'; set MIN_P = 0", ["stop", "min_p"])
  "stop has 'STOP'; set min_p=0"
  """

  def name(part: re.Match[str]) -> str:
    if (macro := part["macro"]) is None:
      return part[0]
    argument = _OTHERS.get(macro, macro.lower())
    if macro not in _OTHERS and argument not in known:
      return part[0]
    return argument + ("=" if part["assigned"] else "")

  return _PARTS.sub(name, message)
