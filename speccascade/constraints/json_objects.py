"""Which properties of an object are written, and in which order."""

from collections.abc import Sequence
import dataclasses

from speccascade.constraints import char_automata, json_values, parts
from speccascade.constraints.json_keywords import Place, refuse
from speccascade.constraints.parts import Expression

# So many sets of properties that continue differently are followed.
MOST_STATES = 300


@dataclasses.dataclass(frozen=True)
class Property:
  """A property that may be written.

  Attributes:
    name: its name.
    part: the expression of the name and the value.
    is_required: whether each object has it.
  """

  name: str
  part: Expression
  is_required: bool


def inside(properties: Sequence[Property], places: Sequence[Place]):
  """Returns the expression between the braces of an object.

  Properties are written in their order, each at most once.

  Args:
    properties: the properties.
    places: the schemas of the object.

  Returns:
    The expression; None where no set of properties is allowed.

  Raises:
    parts.TooLarge: the expression is too large.
    char_automata.TooMany: too many sets of properties differ.
  """
  names = {each.name for each in properties}
  least, most = 0, len(properties)
  needs: list[tuple[str, str]] = []
  for place in places:
    least = max(least, place.schema.get("minProperties", 0))
    most = min(most, place.schema.get("maxProperties", most))
    for name, others in place.schema.get("dependentRequired", {}).items():
      needs += [(name, other) for other in others if name in names]
  required = [each.name for each in properties if each.is_required]
  is_plain = len(required) >= least and most == len(properties)
  if is_plain and all(other in required for _, other in needs):
    return _in_order(properties)
  return _of_sets(properties, least, most, needs)


def _in_order(properties: Sequence[Property]) -> Expression:
  """Returns the expression of properties of which some may be left out."""
  first = next(
    (i for i, each in enumerate(properties) if each.is_required), None
  )
  if first is None:
    return parts.optional(_some(properties)) if properties else parts.EMPTY
  before = [
    parts.optional(parts.sequence(each.part, json_values.comma(parts.EMPTY)))
    for each in properties[:first]
  ]
  after = [json_values.comma(each.part) for each in properties[first + 1 :]]
  after = [
    part if each.is_required else parts.optional(part)
    for part, each in zip(after, properties[first + 1 :])
  ]
  return parts.sequence(*before, properties[first].part, *after)


def _some(properties: Sequence[Property]) -> Expression:
  """Returns the expression of one or more of optional properties.

  It is made of halves, so that n properties take n ** 1.6 parts, not n ** 2.
  """
  if len(properties) == 1:
    return properties[0].part
  half = (len(properties) + 1) // 2
  second = _some(properties[half:])
  return parts.either(
    [
      parts.sequence(
        _some(properties[:half]),
        parts.optional(json_values.comma(second)),
      ),
      second,
    ]
  )


def _of_sets(
  properties: Sequence[Property],
  least: int,
  most: int,
  needs: Sequence[tuple[str, str]],
) -> Expression | None:
  """Returns the expression of the sets of properties that are allowed."""
  counted = {name for pair in needs for name in pair}
  # A state: the next property, how many are written, which of those that
  # others need.
  start = (0, 0, frozenset())
  place, order = {start: 0}, [start]
  edges: dict[tuple[int, int], Expression] = {}
  ends = []
  later = [json_values.comma(each.part) for each in properties]

  def state_of(state):
    if state not in place:
      if len(order) >= MOST_STATES:
        raise char_automata.TooMany("too many sets of properties are allowed")
      place[state] = len(order)
      order.append(state)
    return place[state]

  for state in order:
    index, num, written = state
    here = place[state]
    rest = properties[index:]
    ends.append(
      least <= num <= most
      and not any(each.is_required for each in rest)
      and all(name not in written or other in written for name, other in needs)
    )
    for i, each in enumerate(rest, start=index):
      if num < most:
        added = {each.name} & counted
        after = state_of((i + 1, num + 1, written | added))
        part = later[i] if num else each.part
        known = edges.get((here, after))
        edges[here, after] = (
          part if known is None else parts.either([known, part])
        )
      if each.is_required:
        break
  return char_automata.eliminate(len(order), edges, ends)


def of_any_names(
  places: Sequence[Place], name: Expression, value: Expression | None
) -> Expression | None:
  """Returns the expression between the braces of an object of any names.

  Args:
    places: the schemas of the object.
    name: the expression of a name.
    value: the expression of each value; None where there is none.
  """
  least, most = 0, None
  for place in places:
    if place.schema.get("minProperties", 0) > 1:
      refuse(
        "minProperties",
        place,
        "is more than 1 where names are not listed, and one could be written"
        " twice",
        "list the properties",
      )
    least = max(least, place.schema.get("minProperties", 0))
    own = place.schema.get("maxProperties")
    most = own if most is None else most if own is None else min(most, own)
  if value is None or most == 0:
    return None if least else parts.EMPTY
  return items(json_values.pair(name, value), least, most)


def items(part: Expression, least: int, most: int | None) -> Expression:
  """Returns the expression of like items with commas between them.

  Args:
    part: an item.
    least: how many there are at least.
    most: how many at most, 1 or more; None for no limit.
  """
  more = parts.repeat(
    json_values.comma(part),
    max(least - 1, 0),
    None if most is None else most - 1,
  )
  inner = parts.sequence(part, more)
  return parts.optional(inner) if least == 0 else inner
