"""Command lines: flags, gin, and what the log keeps to itself."""

from speccascade.cli.gin_setup import (
  bound,
  configured,
  given,
  resolved_config,
)
from speccascade.cli.main import compilation_cache, run, save_config, start

__all__ = [
  "bound",
  "compilation_cache",
  "configured",
  "given",
  "resolved_config",
  "run",
  "save_config",
  "start",
]
