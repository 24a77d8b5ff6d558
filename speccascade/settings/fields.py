"""Settings that check themselves: their types say what is right.

A class or function under `checked` refuses what its annotations do not allow,
with a line that names the setting; lists become tuples unless a list is asked
for. `build` makes a dataclass of JSON in the same way. What a type cannot say
stands beside it:

  gamma: Annotated[int, Bounds(1, 1024)] = 5
  method: Annotated[str, methods.find]

A rule is `Bounds`, `Keys`, `NOT_EMPTY`, or a function that raises ValueError.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import contextlib
import dataclasses
import functools
import inspect
import json
import math
import numbers
import os
import types
import typing
from typing import Annotated, Any, Literal

MOST = 2**31 - 1  # the largest integer of JAX
_LONGEST = 100  # characters of a value in a message


class SettingError(ValueError):
  """A setting of the wrong kind, or out of range.

  Attributes:
    name: of the setting.
    fault: what is wrong with it, after the name.
    owner: the class or function that has it, or None.
  """

  def __init__(self, name: str, fault: str, owner: object = None):
    super().__init__(name + fault)
    self.name, self.fault, self.owner = name, fault, owner


class _WrongKindError(Exception):
  """A value is not of a type."""


@dataclasses.dataclass(frozen=True)
class Bounds:
  """The range of a number.

  Attributes:
    low: the least; an infinite end is no end.
    high: the most.
    low_open: whether `low` itself is outside.
    high_open: whether `high` itself is outside.
  """

  low: float = -math.inf
  high: float = math.inf
  low_open: bool = False
  high_open: bool = False

  def holds(self, value) -> bool:
    above = value > self.low if self.low_open else value >= self.low
    return above and (
      value < self.high if self.high_open else value <= self.high
    )

  def __str__(self) -> str:
    if math.isinf(self.high):
      return f"above {self.low}" if self.low_open else f"of {self.low} or more"
    low = f"above {self.low}" if self.low_open else f"from {self.low}"
    return f"{low} to {'below ' * self.high_open}{self.high}"


@dataclasses.dataclass(frozen=True)
class Keys:
  """Keys that a dict must have."""

  names: tuple[str, ...]

  def holds(self, value) -> bool:
    return set(self.names) <= set(value)

  def __str__(self) -> str:
    return f"with {' and '.join(self.names)}"


class _NotEmpty:
  holds = staticmethod(bool)

  def __str__(self) -> str:
    return "with one item or more"


NOT_EMPTY = _NotEmpty()
NonNegative = Annotated[int, Bounds(0, MOST)]
Positive = Annotated[int, Bounds(1, MOST)]
Count = Annotated[int, Bounds(0, 2**63 - 1)]  # summed over a run
Size = Annotated[int, Bounds(1, 2**16)]  # of an axis, or of a small number
Share = Annotated[float, Bounds(0, 1)]
Path = str | os.PathLike


def checked(owner):
  """Makes a function, or a dataclass, check its arguments by their types."""
  is_class = isinstance(owner, type)
  function = owner.__init__ if is_class else owner
  signature = inspect.signature(function)
  kinds = functools.cache(lambda: _hints(function))

  @functools.wraps(function)
  def call(*args, **kwargs):
    try:
      bound = signature.bind(*args, **kwargs)
    except TypeError:
      return function(*args, **kwargs)  # which says what is missing
    for name, value in bound.arguments.items():
      if name in kinds():
        kind = kinds()[name]
        at = owner if is_class else call  # what gin knows it by
        bound.arguments[name] = fit(name, value, kind, owner=at)
    return function(*bound.args, **bound.kwargs)

  call.__signature__ = signature  # gin reads this one
  if not is_class:
    return call
  owner.__init__ = call
  return owner


def build(kind: type, values: object):
  """Returns a dataclass of what JSON gave, checked field by field.

  Args:
    kind: the dataclass; its fields may be dataclasses too.
    values: a dict of its fields.

  Raises:
    ValueError: naming the field that is wrong, missing or unknown.
  """
  if not isinstance(values, Mapping):
    raise ValueError(f"wanted an object, not {_shown(values)}")
  fields = {field.name: field for field in dataclasses.fields(kind)}
  needed = {
    name
    for name, field in fields.items()
    if field.default is field.default_factory is dataclasses.MISSING
  }
  for said, names in {
    "unknown": set(values) - set(fields),
    "missing": needed - set(values),
  }.items():
    if names:
      raise ValueError(f"{said} {', '.join(sorted(names))}")
  kinds = _hints(kind)
  return kind(
    **{
      name: fit(name, value, kinds[name], builds=True)
      for name, value in values.items()
    }
  )


def fit(name: str, value, kind, *, owner=None, builds: bool = False):
  """Returns a value as a type wants it: lists made tuples.

  Args:
    name: of the setting.
    value: what it is.
    kind: a type; see the module.
    owner: see `SettingError`.
    builds: whether dicts become dataclasses, and keys numbers, as from JSON.

  Raises:
    SettingError: it is not of the type.
  """
  try:
    return _fit(value, kind, builds)
  except _WrongKindError:
    fault = f" is {_shown(value)}; wanted {_wanted(kind)}"
    raise SettingError(name, fault, owner) from None
  except SettingError as error:
    raise SettingError(f"{name}.{error.name}", error.fault, owner) from None
  except ValueError as error:
    raise SettingError(name, f": {error}", owner) from error


def _hints(function) -> dict[str, Any]:
  parameters = {}
  if callable(function) and not isinstance(function, type):
    parameters = inspect.signature(function).parameters
  variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
  return {
    name: kind
    for name, kind in typing.get_type_hints(
      function, include_extras=True
    ).items()
    if name not in parameters or parameters[name].kind not in variable
  }


def _fit(value, kind, builds: bool):
  origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
  fit = functools.partial(_fit, builds=builds)
  if origin is Annotated:
    value = fit(value, args[0])
    for rule in args[1:]:
      if hasattr(rule, "holds"):
        _need(rule.holds(value))
      else:
        rule(value)
  elif origin in (typing.Union, types.UnionType):
    for each in args:
      with contextlib.suppress(_WrongKindError):
        return fit(value, each)
    raise _WrongKindError
  elif origin is Literal:
    _need(isinstance(value, str) and value in args)
  elif origin is typing.NotRequired:
    return fit(value, args[0])
  elif typing.is_typeddict(origin):
    _need(isinstance(value, Mapping))
    _need(origin.__required_keys__ <= set(value))
    kinds = _hints(origin)
    return {k: fit(each, kinds.get(k, Any)) for k, each in value.items()}
  elif builds and dataclasses.is_dataclass(origin):
    _need(isinstance(value, Mapping))
    return build(origin, value)
  elif origin is tuple and args[-1:] != (...,):
    _need(isinstance(value, list | tuple) and len(value) == len(args))
    return tuple(map(fit, value, args))
  elif origin in (tuple, list, Sequence):
    _need(isinstance(value, Sequence) and not isinstance(value, str | bytes))
    several = [fit(each, args[0]) for each in value]
    return several if origin is list else tuple(several)
  elif origin in (dict, Mapping):
    _need(isinstance(value, Mapping))
    key_kind, kind = args or (Any, Any)
    as_key = lambda key: key
    if builds and key_kind is int:  # the keys of JSON are text
      as_key = lambda key: int(key) if str(key).isdecimal() else key
    return {
      fit(as_key(key), key_kind): fit(each, kind) for key, each in value.items()
    }
  else:
    _need(_is_plain(value, origin))
  return value


def _need(is_right: bool):
  if not is_right:
    raise _WrongKindError


def _is_plain(value, kind) -> bool:
  """Whether a value is of a type that has no parts."""
  if kind in (Any, object, inspect.Parameter.empty):
    return True
  if kind is Callable:
    return callable(value)
  if kind is int:
    is_number = isinstance(value, numbers.Integral)
    return is_number and not isinstance(value, bool)
  if kind is float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
      return is_number and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
      return False
  if kind is str:
    return isinstance(value, str) and is_text(value)
  return isinstance(value, kind)


def is_text(value: str) -> bool:
  """Whether UTF-8 and file names can hold a text."""
  return is_utf8(value) and "\0" not in value


def is_utf8(value: str) -> bool:
  """Whether UTF-8 can hold a text; it holds no half of a surrogate pair."""
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


_NAMES = {
  int: "a whole number",
  float: "a number",
  str: "a text",
  bool: "True or False",
  types.NoneType: "None",
  os.PathLike: "a path",
  Callable: "a function",
}


def _wanted(kind) -> str:
  """Returns a type in words."""
  origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
  if origin is Annotated:
    rules = [str(rule) for rule in args[1:] if hasattr(rule, "holds")]
    what, comma, parts = _wanted(args[0]).partition(",")
    return " ".join([what, *rules]) + comma + parts
  if origin in (typing.Union, types.UnionType, Literal):
    in_words = repr if origin is Literal else _wanted
    *most, last = dict.fromkeys(map(in_words, args))
    return " or ".join([", ".join(most), last] if most else [last])
  if origin is tuple and args[-1:] != (...,):
    return f"({', '.join(map(_wanted, args))})"
  if origin in (tuple, list, Sequence):
    return f"a list, each {_wanted(args[0])}"
  if origin in (dict, Mapping):
    return f"a dict, each {_wanted(args[1])}" if args else "a dict"
  if typing.is_typeddict(origin):
    return f"a dict {Keys(tuple(sorted(origin.__required_keys__)))}"
  name = getattr(origin, "__name__", str(origin))
  return _NAMES.get(origin, f"an {name}" if name[0] in "AEIO" else f"a {name}")


def _shown(value) -> str:
  """Returns a value for a message, cut where it is long."""
  try:
    text = repr(value)
  except (ValueError, RecursionError):  # of thousands of digits, or brackets
    text = f"a {type(value).__name__} too long to print"
  return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def freeze(instance):
  """Makes tuples of the lists that a frozen dataclass got, say from JSON."""
  for name, value in vars(instance).items():
    if isinstance(value, list):
      object.__setattr__(instance, name, tuple(value))


def of_json(text: str | bytes):
  """Returns what a JSON text holds.

  Raises:
    ValueError: it is none, or nested too deep.
  """
  try:
    return json.loads(text)
  except RecursionError as error:
    raise ValueError("JSON nested too deep") from error


def at_least(least: int, **values):
  """Raises SettingError where a setting is no whole number, or below `least`.

  Args:
    least: the smallest that is right.
    **values: the settings, by the names that messages give them.
  """
  for name, value in values.items():
    fit(name, value, Annotated[int, Bounds(least)])


def one_of(known: Collection, *, error=ValueError, **values):
  """Raises an error where a setting is not among the `known`.

  Args:
    known: what is right.
    error: the type that is raised.
    **values: the settings, by the names that messages give them.
  """
  for name, value in values.items():
    if value not in known:
      wanted = ", ".join(map(str, known))
      raise error(f"{name} is {_shown(value)}; wanted one of {wanted}")
