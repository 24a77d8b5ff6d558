"""Regular expressions, and the regular part of JSON schemas, as automata.

`outlines-core` compiles them for the tokens of a vocabulary; it is the extra
`grammar`. It makes the table of a regular expression over bytes ahead of time,
which a compiled loop can read. Libraries that follow a grammar token by token
on the host cannot run inside of one.
"""

import json

from speccascade.constraints.automaton_tables import ConstraintError
from speccascade.constraints.expression_compiler import MISSING
from speccascade.constraints.grammars import automaton

__all__ = ["automaton", "of_schema"]


def of_schema(schema: str) -> str:
  """Returns the regular expression of a JSON schema.

  Args:
    schema: a JSON schema, as text.

  Raises:
    ConstraintError: the text is no JSON schema, or the schema is recursive,
      which no regular expression is.
  """
  try:
    from outlines_core.json_schema import build_regex_from_schema
  except ImportError as error:
    raise ConstraintError(MISSING) from error
  try:
    value = json.loads(schema)
  except ValueError as error:
    raise ConstraintError(
      f"JSON_SCHEMA is no JSON: {error}; give the text of a schema"
    ) from error
  if _is_recursive(value):
    raise ConstraintError(
      "JSON_SCHEMA refers to itself, and no automaton has a state for each"
      " depth: write the depths out that you need"
    )
  try:
    return build_regex_from_schema(json.dumps(value))
  except BaseException as error:  # A panic of Rust is no Exception.
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
      raise
    raise ConstraintError(
      f"JSON_SCHEMA has no regular expression: {error}; leave that part out"
    ) from error


def _is_recursive(schema) -> bool:
  """Whether a reference of a schema leads back to itself."""
  if not isinstance(schema, dict):
    return False

  def target(reference: str):
    place = schema
    for name in reference.removeprefix("#").strip("/").split("/"):
      if name:
        name = name.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, dict) else None
    return place

  def leads_back(part, above: frozenset[str]) -> bool:
    if isinstance(part, list):
      return any(leads_back(each, above) for each in part)
    if not isinstance(part, dict):
      return False
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
      if reference in above:
        return True
      return leads_back(target(reference), above | {reference})
    return any(
      leads_back(each, above)
      for name, each in part.items()
      if name not in ("$defs", "definitions")
    )

  return leads_back(schema, frozenset({"#"}))
