"""Expressions of integers and numbers in bounds."""

from collections.abc import Sequence
import dataclasses
from decimal import Decimal
import functools
import math

from speccascade.constraints import (
  char_automata,
  char_sets,
  json_strings,
  parts,
  patterns,
)
from speccascade.constraints.parts import Expression

# So many values are listed, each by itself.
MOST_LISTED = 256
# A double holds all decimals of so many digits apart.
DIGITS = 15
# Digits of a bound of integers.
MOST_DIGITS = 30

NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"


@dataclasses.dataclass(frozen=True)
class Bound:
  """A bound of numbers.

  Attributes:
    value: the bound.
    is_open: whether the value itself is outside.
  """

  value: Decimal
  is_open: bool = False


@functools.lru_cache(maxsize=256)
def integers(low: int | None, high: int | None, multiple: int = 1):
  """Returns the expression of integers; None where there are none.

  An integer is written in digits alone, without a zero in front.

  Args:
    low: the least; None for no limit.
    high: the largest; None for no limit.
    multiple: they are multiples of this, which is 1 or more.

  Raises:
    char_automata.TooMany: there are too many states.
    parts.TooLarge: the expression is too large.
  """
  if max(abs(low or 0), abs(high or 0)) >= 10**MOST_DIGITS:
    raise char_automata.TooMany(f"a bound has more than {MOST_DIGITS} digits")
  zeros = 0
  while multiple % 10 == 0:
    multiple, zeros = multiple // 10, zeros + 1
  if low is not None:
    low = -(-low // 10**zeros)
  if high is not None:
    high = high // 10**zeros
  if low is not None and high is not None and low > high:
    return None
  if multiple > 1 and low is not None and high is not None:
    first, last = -(-low // multiple), high // multiple
    if first > last:
      return None
    if last - first < MOST_LISTED:
      return parts.either(
        [
          parts.literal(str(each * multiple * 10**zeros))
          for each in range(first, last + 1)
        ]
      )
  choices = []
  if (low is None or low <= 0) and (high is None or high >= 0):
    choices.append(parts.literal("0"))
  sides = [
    (low, high),
    (None if high is None else -high, None if low is None else -low),
  ]
  above, below = (_multiples(_positive(*side), multiple) for side in sides)
  sign = parts.literal("-")
  if above == below and above is not None:
    signed = [parts.sequence(parts.optional(sign), above)]
  else:
    signed = [] if above is None else [above]
    signed += [] if below is None else [parts.sequence(sign, below)]
  tail = parts.literal("0" * zeros) if zeros else parts.EMPTY
  choices += [parts.sequence(each, tail) for each in signed]
  return parts.either(choices) if choices else None


def _multiples(texts: Sequence[str], multiple: int) -> Expression | None:
  """Returns the expression of the multiples among positive integers.

  Args:
    texts: expressions of the integers.
    multiple: what they are multiples of.
  """
  if not texts:
    return None
  node = patterns.parse("|".join(texts))
  if multiple == 1:
    return json_strings.part_of(node, char_sets.plain_part)
  nfa = char_automata.Nfa(node)

  def step(state, code):
    rest, states = state
    after = nfa.step(states, code)
    return ((10 * rest + code - 48) % multiple, after) if after else None

  dfa = char_automata.explore(
    [((code, code),) for code in range(48, 58)],
    (0, nfa.begin()),
    step,
    lambda state: state[0] == 0 and nfa.final in state[1],
  )
  return char_automata.expression(dfa, char_sets.plain_part)


def _positive(low: int | None, high: int | None) -> list[str]:
  """Returns expressions of the integers above 0 of a range."""
  low = max(low or 1, 1)
  if high is not None and high < low:
    return []
  texts = []
  most = len(str(low)) if high is None else len(str(high))
  if high is None and low == 10 ** (most - 1):
    return [f"[1-9][0-9]{{{most - 1},}}"]
  for length in range(len(str(low)), most + 1):
    least = max(low, 10 ** (length - 1))
    largest = 10**length - 1
    if high is not None:
      largest = min(high, largest)
    if least <= largest:
      texts.append(_between(str(least), str(largest)))
  if high is None:
    texts.append(f"[1-9][0-9]{{{most},}}")
  return texts


def _between(low: str, high: str) -> str:
  """Returns the expression of digits between two texts of one length."""
  if low == high:
    return low
  rest = len(low) - 1
  if low[0] == high[0]:
    return low[0] + _between(low[1:], high[1:])
  first, last = int(low[0]), int(high[0])
  choices = []
  if low[1:] != "0" * rest:
    choices.append(low[0] + _between(low[1:], "9" * rest))
    first += 1
  tail = None
  if high[1:] != "9" * rest:
    tail = high[0] + _between("0" * rest, high[1:])
    last -= 1
  if first <= last:
    head = str(first) if first == last else f"[{first}-{last}]"
    choices.append(head + (f"[0-9]{{{rest}}}" if rest else ""))
  if tail:
    choices.append(tail)
  return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"


@functools.lru_cache(maxsize=256)
def numbers(low: Bound | None, high: Bound | None) -> Expression | None:
  """Returns the expression of numbers in bounds; None where there are none.

  Within bounds no exponent is written, and at most 15 digits after the point.

  Args:
    low: the least; None for no limit.
    high: the largest; None for no limit.

  Raises:
    char_automata.TooMany: there are too many states.
    parts.TooLarge: the expression is too large.
  """
  if low is None and high is None:
    node = patterns.parse(NUMBER)
    return json_strings.part_of(node, char_sets.plain_part)
  texts = []
  if high is None or high.value > 0 or not (high.value or high.is_open):
    least = low if low is not None and low.value >= 0 else Bound(Decimal(0))
    texts += _decimals(least, high)
  if low is None or low.value < 0:
    # Zero is written without a sign.
    least, most = Bound(Decimal(0), True), None
    if high is not None and high.value < 0:
      least = Bound(-high.value, high.is_open)
    if low is not None:
      most = Bound(-low.value, low.is_open)
    texts += [f"-{text}" for text in _decimals(least, most)]
  if not texts:
    return None
  node = patterns.parse("|".join(texts))
  return json_strings.part_of(node, char_sets.plain_part)


def _decimals(low: Bound, high: Bound | None) -> list[str]:
  """Returns expressions of the decimals of a range from 0 on."""
  if high is not None:
    if low.value > high.value:
      return []
    if low.value == high.value and (low.is_open or high.is_open):
      return []
  whole, digits = _split(low.value)
  room = _room(low, high)
  anything = rf"(?:\.[0-9]{{1,{room}}})?"
  if high is None:
    above = _positive(whole + 1, None)
    return [
      f"{whole}{_fraction(digits, low.is_open, None, False, room)}",
      *(f"{text}{anything}" for text in above),
    ]
  last, ends = _split(high.value)
  if whole == last:
    text = _fraction(digits, low.is_open, ends, high.is_open, room)
    return [] if text is None else [f"{whole}{text}"]
  texts = [f"{whole}{_fraction(digits, low.is_open, None, False, room)}"]
  if whole + 1 < last:
    texts += [f"{text}{anything}" for text in _positive(whole + 1, last - 1)]
  text = _fraction("", False, ends, high.is_open, room)
  return texts if text is None else [*texts, f"{last}{text}"]


def _split(value: Decimal) -> tuple[int, str]:
  """Returns what is before the point, and the digits after it."""
  text = f"{value:f}"
  whole, _, digits = text.partition(".")
  return int(whole), digits.rstrip("0")


def _room(*bounds: Bound | None) -> int:
  """Returns how many digits may follow the point."""
  pairs = [_split(each.value) for each in bounds if each is not None]
  room = DIGITS - max(len(str(whole)) for whole, _ in pairs)
  if room <= max(len(digits) for _, digits in pairs):
    raise char_automata.TooMany(f"a bound has {DIGITS} digits or more")
  return room


def _fraction(
  low: str, low_open: bool, high: str | None, high_open: bool, room: int
) -> str | None:
  """Returns the expression of what follows the whole part of a decimal.

  Args:
    low: the digits of the least fraction, without zeros at the end.
    low_open: whether that one is outside.
    high: the digits of the largest; None for 1, which is outside.
    high_open: whether that one is outside.
    room: how many digits may follow the point.
  """
  has_none = not low and not low_open and not (high == "" and high_open)
  texts = _digits(low, low_open, high, high_open, room)
  inner = f"\\.(?:{'|'.join(texts)})" if texts else None
  if inner is None:
    return "" if has_none else None
  return f"(?:{inner})?" if has_none else inner


def _digits(
  low: str | None, low_open: bool, high: str | None, high_open: bool, room: int
) -> Sequence[str]:
  """Returns expressions of one digit or more between two fractions.

  `low` is None where anything is above it; `high` where anything is below.
  """
  if low is None and high is None:
    return [f"[0-9]{{1,{room}}}"] if room else []
  # Runs of digits that are followed alike.
  runs: list[tuple[int, int, str]] = []
  first = int(low[0]) if low else 0
  last = 9 if high is None else int(high[0]) if high else 0
  for digit in range(first, last + 1):
    at_low = low is not None and digit == first
    at_high = high is not None and digit == last
    below = (low[1:] if low else "") if at_low else None
    above = (high[1:] if high else "") if at_high else None
    if below == "" and not low_open:
      below = None
    # A fraction of zeros alone is at both of its bounds.
    stops = (below is None) and not (above == "" and high_open)
    more = (
      _digits(below, low_open, above, high_open, room - 1) if room > 1 else []
    )
    if not stops and not more:
      continue
    tail = f"(?:{'|'.join(more)})" if more else ""
    tail += "?" if stops and more else ""
    if runs and runs[-1][1:] == (digit - 1, tail):
      runs[-1] = (runs[-1][0], digit, tail)
    else:
      runs.append((digit, digit, tail))
  return [
    (f"{first}" if first == last else f"[{first}-{last}]") + tail
    for first, last, tail in runs
  ]


def floor_of(bound: Bound | None) -> int | None:
  """Returns the largest integer that an upper bound allows."""
  if bound is None:
    return None
  if bound.is_open:
    return math.ceil(bound.value) - 1
  return math.floor(bound.value)


def ceil_of(bound: Bound | None) -> int | None:
  """Returns the least integer that a lower bound allows."""
  if bound is None:
    return None
  if bound.is_open:
    return math.floor(bound.value) + 1
  return math.ceil(bound.value)
