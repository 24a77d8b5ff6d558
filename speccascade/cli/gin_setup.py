"""Reads gin files and bindings as T5X does, and explains faults in one line."""

from collections.abc import Iterable
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

from speccascade.cli import gin_internals, quiet
from speccascade.runtime import extras, shown_text
from speccascade.settings.fields import SettingError

PACKAGE = pathlib.Path(__file__).parents[1]

# Macros and parameters that the command line bound in the last `parse`.
_command_line_names: set[str] = set()


class ConfigError(ValueError):
  """A gin configuration that cannot be used."""


def package_folders() -> list[str]:
  """Returns the folders in which gin files are looked for after the cwd.

  A clone has `configs/` beside the package, and an installed package has it
  inside. In both, `configs/models/t5_1_1_small.gin` is found, and so is
  `models/t5_1_1_small.gin`.
  """
  folders = []
  for root in (PACKAGE.parent, PACKAGE):
    if (root / "configs").is_dir():
      folders += [str(root), str(root / "configs")]
  return folders


def parse(files, bindings, extra_search_paths=()):
  """Parses gin files in order, and then bindings; a later value wins.

  Args:
    files: paths of gin files, relative to the working directory or to one of
      the search paths.
    bindings: texts `NAME = VALUE` or `module.function.parameter = VALUE`.
    extra_search_paths: folders that are searched before the default ones.

  Raises:
    ConfigError: a file or binding is wrong, or a macro has no value. The
      message is one line, which names the file or binding and what to do.
  """
  gin.clear_config()
  _command_line_names.clear()
  # All folders are absolute: gin takes a relative one for a Python package too,
  # and fails if the folder of that name has no __init__.py.
  folders = [".", *extra_search_paths, *package_folders()]
  absolute = dict.fromkeys(os.path.abspath(folder) for folder in folders)
  gin_internals.set_search_paths(absolute)
  for name in files:
    with _name_in_errors(name), quiet.gin_search():
      gin.parse_config_file(name)
  # gin accepts any macro. One that no file uses is a typing error, unless
  # another binding of the command line uses it.
  macros = gin_internals.used_macros() | set(gin_internals.macros())
  for binding in bindings:
    macros |= set(re.findall(r"%(\w+)", binding))
  for binding in bindings:
    name = binding.partition("=")[0].strip()
    if re.fullmatch(r"\w+", name) and name not in macros:
      raise _unused_macro(name, macros, has_files=bool(files))
    with _name_in_errors(f"--gin.{binding}"):
      gin.parse_config(binding)
    _command_line_names.add(name)
  _check_macros()
  try:
    gin.finalize()
  except ValueError as error:
    raise ConfigError(_one_line(error)) from error


def _unused_macro(name: str, macros: set[str], has_files: bool) -> ConfigError:
  """Returns the error for a macro of the command line that no file uses."""
  reason = "no --gin_file"
  if has_files:
    reason = f"the gin files have {', '.join(sorted(macros)) or 'no macros'}"
  return ConfigError(
    f"no config uses {name}{_did_you_mean(name, macros)}: {reason}"
  )


def command_line_names() -> frozenset[str]:
  """Returns the macros and parameters that the command line itself bound."""
  return frozenset(_command_line_names)


def configure(function):
  """Returns `function` with the parameters that gin files give it.

  Args:
    function: a function or class of a module that a gin file imports. A
      function that no gin file names is returned as it is.

  Raises:
    ConfigError: a parameter without a default has no value.
  """
  try:
    configured = gin.get_configurable(function)
    bound = set(gin.get_bindings(function, resolve_references=False))
  except (KeyError, ValueError):  # gin does not know the function
    configured, bound = function, set()
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
  return configured


def bindings_of(function) -> dict:
  """Returns {parameter: value} that gin files give to a function."""
  return gin.get_bindings(function)


def resolved_config() -> str:
  """Returns the whole configuration as one gin file, which parses to itself.

  The first line is a comment with the command that made the configuration.
  """
  program = pathlib.Path(sys.argv[0])
  arguments = [str(program)]
  if PACKAGE in program.parents:
    # python -m speccascade.judge runs .../speccascade/judge/__main__.py, and
    # python -m speccascade.advise.trees runs .../study/search/trees.py.
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.origin == str(program):
      name = spec.name
    else:
      path = program.relative_to(PACKAGE.parent).with_suffix("")
      name = ".".join(path.parts)
    arguments = ["-m", name.removesuffix(".__main__")]
  command = shlex.join(["python", *arguments, *sys.argv[1:]])
  return f"# {command}\n\n{gin.config_str()}"


