"""The keywords of JSON schemas that a grammar knows, and where they may be.

A schema is checked once, before anything is written: its form, its references,
and that each keyword is one of the list. A keyword that is not on the list is
refused, since texts could violate it.
"""

from collections.abc import Callable, Iterator
import dataclasses
from decimal import Decimal
import json
import math
from typing import NoReturn
import urllib.parse

from speccascade.constraints import char_automata, patterns
from speccascade.constraints.automaton_tables import ConstraintError

# Schemas inside of schemas, references followed; and places that are visited
# while a schema is read, merged and written.
MOST_DEPTH = 48
MOST_STEPS = 10_000
MOST_PATTERN = 2_000

TYPES = {
  "object": dict,
  "array": list,
  "string": str,
  "integer": int,
  "number": (int, float),
  "boolean": bool,
  "null": type(None),
}

_ANNOTATIONS = frozenset(
  {
    *("title", "description", "default", "examples", "$comment", "$schema"),
    *("$id", "deprecated", "readOnly", "writeOnly", "$defs", "definitions"),
  }
)


def _is_count(value) -> bool:
  is_whole = isinstance(value, int) and not isinstance(value, bool)
  return is_whole and value >= 0


def is_number(value) -> bool:
  """Whether a JSON value is a number."""
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_names(value) -> bool:
  return isinstance(value, list) and all(isinstance(x, str) for x in value)


def _is_types(value) -> bool:
  values = value if isinstance(value, list) else [value]
  return bool(values) and all(isinstance(x, str) and x in TYPES for x in values)


_COUNT = (_is_count, "a whole number from 0 on")
_NUMBER = (is_number, "a number")
_NAMES = (_is_names, "a list of names")
_MAP = (lambda x: isinstance(x, dict), "an object")
_LIST = (lambda x: isinstance(x, list), "a list")
_SCHEMA = (lambda x: isinstance(x, (dict, bool)), "a schema")
_SCHEMAS = (lambda x: isinstance(x, list) and bool(x), "a list of schemas")

# Keyword -> what its value is.
_OF_TYPE: dict[str, dict[str, tuple[Callable, str]]] = {
  "number": dict.fromkeys(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER
  )
  | {
    "multipleOf": (lambda x: is_number(x) and x > 0, "a number above 0"),
  },
  "string": {
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "pattern": (lambda x: isinstance(x, str), "a string"),
    "format": (lambda x: isinstance(x, str), "a string"),
  },
  "array": {
    "items": _SCHEMA,
    "prefixItems": _SCHEMAS,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "uniqueItems": (lambda x: isinstance(x, bool), "true or false"),
    "contains": _SCHEMA,
    "minContains": _COUNT,
    "maxContains": _COUNT,
    "unevaluatedItems": _SCHEMA,
  },
  "object": {
    "properties": _MAP,
    "patternProperties": _MAP,
    "additionalProperties": _SCHEMA,
    "propertyNames": _SCHEMA,
    "required": _NAMES,
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "dependentRequired": (
      lambda x: isinstance(x, dict) and all(map(_is_names, x.values())),
      "an object of lists of names",
    ),
    "dependentSchemas": _MAP,
    "unevaluatedProperties": _SCHEMA,
  },
}
_OF_ANY: dict[str, tuple[Callable, str]] = {
  "type": (_is_types, f"one of {', '.join(TYPES)}, or a list of them"),
  "enum": _LIST,
  "const": (lambda x: True, ""),
  "anyOf": _SCHEMAS,
  "oneOf": _SCHEMAS,
  "allOf": _SCHEMAS,
  "not": _SCHEMA,
  "if": _SCHEMA,
  "then": _SCHEMA,
  "else": _SCHEMA,
  "$ref": (lambda x: isinstance(x, str), "a string"),
}
KNOWN = _OF_ANY | {k: v for each in _OF_TYPE.values() for k, v in each.items()}
TYPE_OF = {name: kind for kind, names in _OF_TYPE.items() for name in names}
_IN_MAPS = ("properties", "patternProperties", "dependentSchemas")


