"""What a conjunction of JSON schemas allows: values, or types with keywords.

Schemas that hold together (`allOf`, a `$ref` and the keywords beside it, the
branch of an `anyOf` and what is around it) are kept as a list of places.
"""

from collections.abc import Sequence
import dataclasses

from speccascade.constraints import (
  char_automata,
  json_keywords,
  json_numbers,
  json_values,
)
from speccascade.constraints.json_keywords import TYPE_OF, Document, Place

_ALL_TYPES = ("object", "array", "string", "number", "boolean", "null")
# What no expression holds, but where values are listed and tried one by one.
_OF_VALUES = {
  "not": "is held beside enum or const alone",
  "if": "is held beside enum or const alone",
  "then": "is held beside enum or const alone",
  "else": "is held beside enum or const alone",
  "dependentSchemas": "is not held",
  "unevaluatedProperties": "is not held",
  "unevaluatedItems": "is not held",
}
_LIST_VALUES = "list the values as an enum, or leave it out"


@dataclasses.dataclass(frozen=True)
class Values:
  """JSON values, each by itself."""

  values: tuple


@dataclasses.dataclass(frozen=True)
class Typed:
  """All values of a type that some schemas allow.

  Attributes:
    kind: the type, of which there is no enum and no choice any more.
    places: the schemas, without references and without `allOf`.
    is_free: whether no schema says anything of the type.
  """

  kind: str
  places: tuple[Place, ...]
  is_free: bool = False


Choice = Values | Typed


