"""Regular expressions as automata over bytes, made in a bounded process."""

import base64
import functools
import importlib.util
import json
import re
import threading

import numpy as np

from speccascade.constraints import expression_sandbox
from speccascade.constraints.automaton_tables import ConstraintError, leading_to
from speccascade.constraints.token_walks import ByteAutomaton
from speccascade.runtime import extras
from speccascade.runtime.worker_process import Worker, WorkerError

_LOCK = threading.Lock()
_running: Worker | None = None
# Escapes, classes and what looks around, in the syntax of Rust's regex.
_PARTS = re.compile(
  r"""\\[pPxuU]\{[^}]*\} | \\. | \[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]
  | \((?:\?(?:<[=!]|[=!]))? | [)$^]""",
  re.VERBOSE | re.DOTALL,
)
_LOOKING = {
  **dict.fromkeys(("(?=", "(?!", "(?<=", "(?<!"), "looks around"),
  **dict.fromkeys(("^", "$", r"\A", r"\z", r"\Z"), "is an anchor"),
  **dict.fromkeys((r"\b", r"\B", r"\<", r"\>"), "looks for a word's border"),
}


def unsupported(pattern: str) -> str | None:
  """Returns words on what an expression has that no automaton holds, or None.

  >>> unsupported("^a[$^]")
  "'^' at 0 is an anchor, and an output matches whole: leave it out"
  >>> unsupported(r"a\\$[^$]")
  """
  depth = 0
  for part in _PARTS.finditer(pattern):
    text = part[0]
    depth += {"(": 1, ")": -1}.get(text[0], 0)
    if depth < 0 and not _has_comments(pattern):
      return f"')' at {part.start()} has no '('"
    if text in _LOOKING:
      kind = _LOOKING[text]
      end = ", and an output matches whole" if "anchor" in kind else ""
      return f"{text!r} at {part.start()} {kind}{end}: leave it out"
    if re.fullmatch(r"\\[1-9]", text):
      return (
        f"{text!r} at {part.start()} refers back to a group, and no automaton"
        " does: write the group out"
      )
  return None


@functools.lru_cache(maxsize=16)
def compiled(pattern: str) -> tuple[ByteAutomaton, np.ndarray]:
  """Returns the automaton of the texts that an expression matches whole.

  Args:
    pattern: the regular expression, in the syntax of Rust's regex.

  Returns:
    The automaton over bytes, whose last state is dead, and the usual one; and
    [S - 1] bool, the states in which a text may end. An end can be reached from
    every state but the first and the last.

  Raises:
    ConstraintError: outlines-core is missing, or the expression is not valid,
      or takes more time or memory than it may.
  """
  global _running
  if importlib.util.find_spec("outlines_core") is None:
    missing = extras.line(ModuleNotFoundError(name="outlines_core"))
    raise ConstraintError(f"a grammar needs a package: {missing}")
  if reason := unsupported(pattern):
    raise ConstraintError(f"the grammar {pattern!r:.80}: {reason}")
  with _LOCK:
    if _running is None or not _running.is_usable:
      _running = Worker(
        expression_sandbox.__file__,
        expression_sandbox.MOST_S,
        expression_sandbox.MOST_BYTES,
      )
    try:
      answer = _running.ask(json.dumps({"pattern": _grouped(pattern)}).encode())
    except WorkerError as error:
      most = f"{expression_sandbox.MOST_BYTES >> 20} MB"
      raise ConstraintError(
        f"the grammar {pattern!r:.80} has too many states to compile within"
        f" {expression_sandbox.MOST_S} s and {most} ({error}): allow less"
      ) from error
  if "error" in answer:
    raise ConstraintError(
      f"the grammar {pattern!r:.80} cannot be compiled:"
      f" {unclosed(pattern) or answer['error']}"
    )
  return _trimmed(answer)


def _grouped(pattern: str) -> str:
  """Returns an expression as one group."""
  # A comment of the flag x would take the bracket in.
  return f"(?:{pattern}\n)" if _has_comments(pattern) else f"(?:{pattern})"


def _has_comments(pattern: str) -> bool:
  return "#" in pattern and bool(re.search(r"\(\?[a-zA-Z]*x", pattern))


def _trimmed(answer: dict) -> tuple[ByteAutomaton, np.ndarray]:
  """Returns the automaton of an answer without dead states."""
  columns = np.array(answer["columns"], np.int32)
  step = np.frombuffer(base64.b64decode(answer["step"]), np.int32)
  step = step.reshape(-1, columns.max() + 1)
  num = len(step)
  step = np.where(step < 0, num, step)
  step = np.pad(step, ((0, 1), (0, 0)), constant_values=num)
  is_final = np.zeros(num + 1, bool)
  is_final[answer["finals"]] = True
  lives = _leading_to_ends(step, is_final)
  lives[0] = True
  lives[num] = False
  live = np.flatnonzero(lives)
  number = np.full(num + 1, len(live), np.int32)
  number[live] = np.arange(len(live))
  step = number[step[np.append(live, num)]]
  automaton = ByteAutomaton(
    step, np.concatenate([columns, columns]), usual=len(live)
  )
  return automaton, is_final[live]


def _leading_to_ends(step: np.ndarray, is_final: np.ndarray) -> np.ndarray:
  """Returns [S] bool, the states from which an end can be reached."""
  num = len(step)
  edges = np.unique(
    np.repeat(np.arange(num), step.shape[1]) * num + step.ravel()
  )
  before, after = np.divmod(edges, num)
  return leading_to(is_final, before, after)


def unclosed(pattern: str) -> str:
  r"""Returns what a regular expression opens and does not close, or "".

  >>> unclosed("[a-"), unclosed("[(]")
  ('the [ at character 1 is not closed', '')
  """
  open_at: list[int] = []  # of groups and classes, which may nest
  place = 0
  while place < len(pattern):
    letter = pattern[place]
    in_class = bool(open_at) and pattern[open_at[-1]] == "["
    if letter == "\\":
      if place + 1 == len(pattern):
        return "it ends in a \\ with nothing after it"
      place += 1
    elif letter == "[" or (letter == "(" and not in_class):
      open_at.append(place)
      # A ] at the beginning of a class stands for itself.
      rest = pattern[place + 1 :] if letter == "[" else ""
      place += len(rest) - len(rest.removeprefix("^").removeprefix("]"))
    elif letter == "]" and in_class:
      open_at.pop()
    elif letter == ")" and not in_class:
      if not open_at:
        return f"the ) at character {place + 1} closes nothing"
      open_at.pop()
    elif letter == "{" and not in_class and "}" not in pattern[place:]:
      return f"the {{ at character {place + 1} is not closed"
    place += 1
  if not open_at:
    return ""
  place = open_at[-1]
  return f"the {pattern[place]} at character {place + 1} is not closed"
