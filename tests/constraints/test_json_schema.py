"""JSON schemas as expressions, against the package `jsonschema`."""

import functools
import itertools
import json
import random
import re
import time

import pytest

from speccascade.constraints import expression_compiler, expressions
from speccascade.constraints.automaton_tables import ConstraintError

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("outlines_core")

from tests.constraints import json_texts  # noqa: E402

INTEGER = {"type": "integer"}
TEXT = {"type": "string"}


NOTHING = "(?!)"


def of(schema) -> str:
  return expressions.of_schema(json.dumps(schema))


def of_or_nothing(schema) -> str:
  """The expression of a schema; one that matches nothing where it says so."""
  try:
    return of(schema)
  except ConstraintError as error:
    if "allows no text" not in str(error):
      raise
    return NOTHING


def matches(expression: str, value) -> bool:
  text = value if isinstance(value, str) else json_texts.compact(value)
  return re.fullmatch(expression, text) is not None


def refusal(schema) -> str:
  text = schema if isinstance(schema, str) else json.dumps(schema)
  began = time.process_time()
  with pytest.raises(ConstraintError) as error:
    expressions.of_schema(text)
  assert time.process_time() - began < 1
  message = str(error.value)
  assert message.startswith("JSON_SCHEMA")
  assert "\n" not in message
  assert len(message) < 600
  return message


@functools.cache
def some_values() -> tuple:
  scalars = [None, True, False, 0, 1, 2, 5, -3, 1.5, 30, "", "a", "b", "ab"]
  few = [0, 1, 5, "a", None, True]
  arrays = [
    list(each) for n in range(3) for each in itertools.product(few, repeat=n)
  ]
  objects = [
    dict(zip(names, values))
    for n in range(3)
    for names in itertools.permutations(["a", "b", 'q"'], n)
    for values in itertools.product(few, repeat=n)
  ]
  return (*scalars, 'a"b', "\u00e9", *arrays, *objects)


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_random_texts_of_random_schemas_are_valid(first):
  """Texts of the automaton, and values that its expression matches."""
  held = 0
  for seed in range(first, first + 50):
    rng = random.Random(seed)
    schema = json_texts.schema(rng)
    validator = jsonschema.Draft202012Validator(schema)
    try:
      expression = of_or_nothing(schema)
    except ConstraintError:
      continue
    if expression == NOTHING:
      assert not any(map(validator.is_valid, some_values())), schema
      continue
    walks = json_texts.Walks(expression)
    for _ in range(8):
      text = walks.text(rng)
      assert re.fullmatch(expression, text), (schema, text)
      assert validator.is_valid(json.loads(text)), (schema, text)
    for value in some_values():
      assert not matches(expression, json_texts.compact(value)) or (
        validator.is_valid(value)
      ), (schema, value)
    held += 1
  assert held > 25


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds_of_numbers_hold_exactly(kind):
  values = [*range(-60, 131)]
  if kind == "number":
    values += [each / 8 for each in range(-140, 141) if each % 8]
  for seed in range(120):
    rng = random.Random(seed)
    schema = {"type": kind} | json_texts.number_keywords(rng, kind == "integer")
    validator = jsonschema.Draft202012Validator(schema)
    expression = of_or_nothing(schema)
    for value in values:
      wanted = validator.is_valid(value)
      assert matches(expression, value) == wanted, (schema, value)
    for text in ("-00", "007", "+1", "1.", ".5", "1e", ""):
      assert not matches(expression, text), (schema, text)


def test_integers_of_every_range_and_multiple():
  for low, high, multiple in itertools.product(
    (None, -105, -10, -1, 0, 7, 99, 100),
    (None, -100, -9, 0, 1, 10, 101, 250),
    (1, 3, 7, 10, 60),
  ):
    schema = INTEGER | {"multipleOf": multiple}
    schema |= {} if low is None else {"minimum": low}
    schema |= {} if high is None else {"maximum": high}
    wanted = [
      value
      for value in range(-320, 321)
      if value % multiple == 0
      and (low is None or value >= low)
      and (high is None or value <= high)
    ]
    if not wanted:
      assert "no text" in refusal(schema)
      continue
    expression = of(schema)
    assert [x for x in range(-320, 321) if matches(expression, x)] == wanted


def test_numbers_next_to_a_bound():
  expression = of(
    {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 10}
  )
  for text in ("0.1000000000001", "0.2", "9.9999999999999", "1", "9"):
    assert matches(expression, text), text
  for text in ("0.1", "0.10", "0.1000", "0.0999", "10", "10.0", "-1", "1e-3"):
    assert not matches(expression, text), text
  assert matches(of({"type": "number"}), "-12.5e+300")