class Choices:
  """The choices of conjunctions of schemas of one document."""

  def __init__(self, document: Document):
    self.document = document
    # Schemas without a keyword, which live as long as the document.
    self._without: dict[tuple[int, str], dict] = {}

  def flat(self, places: Sequence[Place]) -> list[Place] | None:
    """Returns schemas without references and `allOf`; None where one is false.

    A schema that holds twice is in the list once.
    """
    found: dict[int, Place] = {}
    waiting = list(places)
    while waiting:
      place = waiting.pop(0)
      self.document.step(place)
      if place.schema is False:
        return None
      if place.schema is True or id(place.schema) in found:
        continue
      found[id(place.schema)] = place
      more = []
      if "$ref" in place.schema:
        more.append(self.document.target(place))
      num = len(place.schema.get("allOf", ()))
      more += [place.below("allOf", i) for i in range(num)]
      waiting = more + waiting
    return list(found.values())

  def all(self, places: Sequence[Place]) -> list[Choice]:
    """Returns the choices of what some schemas allow together."""
    flat = self.flat(places)
    if flat is None:
      return []
    listed = self._listed(flat)
    kinds = self._kinds(flat)
    if listed is None and set(kinds) <= {"boolean", "null"}:
      listed = [each for each in (True, False, None)]
    if listed is not None:
      values = tuple(
        value
        for value in listed
        if all(self.is_valid(value, place) for place in flat)
      )
      return [Values(values)] if values else []
    for place in flat:
      for keyword in ("anyOf", "oneOf"):
        if keyword in place.schema:
          return self._branches(flat, place, keyword)
    for place in flat:
      for keyword, why in _OF_VALUES.items():
        if keyword in place.schema and not _is_void(place, keyword):
          json_keywords.refuse(keyword, place, why, _LIST_VALUES)
    choices: list[Choice] = []
    scalars = [
      {"boolean": (True, False), "null": (None,)}.get(k) for k in kinds
    ]
    values = sum((each for each in scalars if each), ())
    if values:
      choices.append(Values(values))
    is_free = not any(_says(place) for place in flat)
    choices += [
      Typed(kind, tuple(flat), is_free)
      for kind in kinds
      if kind not in ("boolean", "null")
    ]
    return choices

  def is_valid(self, value, place: Place) -> bool:
    """Whether a schema allows a value."""
    return json_values.is_valid(value, place, self.document)

  def values(self, places: Sequence[Place]) -> list | None:
    """Returns all values of some schemas; None where they are not listed."""
    values = []
    for choice in self.all(places):
      if not isinstance(choice, Values):
        return None
      values += choice.values
    return values

  def _listed(self, flat: Sequence[Place]) -> list | None:
    """Returns the values of the first `enum` or `const`."""
    for place in flat:
      if "enum" in place.schema:
        return place.schema["enum"]
    for place in flat:
      if "const" in place.schema:
        return [place.schema["const"]]
    return None

  def _kinds(self, flat: Sequence[Place]) -> list[str]:
    """Returns the types that all schemas allow.

    Where no schema names a type, keywords of a type stand for it.
    """
    kinds = set(_ALL_TYPES) | {"integer"}
    is_named = False
    for place in flat:
      if "type" in place.schema:
        is_named = True
        own = place.schema["type"]
        own = {own} if isinstance(own, str) else set(own)
        kinds &= own | ({"integer"} if "number" in own else set())
    if not is_named and not any(
      keyword in place.schema
      for place in flat
      for keyword in ("anyOf", "oneOf")
    ):
      keywords = {keyword for place in flat for keyword in place.schema}
      implied = {TYPE_OF[each] for each in keywords if each in TYPE_OF}
      kinds = implied or kinds
    order = (*_ALL_TYPES, *(() if "number" in kinds else ("integer",)))
    return [kind for kind in order if kind in kinds]

  def _branches(
    self, flat: list[Place], place: Place, keyword: str
  ) -> list[Choice]:
    """Returns the choices of the branches of an `anyOf` or a `oneOf`."""
    key = (id(place.schema), keyword)
    if key not in self._without:
      self._without[key] = {
        name: value
        for name, value in place.schema.items()
        if name not in (keyword, "$ref", "allOf")
      }
    rest = [each for each in flat if each is not place]
    # What `flat` has taken out of the others is in the list already.
    rest = [self._bare(each) for each in rest]
    rest.append(Place(self._without[key], place.path))
    branches = [
      place.below(keyword, i) for i in range(len(place.schema[keyword]))
    ]
    choices: list[Choice] = []
    for i, branch in enumerate(branches):
      for choice in self.all([*rest, branch]):
        if keyword == "oneOf":
          choice = self._alone(choice, branches[:i] + branches[i + 1 :], place)
        if choice is not None:
          choices.append(choice)
    return choices

  def _bare(self, place: Place) -> Place:
    """Returns a schema without what its own list of schemas has already."""
    if "$ref" not in place.schema and "allOf" not in place.schema:
      return place
    key = (id(place.schema), "")
    if key not in self._without:
      self._without[key] = {
        name: value
        for name, value in place.schema.items()
        if name not in ("$ref", "allOf")
      }
    return Place(self._without[key], place.path)

  def _alone(
    self, choice: Choice, others: Sequence[Place], place: Place
  ) -> Choice | None:
    """Returns the part of a choice that no other branch allows."""
    if isinstance(choice, Values):
      values = tuple(
        value
        for value in choice.values
        if not any(self.is_valid(value, other) for other in others)
      )
      return Values(values) if values else None
    for other in others:
      if not self.disjoint(choice, other):
        json_keywords.refuse(
          "oneOf",
          place,
          f"may have texts that two branches allow ({other.path[-40:]} is one)",
          "write anyOf, or give the branches different types, constants or"
          " required properties",
        )
    return choice

  def disjoint(self, choice: Typed, other: Place) -> bool:
    """Whether it is certain that a schema allows no text of a choice."""
    flat = self.flat([other])
    return flat is None or any(self._excludes(choice, each) for each in flat)

  def _excludes(self, choice: Typed, place: Place) -> bool:
    """Whether a schema without its references allows no text of a choice."""
    schema, kind = place.schema, choice.kind
    if "type" in schema:
      own = (
        schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
      )
      same = {"integer", "number"} if kind in ("integer", "number") else {kind}
      if not same & set(own):
        return True
    for keyword in ("enum", "const"):
      if keyword in schema:
        values = schema["enum"] if keyword == "enum" else [schema["const"]]
        if not any(
          json_values.is_of(value, kind)
          and all(self.is_valid(value, each) for each in choice.places)
          for value in values
        ):
          return True
    for keyword in ("anyOf", "oneOf"):
      if keyword in schema and all(
        self.disjoint(choice, place.below(keyword, i))
        for i in range(len(schema[keyword]))
      ):
        return True
    both = [*choice.places, place]
    if kind in ("integer", "number"):
      low, high = bounds(both)
      return (
        low is not None
        and high is not None
        and (
          low.value > high.value
          or (low.value == high.value and (low.is_open or high.is_open))
        )
      )
    if kind == "string":
      least, most = least_and_most(both, "minLength", "maxLength")
      if most is not None and least > most:
        return True
      if "pattern" not in schema:
        return False
      nodes = text_nodes(choice.places, self.document)
      pattern = schema["pattern"]
      nodes.append(self.document.pattern(pattern, "pattern", place, True))
      self.document.step(place, 10)
      try:
        return char_automata.intersection(nodes, least, most).is_empty
      except char_automata.TooMany:
        return False
    if kind == "array":
      least, most = least_and_most(both, "minItems", "maxItems")
      return most is not None and least > most
    return self._excludes_object(choice, place)

  def _excludes_object(self, choice: Typed, place: Place) -> bool:
    """Whether a schema allows no object of a choice."""
    schema = place.schema
    written = [
      name
      for each in choice.places
      for name in each.schema.get("properties", {})
    ]
    required = {
      name for each in choice.places for name in each.schema.get("required", ())
    }
    if written and not set(schema.get("required", ())) <= set(written):
      return True
    for name in required:
      values = [
        below
        for each in choice.places
        for below in json_values.of_property(name, each, self.document)
      ]
      for other in json_values.of_property(name, place, self.document):
        if all(
          not any(self.is_valid(value, other) for value in each.values)
          if isinstance(each, Values)
          else self.disjoint(each, other)
          for each in self.all(values)
        ):
          return True
    return False


