"""Functions of users, named in a setting: MODULE:FUNCTION, FILE.py:FUNCTION."""

from collections.abc import Callable
import contextlib
import importlib
import importlib.util
import operator
import pathlib
import sys
import types
from typing import Any

from speccascade.runtime import shown_text


def failure(error: BaseException) -> str:
  """Returns what was raised, in one line."""
  message = shown_text.visible(str(error).strip().partition("\n")[0])
  return f"{type(error).__name__}: {message}".removesuffix(": ")


def load(
  place: str,
  importing: Callable[[str], Any] = contextlib.nullcontext,
) -> Callable[..., Any]:
  """Returns the function at MODULE:FUNCTION, or FILE.py:FUNCTION.

  Args:
    place: of the function.
    importing: returns the context in which a module of a name is imported.

  Raises:
    ValueError: there is none, or the module cannot be imported.
  """
  module_name, _, name = place.rpartition(":")
  if not module_name or not name:
    raise ValueError(
      f"{place!r} does not name a function; give MODULE:FUNCTION"
    )
  path = pathlib.Path(module_name)
  if module_name.endswith(".py") and not path.is_file():
    raise ValueError(f"there is no file {module_name}")
  if not module_name.endswith(".py") and len(path.parts) > 1:
    raise ValueError(
      f"{module_name} is neither a module nor a file; give MODULE:FUNCTION, or"
      " FILE.py:FUNCTION"
    )
  try:
    with importing(module_name):
      module = _imported(module_name)
  except ModuleNotFoundError as error:
    raise ValueError(
      f"cannot import {module_name}: {error}; run from its folder, or install"
      " it"
    ) from error
  except (Exception, SystemExit) as error:
    raise ValueError(
      f"importing {module_name} raises {failure(error)}"
    ) from error
  try:
    function = operator.attrgetter(name)(module)
  except AttributeError as error:
    others = [x for x in vars(module) if callable(getattr(module, x))]
    others = [x for x in others if x[0] != "_"]
    some = ", ".join(others[:8]) + ", ..." * (len(others) > 8)
    raise ValueError(
      f"{module_name} has no function {name}; it has {some or 'none'}"
    ) from error
  if not callable(function):
    raise ValueError(
      f"{name} of {module_name} is not a function but {type(function).__name__}"
    )
  return function


def _imported(name: str) -> types.ModuleType:
  """Returns a module, by its name or by its file."""
  if not name.endswith(".py"):
    return importlib.import_module(name)
  path = pathlib.Path(name)
  # A name of its own: a file random.py must not stand for Python's module.
  spec = importlib.util.spec_from_file_location(f"named_{path.stem}", path)
  assert spec is not None
  assert spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module
  # Modules beside it are found, after all others.
  sys.path.append(str(path.resolve().parent))
  spec.loader.exec_module(module)
  return module