def test_lengths_and_patterns_of_strings_hold_exactly():
  for seed in range(150):
    schema = TEXT | json_texts.text_keywords(random.Random(seed))
    validator = jsonschema.Draft202012Validator(schema)
    expression = of_or_nothing(schema)
    for text in json_texts.TEXTS:
      # Dialects differ on line breaks: what is written is valid in both.
      is_matched = matches(expression, json_texts.compact(text))
      is_valid = validator.is_valid(text)
      assert is_valid or not is_matched, (schema, text)
      assert is_matched or not is_valid or "\n" in text, (schema, text)


def test_each_character_of_a_string_has_one_spelling():
  expression = of(TEXT | {"pattern": "^.$"})
  for text in (
    '"a"',
    '"\\""',
    '"\\\\"',
    '"/"',
    '"\u00e9"',
    '"\U0001f600"',
    '"\\t"',
  ):
    assert matches(expression, text), text
  for text in ('"\\/"', '"\\u0061"', '"\t"', '"\\n"', '"\x7f"', '"ab"', '""'):
    assert not matches(expression, text), text
  assert matches(of(TEXT | {"maxLength": 1}), '"\\n"')


def test_patterns_hold_together():
  schema = TEXT | {"pattern": "[0-9]", "allOf": [{"pattern": "^[a-z]"}]}
  expression = of(schema | {"minLength": 3, "maxLength": 5})
  for text in ("a1b", "ab1", "abcd1", "a1234"):
    assert matches(expression, f'"{text}"')
  for text in ("a1", "1ab", "abc", "abcde1"):
    assert not matches(expression, f'"{text}"')


@pytest.mark.parametrize("seed", range(40))
def test_sets_of_properties_hold_exactly(seed):
  rng = random.Random(seed)
  schema = json_texts.object_schema(rng, lambda: {"enum": [1, 2]})
  names = list(schema["properties"])
  validator = jsonschema.Draft202012Validator(schema)
  expression = of_or_nothing(schema)
  for size in range(len(names) + 1):
    for some in itertools.permutations(names, size):
      value = dict.fromkeys(some, 1)
      is_in_order = list(some) == [name for name in names if name in some]
      wanted = validator.is_valid(value) and is_in_order
      assert matches(expression, value) == wanted, (schema, value)


@pytest.mark.parametrize(
  "extra",
  [
    {},
    {"minItems": 1},
    {"maxItems": 2},
    {"items": False},
    {"prefixItems": [{"const": 2}]},
    {"prefixItems": [{"const": 2}, {"const": 1}], "minItems": 1, "maxItems": 3},
    {"uniqueItems": True},
    {"uniqueItems": True, "prefixItems": [{"const": 2}]},
    {"contains": {"const": 2}, "maxItems": 3},
    {"contains": {"const": 2}, "maxContains": 1, "minItems": 2, "maxItems": 3},
  ],
)
def test_arrays_hold_exactly(extra):
  schema = {"type": "array", "items": {"enum": [1, 2]}} | extra
  validator = jsonschema.Draft202012Validator(schema)
  expression = of(schema)
  for size in range(5):
    for value in itertools.product([1, 2, 3], repeat=size):
      wanted = validator.is_valid(list(value))
      assert matches(expression, list(value)) == wanted, value


@pytest.mark.parametrize(
  "extra",
  [
    {"minimum": 2},
    {"not": {"const": 3}},
    {"type": ["integer", "null"]},
    {"if": {"type": "integer"}, "then": {"maximum": 2}},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"pattern": "^a", "maxLength": 2},
    {"uniqueItems": True},
    {"dependentRequired": {"a": ["b"]}},
    {"const": 1.0},
  ],
)
def test_values_of_an_enum_are_held_to_the_keywords_beside_it(extra):
  values = [1, 2, 3, 1.5, None, True, "a", "abc", [1, 1], [1, 2], {"a": 1}]
  schema = {"enum": values} | extra
  expression = of(schema)
  validator = jsonschema.Draft202012Validator(schema)
  for value in values:
    # A text for itself: a string is a value here.
    is_matched = re.fullmatch(expression, json_texts.compact(value))
    assert bool(is_matched) == validator.is_valid(value), value


def test_formats_are_held():
  import datetime
  import ipaddress
  import uuid

  read = {
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
  }
  rng = random.Random(0)
  for name, reader in read.items():
    walks = json_texts.Walks(of(TEXT | {"format": name}))
    for _ in range(50):
      reader(json.loads(walks.text(rng)))
  both = of(TEXT | {"format": "date", "pattern": "^2024-02"})
  assert matches(both, '"2024-02-28"')
  assert not matches(both, '"2024-03-28"')


