"""Reads gin files and bindings as T5X does, and says in words what is wrong."""

import contextlib
import difflib
import inspect
import os
import pathlib
import re
import shlex
import sys
import tokenize
import traceback

import gin

from speccascade.cli import quiet
from speccascade.settings.fields import SettingError

PACKAGE = pathlib.Path(__file__).parents[1]

_UNKNOWN_NAME = re.compile(
  r"No configurable matching (?:reference )?'@?([^']+)'"
)
_UNKNOWN_PARAMETER = re.compile(
  r"Configurable '([^']+)' doesn't have a parameter named '([^']+)'"
)
_NO_VALUES = re.compile(
  r"No values supplied by Gin or caller for arguments: (\[[^\]]*\])"
)

_GIVEN: set[str] = set()


class ConfigError(ValueError):
  """A gin configuration that cannot be used."""


def search_paths() -> list[str]:
  """Returns the folders in which gin files are looked for after the cwd.

  A clone has `configs/` beside the package, an installed package inside it;
  either way `configs/models/t5_1_1_small.gin` is found, and so is
  `models/t5_1_1_small.gin`.
  """
  roots = [PACKAGE.parent, PACKAGE]
  return [
    str(folder)
    for root in roots
    if (root / "configs").is_dir()
    for folder in (root, root / "configs")
  ]


def parse(files, bindings, extra_search_paths=()):
  """Parses gin files in order, then bindings; later ones win.

  Args:
    files: paths of gin files, relative to the working directory or to one of
      the search paths.
    bindings: strings `NAME = VALUE` or `module.function.parameter = VALUE`.
    extra_search_paths: folders looked into before the default ones.

  Raises:
    ConfigError: one line, naming the file or binding and the way out.
  """
  gin.clear_config()
  gin.config._IMPORTS.clear()
  _GIVEN.clear()
  # Absolute ones only: gin takes a relative one for a Python package as well,
  # and fails on a folder of that name without an __init__.py.
  folders = [".", *extra_search_paths, *search_paths()]
  gin.config._LOCATION_PREFIXES[:] = dict.fromkeys(
    map(os.path.abspath, folders)
  )
  for name in files:
    with _named(name), quiet.gin_search():
      gin.parse_config_file(name)
  known = _used_macros() | set(_macros())
  known |= {name for b in bindings for name in re.findall(r"%(\w+)", b)}
  for binding in bindings:
    name = binding.partition("=")[0].strip()
    if re.fullmatch(r"\w+", name) and name not in known:
      there = "no --gin_file"
      if files:
        there = f"the gin files have {', '.join(sorted(known)) or 'no macros'}"
      raise ConfigError(f"no config uses {name}{_near(name, known)}: {there}")
    with _named(f"--gin.{binding}"):
      gin.parse_config(binding)
    _GIVEN.add(name)
  _check_macros()
  try:
    gin.finalize()
  except ValueError as error:
    raise ConfigError(_one_line(error)) from error


def command_line_names() -> frozenset[str]:
  """Returns the macros and parameters that the command line itself bound."""
  return frozenset(_GIVEN)


def configure(function):
  """Returns `function` with the parameters that gin files give it.

  Args:
    function: a function or class of a module that a gin file imports; one that
      no gin file names is returned as it is.

  Raises:
    ConfigError: a parameter without a default has no value.
  """
  try:
    wrapped = gin.get_configurable(function)
    bound = set(gin.get_bindings(function, resolve_references=False))
  except (KeyError, ValueError):
    wrapped, bound = function, set()
  missing = [
    name
    for name, parameter in inspect.signature(function).parameters.items()
    if parameter.default is parameter.empty
    and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    and name not in bound
  ]
  if missing:
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    raise ConfigError(
      f"{name} needs {', '.join(missing)}: set {name}.{missing[0]} in a gin "
      f"file, or pass --gin.{name}.{missing[0]}=VALUE"
    )
  return wrapped


def bindings_of(function) -> dict:
  """Returns the values that gin files give the parameters of a function."""
  return gin.get_bindings(function)


def resolved_config() -> str:
  """Returns the whole configuration as one gin file, which parses to the same.

  The first line tells the command that made it.
  """
  program = pathlib.Path(sys.argv[0])
  name = [str(program)]
  if PACKAGE in program.parents:
    parts = program.relative_to(PACKAGE.parent).with_suffix("").parts
    name = ["-m", ".".join(parts).removesuffix(".__main__")]
  command = shlex.join(["python", *name, *sys.argv[1:]])
  return f"# {command}\n\n{gin.config_str()}"


