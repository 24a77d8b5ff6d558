"""Command lines: flags, gin, and what the log keeps to itself."""

from speccascade.cli.gin_setup import bound, configured, given, resolved_config
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
  "bound",
  "compilation_cache",
  "configured",
  "fail",
  "given",
  "path",
  "resolved_config",
  "run",
  "save_config",
  "start",
]