A, B = (
  {
    "type": "object",
    "properties": {"kind": {"const": name}, "value": value},
    "required": ["kind"],
  }
  for name, value in (("a", INTEGER), ("b", TEXT))
)


@pytest.mark.parametrize(
  "schema",
  [
    {"oneOf": [A, B]},
    {"oneOf": [INTEGER, TEXT, {"type": "null"}]},
    {"oneOf": [INTEGER | {"maximum": 3}, INTEGER | {"minimum": 4}]},
    {"oneOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}]},
    {"oneOf": [TEXT | {"pattern": "^a"}, TEXT | {"pattern": "^b"}]},
  ],
)
def test_branches_that_share_no_text_are_one_of(schema):
  validator = jsonschema.Draft202012Validator(schema)
  walks = json_texts.Walks(of(schema))
  rng = random.Random(0)
  for _ in range(60):
    assert validator.is_valid(json.loads(walks.text(rng)))


AB = {"a": INTEGER, "b": INTEGER}
VIOLATED = {
  "minimum": (INTEGER | {"minimum": 10, "maximum": 20}, "99"),
  "multipleOf": (INTEGER | {"multipleOf": 5}, "7"),
  "uniqueItems": (
    {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
    "[1,1]",
  ),
  "minProperties": ({"properties": AB, "minProperties": 1}, "{}"),
  "maxProperties": ({"properties": AB, "maxProperties": 1}, '{"a":1,"b":1}'),
  "dependentRequired": (
    {"properties": AB, "dependentRequired": {"a": ["b"]}},
    '{"a":1}',
  ),
  "propertyNames": (
    {"properties": AB, "propertyNames": {"const": "b"}},
    '{"a":1}',
  ),
  "$ref": (
    {"$defs": {"i": INTEGER}, "$ref": "#/$defs/i", "minimum": 3},
    "1",
  ),
  "name": (
    {"properties": {'a"b': {"type": "null"}}, "required": ['a"b']},
    '{"a"b":null}',
  ),
  "allOf": (
    {"allOf": [{"properties": {k: INTEGER}, "required": [k]} for k in "ab"]},
    '{"a":1}{"b":1}',
  ),
  "pattern": (TEXT | {"pattern": "^a", "maxLength": 2}, '"abc"'),
  "format": (TEXT | {"format": "date", "maxLength": 3}, '"2024-01-01"'),
  "anyOf": ({"anyOf": [INTEGER, TEXT], "minimum": 3, "maxLength": 1}, '"ab"'),
}


@pytest.mark.parametrize("name", VIOLATED)
def test_a_text_that_violates_a_keyword_does_not_match(name):
  schema, text = VIOLATED[name]
  assert re.fullmatch(of_or_nothing(schema), text) is None


def levels(num: int, keyword: str | None = None) -> dict:
  """Schemas of which each names the next twice."""
  made: dict = {f"l{num}": INTEGER}
  for level in range(num):
    below = {"$ref": f"#/$defs/l{level + 1}"}
    made[f"l{level}"] = (
      {"type": "object", "properties": {"a": below, "b": below}}
      if keyword is None
      else {keyword: [below, below]}
    )
  return {"$defs": made, "$ref": "#/$defs/l0"}


NESTED = '{"items":' * 90 + "{}" + "}" * 90

REFUSED = {
  "not": (INTEGER | {"not": {"const": 3}}, "'not' at # "),
  "if": (INTEGER | {"if": {"minimum": 3}, "then": {"maximum": 5}}, "'if' at"),
  "unknown": (
    {"properties": {"a/b": {"minDigits": 3}}},
    "'minDigits' at #/prop",
  ),
  "unlisted": (A | {"required": ["other"]}, "'required' at # names 'other'"),
  "draft 7": ({"type": "array", "items": [INTEGER]}, "'items'.*prefixItems"),
  "draft 4": (
    INTEGER | {"minimum": 3, "exclusiveMinimum": True},
    "wanted a num",
  ),
  "unique": (
    {"type": "array", "items": INTEGER, "uniqueItems": True},
    "'uniqueI",
  ),
  "contains": (
    {"type": "array", "items": INTEGER, "contains": {}},
    "'contains'",
  ),
  "evaluated": (
    A | {"unevaluatedProperties": False},
    "'unevaluatedProperties'",
  ),
  "dependent": (
    A | {"dependentSchemas": {"value": {"maxProperties": 1}}},
    "'depe",
  ),
  "two written once": (
    {"type": "object", "additionalProperties": INTEGER, "minProperties": 2},
    "'minProperties' at #",
  ),
  "any of patterns": (
    {"type": "object", "patternProperties": {"^a": INTEGER}},
    "'patternProperties' at #",
  ),
  "one of": ({"oneOf": [INTEGER, {"type": "number"}]}, "'oneOf' at # "),
  "decimals": (
    {"type": "number", "multipleOf": 0.01},
    "'multipleOf' at # is 0.01",
  ),
  "multiples": (INTEGER | {"multipleOf": 997}, "'multipleOf' at # "),
  "format": (TEXT | {"format": "hostname"}, "'format' at # is 'hostname'"),
  "look-around": (TEXT | {"pattern": "(?=a)b"}, "'pattern' at # .*look-around"),
  "back": (TEXT | {"pattern": r"(a)\1"}, r"'pattern' at # "),
  "repeats": (
    TEXT | {"pattern": "(a{1,999}){1,999}"},
    "'pattern' at # is too l",
  ),
  "states": (
    TEXT | {"pattern": "(a|b)*a(a|b){12}", "maxLength": 30},
    "'pattern' at # is too large with maxLength",
  ),
  "characters": (TEXT | {"pattern": "a" * 10**6}, "'pattern' at # has 1,000,"),
  "length": (TEXT | {"maxLength": 10**9}, "'maxLength' at #"),
  "elsewhere": ({"$ref": "https://example.org/a"}, r"'\$ref' at # "),
  "nowhere": ({"$ref": "#/$defs/a"}, r"'\$ref' at # "),
  "itself": ({"$ref": "#"}, "refers to itself"),
  "in a list": (
    {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    "refers to itself",
  ),
  "twice each": (levels(18), "too large at #/|'properties' at #/"),
  "not anything": (INTEGER | {"not": {}}, "'not' at # "),
  "twice all": (levels(18, "allOf") | INTEGER | {"not": {}}, "'not' at #"),
  "any of any": (levels(18, "anyOf"), "takes more than"),
  "brackets": ("[" * 100_000, "brackets inside of each other"),
  "deep": ("[" * 500 + "]" * 500, "brackets inside of each other"),
  "nested": (NESTED, "schemas inside of each other"),
  "nan": ('{"const": NaN}', "not JSON"),
  "twice": ('{"type": "null", "type": "string"}', "'type' twice"),
  "false": (False, "allows no text"),
  "list": ([], "wanted a schema"),
  "type": ({"type": "int"}, "'type' at # is \"int\""),
  "bounds": (INTEGER | {"minimum": 5, "maximum": 4}, "allows no text"),
  "line": ({"a\nb": 1}, r"'a\\\\nb' at #"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_held_is_refused_by_name(name):
  schema, words = REFUSED[name]
  assert re.search(words, refusal(schema)), refusal(schema)


def test_references_hold_with_the_keywords_beside_them():
  schema = {
    "$defs": {"a/b": INTEGER | {"maximum": 20}, "c": {"$ref": "#/$defs/a~1b"}},
    "$ref": "#/$defs/c",
    "minimum": 3,
    "allOf": [{"multipleOf": 5}],
    "title": "a number",
  }
  expression = of(schema)
  for value in range(-25, 30):
    assert matches(expression, value) == (value in (5, 10, 15, 20))


def test_equal_schemas_that_hold_together_take_no_work():
  assert of(levels(18, "allOf")) == of(INTEGER)


def test_a_schema_that_says_nothing_is_json_of_bounded_depth():
  expression = of({})
  for value in (1, 1.5, "a", None, [], {}, [[1], {}], {"a": [2]}):
    assert matches(expression, json_texts.compact(value)), value
  assert not matches(expression, "[[[1]]]")
  for text in ("", "[1,]", "{1:2}", "nul", "01"):
    assert not matches(expression, text)


@pytest.mark.parametrize(
  "schema",
  [
    TEXT | {"maxLength": 200},
    TEXT | {"minLength": 50, "maxLength": 2000},
    INTEGER | {"multipleOf": 7},
    TEXT | {"pattern": "^[a-z ]+$", "maxLength": 200},
    TEXT | {"pattern": "[0-9]", "minLength": 5, "maxLength": 60},
    {"type": "array", "items": TEXT | {"maxLength": 100}, "maxItems": 10},
  ],
)
def test_lengths_and_multiples_compile_in_time(schema):
  expression_compiler.compiled.cache_clear()
  expression_compiler.compiled("a")  # the process has begun
  began = time.monotonic()
  expression_compiler.compiled(of(schema))
  assert time.monotonic() - began < 3


def test_strings_may_have_every_code_point():
  automaton, is_final = expression_compiler.compiled(of(TEXT))
  for code in (0x20, 0xE000, 0xFFFF, 0x10FFFE, 0x10FFFF):
    state = 0
    for byte in f'"a{chr(code)}b"'.encode():
      state = automaton.step[state, automaton.columns[byte]]
    assert state < len(is_final)
    assert is_final[state]
