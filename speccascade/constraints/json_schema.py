"""JSON schemas as regular expressions that hold every keyword, or a refusal."""

from collections.abc import Sequence
import itertools
import json
import math
from typing import NoReturn

from speccascade.constraints import (
  char_automata,
  json_choices,
  json_numbers,
  json_objects,
  json_strings,
  json_values,
  parts,
)
from speccascade.constraints.automaton_tables import ConstraintError
from speccascade.constraints.json_choices import Typed, Values
from speccascade.constraints.json_keywords import (
  Document,
  Place,
  key_of,
  refuse,
  shown,
)
from speccascade.constraints.parts import Expression

# A schema that says nothing allows arrays and objects inside of each other:
# so many are written.
FREE_DEPTH = 2
# So many arrays are tried one by one where items depend on each other.
MOST_ARRAYS = 400
# Brackets inside of each other in the text of a schema.
MOST_BRACKETS = 120

_IS_TEXT = {"type": "string"}
_TEXT = json_strings.text_part([], 0, None)


def expression(schema: str) -> str:
  """Returns the regular expression of a JSON schema.

  Every text that it matches is JSON that the schema allows.

  Args:
    schema: a JSON schema, as text.

  Raises:
    ConstraintError: the text is not a JSON schema, no text is allowed, or a
      keyword cannot be held, which is named with its place.
  """
  writer = _Writer(Document(read(schema)))
  part = writer.part([writer.document.root])
  if part is None:
    raise ConstraintError("JSON_SCHEMA allows no text at all: allow more")
  return part.text


def read(schema: str):
  """Returns the value of the text of a schema.

  Raises:
    ConstraintError: the text is not JSON, or a name is in an object twice.
  """

  def pairs(items):
    value: dict = {}
    for name, item in items:
      if name in value:
        raise ConstraintError(
          f"JSON_SCHEMA has {name!r:.60} twice in one object: name it once"
        )
      value[name] = item
    return value

  def constant(name):
    raise ValueError(f"{name} is not a number of JSON")

  try:
    value = json.loads(schema, object_pairs_hook=pairs, parse_constant=constant)
  except ConstraintError:
    raise
  except RecursionError:
    raise _too_deep() from None
  except ValueError as error:
    raise ConstraintError(
      f"JSON_SCHEMA is not JSON: {error}; give the text of a schema"
    ) from error
  level = [value]
  for _ in range(MOST_BRACKETS):
    level = [
      below
      for each in level
      if isinstance(each, (list, dict))
      for below in (each.values() if isinstance(each, dict) else each)
    ]
  if level:
    raise _too_deep()
  return value


def _too_deep() -> ConstraintError:
  """Returns the error of a schema of too many brackets."""
  return ConstraintError(
    f"JSON_SCHEMA has more than {MOST_BRACKETS} brackets inside of each other:"
    " write it flatter"
  )