def explain(error: BaseException, hint: str = "") -> str | None:
  """Returns one line about an error that a user can cause; None for a bug.

  Args:
    error: the error.
    hint: text that is added if another library raised the error.
  """
  if isinstance(error, SettingError):
    return _user_name(error) + _one_line(error).removeprefix(error.name)
  if isinstance(error, RecursionError):
    return "nested too deep, or a setting that asks for itself"
  if isinstance(error, TypeError | RuntimeError):
    # Other errors of these types are bugs.
    text = str(error)
    if missing := gin_internals.missing_arguments(text):
      function, names = missing
      return (
        f"{function} needs {', '.join(names)}: set it in a gin file, or pass "
        f"--gin.{function}.{names[0]}=VALUE"
      )
    if gin_internals.are_bindings_missing(text):
      return _one_line(error)
    return None
  kinds = ValueError | OSError | ImportError | SyntaxError | FloatingPointError
  if isinstance(error, kinds):
    if missing_package := extras.line(error):
      return missing_package
    return _one_line(error) + ("" if _is_ours(error) else hint)
  return None


def _user_name(error: SettingError) -> str:
  """Returns the macro or parameter by which a user sets a setting."""
  for function, values in gin_internals.bindings():
    is_owner = function is not None and function is error.owner
    if is_owner and error.name in values:
      parameter = f"{error.owner.__name__}.{error.name}"
      return gin_internals.macro_of(values[error.name]) or parameter
  return error.name


def _is_ours(error) -> bool:
  """Returns whether this package raised an error; its messages need no hint."""
  frames = traceback.extract_tb(error.__traceback__)
  return not frames or PACKAGE in pathlib.Path(frames[-1].filename).parents


@contextlib.contextmanager
def _name_in_errors(source: str):
  """Turns gin's errors into one line that names the file or the --gin.X."""
  try:
    yield
  except OSError as error:
    missing = gin_internals.missing_file(str(error))
    if missing is None:
      raise
    folders = ", ".join(gin_internals.search_paths())
    # A file that another one includes is named together with that one.
    where = "" if missing == source else f"{source}: "
    raise ConfigError(f"{where}no gin file {missing} in {folders}") from error
  except SyntaxError as error:
    hint = ""
    if source.startswith("--gin."):
      name = source.removeprefix("--gin.").partition("=")[0].strip()
      hint = f"; strings need quotes: --gin.{name}='\"text\"'"
    raise ConfigError(f"{source}: {error.msg}{hint}") from error
  except (RecursionError, MemoryError) as error:
    raise ConfigError(f"{source:.80}: nested too deep") from error
  except (
    ValueError,
    NameError,
    AttributeError,
    ImportError,
    tokenize.TokenError,
  ) as error:
    text = _one_line(error)
    raise ConfigError(f"{source}: {text}{_near_misses(text)}") from error


def _near_misses(text: str) -> str:
  """Returns a hint for the unknown name in an error's text, or ""."""
  if (name := gin_internals.unknown_name(text)) is not None:
    return _did_you_mean(name, gin_internals.configurable_names())
  if (unknown := gin_internals.unknown_parameter(text)) is not None:
    function, parameter = unknown
    return _did_you_mean(parameter, inspect.signature(function).parameters)
  return ""


def _check_macros():
  """Raises ConfigError if macros have no value, or refer to themselves."""
  macros = gin_internals.macros()
  for first in macros:
    # ONE = %TWO and TWO = %ONE: the chain comes back to where it has been.
    chain = [first]
    while name := gin_internals.macro_of(macros.get(chain[-1])):
      chain.append(name)
      if name in chain[:-1]:
        raise ConfigError(f"{' = %'.join(chain)}: a macro of itself")
  missing = sorted(
    name
    for name in gin_internals.used_macros() | set(macros)
    if name not in macros or gin_internals.is_required(macros[name])
  )
  if missing:
    raise ConfigError(
      f"{', '.join(missing)} must be given: pass --gin.{missing[0]}=VALUE "
      "(strings in quotes within quotes: '\"text\"'), or set it in a gin file"
    )


def _did_you_mean(name: str, known: Iterable[str]) -> str:
  """Returns ", did you mean X or Y?", or "" if nothing known is near."""
  # The name "finetune.tran" has two parts, so that it is compared with the last
  # two parts of the known name ".../speccascade.training.finetune.train".
  num_parts = name.count(".") + 1
  tails = {".".join(full.split(".")[-num_parts:]) for full in known}
  close = difflib.get_close_matches(name, sorted(tails), n=3, cutoff=0.6)
  if not close and num_parts > 1:  # the name with another module
    last = name.rpartition(".")[2]
    close = sorted(tail for tail in tails if tail.rpartition(".")[2] == last)
  return f", did you mean {' or '.join(close)}?" if close else ""


def _one_line(error: BaseException) -> str:
  """Returns an error's message on one line."""
  text = str(error) or type(error).__name__
  if isinstance(error, OSError) and error.filename is not None:
    text = f"{error.filename}: {error.strerror}"
  return shown_text.one_line(gin_internals.without_calls(text))
