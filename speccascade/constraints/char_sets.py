"""Sets of characters as ranges of code points, and how JSON spells them.

A set is a sorted tuple of disjoint pairs (first, last) of code points.
"""

from collections.abc import Iterable, Sequence
import itertools

from speccascade.constraints import parts
from speccascade.constraints.parts import Expression

CharSet = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
# JSON has a short escape for these.
SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
# What a grammar writes as itself: no control characters, no surrogates.
_AS_ITSELF: CharSet = (
  *((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E)),
  *((0xA0, 0xD7FF), (0xE000, LAST)),
)


def union(*sets: Iterable[tuple[int, int]]) -> CharSet:
  """Returns the union of sets."""
  merged: list[tuple[int, int]] = []
  for first, last in sorted(each for one in sets for each in one):
    if merged and first <= merged[-1][1] + 1:
      merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
    else:
      merged.append((first, last))
  return tuple(merged)


def complement(chars: CharSet) -> CharSet:
  """Returns all code points that a set does not have."""
  rest, begin = [], 0
  for first, last in chars:
    if first > begin:
      rest.append((begin, first - 1))
    begin = last + 1
  if begin <= LAST:
    rest.append((begin, LAST))
  return tuple(rest)


def intersection(first: CharSet, second: CharSet) -> CharSet:
  """Returns what two sets share."""
  return complement(union(complement(first), complement(second)))


def contains(chars: CharSet, code: int) -> bool:
  """Whether a set has a code point."""
  return any(first <= code <= last for first, last in chars)


# All characters that a string of a grammar may have.
WRITABLE: CharSet = union(_AS_ITSELF, [(code, code) for code in SHORT])


def classes(sets: Sequence[CharSet]) -> list[CharSet]:
  """Returns the writable characters, divided by which sets have them."""
  bounds = {0, LAST + 1}
  for first, last in (pair for one in (*sets, WRITABLE) for pair in one):
    bounds |= {first, last + 1}
  order = sorted(bounds)
  kinds: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
  for first, after in itertools.pairwise(order):
    if contains(WRITABLE, first):
      key = tuple(contains(one, first) for one in sets)
      kinds.setdefault(key, []).append((first, after - 1))
  return [union(kind) for kind in kinds.values()]


def json_part(chars: CharSet) -> Expression | None:
  """Returns the expression of one character of a JSON string.

  Args:
    chars: the characters; those that no grammar writes are left out.

  Returns:
    The expression, in which each character has one spelling: the short escape
    where JSON has one, and itself elsewhere. None without any character.
  """
  choices = []
  if itself := intersection(chars, _AS_ITSELF):
    choices.append(bracket(itself))
  if marks := [SHORT[code] for code in SHORT if contains(chars, code)]:
    escapes = bracket(union([(ord(mark), ord(mark)) for mark in marks]))
    choices.append(parts.sequence(parts.literal("\\"), escapes))
  return parts.either(choices) if choices else None


def plain_part(chars: CharSet) -> Expression | None:
  """Returns the expression of one character that stands for itself."""
  return bracket(chars) if chars else None


def bracket(chars: CharSet) -> Expression:
  """Returns a class of characters in brackets, or one character."""
  if len(chars) == 1 and chars[0][0] == chars[0][1]:
    return parts.literal(chr(chars[0][0]))
  is_open = chars[-1][1] == LAST
  # Surrogates are in no text: a complement may have them.
  shown = complement(union(chars, [(0xD800, 0xDFFF)])) if is_open else chars
  inner = "".join(
    _spelled(first) + (f"-{_spelled(last)}" if last > first else "")
    for first, last in shown
  )
  return Expression(f"[{'^' if is_open else ''}{inner}]", 1)


def _spelled(code: int) -> str:
  """Returns a character of a class, as Rust and Python both read it."""
  if code < 0x20 or 0x7F <= code < 0x100:
    return f"\\x{code:02X}"
  return f"\\{chr(code)}" if chr(code) in "\\[]^-&~|" else chr(code)