class _Writer:
  """Writes the schemas of a document."""

  def __init__(self, document: Document):
    self.document = document
    self.choices = json_choices.Choices(document)
    self._written: dict[tuple[int, ...], Expression | None] = {}
    self._made: list[Place] = []

  def part(self, places: Sequence[Place]) -> Expression | None:
    """Returns the expression of what schemas allow together, or None."""
    key = tuple(id(place.schema) for place in places)
    if key not in self._written:
      for place in places:
        self.document.step(place)
      self._written[key] = self._part(places)
    return self._written[key]

  def _part(self, places: Sequence[Place]) -> Expression | None:
    """Returns the expression of some schemas that is not known yet."""
    choices = []
    for choice in self.choices.all(places):
      place = places[0]
      try:
        if isinstance(choice, Values):
          choices += [json_values.spelled(value) for value in choice.values]
        elif (part := self._typed(choice)) is not None:
          choices.append(part)
      except parts.TooLarge as error:
        _too_large(place, error)
    try:
      return parts.either(choices) if choices else None
    except parts.TooLarge as error:
      _too_large(places[0], error)

  def _typed(self, choice: Typed) -> Expression | None:
    """Returns the expression of the values of a type."""
    if choice.is_free:
      return free(choice.kind, FREE_DEPTH)
    write = {"object": self._object, "array": self._array}.get(choice.kind)
    if write:
      return write(choice.places)
    if choice.kind == "string":
      return self._string(choice.places)
    return self._number(choice)

  def _string(self, places: Sequence[Place]) -> Expression | None:
    """Returns the expression of strings."""
    least, most = json_choices.least_and_most(places, "minLength", "maxLength")
    nodes = json_choices.text_nodes(places, self.document)
    names = ("pattern", "format", "maxLength", "minLength")
    try:
      return json_strings.text_part(nodes, least, most)
    except (char_automata.TooMany, parts.TooLarge) as error:
      keyword, place = _first(places, names)
      beside = [name for name in names[1:] if _has(places, name)]
      with_ = f" with {', '.join(beside)}" if beside else ""
      refuse(keyword, place, f"is too large{with_} ({error})", "allow less")

  def _number(self, choice: Typed) -> Expression | None:
    """Returns the expression of numbers or integers."""
    places = choice.places
    low, high = json_choices.bounds(places)
    multiple = 1
    for place in places:
      own = int(place.schema.get("multipleOf", 1))
      multiple = math.lcm(multiple, own)
    is_whole = choice.kind == "integer" or _has(places, "multipleOf")
    try:
      if is_whole:
        ends = json_numbers.ceil_of(low), json_numbers.floor_of(high)
        return json_numbers.integers(*ends, multiple)
      return json_numbers.numbers(low, high)
    except (char_automata.TooMany, parts.TooLarge) as error:
      names = ("multipleOf", "minimum", "exclusiveMinimum", "maximum")
      keyword, place = _first(places, (*names, "exclusiveMaximum"))
      refuse(keyword, place, f"is not held ({error})", "take rounder numbers")

  def _object(self, places: Sequence[Place]) -> Expression | None:
    """Returns the expression of objects."""
    names = dict.fromkeys(
      name for place in places for name in place.schema.get("properties", {})
    )
    if not names:
      return self._object_of_any_names(places)
    required = set()
    for place in places:
      for name in place.schema.get("required", ()):
        if name not in names:
          refuse(
            "required",
            place,
            f"names {name!r:.60}, which properties does not list",
            "list it",
          )
        required.add(name)
    properties: list[json_objects.Property] = []
    num_positions = 0
    for name in names:
      values = [
        below
        for place in places
        for below in json_values.of_property(name, place, self.document)
      ]
      part = self.part(values) if self._is_name(name, places) else None
      if part is None and name in required:
        return None
      if part is not None:
        pair = json_values.pair(json_values.quoted(name), part)
        num_positions += pair.positions
        if num_positions > parts.MOST_POSITIONS:
          raise parts.TooLarge("the properties have too many positions")
        properties.append(json_objects.Property(name, pair, name in required))
    try:
      inner = json_objects.inside(properties, places)
    except (char_automata.TooMany, parts.TooLarge) as error:
      names_ = ("minProperties", "maxProperties", "dependentRequired")
      keyword, place = _first(places, (*names_, "properties"))
      refuse(keyword, place, f"is too large ({error})", "list fewer properties")
    return None if inner is None else json_values.enclosed(inner, "{}")

  def _is_name(self, name: str, places: Sequence[Place]) -> bool:
    """Whether `propertyNames` allows a name."""
    return all(
      self.choices.is_valid(name, place.below("propertyNames"))
      for place in places
      if "propertyNames" in place.schema
    )

  def _object_of_any_names(self, places: Sequence[Place]) -> Expression | None:
    """Returns the expression of objects whose properties are not listed."""
    names, values = [], []
    for place in places:
      schema = place.schema
      for keyword in ("required", "dependentRequired"):
        if schema.get(keyword):
          refuse(
            keyword, place, "names what properties does not list", "list it"
          )
      by_pattern = schema.get("patternProperties", {})
      if by_pattern:
        if (
          len(by_pattern) > 1 or schema.get("additionalProperties") is not False
        ):
          refuse(
            "patternProperties",
            place,
            "is held with one pattern and additionalProperties false, or with"
            " listed properties",
            "write it so",
          )
        [pattern] = by_pattern
        names.append(Place({"type": "string", "pattern": pattern}, place.path))
        values.append(place.below("patternProperties", pattern))
      elif "additionalProperties" in schema:
        values.append(place.below("additionalProperties"))
      if "propertyNames" in schema:
        names.append(place.below("propertyNames"))
    value = self.part(values) if values else free_value(FREE_DEPTH - 1)
    name = _TEXT
    if names:
      self._made += names  # Parts are known by schemas, which have to live.
      name = self.part([Place(_IS_TEXT, names[0].path), *names])
    if name is None:
      value = None
    inner = json_objects.of_any_names(places, name, value)
    return None if inner is None else json_values.enclosed(inner, "{}")

  def _array(self, places: Sequence[Place]) -> Expression | None:
    """Returns the expression of arrays."""
    least, most = json_choices.least_and_most(places, "minItems", "maxItems")
    prefixes = [len(place.schema.get("prefixItems", ())) for place in places]
    has_items = _has(places, "items")
    if not has_items and max(prefixes):
      most = max(prefixes) if most is None else min(most, max(prefixes))
    if self._depends(places, most):
      return self._arrays_one_by_one(places, least, most)
    heads = []
    for i in range(max(prefixes)):
      part = self.part(self._item(places, i))
      if part is None:
        most = i if most is None else min(most, i)
        break
      heads.append(part)
    rest = None
    if most is None or most > len(heads):
      items = self._item(places, len(heads))
      rest = self.part(items) if has_items else free_value(FREE_DEPTH - 1)
      if rest is None:
        most = len(heads)
    if most is not None:
      heads = heads[:most]
      if least > most:
        return None
    inner = _items(heads, rest, least, most)
    return json_values.enclosed(inner, "[]")

  def _item(self, places: Sequence[Place], index: int) -> list[Place]:
    """Returns the schemas of the item at a place of an array."""
    found = []
    for place in places:
      if index < len(place.schema.get("prefixItems", ())):
        found.append(place.below("prefixItems", index))
      elif "items" in place.schema:
        found.append(place.below("items"))
    return found

  def _depends(self, places: Sequence[Place], most: int | None) -> bool:
    """Whether what an item may be depends on the others."""
    for place in places:
      if place.schema.get("uniqueItems") and (most is None or most > 1):
        return True
      if "contains" in place.schema:
        is_bounded = "maxContains" in place.schema
        if is_bounded or place.schema.get("minContains", 1) > 0:
          return True
    return False

  def _arrays_one_by_one(
    self, places: Sequence[Place], least: int, most: int | None
  ) -> Expression | None:
    """Returns the expression of arrays of listed values."""
    keyword, place = _first(places, ("uniqueItems", "contains"))
    cure = "list few values as an enum of the items, or leave it out"
    is_unique = any(each.schema.get("uniqueItems") for each in places)
    whole: list[list] = []
    arrays: list[list] = [[]]
    for index in itertools.count():
      whole += [each for each in arrays if len(each) >= least]
      if most is not None and index >= most:
        break
      schemas = self._item(places, index)
      values = self.choices.values(schemas) if schemas else None
      if values is None:
        refuse(
          keyword, place, "is held with items of listed values alone", cure
        )
      if most is None and not is_unique:
        refuse(keyword, place, "is held with maxItems alone", "give maxItems")
      arrays = [
        [*array, value]
        for array in arrays
        for value in values
        if not is_unique or key_of(value) not in map(key_of, array)
      ][: MOST_ARRAYS + 1]
      if len(whole) + len(arrays) > MOST_ARRAYS:
        refuse(keyword, place, f"allows more than {MOST_ARRAYS} arrays", cure)
      if not arrays:
        break
    kept = [
      array
      for array in whole
      if all(self.choices.is_valid(array, each) for each in places)
    ]
    return parts.either(list(map(json_values.spelled, kept))) if kept else None


