"""Random JSON schemas, and random texts of the expressions made of them."""

import itertools
import json
import random

from speccascade.constraints import expression_compiler


class Walks:
  """Random texts of an expression."""

  def __init__(self, expression: str):
    automaton, self._is_final = expression_compiler.compiled(expression)
    self._moves = [
      [(byte, int(row[automaton.columns[byte]])) for byte in range(256)]
      for row in automaton.step[:-1]
    ]
    dead = len(self._moves)
    self._moves = [
      [move for move in moves if move[1] != dead] for moves in self._moves
    ]
    before: dict[int, set[int]] = {}
    for each, moves in enumerate(self._moves):
      for _, after in moves:
        before.setdefault(after, set()).add(each)
    # How far each state is from an end.
    waiting = [state for state in range(dead) if self._is_final[state]]
    self._far = dict.fromkeys(waiting, 0)
    for state in waiting:
      for each in before.get(state, ()):
        if each not in self._far:
          self._far[each] = self._far[state] + 1
          waiting.append(each)

  def text(self, rng: random.Random, most: int = 40) -> str:
    """Returns a random text; past `most` bytes it takes a short way out."""
    state, written = 0, bytearray()
    while True:
      moves = self._moves[state]
      # Rare bytes are as likely as common ones, and an end is one of them.
      by_state: dict[int | None, list[int]] = {}
      for byte, after in moves:
        by_state.setdefault(after, []).append(byte)
      if self._is_final[state]:
        by_state[None] = []
      if len(written) >= most:
        near = min(by_state, key=lambda each: self._far.get(each, -1))
        by_state = {near: by_state[near]}
      state = rng.choice(list(by_state))
      if state is None:
        return written.decode()
      written.append(rng.choice(by_state[state]))


def compact(value) -> str:
  """Returns a value in the form that a grammar writes, without blanks."""
  return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


PATTERNS = (
  *("^a", "b$", "a|b", "^[a-c]+$", r"^\d{1,2}$", r"\s", '"', r"\\", "^(ab)*$"),
  *("^$", "a.b", r"[^a]", "(^a|b$)", r"^\w+\.[a-z]$", "^a{2,3}?b?"),
)
TEXTS = tuple(
  "".join(letters)
  for size in range(4)
  for letters in itertools.product('ab1"\\\n ', repeat=size)
)


def number_keywords(rng: random.Random, is_integer: bool) -> dict:
  """Returns random keywords of a number."""
  draw = lambda: (
    rng.randint(-15, 15)
    if is_integer
    else rng.choice([-2.5, 0, 0.25, 3, 7.125])
  )
  schema = {
    name: draw()
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    if rng.random() < 0.3
  }
  if rng.random() < 0.2:
    schema["multipleOf"] = rng.choice([1, 2, 3, 4, 5, 6, 10, 20, 25])
  return schema


def text_keywords(rng: random.Random) -> dict:
  """Returns random keywords of a string."""
  schema = {}
  if rng.random() < 0.4:
    schema["minLength"] = rng.randint(0, 3)
  if rng.random() < 0.4:
    schema["maxLength"] = rng.randint(0, 4)
  if rng.random() < 0.6:
    schema["pattern"] = rng.choice(PATTERNS)
  return schema


def schema(rng: random.Random, depth: int = 2) -> dict | bool:
  """Returns a random schema, of which some are refused."""
  below = lambda: schema(rng, depth - 1)
  kinds = ["integer", "number", "string", "boolean", "null", "enum", "types"]
  if depth:
    kinds += ["array", "object", "map", "anyOf", "oneOf", "allOf", "tuple"] * 2
  kind = rng.choice(kinds)
  if kind in ("integer", "number"):
    return {"type": kind} | number_keywords(rng, kind == "integer")
  if kind in ("boolean", "null"):
    return {"type": kind}
  if kind == "string":
    return {"type": "string"} | text_keywords(rng)
  if kind == "enum":
    values = [
      0,
      1,
      5,
      1.5,
      -3,
      "a",
      'a"b',
      "\u00e9",
      None,
      True,
      [],
      [1],
      {"a": 1},
    ]
    extra = rng.choice(
      [{}, {"type": "integer"}, {"minimum": 1}, {"not": {"type": "string"}}]
    )
    return {"enum": rng.sample(values, 5)} | extra
  if kind == "types":
    names = rng.sample(["integer", "string", "null", "boolean"], 2)
    return {"type": names} | number_keywords(rng, True) | text_keywords(rng)
  if kind == "array":
    made = {"type": "array", "items": below()}
    if rng.random() < 0.3:
      made["uniqueItems"] = True
    if rng.random() < 0.5:
      made["maxItems"] = rng.randint(0, 3)
    if rng.random() < 0.5:
      made["minItems"] = rng.randint(0, 2)
    if rng.random() < 0.2:
      made["contains"] = below()
    return made
  if kind == "tuple":
    made = {"type": "array", "prefixItems": [below() for _ in range(2)]}
    if rng.random() < 0.5:
      made["items"] = rng.choice([False, below()])
    if rng.random() < 0.5:
      made["minItems"] = rng.randint(0, 3)
    return made
  if kind == "object":
    return object_schema(rng, below)
  if kind == "map":
    made = {"type": "object", "additionalProperties": below()}
    if rng.random() < 0.5:
      made["propertyNames"] = text_keywords(rng)
    if rng.random() < 0.5:
      made["maxProperties"] = rng.randint(0, 2)
    return made
  if kind == "allOf" and rng.random() < 0.5:
    parts = [object_schema(rng, below) for _ in range(2)]
    return {"type": "object", "allOf": parts}
  return {kind: [below() for _ in range(2)]} | rng.choice(
    [{}, {"type": "integer"}, {"minimum": 2}, {"maxLength": 2}]
  )


def object_schema(rng: random.Random, below) -> dict:
  """Returns the random schema of an object of listed properties."""
  names = rng.sample(["a", "b", 'q"', "\u00e9\\", "x/y"], rng.randint(1, 4))
  made = {"type": "object", "properties": {name: below() for name in names}}
  if rng.random() < 0.5:
    made["required"] = rng.sample(names, rng.randint(0, len(names)))
  if rng.random() < 0.3:
    made["additionalProperties"] = rng.choice([False, below()])
  if rng.random() < 0.2:
    made["minProperties"] = rng.randint(0, 2)
  if rng.random() < 0.2:
    made["maxProperties"] = rng.randint(0, 3)
  if rng.random() < 0.2:
    made["dependentRequired"] = {names[0]: [names[-1]]}
  if rng.random() < 0.2:
    made["propertyNames"] = {"maxLength": 1}
  if rng.random() < 0.2:
    made["patternProperties"] = {"^a": below()}
  return made
