"""Types, values and near misses in words, for messages about settings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import difflib
import os
import types
import typing
from typing import Annotated, Any, Literal

_MOST_CHARACTERS = 100  # of a value in a message

# {type: (one of them, several of them)}
_NAMES = {
  int: ("a whole number", "whole numbers"),
  float: ("a number", "numbers"),
  str: ("a string", "strings"),
  bool: ("True or False", "True or False"),
  types.NoneType: ("None", "None"),
  os.PathLike: ("a path", "paths"),
  Callable: ("a function", "functions"),
}


def describe_kind(kind: Any) -> str:
  """Returns a type in words.

  Args:
    kind: a type, as annotations have them. Rules inside `Annotated` that have a
      method `holds` are described by their own text; other rules are left out.

  >>> describe_kind(Sequence[int] | None)
  'a list of whole numbers, or None'
  >>> describe_kind(tuple[Literal["a", "b"], float])
  "('a' or 'b', a number)"
  """
  return _describe(kind, is_plural=False)


def _describe(kind: Any, *, is_plural: bool) -> str:
  """Returns a type in words; in the plural for the items of a list."""
  kind = getattr(kind, "__supertype__", kind)  # of a `NewType`
  origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
  if origin is Annotated:
    words = _describe(args[0], is_plural=is_plural)
    rules = [str(rule) for rule in args[1:] if hasattr(rule, "holds")]
    # A rule is about the whole: "a list of strings, with one item or more".
    return (", " if " of " in words else " ").join([words, *rules])
  if origin is Literal:
    return _join_alternatives([repr(arg) for arg in args])
  if origin in (typing.Union, types.UnionType):
    several = [_describe(arg, is_plural=is_plural) for arg in args]
    return _join_alternatives(several)
  if origin is tuple and args[-1:] != (...,):
    return f"({', '.join(map(describe_kind, args))})"
  if origin in (tuple, list, Sequence):
    name = "lists" if is_plural else "a list"
    return f"{name} of {_describe(args[0], is_plural=True)}"
  name = "dicts" if is_plural else "a dict"
  if origin in (dict, Mapping):
    values = _describe(args[1], is_plural=True) if args else ""
    return f"{name} of {values}" if args else name
  if typing.is_typeddict(origin):
    return f"{name} with {' and '.join(sorted(origin.__required_keys__))}"
  if origin in _NAMES:
    return _NAMES[origin][is_plural]
  name = getattr(origin, "__name__", str(origin))
  if is_plural:
    return f"{name} objects"
  return f"an {name}" if name[0] in "AEIO" else f"a {name}"


def _join_alternatives(alternatives: list[str]) -> str:
  """Returns "a, b or c"; an alternative that occurs twice is named once."""
  *others, last = dict.fromkeys(alternatives)
  if not others:
    return last
  # Not "a list of strings or None", which may be a list with None in it.
  comma = "," * any(" of " in other for other in others)
  return f"{', '.join(others)}{comma} or {last}"


def format_value(value: object) -> str:
  """Returns a value for a message; a long one is truncated."""
  try:
    text = repr(value)
  except (ValueError, RecursionError):
    # An integer of thousands of digits, or thousands of nested brackets.
    text = f"a {type(value).__name__} too long to print"
  if len(text) <= _MOST_CHARACTERS:
    return text
  return f"{text[:_MOST_CHARACTERS]}..."


def suggest(name: str, known: Iterable[str], *, otherwise: str = "") -> str:
  """Returns a hint for a name that is not among the `known`: the near misses.

  Args:
    name: the name.
    known: the names that there are.
    otherwise: the hint where there is no near miss; "" lists all names.

  >>> suggest("gama", ["alpha", "gamma"])
  'did you mean gamma'
  >>> suggest("x", ["alpha", "gamma"])
  'wanted one of alpha, gamma'
  """
  known = list(known)
  near = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
  if near:
    return f"did you mean {', '.join(near)}"
  return otherwise or f"wanted one of {', '.join(known)}"
