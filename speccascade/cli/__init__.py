"""Command lines: flags, gin, quiet logs, and jobs of several processes."""

from speccascade.cli.gin_setup import (
  bindings_of,
  command_line_names,
  configure,
  resolved_config,
)
from speccascade.cli.main import (
  compilation_cache,
  fail,
  run,
  save_config,
  start,
)
from speccascade.runtime.command_line import Parser, path

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
