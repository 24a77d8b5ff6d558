"""Functions whose `**settings` are the fields of records: `takes`.

  @takes(Point, without=("method",))
  def generate(text, **settings):
    \"\"\"Returns a text.

    Args:
      text: the source.
      **settings: the fields of `Point`.
    \"\"\"

Python then shows, in `help` and in a notebook, every field as a keyword with
its default and its description, and a name that is not a field is refused.
"""

from collections.abc import Callable, Collection
import dataclasses
import functools
import inspect
import re
import typing
from typing import Any, TypeVar

from speccascade.settings import fields, in_words

Function = TypeVar("Function", bound=Callable[..., Any])

# An entry of a docstring's "Attributes:" section, and of its "Args:" section.
_ATTRIBUTE = re.compile(r"^  (\w+): (.*(?:\n    .*)*)", re.MULTILINE)
_SETTINGS = re.compile(r"^  \*\*\w+: .*(?:\n    .*)*", re.MULTILINE)


# (function's name, settings, names of its settings) -> settings by those names.
Translate = Callable[[str, dict[str, Any], Collection[str]], dict[str, Any]]


def takes(
  *records: type,
  without: Collection[str] = (),
  translate: Translate | None = None,
) -> Callable[[Function], Function]:
  """Returns a decorator of a function that passes settings on to records.

  The fields of the records take the place of the function's `**settings` in its
  signature and in its docstring. A field that the function has as a parameter
  of its own is not listed twice.

  Args:
    *records: dataclasses.
    without: fields that the function does not take.
    translate: gives settings by other names the names that the function has.

  Returns:
    The decorator. The function that it returns raises SettingError for a name
    that is neither a parameter nor a field, with the near misses.
  """

  def decorate(function: Function) -> Function:
    signature = inspect.signature(function)
    named = [
      parameter
      for parameter in signature.parameters.values()
      if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    hidden = {*without, *(parameter.name for parameter in named)}
    # Records may inherit from each other: a field has one place.
    keywords, entries = {}, {}
    for record in records:
      descriptions = describe_fields(record)
      for name, keyword in _keywords(record).items():
        if name not in hidden:
          keywords[name] = keyword
          entries[name] = f"  {name}: {descriptions.get(name, '')}"
    parameters = [*named, *keywords.values()]
    known = [each.name for each in parameters if each.name != "self"]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
      if translate is not None:
        kwargs = translate(function.__name__, kwargs, known)
      for name in kwargs:
        if name not in known:
          listed = f"help({function.__qualname__}) lists what there is"
          hint = in_words.suggest(name, known, otherwise=listed)
          fault = f" is not a setting of {function.__name__}; {hint}"
          raise fields.SettingError(name, fault, call)
      return function(*args, **kwargs)

    wrapped: Any = call
    wrapped.__signature__ = signature.replace(parameters=parameters)
    wrapped.__doc__ = _replace_settings(function.__doc__, [*entries.values()])
    return wrapped

  return decorate


def select(settings: dict[str, Any], record: type) -> dict[str, Any]:
  """Returns the settings that are fields of a record."""
  names = {field.name for field in dataclasses.fields(record)}
  return {name: value for name, value in settings.items() if name in names}


def describe_fields(record: type) -> dict[str, str]:
  """Returns the descriptions of a dataclass's fields by name.

  They are read from the "Attributes:" sections of the docstrings of the class
  and of the classes that it inherits from; the class itself has the last word.
  """
  descriptions: dict[str, str] = {}
  for owner in reversed(record.__mro__):
    text = inspect.cleandoc(owner.__dict__.get("__doc__") or "")
    _, _, section = text.partition("Attributes:\n")
    # The section ends where a line begins at the margin again.
    section = re.split(r"\n(?=\S)", section)[0]
    descriptions |= dict(_ATTRIBUTE.findall(section))
  return descriptions


def _keywords(record: type) -> dict[str, inspect.Parameter]:
  """Returns the fields of a dataclass by name, as parameters given by name."""
  kinds, keywords = typing.get_type_hints(record), {}
  for field in dataclasses.fields(record):
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
      default = field.default_factory()
    elif default is dataclasses.MISSING:
      default = inspect.Parameter.empty
    keywords[field.name] = inspect.Parameter(
      field.name,
      inspect.Parameter.KEYWORD_ONLY,
      default=default,
      annotation=kinds[field.name],
    )
  return keywords


def _replace_settings(doc: str | None, entries: list[str]) -> str | None:
  """Returns a docstring with entries in the place of its `**settings`."""
  if doc is None:  # Python runs without docstrings
    return None
  # A function, because a replacement text would be read for backslashes.
  return _SETTINGS.sub(lambda match: "\n".join(entries), inspect.cleandoc(doc))
