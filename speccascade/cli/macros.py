"""The macros of gin files, read as text: what `--help` lists."""

from collections.abc import Iterable
import os
import pathlib
import re
from typing import NamedTuple

from speccascade.cli import gin_setup

_MACRO = re.compile(r"([A-Z][A-Z0-9_]*) = (.*?)(?:  #\s+(.*))?")
_INCLUDE = re.compile(r"""include ["'](.+)["']""")
_REQUIRED = "%gin.REQUIRED"


class Macro(NamedTuple):
  """A macro of a gin file: its default, as written, and what is said of it."""

  value: str
  comment: str


def macros(name: str, folders: Iterable[str] | None = None) -> dict[str, Macro]:
  """Returns the macros of a gin file and of those that it includes.

  Args:
    name: path of the file.
    folders: in which it is looked for; None takes the working directory, then
      those of the package.

  Raises:
    ConfigError: there is no such file, or it is no text.
  """
  folders = ["", *gin_setup.search_paths()] if folders is None else folders
  paths = [pathlib.Path(folder, name) for folder in folders]
  path = next(filter(os.path.isfile, paths), None)
  if path is None:
    raise gin_setup.ConfigError(f"no gin file {name}")
  listed = {}
  try:
    lines = path.read_text(encoding="utf-8").splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise gin_setup.ConfigError(f"{path} cannot be read: {error}") from error
  for line in lines:
    if included := _INCLUDE.fullmatch(line):
      listed |= macros(included[1], folders)
    elif macro := _MACRO.fullmatch(line):
      before = listed.get(macro[1], Macro("", ""))
      value = "required" if macro[2] == _REQUIRED else macro[2]
      if value[-1:] in ("{", "["):
        value += " ..."
      listed[macro[1]] = Macro(value, macro[3] or before.comment)
  return listed


def help_text(files: Iterable[str]) -> str:
  """Returns a list of the macros of gin files for a terminal; later ones win.

  Raises:
    ConfigError: a file is missing, or includes itself.
  """
  listed = {}
  for name in files:
    try:
      listed |= macros(name)
    except RecursionError as error:
      raise gin_setup.ConfigError(f"{name} includes itself") from error
  if not listed:
    return ""
  lines = [f"Macros of {', '.join(files)}, set by --gin.NAME=VALUE:"]
  for name, (value, comment) in listed.items():
    line = f"  {name} = {value}"
    lines.append(f"{line:<42}  {comment}".rstrip() if comment else line)
  return "\n".join(lines)
