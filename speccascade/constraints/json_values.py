"""Single JSON values: whether a schema allows one, and how one is written."""

from fractions import Fraction
import json
import math

from speccascade.constraints import (
  char_automata,
  char_sets,
  json_keywords,
  json_strings,
  parts,
)
from speccascade.constraints.json_keywords import (
  Document,
  Place,
  is_number,
  key_of,
)
from speccascade.constraints.parts import Expression

# A blank is allowed here.
BLANK = parts.optional(parts.literal(" "))


def is_of(value, kind: str) -> bool:
  """Whether a value has a type of JSON schema."""
  if kind in ("integer", "number"):
    if not is_number(value):
      return False
    return kind == "number" or isinstance(value, int) or value.is_integer()
  if kind == "boolean":
    return isinstance(value, bool)
  return isinstance(value, json_keywords.TYPES[kind])


def is_valid(value, place: Place, document: Document) -> bool:
  """Whether a schema allows a value.

  Args:
    value: a JSON value.
    place: the schema.
    document: the document that it is of.

  Raises:
    ConstraintError: the schema has a keyword that is not evaluated.
  """
  document.step(place)
  schema = place.schema
  if isinstance(schema, bool):
    return schema
  holds = lambda below: is_valid(value, below, document)
  each_of = lambda name: [
    holds(place.below(name, i)) for i in range(len(schema[name]))
  ]
  if "$ref" in schema and not holds(document.target(place)):
    return False
  if "type" in schema:
    kinds = schema["type"]
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not any(is_of(value, kind) for kind in kinds):
      return False
  if "enum" in schema and key_of(value) not in document.enum(schema["enum"]):
    return False
  if "const" in schema and key_of(value) != key_of(schema["const"]):
    return False
  if "allOf" in schema and not all(each_of("allOf")):
    return False
  if "anyOf" in schema and not any(each_of("anyOf")):
    return False
  if "oneOf" in schema and sum(each_of("oneOf")) != 1:
    return False
  if "not" in schema and holds(place.below("not")):
    return False
  if "if" in schema:
    branch = "then" if holds(place.below("if")) else "else"
    if branch in schema and not holds(place.below(branch)):
      return False
  if is_number(value):
    return _is_number_valid(value, schema)
  if isinstance(value, str):
    return _is_text_valid(value, place, document)
  if isinstance(value, list):
    return _is_array_valid(value, place, document)
  if isinstance(value, dict):
    return _is_object_valid(value, place, document)
  return True


def _is_number_valid(value, schema: dict) -> bool:
  """Whether the keywords of numbers allow a number."""
  if isinstance(value, float) and not math.isfinite(value):
    return False
  exact = json_keywords.decimal_of(value)
  limit = lambda name: json_keywords.decimal_of(schema[name])
  if "minimum" in schema and exact < limit("minimum"):
    return False
  if "maximum" in schema and exact > limit("maximum"):
    return False
  if "exclusiveMinimum" in schema and exact <= limit("exclusiveMinimum"):
    return False
  if "exclusiveMaximum" in schema and exact >= limit("exclusiveMaximum"):
    return False
  if "multipleOf" in schema:
    return Fraction(value) % int(schema["multipleOf"]) == 0
  return True


def _is_text_valid(value: str, place: Place, document: Document) -> bool:
  """Whether the keywords of strings allow a string."""
  schema = place.schema
  if len(value) < schema.get("minLength", 0):
    return False
  if len(value) > schema.get("maxLength", len(value)):
    return False
  if "pattern" in schema and not document.is_found(
    schema["pattern"], "pattern", place, value
  ):
    return False
  if "format" in schema and not char_automata.is_found(
    format_node(place, document), value
  ):
    json_keywords.refuse(
      "format", place, f"is not tried on {value!r:.40}", "leave it out"
    )
  return True


def format_node(place: Place, document: Document):
  """Returns the node of the pattern that stands for a format."""
  name = place.schema["format"]
  if name not in json_strings.FORMATS:
    json_keywords.refuse(
      "format",
      place,
      f"is {name!r:.40}, which is not held",
      f"leave it out, or name one of {', '.join(json_strings.FORMATS)}",
    )
  return document.pattern(json_strings.FORMATS[name], "format", place)


