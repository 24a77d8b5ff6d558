"""Describes types and values in words, for messages about settings."""

from collections.abc import Callable, Mapping, Sequence
import os
import types
import typing
from typing import Annotated, Any, Literal

_MOST_CHARACTERS = 100  # of a value in a message

_NAMES = {
  int: "a whole number",
  float: "a number",
  str: "a text",
  bool: "True or False",
  types.NoneType: "None",
  os.PathLike: "a path",
  Callable: "a function",
}


def describe_kind(kind: Any) -> str:
  """Returns a type in words.

  Args:
    kind: a type, as annotations have them. Rules inside `Annotated` that have a
      method `holds` are described by their own text; other rules are left out.

  >>> describe_kind(Sequence[int] | None)
  'a list, each a whole number or None'
  >>> describe_kind(tuple[Literal["a", "b"], float])
  "('a' or 'b', a number)"
  """
  kind = getattr(kind, "__supertype__", kind)  # of a `NewType`
  origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
  if origin is Annotated:
    rules = [str(rule) for rule in args[1:] if hasattr(rule, "holds")]
    # A rule is about the whole: "a list with one item or more, each a text".
    whole, comma, parts = describe_kind(args[0]).partition(",")
    return " ".join([whole, *rules]) + comma + parts
  if origin is Literal:
    return _join_alternatives([repr(arg) for arg in args])
  if origin in (typing.Union, types.UnionType):
    return _join_alternatives([describe_kind(arg) for arg in args])
  if origin is tuple and args[-1:] != (...,):
    return f"({', '.join(map(describe_kind, args))})"
  if origin in (tuple, list, Sequence):
    return f"a list, each {describe_kind(args[0])}"
  if origin in (dict, Mapping):
    return f"a dict, each {describe_kind(args[1])}" if args else "a dict"
  if typing.is_typeddict(origin):
    return f"a dict with {' and '.join(sorted(origin.__required_keys__))}"
  if origin in _NAMES:
    return _NAMES[origin]
  name = getattr(origin, "__name__", str(origin))
  return f"an {name}" if name[0] in "AEIO" else f"a {name}"


def _join_alternatives(alternatives: list[str]) -> str:
  """Returns "a, b or c"; an alternative that occurs twice is named once."""
  *others, last = dict.fromkeys(alternatives)
  return f"{', '.join(others)} or {last}" if others else last


def format_value(value: object) -> str:
  """Returns a value for a message; a long one is cut."""
  try:
    text = repr(value)
  except (ValueError, RecursionError):
    # An integer of thousands of digits, or thousands of nested brackets.
    text = f"a {type(value).__name__} too long to print"
  if len(text) <= _MOST_CHARACTERS:
    return text
  return f"{text[:_MOST_CHARACTERS]}..."
