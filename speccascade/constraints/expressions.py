"""Regular expressions, and the regular part of JSON schemas, as automata.

`outlines-core` compiles them for the tokens of a vocabulary; it is the extra
`grammar`. It makes the table of a regular expression over bytes ahead of time,
which a compiled loop can read. Libraries that follow a grammar token by token
on the host cannot run inside of one.
"""

from speccascade.constraints import json_schema
from speccascade.constraints.grammars import automaton

__all__ = ["automaton", "of_schema"]


def of_schema(schema: str) -> str:
  """Returns the regular expression of a JSON schema.

  Every text that it matches is JSON that the schema allows.

  Args:
    schema: a JSON schema, as text.

  Raises:
    ConstraintError: the text is not a JSON schema, or the schema has a keyword
      that the expression would not hold.
  """
  return json_schema.expression(schema)
