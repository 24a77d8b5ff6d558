"""JSON schemas in calls of the API, against the package `jsonschema`."""

import json

import pytest

import speccascade as sc
from tests.generate import llamas

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("outlines_core")

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
INNER = {
  "type": "object",
  "properties": {"b": TEXT | {"maxLength": 3}, "c": {"type": "boolean"}},
  "required": ["b", "c"],
}
# One of each kind that is held; tests/constraints/test_json_schema.py has all.
SCHEMAS = {
  "bounds": INTEGER | {"minimum": 10, "maximum": 20},
  "multiple": INTEGER | {"multipleOf": 7, "minimum": 0, "maximum": 9999},
  "number": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2},
  "length": TEXT | {"maxLength": 200},
  "enum": {"enum": ["cat", 'a"b', 3, None, [1, {"a": "\U0010ffff"}]]},
  "nested": {
    "type": "object",
    "properties": {"a": INNER, 'q"\\': {"type": ["null", "boolean"]}},
    "required": ["a"],
  },
  "array": {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True},
  "pattern": TEXT | {"pattern": "^[a-z]+[0-9]", "minLength": 5, "maxLength": 9},
  "format": TEXT | {"format": "date-time"},
  "one of": {"oneOf": [INTEGER | {"maximum": 99, "minimum": 0}, INNER]},
  "reference": {
    "$ref": "#/$defs/small",
    "minimum": 3,
  },
}
EACH = {
  "$defs": {"small": INTEGER | {"maximum": 30}},
  "type": "object",
  "properties": SCHEMAS,
  "required": list(SCHEMAS),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  folder = tmp_path_factory.mktemp("llamas")
  names = [
    str(llamas.save(folder / name, seed, max_positions=1024))
    for seed, name in enumerate(["small", "large"])
  ]
  return sc.load_pair(drafter=names[0], verifier=names[1])


@pytest.mark.parametrize("schema", [SCHEMAS["length"], EACH])
def test_outputs_are_what_a_schema_allows(pair, schema):
  validator = jsonschema.Draft202012Validator(schema)
  out = pair.generate(
    ["the cat", "on the mat"] * 4,
    prompt="text",
    json_schema=json.dumps(schema),
    temperature=1.0,
    max_decode_len=900,
    trace=False,
  )
  reasons = [record["aux"]["stop_reason"] for record in out.records]
  assert reasons.count("eos") >= 4
  for text, reason in zip(out.texts, reasons):
    if reason == "eos":
      validator.validate(json.loads(text))
