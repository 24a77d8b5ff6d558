"""A small trained pair that comes with the package, for the first minute.

README.md in this folder says how the pair was made, and from what.
"""

import pathlib

FOLDER = pathlib.Path(__file__).parent


def drafter() -> str:
  """Returns the path of the pair's small model."""
  return str(FOLDER / "small")


def verifier() -> str:
  """Returns the path of the pair's large model."""
  return str(FOLDER / "large")
