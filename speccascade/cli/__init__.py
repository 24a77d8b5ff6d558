"""Command lines: flags, gin, and what the log keeps to itself."""

from speccascade.cli.main import (
  compilation_cache,
  configured,
  run,
  save_config,
)

__all__ = ["compilation_cache", "configured", "run", "save_config"]
