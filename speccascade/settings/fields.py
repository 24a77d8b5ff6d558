"""Makes settings check themselves: their types say which values are right.

A class or function under `checked` refuses values that its annotations do not
allow, with a line that names the setting. Lists become tuples, unless a list is
asked for. A string is a list of one where a list of strings is asked for.
`build` makes a dataclass from JSON with the same checks.

A rule that no type can express is written beside the type:

  gamma: Annotated[int, Bounds(1, 1024)] = 5
  method: Annotated[str, methods.find]

A rule is `Bounds`, `Keys`, `NOT_EMPTY`, or a function that raises ValueError.

`names_of` and `values_of` read the fields of a record by name.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from typing import Annotated, Any, Literal, TypeVar

from speccascade.settings import in_words

MOST = 2**31 - 1  # the largest integer of JAX


class SettingError(ValueError):
  """A setting of the wrong kind, or out of range.

  Attributes:
    name: name of the setting.
    fault: what is wrong with the setting; the message is the name and this.
    owner: the class or function that has the setting, or None.
  """

  def __init__(self, name: str, fault: str, owner: object = None):
    super().__init__(name + fault)
    self.name, self.fault, self.owner = name, fault, owner


class _WrongKindError(Exception):
  """A value does not fit a type."""


@dataclasses.dataclass(frozen=True)
class Bounds:
  """A rule: the range of a number.

  Attributes:
    low: the smallest number; minus infinity means no lower end.
    high: the largest number; infinity means no upper end.
    low_open: whether `low` itself is outside the range.
    high_open: whether `high` itself is outside the range.
  """

  low: float = -math.inf
  high: float = math.inf
  low_open: bool = False
  high_open: bool = False

  def holds(self, value: float) -> bool:
    """Returns whether a number is in the range."""
    above = value > self.low if self.low_open else value >= self.low
    below = value < self.high if self.high_open else value <= self.high
    return above and below

  def __str__(self) -> str:
    if math.isinf(self.high):
      return f"above {self.low}" if self.low_open else f"of {self.low} or more"
    low = f"above {self.low}" if self.low_open else f"from {self.low}"
    high = f"below {self.high}" if self.high_open else f"{self.high}"
    return f"{low} to {high}"


@dataclasses.dataclass(frozen=True)
class Keys:
  """A rule: the keys that a dict must have.

  Attributes:
    names: the keys. A dict may have further keys.
  """

  names: tuple[str, ...]

  def holds(self, value: Iterable[str]) -> bool:
    """Returns whether a dict has the keys."""
    return set(self.names) <= set(value)

  def __str__(self) -> str:
    return f"with {' and '.join(self.names)}"


class _NotEmpty:
  """A rule: a list, tuple, dict or string has an item."""

  holds = staticmethod(bool)

  def __str__(self) -> str:
    return "with one item or more"


NOT_EMPTY = _NotEmpty()
NonNegative = Annotated[int, Bounds(0, MOST)]
Positive = Annotated[int, Bounds(1, MOST)]
Count = Annotated[int, Bounds(0, 2**63 - 1)]  # a sum over a run
Size = Annotated[int, Bounds(1, 2**16)]  # size of an axis, or a small number
Share = Annotated[float, Bounds(0, 1)]
# `isinstance` takes no path with a subscript. `Content` is a text that may have
# the byte 0, which names of files cannot.
if typing.TYPE_CHECKING:
  from _typeshed import DataclassInstance

  Path = str | os.PathLike[str]
  Content = str
else:
  Path = str | os.PathLike
  Content = typing.NewType("Content", str)

# What is checked, a class or a function; and a dataclass that JSON makes.
Owner = TypeVar("Owner", bound=Callable[..., Any])
Record = TypeVar("Record", bound="DataclassInstance")


def checked(owner: Owner) -> Owner:
  """Makes a function, or a dataclass, check its arguments by their types.

  Args:
    owner: the function or the dataclass, decorated.

  Raises:
    SettingError: when it is called with an argument that does not fit. The
      error's owner is the decorated function or class.
  """
  made: Any = owner
  is_class = isinstance(owner, type)
  function = made.__init__ if is_class else made
  signature = inspect.signature(function)

  # Annotations are read at the first call: they may name classes that are
  # defined further down in their module.
  @functools.cache
  def kinds() -> dict[str, Any]:
    return _hints(function)

  @functools.wraps(function)
  def call(*args: Any, **kwargs: Any) -> Any:
    try:
      bound = signature.bind(*args, **kwargs)
    except TypeError:
      # The function itself raises the error that says which argument is
      # missing or not known.
      return function(*args, **kwargs)
    # gin knows a function by what the decorator returned, so that is the owner.
    decorated = owner if is_class else call
    for name, value in bound.arguments.items():
      if name in kinds():
        kind = kinds()[name]
        bound.arguments[name] = fit(name, value, kind, owner=decorated)
    return function(*bound.args, **bound.kwargs)

  wrapped: Any = call
  wrapped.__signature__ = signature  # gin reads parameters from here
  if not is_class:
    return wrapped
  made.__init__ = wrapped
  return owner


def build(kind: type[Record], values: object) -> Record:
  """Returns a dataclass made from JSON, checked field by field.

  Args:
    kind: the dataclass; its fields may be dataclasses too.
    values: a dict of the fields. Fields with a default may be left out.

  Raises:
    ValueError: a field is wrong, missing or unknown; the message names it.
  """
  if not isinstance(values, Mapping):
    raise ValueError(f"wanted an object, not {in_words.format_value(values)}")
  fields = {field.name: field for field in dataclasses.fields(kind)}
  required = {
    name
    for name, field in fields.items()
    if field.default is field.default_factory is dataclasses.MISSING
  }
  if unknown := set(values) - set(fields):
    raise ValueError(f"unknown {', '.join(sorted(unknown))}")
  if missing := required - set(values):
    raise ValueError(f"missing {', '.join(sorted(missing))}")
  kinds = _hints(kind)
  arguments = {
    name: fit(name, value, kinds[name], builds=True)
    for name, value in values.items()
  }
  return kind(**arguments)


def fit(
  name: str, value: Any, kind: Any, *, owner: Any = None, builds: bool = False
) -> Any:
  """Returns a value in the form that a type asks for: lists become tuples.

  Args:
    name: name of the setting, for the message.
    value: the value.
    kind: the type, perhaps with rules; see the module's text.
    owner: the class or function that has the setting, for the error.
    builds: whether the value is from JSON. Dicts then become dataclasses, and
      strings that are keys become numbers, where the type asks for these.

  Raises:
    SettingError: the value does not fit the type.
  """
  try:
    return _fit(value, kind, builds)
  except _WrongKindError:
    wanted = in_words.describe_kind(kind)
    fault = f" is {in_words.format_value(value)}; wanted {wanted}"
    raise SettingError(name, fault, owner) from None
  except SettingError as error:
    # A field of a dataclass inside this one: "part" and "few" is "part.few".
    raise SettingError(f"{name}.{error.name}", error.fault, owner) from None
  except ValueError as error:
    raise SettingError(name, f": {error}", owner) from error


def _hints(function: Any) -> dict[str, Any]:
  """Returns {name: type} of named parameters or fields."""
  # The type at *args is that of each of many values, which have no names.
  parameters: Mapping[str, inspect.Parameter] = {}
  if callable(function) and not isinstance(function, type):
    parameters = inspect.signature(function).parameters
  variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
  hints = typing.get_type_hints(function, include_extras=True)
  return {
    name: kind
    for name, kind in hints.items()
    if name not in parameters or parameters[name].kind not in variadic
  }


def _fit(value: Any, kind: Any, builds: bool) -> Any:
  """Does the work of `fit`; _WrongKindError is for a value of another type."""
  origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
  if origin is Annotated:
    return _fit_rules(value, args[0], args[1:], builds)
  if origin in (typing.Union, types.UnionType):
    return _fit_union(value, args, builds)
  if origin is Literal:
    _require(isinstance(value, str) and value in args)
    return value
  if origin is typing.NotRequired:  # of a TypedDict; the key is there
    return _fit(value, args[0], builds)
  if typing.is_typeddict(origin):
    return _fit_typed_dict(value, origin, builds)
  if builds and dataclasses.is_dataclass(origin):
    _require(isinstance(value, Mapping))
    return build(typing.cast(type, origin), value)
  if origin is tuple and args[-1:] != (...,):  # tuple[str, float], say
    _require(isinstance(value, list | tuple) and len(value) == len(args))
    return tuple(_fit(part, kind, builds) for part, kind in zip(value, args))
  if origin in (tuple, list, Sequence):
    if isinstance(value, str) and not builds:
      # A text is a sequence of texts, but who gives one means the whole.
      value = [value]
    _require(isinstance(value, Sequence) and not isinstance(value, str | bytes))
    parts = [_fit(part, args[0], builds) for part in value]
    return parts if origin is list else tuple(parts)
  if origin in (dict, Mapping):
    return _fit_dict(value, args or (Any, Any), builds)
  _require(_is_plain(value, origin))
  return value


def _fit_rules(
  value: Any, kind: Any, rules: Sequence[Any], builds: bool
) -> Any:
  """Returns a value in the form of a type, if the rules hold for it too."""
  value = _fit(value, kind, builds)
  for rule in rules:
    if hasattr(rule, "holds"):
      _require(rule.holds(value))
    else:
      rule(value)
  return value


def _fit_union(value: Any, kinds: Sequence[Any], builds: bool) -> Any:
  """Returns a value in the form of the first type that it fits."""
  for kind in kinds:
    with contextlib.suppress(_WrongKindError):
      return _fit(value, kind, builds)
  raise _WrongKindError


def _fit_typed_dict(value: Any, kind: Any, builds: bool) -> dict[str, Any]:
  """Returns a dict with values in the form of a TypedDict; more keys may be."""
  _require(isinstance(value, Mapping))
  _require(kind.__required_keys__ <= set(value))
  kinds = _hints(kind)
  return {
    key: _fit(part, kinds.get(key, Any), builds) for key, part in value.items()
  }


def _fit_dict(value: Any, kinds: Sequence[Any], builds: bool) -> dict[Any, Any]:
  """Returns a dict with its keys and its values in the form of two types."""
  _require(isinstance(value, Mapping))
  key_kind, part_kind = kinds
  fitted = {}
  for key, part in value.items():
    # JSON has only strings as keys: "2" stands for 2 where numbers are wanted.
    if builds and key_kind is int and str(key).isdecimal():
      key = int(key)
    fitted[_fit(key, key_kind, builds)] = _fit(part, part_kind, builds)
  return fitted


def _require(condition: bool) -> None:
  """Raises _WrongKindError if a condition does not hold."""
  if not condition:
    raise _WrongKindError


def _is_plain(value: Any, kind: Any) -> bool:
  """Returns whether a value is of a type that has no parts."""
  if kind in (Any, object, inspect.Parameter.empty):
    return True
  if kind is Callable:
    return callable(value)
  # True and False are integers of Python, but no numbers to a user. NumPy's
  # numbers are not of Python's types, but of the abstract ones.
  if kind is int:
    is_number = isinstance(value, numbers.Integral)
    return is_number and not isinstance(value, bool)
  if kind is float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
      return is_number and math.isfinite(value)
    except OverflowError:  # an integer that is larger than any float
      return False
  if kind is str:
    return isinstance(value, str) and is_text(value)
  if kind is Content:
    return isinstance(value, str) and is_utf8(value)
  return isinstance(value, kind)


def is_text(value: str) -> bool:
  """Returns whether UTF-8 and names of files can hold a string."""
  return is_utf8(value) and "\0" not in value


def is_utf8(value: str) -> bool:
  """Returns whether UTF-8 can hold a string.

  UTF-8 cannot hold half of a surrogate pair, which JSON strings may have.
  """
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


def freeze(instance: object) -> None:
  """Turns the lists of a frozen dataclass, perhaps from JSON, into tuples.

  Lists inside of lists become tuples, too.
  """

  def frozen(value: Any) -> Any:
    return tuple(map(frozen, value)) if isinstance(value, list) else value

  for name, value in vars(instance).items():
    if isinstance(value, list):
      object.__setattr__(instance, name, frozen(value))


def of_json(text: str | bytes) -> Any:
  """Returns the value of a JSON string.

  Raises:
    ValueError: the string is not JSON, or is nested too deep.
  """
  try:
    return json.loads(text)
  except RecursionError as error:
    raise ValueError("JSON nested too deep") from error


def at_least(least: int, **values: Any) -> None:
  """Raises SettingError if a setting is not a whole number, or below `least`.

  Args:
    least: the smallest number that is allowed.
    **values: the settings, by the names that the message calls them.
  """
  for name, value in values.items():
    fit(name, value, Annotated[int, Bounds(least)])


def one_of(
  known: Collection[Any], *, error: type[Exception] = ValueError, **values: Any
) -> None:
  """Raises an error if a setting is not among the `known` values.

  Args:
    known: the values that are allowed.
    error: type of the error that is raised.
    **values: the settings, by the names that the message calls them.
  """
  for name, value in values.items():
    if value not in known:
      wanted = ", ".join(map(str, known))
      text = in_words.format_value(value)
      raise error(f"{name} is {text}; wanted one of {wanted}")


def names_of(record: type) -> list[str]:
  """Returns the names of a record's fields, inherited fields first."""
  return [field.name for field in dataclasses.fields(record)]


def values_of(settings: object, record: type) -> dict[str, Any]:
  """Returns the fields of a record by name, with the values of `settings`.

  Args:
    settings: an object that has all of these fields, as one that inherits the
      record.
    record: a dataclass.

  >>> values_of(Bounds(0, high_open=True), Bounds)
  {'low': 0, 'high': inf, 'low_open': False, 'high_open': True}
  """
  return {name: getattr(settings, name) for name in names_of(record)}
