"""Reads the macros of gin files as text, for `--help`.

`--help` must not run gin: gin imports the modules that a file names, and asks
for the macros that have no value.
"""

from collections.abc import Iterable
import os
import pathlib
import re
from typing import NamedTuple

from speccascade.cli import gin_setup

_MACRO = re.compile(r"([A-Z][A-Z0-9_]*) = (.*?)(?:  #\s+(.*))?")
_INCLUDE = re.compile(r"""include ["'](.+)["']""")
_REQUIRED = "%gin.REQUIRED"
_COMMENT_COLUMN = 42  # where comments begin in a line of `--help`


class Macro(NamedTuple):
  """A macro of a gin file.

  Attributes:
    value: the default, as it is written; "required" if there is none. Of a
      value of several lines this is the first.
    comment: the comment after the value, "" for none.
  """

  value: str
  comment: str


def macros(name: str, folders: Iterable[str] | None = None) -> dict[str, Macro]:
  """Returns the macros of a gin file and of the files that it includes.

  Args:
    name: path of the file.
    folders: folders in which the file is looked for. None takes the working
      directory and then the package's folders.

  Raises:
    ConfigError: there is no such file, or the file is not text.
  """
  folders = ["", *gin_setup.package_folders()] if folders is None else folders
  paths = [pathlib.Path(folder, name) for folder in folders]
  path = next(filter(os.path.isfile, paths), None)
  if path is None:
    raise gin_setup.ConfigError(f"no gin file {name}")
  try:
    lines = path.read_text(encoding="utf-8").splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise gin_setup.ConfigError(f"{path} cannot be read: {error}") from error
  listed = {}
  for line in lines:
    if included := _INCLUDE.fullmatch(line):
      listed |= macros(included[1], folders)
    elif match := _MACRO.fullmatch(line):
      macro, value, comment = match.groups()
      value = "required" if value == _REQUIRED else value
      if value[-1:] in ("{", "["):
        value += " ..."  # the rest of the value is on the next lines
      # A later file sets another default, and often leaves the comment to the
      # file that it includes.
      earlier = listed.get(macro, Macro("", ""))
      listed[macro] = Macro(value, comment or earlier.comment)
  return listed


def help_text(files: Iterable[str]) -> str:
  """Returns the macros of gin files as text for a terminal.

  Args:
    files: paths of the files; a later file's default wins.

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
  lines = [f"Settings of {', '.join(files)}, set by --gin.NAME=VALUE:"]
  for name, macro in listed.items():
    line = f"  {name} = {macro.value}"
    if macro.comment:
      line = f"{line:<{_COMMENT_COLUMN}}  {macro.comment}".rstrip()
    lines.append(line)
  return "\n".join(lines)