@dataclasses.dataclass(frozen=True)
class Place:
  """A schema, and where it is.

  Attributes:
    schema: the schema: an object, true or false.
    path: the names on the way to it, as a JSON pointer.
  """

  schema: dict | bool
  path: str

  def below(self, *names) -> "Place":
    """Returns the schema at some names or places below."""
    value, path = self.schema, self.path
    for name in names:
      value = value[name]
      name = str(name).replace("~", "~0").replace("/", "~1")
      path += f"/{name}"
    return Place(value, path)


def shown(path: str) -> str:
  """Returns a path as a message shows it, in one line."""
  text = json.dumps(path)[1:-1]
  return text if len(text) <= 120 else f"{text[:80]}...{text[-37:]}"


def refuse(keyword: str, place: Place, why: str, cure: str) -> NoReturn:
  """Raises ConstraintError on a keyword that is not held."""
  name = json.dumps(keyword[:40])[1:-1]
  raise ConstraintError(
    f"JSON_SCHEMA: {name!r} at {shown(place.path)} {why}: {cure}"
  )


class Document:
  """A schema with its references; checked as a whole.

  Raises:
    ConstraintError: a keyword is not known or has a wrong value, a reference
      leads nowhere or back to itself, or the schema is too deep or too large.
  """

  def __init__(self, root):
    self._root = root
    self._steps = 0
    self._patterns: dict[tuple[str, bool], patterns.Node] = {}
    self._enums: dict[int, frozenset] = {}
    self._seen: dict[int, bool] = {}
    self._check(Place(root, "#"), 0)
    self._steps = 0

  @property
  def root(self) -> Place:
    """The whole schema."""
    return Place(self._root, "#")

  def step(self, place: Place, num: int = 1):
    """Counts a place that is visited; refuses where they are too many."""
    self._steps += num
    if self._steps > MOST_STEPS:
      raise ConstraintError(
        f"JSON_SCHEMA takes more than {MOST_STEPS:,} steps to write out, at"
        f" {shown(place.path)} among others: schemas that are combined or"
        " named several times multiply; write fewer"
      )

  def target(self, place: Place) -> Place:
    """Returns the schema that a `$ref` names."""
    reference = place.schema["$ref"]
    if not reference.startswith("#") or (
      reference != "#" and not reference.startswith("#/")
    ):
      refuse(
        "$ref", place, f"is {reference!r:.80}", "name a schema as #/$defs/name"
      )
    value = self._root
    for name in urllib.parse.unquote(reference[1:]).split("/")[1:]:
      name = name.replace("~1", "/").replace("~0", "~")
      if isinstance(value, list) and name.isdecimal() and len(name) < 9:
        value = value[int(name)] if int(name) < len(value) else None
      else:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, (dict, bool)):
      refuse(
        "$ref", place, f"names {reference!r:.80}", "the schema has none there"
      )
    return Place(value, reference)

  def pattern(
    self, text: str, keyword: str, place: Place, is_most: bool = False
  ) -> patterns.Node:
    """Returns the node of a pattern, as `patterns.parse` reads it."""
    if (text, is_most) not in self._patterns:
      if len(text) > MOST_PATTERN:
        refuse(
          keyword, place, f"has {len(text):,} characters", "write it shorter"
        )
      try:
        self._patterns[text, is_most] = patterns.parse(text, is_most)
      except patterns.PatternError as error:
        refuse(keyword, place, f"{text!r:.60} {error}", "write it without that")
    return self._patterns[text, is_most]

  def is_found(
    self, pattern: str, keyword: str, place: Place, value: str
  ) -> bool:
    """Whether a pattern is found in a text."""
    try:
      least, most = (
        char_automata.is_found(
          self.pattern(pattern, keyword, place, is_most), value
        )
        for is_most in (False, True)
      )
    except char_automata.TooMany as error:
      refuse(keyword, place, f"is too large ({error})", "repeat less")
    if least != most:
      refuse(
        keyword,
        place,
        f"{pattern!r:.60} is read differently by ECMA-262 and Python on"
        f" {value!r:.40}",
        "write the characters out that it means",
      )
    return least

  def enum(self, values: list) -> frozenset:
    """Returns the keys of the values of an `enum`."""
    if id(values) not in self._enums:
      self._enums[id(values)] = frozenset(map(key_of, values))
    return self._enums[id(values)]

  def _check(self, place: Place, depth: int):
    """Checks a schema and all below it; `depth` counts those above."""
    self.step(place)
    schema = place.schema
    if depth > MOST_DEPTH:
      raise ConstraintError(
        f"JSON_SCHEMA has more than {MOST_DEPTH} schemas inside of each other,"
        f" at {shown(place.path)}: write it flatter"
      )
    if isinstance(schema, bool):
      return
    if not isinstance(schema, dict):
      raise ConstraintError(
        f"JSON_SCHEMA has {json.dumps(schema):.60} at {shown(place.path)};"
        " wanted a schema: an object, true or false"
      )
    if id(schema) in self._seen:
      if not self._seen[id(schema)]:
        raise ConstraintError(
          f"JSON_SCHEMA refers to itself: '$ref' leads back to"
          f" {shown(place.path)}, and no automaton has a state for each depth:"
          " write the depths out that you need"
        )
      return
    self._seen[id(schema)] = False
    for keyword, value in schema.items():
      self._check_keyword(keyword, value, place)
    for below in self._below(place):
      self._check(below, depth + 1)
    self._seen[id(schema)] = True

  def _check_keyword(self, keyword: str, value, place: Place):
    """Refuses a keyword that is not known, or whose value is not right."""
    if keyword in _ANNOTATIONS:
      if keyword == "$id" and place.path != "#":
        refuse(keyword, place, "changes what references name", "leave it out")
      return
    if keyword not in KNOWN:
      refuse(
        keyword,
        place,
        "is not a keyword that a grammar holds",
        "leave it out and check the texts yourself (docs/stops_and_masks.md"
        " lists what is held)",
      )
    is_right, wanted = KNOWN[keyword]
    if not is_right(value):
      # Drafts before 2019 have a list of schemas here.
      if keyword == "items" and isinstance(value, list):
        wanted = "a schema (a list of schemas is named prefixItems now)"
      refuse(keyword, place, f"is {json.dumps(value):.60}", f"wanted {wanted}")
    if isinstance(value, float) and not math.isfinite(value):
      refuse(keyword, place, "is not finite", "leave it out")
    if keyword == "multipleOf" and value != int(value):
      refuse(
        keyword,
        place,
        f"is {value}, and floating point does not determine its multiples",
        "take a whole number",
      )

  def _below(self, place: Place) -> Iterator[Place]:
    """Yields the schemas that a schema names."""
    for keyword, value in place.schema.items():
      if keyword == "$ref":
        yield self.target(place)
      elif keyword in _IN_MAPS:
        for name in value:
          if keyword == "patternProperties":
            self.pattern(name, keyword, place)
          yield place.below(keyword, name)
      elif KNOWN.get(keyword) is _SCHEMAS:
        for i in range(len(value)):
          yield place.below(keyword, i)
      elif KNOWN.get(keyword) is _SCHEMA:
        yield place.below(keyword)
      elif keyword == "pattern":
        self.pattern(value, keyword, place)


def key_of(value):
  """Returns what equal JSON values have in common: 1 is 1.0, and not true."""
  if isinstance(value, bool) or value is None:
    return str(value), None
  if isinstance(value, list):
    return "array", tuple(map(key_of, value))
  if isinstance(value, dict):
    return "object", frozenset((k, key_of(v)) for k, v in value.items())
  return "text" if isinstance(value, str) else "number", value


def decimal_of(value: int | float) -> Decimal:
  """Returns a number of a schema as it is written."""
  return Decimal(value if isinstance(value, int) else repr(value))