def _is_array_valid(value: list, place: Place, document: Document) -> bool:
  """Whether the keywords of arrays allow an array."""
  schema = place.schema
  _refuse_unevaluated("unevaluatedItems", place)
  if not schema.get("minItems", 0) <= len(value):
    return False
  if len(value) > schema.get("maxItems", len(value)):
    return False
  prefix = len(schema.get("prefixItems", ()))
  for i, item in enumerate(value):
    if i < prefix:
      below = place.below("prefixItems", i)
    elif "items" in schema:
      below = place.below("items")
    else:
      break
    if not is_valid(item, below, document):
      return False
  if schema.get("uniqueItems") and len(set(map(key_of, value))) < len(value):
    return False
  if "contains" in schema:
    inside = place.below("contains")
    num = sum(is_valid(item, inside, document) for item in value)
    if num < schema.get("minContains", 1):
      return False
    if num > schema.get("maxContains", num):
      return False
  return True


def _is_object_valid(value: dict, place: Place, document: Document) -> bool:
  """Whether the keywords of objects allow an object."""
  schema = place.schema
  _refuse_unevaluated("unevaluatedProperties", place)
  if len(value) < schema.get("minProperties", 0):
    return False
  if len(value) > schema.get("maxProperties", len(value)):
    return False
  if not set(schema.get("required", ())) <= value.keys():
    return False
  for name, names in schema.get("dependentRequired", {}).items():
    if name in value and not set(names) <= value.keys():
      return False
  for name in schema.get("dependentSchemas", {}):
    below = place.below("dependentSchemas", name)
    if name in value and not is_valid(value, below, document):
      return False
  for name, item in value.items():
    if "propertyNames" in schema and not is_valid(
      name, place.below("propertyNames"), document
    ):
      return False
    for below in of_property(name, place, document):
      if not is_valid(item, below, document):
        return False
  return True


def of_property(name: str, place: Place, document: Document) -> list[Place]:
  """Returns the schemas that an object's schema has for a property."""
  schema, found = place.schema, []
  if name in schema.get("properties", {}):
    found.append(place.below("properties", name))
  for pattern in schema.get("patternProperties", {}):
    if document.is_found(pattern, "patternProperties", place, name):
      found.append(place.below("patternProperties", pattern))
  if not found and "additionalProperties" in schema:
    found.append(place.below("additionalProperties"))
  return found


def _refuse_unevaluated(keyword: str, place: Place):
  """Refuses a keyword whose meaning depends on schemas beside it."""
  if place.schema.get(keyword, True) not in (True, {}):
    json_keywords.refuse(
      keyword,
      place,
      "is not held",
      "write items or additionalProperties in its place",
    )


def quoted(text: str) -> Expression:
  """Returns the expression of a text as a JSON string.

  A character has its short escape, or \\u where it cannot stand for itself.
  """
  inner = "".join(
    f"\\{char_sets.SHORT[ord(c)]}"
    if ord(c) in char_sets.SHORT
    else c
    if char_sets.contains(char_sets.WRITABLE, ord(c))
    else f"\\u{ord(c):04x}"
    for c in text
  )
  return parts.literal(f'"{inner}"')


def spelled(value) -> Expression:
  """Returns the expression of a value; a blank is allowed beside marks."""
  if isinstance(value, str):
    return quoted(value)
  if isinstance(value, list):
    return listed([spelled(each) for each in value], "[]")
  if isinstance(value, dict):
    return listed(
      [pair(quoted(name), spelled(each)) for name, each in value.items()], "{}"
    )
  return parts.literal(json.dumps(value))


def pair(name: Expression, value: Expression) -> Expression:
  """Returns the expression of a property."""
  return parts.sequence(name, BLANK, parts.literal(":"), BLANK, value)


def comma(part: Expression) -> Expression:
  """Returns the expression of an item after another."""
  return parts.sequence(BLANK, parts.literal(","), BLANK, part)


def listed(items: list[Expression], marks: str) -> Expression:
  """Returns the expression of items between two marks."""
  inner = [items[0], *map(comma, items[1:])] if items else []
  return enclosed(parts.sequence(*inner), marks)


def enclosed(inner: Expression, marks: str) -> Expression:
  """Returns the expression of an object's or an array's inside."""
  first, last = map(parts.literal, marks)
  if not inner.text:
    return parts.sequence(first, BLANK, last)
  return parts.sequence(first, BLANK, inner, BLANK, last)