def _is_void(place: Place, keyword: str) -> bool:
  """Whether a keyword of `_OF_VALUES` excludes nothing."""
  value = place.schema[keyword]
  if keyword == "not":
    return value is False
  if keyword in ("then", "else"):
    return "if" not in place.schema
  if keyword == "if":
    return "then" not in place.schema and "else" not in place.schema
  return value is True or value == {}


def _says(place: Place) -> bool:
  """Whether a schema says more than a type."""
  return any(keyword in TYPE_OF for keyword in place.schema)


def bounds(
  places: Sequence[Place],
) -> tuple[json_numbers.Bound | None, json_numbers.Bound | None]:
  """Returns the largest lower and the least upper bound of some schemas."""

  def found(side: str) -> list[json_numbers.Bound]:
    return [
      json_numbers.Bound(json_keywords.decimal_of(place.schema[name]), is_open)
      for place in places
      for name, is_open in ((f"m{side}", False), (f"exclusiveM{side}", True))
      if name in place.schema
    ]

  low = max(found("inimum"), key=lambda x: (x.value, x.is_open), default=None)
  high = min(
    found("aximum"), key=lambda x: (x.value, not x.is_open), default=None
  )
  return low, high


def least_and_most(
  places: Sequence[Place], least: str, most: str
) -> tuple[int, int | None]:
  """Returns the largest of some least counts and the least of the largest."""
  lows = [place.schema[least] for place in places if least in place.schema]
  highs = [place.schema[most] for place in places if most in place.schema]
  return max(lows, default=0), min(highs, default=None)


def text_nodes(places: Sequence[Place], document: Document) -> list:
  """Returns the patterns of the schemas of a string."""
  nodes = []
  for place in places:
    if "pattern" in place.schema:
      pattern = place.schema["pattern"]
      nodes.append(document.pattern(pattern, "pattern", place))
    if "format" in place.schema:
      nodes.append(json_values.format_node(place, document))
  return nodes
