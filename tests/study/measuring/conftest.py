"""A run on files, as the tests of `generate` have it."""

from tests.generate.conftest import files, lines, run

__all__ = ["files", "lines", "run"]
