"""The only module that uses gin's private API.

Tried with gin-config 0.5.0. It uses these names of `gin.config`, which gin does
not export:

  _LOCATION_PREFIXES        the folders in which gin looks for files
  _CONFIG                   {(scope, selector): {parameter: value}}
  _REGISTRY                 every configurable, by selector
  ConfigurableReference     a value "@function" or "%MACRO" of a gin file
  iterate_references        the references inside such values
  macro                     the function that a macro is a reference to
  _retrieve_constant        the function that a constant is a reference to

It also reads the texts of gin's errors, and of one log message. A macro NAME is
kept by gin as the parameter "value" of gin.macro in the scope NAME, and %NAME
is a reference to gin.macro in that scope.

There is no public way: gin has no list of macros or of the values that are
missing, adds search paths but replaces none, and raises ValueError with a
message for every fault. A gin that renames one of the names raises
AttributeError here; a gin that words its errors in another way loses the hints
of `gin_setup`, and `tests/cli/test_cli.py` fails.
"""

from collections.abc import Iterable, Iterator
import re
from typing import Any

import gin

_UNKNOWN_NAME = re.compile(
  r"No configurable matching (?:reference )?'@?([^']+)'"
)
_UNKNOWN_PARAMETER = re.compile(
  r"Configurable '([^']+)' doesn't have a parameter named '([^']+)'"
)
_NO_VALUES = re.compile(
  r"No values supplied by Gin or caller for arguments: (\[[^\]]*\])"
)
_CALL = re.compile(r"In call to configurable '([^']+)'")
_NO_FILE = re.compile(r"Unable to open file: (.*?)\. Searched")


def set_search_paths(folders: Iterable[str]):
  """Makes gin look for files in these folders, in this order, and no others."""
  gin.config._LOCATION_PREFIXES[:] = folders


def search_paths() -> list[str]:
  """Returns the folders in which gin looks for files."""
  return list(gin.config._LOCATION_PREFIXES)


def configurable_names() -> list[str]:
  """Returns the full names of all functions that gin can configure."""
  return [name for name, _ in gin.config._REGISTRY.items()]


def bindings() -> Iterator[tuple[Any, dict[str, Any]]]:
  """Yields (function, {parameter: value}) of the configuration.

  The function, or class, is the one that its module defines; None for a
  selector that is not registered.
  """
  for (_, selector), values in gin.config._CONFIG.items():
    function = gin.config._REGISTRY.get_match(selector)
    yield function and function.wrapped, values


def macros() -> dict[str, Any]:
  """Returns the macros that have a value, with the value."""
  return {
    scope: values["value"]
    for (scope, selector), values in gin.config._CONFIG.items()
    if selector == "gin.macro"
  }


def used_macros() -> set[str]:
  """Returns the macros that some value refers to."""
  references = gin.config.iterate_references(gin.config._CONFIG)
  return {name for name in map(macro_of, references) if name is not None}


def macro_of(value) -> str | None:
  """Returns the name of the macro that a value refers to; None for others."""
  if not isinstance(value, gin.config.ConfigurableReference):
    return None
  if value.configurable.wrapped is not gin.config.macro:
    return None
  return value.scoped_selector.rpartition("/")[0]


def is_required(value) -> bool:
  """Returns whether a value is %gin.REQUIRED, which stands for no value."""
  return (
    isinstance(value, gin.config.ConfigurableReference)
    and value.configurable.wrapped is gin.config._retrieve_constant
    and value.scoped_configurable_fn() is gin.REQUIRED
  )


def unknown_name(text: str) -> str | None:
  """Returns the function that an error names and gin does not know."""
  match = _UNKNOWN_NAME.search(text)
  return match[1] if match else None


def unknown_parameter(text: str) -> tuple[Any, str] | None:
  """Returns (function, parameter) of an error about a parameter it has not."""
  match = _UNKNOWN_PARAMETER.search(text)
  return match and (gin.get_configurable(match[1]), match[2])


def missing_arguments(text: str) -> tuple[str, list[str]] | None:
  """Returns (function, names) of the arguments that a TypeError misses.

  gin adds them to the errors of functions that it configures.
  """
  call, arguments = _CALL.search(text), _NO_VALUES.search(text)
  if call is None or arguments is None:
    return None
  return call[1], re.findall(r"'([^']+)'", arguments[1])


def are_bindings_missing(text: str) -> bool:
  """Returns whether an error says that parameters without values are used."""
  return text.startswith("Required bindings for")


def missing_file(text: str) -> str | None:
  """Returns the gin file that an error says is in no search path."""
  match = _NO_FILE.match(text)
  return match[1] if match else None


def is_search_message(text: str) -> bool:
  """Returns whether a log message is about a folder that has not a file.

  gin logs an error for each such folder, before it looks into the next one.
  """
  return text.startswith("Path not found")


def without_calls(text: str) -> str:
  """Returns an error's text without the trail of calls that gin adds."""
  return text.split("\n  In call to configurable")[0]