def explain(error: BaseException, hint: str = "") -> str | None:
  """Returns one line on an error that a user can cause, or None on a bug.

  Args:
    error: the error.
    hint: what follows where libraries raised it.
  """
  if isinstance(error, SettingError):
    return _macro_of(error) + _one_line(error).removeprefix(error.name)
  if isinstance(error, RecursionError):
    return "nested too deep, or a setting that asks for itself"
  if isinstance(error, TypeError | RuntimeError):
    # gin adds these where a configured function lacks an argument.
    text = str(error)
    called = re.search(r"In call to configurable '([^']+)'", text)
    if (match := _NO_VALUES.search(text)) and called:
      names = re.findall(r"'([^']+)'", match[1])
      return (
        f"{called[1]} needs {', '.join(names)}: set it in a gin file, or pass "
        f"--gin.{called[1]}.{names[0]}=VALUE"
      )
    if text.startswith("Required bindings for"):
      return _one_line(error)
    return None
  kinds = ValueError | OSError | ImportError | SyntaxError | FloatingPointError
  if isinstance(error, kinds):
    return _one_line(error) + ("" if _is_ours(error) else hint)
  return None


def _macro_of(error: SettingError) -> str:
  """Returns what a user calls a setting: its macro, else the parameter."""
  for (_, selector), values in gin.config._CONFIG.items():
    function = gin.config._REGISTRY.get_match(selector)
    if function and function.wrapped is error.owner and error.name in values:
      parameter = f"{error.owner.__name__}.{error.name}"
      return _macro(values[error.name]) or parameter
  return error.name


def _is_ours(error) -> bool:
  """True where speccascade itself raised: its messages say what to do."""
  frames = traceback.extract_tb(error.__traceback__)
  return not frames or PACKAGE in pathlib.Path(frames[-1].filename).parents


@contextlib.contextmanager
def _named(what: str):
  """Makes faults of gin one line that names what is parsed."""
  try:
    yield
  except OSError as error:
    if not str(error).startswith("Unable to open file"):
      raise
    missing = re.match(r"Unable to open file: (.*?)\. Searched", str(error))[1]
    folders = gin.config._LOCATION_PREFIXES
    where = "" if missing == what else f"{what}: "
    raise ConfigError(
      f"{where}no gin file {missing} in {', '.join(folders)}"
    ) from error
  except SyntaxError as error:
    hint = ""
    if what.startswith("--gin."):
      name = what[6:].partition("=")[0].strip()
      hint = f"; strings need quotes: --gin.{name}='\"text\"'"
    raise ConfigError(f"{what}: {error.msg}{hint}") from error
  except (RecursionError, MemoryError) as error:
    raise ConfigError(f"{what:.80}: nested too deep") from error
  except (
    *(ValueError, NameError, AttributeError, ImportError),
    tokenize.TokenError,
  ) as error:
    text = _one_line(error)
    if match := _UNKNOWN_NAME.search(text):
      text += _near(match[1], dict(gin.config._REGISTRY.items()))
    elif match := _UNKNOWN_PARAMETER.search(text):
      function = gin.get_configurable(match[1])
      text += _near(match[2], inspect.signature(function).parameters)
    raise ConfigError(f"{what}: {text}") from error


def _macros() -> dict:
  """Returns the macros that have a value, with the value."""
  return {
    scope: values["value"]
    for (scope, selector), values in gin.config._CONFIG.items()
    if selector == "gin.macro"
  }


def _macro(value) -> str | None:
  """Returns the name of the macro that a value refers to, else None."""
  is_reference = isinstance(value, gin.config.ConfigurableReference)
  if is_reference and value.configurable.wrapped is gin.config.macro:
    return value.scoped_selector.rpartition("/")[0]
  return None


def _used_macros() -> set[str]:
  references = gin.config.iterate_references(gin.config._CONFIG)
  return set(filter(None, map(_macro, references)))


def _check_macros():
  """Raises where a macro is used that has no value, naming every such macro."""
  macros = _macros()

  def is_required(value):
    return (
      isinstance(value, gin.config.ConfigurableReference)
      and value.configurable.wrapped is gin.config._retrieve_constant
      and value.scoped_configurable_fn() is gin.REQUIRED
    )

  for first in macros:
    chain = [first]
    while name := _macro(macros.get(chain[-1])):
      chain.append(name)
      if chain[-1] in chain[:-1]:
        raise ConfigError(f"{' = %'.join(chain)}: a macro of itself")
  missing = sorted(
    name
    for name in _used_macros() | set(macros)
    if name not in macros or is_required(macros[name])
  )
  if missing:
    raise ConfigError(
      f"{', '.join(missing)} must be given: pass --gin.{missing[0]}=VALUE "
      "(strings in quotes within quotes: '\"text\"'), or set it in a gin file"
    )


def _near(name: str, names) -> str:
  """Returns ", did you mean X or Y?" or nothing."""
  names = {str(n) for n in names}
  # "finetune.tran" stands for ".../speccascade.training.finetune.train".
  depth = name.count(".") + 1
  tails = {".".join(n.split(".")[-depth:]) for n in names}
  close = difflib.get_close_matches(name, sorted(tails), n=3, cutoff=0.6)
  return f", did you mean {' or '.join(close)}?" if close else ""


def _one_line(error: BaseException) -> str:
  """Returns an error's message on one line, without gin's trail of calls."""
  text = str(error) or type(error).__name__
  if isinstance(error, OSError) and error.filename is not None:
    text = f"{error.filename}: {error.strerror}"
  text = text.split("\n  In call to configurable")[0]
  return " ".join(line.strip() for line in text.splitlines() if line.strip())
