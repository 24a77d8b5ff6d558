"""Command lines: flags, gin, quiet logs, and jobs of several processes."""

from speccascade.cli.gin_setup import (
  bindings_of,
  command_line_names,
  configure,
  resolved_config,
)
from speccascade.cli.main import (
  Parser,
  compilation_cache,
  fail,
  path,
  run,
  save_config,
  start,
)

__all__ = [
  "Parser",
  "bindings_of",
  "command_line_names",
  "compilation_cache",
  "configure",
  "fail",
  "path",
  "resolved_config",
  "run",
  "save_config",
  "start",
]
