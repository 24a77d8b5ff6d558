"""Regular expressions in parts whose sizes are known while they are joined.

The syntax is what Rust's regex and Python's `re` have in common. A part that
grows beyond the limits is refused before it is written.
"""

from collections.abc import Sequence
import dataclasses

from speccascade.constraints.automaton_tables import ConstraintError

# Positions of an expression when its repetitions are written out; characters;
# groups inside of groups, of which Rust's regex reads 250.
MOST_POSITIONS = 20_000
MOST_CHARACTERS = 200_000
MOST_GROUPS = 150

_IS_SPECIAL = frozenset("\\.+*?()|[]{}^$")


class TooLarge(ConstraintError):
  """An expression that is larger than the limits."""


@dataclasses.dataclass(frozen=True)
class Expression:
  """A regular expression.

  Attributes:
    text: the expression; "" matches the empty text alone.
    positions: characters and classes, with repetitions written out.
    groups: the depth of groups inside of groups.
    kind: "atom", "sequence" or "choice", by what binds loosest in it.
  """

  text: str
  positions: int
  groups: int = 0
  kind: str = "atom"

  def __post_init__(self):
    if (
      self.positions > MOST_POSITIONS
      or len(self.text) > MOST_CHARACTERS
      or self.groups > MOST_GROUPS
    ):
      raise TooLarge(
        f"the expression has more than {MOST_POSITIONS:,} positions,"
        f" {MOST_CHARACTERS:,} characters or {MOST_GROUPS} nested groups"
      )


EMPTY = Expression("", 0, kind="sequence")


def literal(text: str) -> Expression:
  """Returns the expression of one text."""
  escaped = "".join(f"\\{c}" if c in _IS_SPECIAL else c for c in text)
  return Expression(
    escaped, len(text), kind="atom" if len(text) == 1 else "sequence"
  )


def grouped(part: Expression) -> Expression:
  """Returns a part that a repetition applies to as a whole."""
  if part.kind == "atom" and part.text:
    return part
  return Expression(f"(?:{part.text})", part.positions, part.groups + 1)


def sequence(*parts: Expression) -> Expression:
  """Returns the expression of parts one after another."""
  parts = tuple(
    grouped(each) if each.kind == "choice" else each
    for each in parts
    if each.text
  )
  if len(parts) == 1:
    return parts[0]
  _check(sum(len(each.text) for each in parts))
  return Expression(
    "".join(each.text for each in parts),
    sum(each.positions for each in parts),
    max((each.groups for each in parts), default=0),
    "sequence",
  )


def either(parts: Sequence[Expression]) -> Expression:
  """Returns the expression of a choice of one part or more."""
  by_text = {each.text: each for each in parts}
  is_optional = by_text.pop("", None) is not None
  parts = list(by_text.values())
  if not parts:
    return EMPTY
  choice = parts[0]
  if len(parts) > 1:
    _check(sum(len(each.text) for each in parts))
    choice = Expression(
      "|".join(each.text for each in parts),
      sum(each.positions for each in parts),
      max(each.groups for each in parts),
      "choice",
    )
  return repeat(choice, 0, 1) if is_optional else choice


def repeat(part: Expression, least: int, most: int | None) -> Expression:
  """Returns the expression of a part `least` to `most` times.

  Args:
    part: what is repeated.
    least: how often at least.
    most: how often at most; None for no limit.
  """
  if not part.text or most == 0:
    return EMPTY
  if (least, most) == (1, 1):
    return part
  one = grouped(part)
  times = max(least, 1) if most is None else most
  marks = {(0, None): "*", (1, None): "+", (0, 1): "?"}
  mark = marks.get((least, most))
  if mark is None:
    count = str(least) if least == most else f"{least},{most or ''}"
    mark = f"{{{count}}}"
  # Not an atom: `a{2}?` is a lazy `a{2}`, and `a*{2}` is an error in Python.
  return Expression(
    one.text + mark, one.positions * times, one.groups, "sequence"
  )


def optional(part: Expression) -> Expression:
  """Returns the expression of a part or of nothing."""
  return repeat(part, 0, 1)


def _check(num_characters: int):
  """Raises TooLarge before a text is joined that is too long."""
  if num_characters > MOST_CHARACTERS:
    raise TooLarge(
      f"the expression has more than {MOST_CHARACTERS:,} characters"
    )