def _items(
  heads: Sequence[Expression],
  rest: Expression | None,
  least: int,
  most: int | None,
) -> Expression:
  """Returns the expression between the brackets of an array.

  Args:
    heads: the first items, each its own.
    rest: what follows them; None for nothing.
    least: the least number of items.
    most: the largest; None for no limit.
  """
  num = len(heads)
  if rest is None or (most is not None and most <= num):
    tail = parts.EMPTY
  elif not heads:
    return json_objects.items(rest, least, most)
  else:
    tail = parts.repeat(
      json_values.comma(rest),
      max(least - num, 0),
      None if most is None else most - num,
    )
  for i in reversed(range(num)):
    head = json_values.comma(heads[i]) if i else heads[i]
    tail = parts.sequence(head, tail)
    if i >= least:
      tail = parts.optional(tail)
  return tail


def free_value(depth: int) -> Expression:
  """Returns the expression of any JSON value.

  Args:
    depth: how many arrays and objects there may be inside of each other.
  """
  kinds = ("string", "number", *(("array", "object") if depth else ()))
  scalars = [parts.literal(text) for text in ("true", "false", "null")]
  return parts.either([*scalars, *(free(kind, depth) for kind in kinds)])


def free(kind: str, depth: int) -> Expression:
  """Returns the expression of any value of a type.

  Args:
    kind: the type.
    depth: as in `free_value`; 1 or more for arrays and objects.
  """
  if kind == "string":
    return _TEXT
  if kind == "number":
    return json_numbers.numbers(None, None)
  if kind == "integer":
    return json_numbers.integers(None, None)
  item = free_value(depth - 1)
  if kind == "object":
    item = json_values.pair(_TEXT, item)
  marks = "{}" if kind == "object" else "[]"
  return json_values.enclosed(json_objects.items(item, 0, None), marks)


def _has(places: Sequence[Place], keyword: str) -> bool:
  """Whether some schema has a keyword."""
  return any(keyword in place.schema for place in places)


def _first(
  places: Sequence[Place], keywords: Sequence[str]
) -> tuple[str, Place]:
  """Returns the first keyword that some schema has, and the schema."""
  for keyword in keywords:
    for place in places:
      if keyword in place.schema:
        return keyword, place
  return keywords[-1], places[0]


def _too_large(place: Place, error: Exception) -> NoReturn:
  """Raises ConstraintError on a schema that takes too much."""
  raise ConstraintError(
    f"JSON_SCHEMA is too large at {shown(place.path)}: {error}; allow less at a"
    " time"
  ) from error
