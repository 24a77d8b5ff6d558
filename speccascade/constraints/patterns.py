"""The keyword `pattern` of JSON schemas, read into nodes.

Two dialects matter: ECMA-262, which JSON schema names, and Python's, which
validators in Python use. Where they differ, a pattern is read as the least or
as the most that a dialect may match, or refused.
"""

import dataclasses
import re

from speccascade.constraints import char_sets
from speccascade.constraints.char_sets import CharSet

MOST_GROUPS = 40
MOST_REPEATS = 10_000


class PatternError(ValueError):
  """A pattern that is not read."""


@dataclasses.dataclass(frozen=True)
class Chars:
  """One character of a set."""

  chars: CharSet


@dataclasses.dataclass(frozen=True)
class Sequence:
  """Nodes one after another."""

  items: tuple


@dataclasses.dataclass(frozen=True)
class Either:
  """One of several nodes."""

  items: tuple


@dataclasses.dataclass(frozen=True)
class Repeat:
  """A node `least` to `most` times; no limit where `most` is None."""

  item: object
  least: int
  most: int | None


@dataclasses.dataclass(frozen=True)
class Edge:
  """The beginning of a text, or its end."""

  is_end: bool


Node = Chars | Sequence | Either | Repeat | Edge
BEGIN, END = Edge(False), Edge(True)
ANY = Chars(char_sets.WRITABLE)
ALL = Repeat(ANY, 0, None)


def _of(text: str) -> CharSet:
  return char_sets.union([(ord(c), ord(c)) for c in text])


_ASCII: CharSet = ((0, 0x7F),)
_REST: CharSet = ((0x80, char_sets.LAST),)
_DIGIT = ((0x30, 0x39),)
_WORD = char_sets.union(_DIGIT, ((0x41, 0x5A), (0x61, 0x7A)), _of("_"))
_BLANK = _of(" \t\n\r\f\v")
_NAMED = {"d": _DIGIT, "w": _WORD, "s": _BLANK}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_DOT = (
  char_sets.complement(_of("\n\r\u2028\u2029")),
  char_sets.complement(_of("\n")),
)
_MAY_BREAK = Repeat(Chars(_of("\n")), 0, 1)


def parse(pattern: str, is_most: bool = False) -> Node:
  """Returns the node of a pattern.

  Args:
    pattern: the pattern.
    is_most: where dialects differ, read what one of them matches; else what
      all of them match.

  Raises:
    PatternError: the pattern is not valid, or has what no automaton holds.
  """
  reader = _Reader(pattern, is_most)
  node = reader.choice(0)
  if reader.place < len(pattern):
    raise PatternError("has a ) without a (")
  return node


class _Reader:
  """Reads a pattern from left to right."""

  def __init__(self, pattern: str, is_most: bool):
    self.pattern, self.place, self.is_most = pattern, 0, is_most

  def at(self, text: str) -> bool:
    """Whether a string is here; moves past it."""
    stands = self.pattern.startswith(text, self.place)
    self.place += len(text) * stands
    return stands

  def next(self) -> str:
    """Returns the character here, and moves past it."""
    if self.place >= len(self.pattern):
      raise PatternError("ends too early")
    self.place += 1
    return self.pattern[self.place - 1]

  def choice(self, depth: int) -> Node:
    """Returns what is here up to the end of the group."""
    if depth > MOST_GROUPS:
      raise PatternError(f"has more than {MOST_GROUPS} groups in each other")
    branches = [self.branch(depth)]
    while self.at("|"):
      branches.append(self.branch(depth))
    return branches[0] if len(branches) == 1 else Either(tuple(branches))

  def branch(self, depth: int) -> Node:
    """Returns what is here up to a bar or the end of the group."""
    items = []
    while (
      self.place < len(self.pattern) and self.pattern[self.place] not in "|)"
    ):
      items.append(self.repeated(self.atom(depth)))
    return items[0] if len(items) == 1 else Sequence(tuple(items))

  def repeated(self, node: Node) -> Node:
    """Returns a node with the repetition that is here."""
    marks = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    bounds = None
    for mark, pair in marks.items():
      if self.at(mark):
        bounds = pair
        break
    else:
      count = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}").match(
        self.pattern, self.place
      )
      if count and (count[1] or count[3]):
        if not count[1]:
          raise PatternError("has {,n}, which is not read alike everywhere")
        if max(map(len, count.groups())) > 5:
          raise PatternError(f"repeats more than {MOST_REPEATS:,} times")
        self.place = count.end()
        least = int(count[1])
        most = int(count[3]) if count[3] else None if count[2] else least
        bounds = (least, most)
        if max(least, most or 0) > MOST_REPEATS:
          raise PatternError(f"repeats more than {MOST_REPEATS:,} times")
        if most is not None and most < least:
          raise PatternError(
            f"repeats {least} times or more and {most} at most"
          )
    if bounds is None:
      return node
    if isinstance(node, Edge):
      raise PatternError("repeats ^ or $")
    self.at("?")  # A lazy repetition matches the same texts.
    if self.place < len(self.pattern) and self.pattern[self.place] in "*+?":
      raise PatternError("repeats a repetition")
    return Repeat(node, *bounds)

  def atom(self, depth: int) -> Node:
    """Returns the one node that is here."""
    letter = self.next()
    if letter == "(":
      if self.at("?") and not self.at(":"):
        name = re.compile(r"P?<[A-Za-z_][A-Za-z_0-9]*>").match(
          self.pattern, self.place
        )
        if not name:
          raise PatternError("has look-around or flags, which are not held")
        self.place = name.end()
      node = self.choice(depth + 1)
      if not self.at(")"):
        raise PatternError("has a ( without a )")
      return node
    if letter == "[":
      return Chars(self.bracket())
    if letter == "\\":
      return Chars(self.escape(in_class=False)[self.is_most])
    if letter in "*+?":
      raise PatternError(f"has a {letter} with nothing before it")
    if letter == "^":
      return BEGIN
    if letter == "$":
      # Python's matches before a line break at the end, too.
      return Sequence((_MAY_BREAK, END)) if self.is_most else END
    return Chars(_DOT[self.is_most] if letter == "." else _of(letter))

  def escape(self, in_class: bool) -> tuple[CharSet, CharSet]:
    """Returns the least and the most that an escape may mean."""
    letter = self.next()
    if letter.lower() in _NAMED:
      ascii_ = _NAMED[letter.lower()]
      if letter.islower():
        return ascii_, char_sets.union(ascii_, _REST)
      most = char_sets.complement(ascii_)
      return char_sets.intersection(most, _ASCII), most
    if letter in _CONTROL:
      chars = _of(_CONTROL[letter])
    elif letter == "b" and in_class:
      chars = _of("\b")
    elif letter in "xu":
      digits = self.pattern[
        self.place : self.place + (2 if letter == "x" else 4)
      ]
      if not re.fullmatch("[0-9A-Fa-f]{2}|[0-9A-Fa-f]{4}", digits):
        raise PatternError(f"has \\{letter} without its digits")
      self.place += len(digits)
      chars = _of(chr(int(digits, 16)))
    elif letter.isalnum():
      raise PatternError(f"has \\{letter}, which is not held")
    else:
      chars = _of(letter)
    return chars, chars

  def bracket(self) -> CharSet:
    """Returns the set of characters of a class."""
    is_negated = self.at("^")
    least: CharSet = ()
    most: CharSet = ()
    if self.at("]"):
      raise PatternError(
        "has an empty class, which is not read alike everywhere"
      )
    while not self.at("]"):
      first = self.one_of_class()
      second = first
      ahead = self.pattern[self.place : self.place + 2]
      if ahead[:1] == "-" and ahead[1:] not in ("", "]"):
        self.place += 1
        second = self.one_of_class()
        ends = [each[0] for each in (first, second)]
        if any(len(each) != 1 or each[0][0] != each[0][1] for each in ends):
          raise PatternError("has a range between classes")
        low, high = ends[0][0][0], ends[1][0][0]
        if low > high:
          raise PatternError("has a range whose ends are in the wrong order")
        first = (((low, high),), ((low, high),))
      least = char_sets.union(least, first[0])
      most = char_sets.union(most, first[1])
    if is_negated:
      least, most = char_sets.complement(most), char_sets.complement(least)
    return most if self.is_most else least

  def one_of_class(self) -> tuple[CharSet, CharSet]:
    """Returns the least and the most that one item of a class may mean."""
    letter = self.next()
    if letter == "\\":
      return self.escape(in_class=True)
    return _of(letter), _of(letter)


def whole(node: Node) -> Node | None:
  """Returns what a text is in which a pattern is found, without edges.

  None where ^ or $ are inside the pattern.
  """
  if isinstance(node, Either):
    items = [whole(each) for each in node.items]
    return None if None in items else Either(tuple(items))
  items = list(node.items) if isinstance(node, Sequence) else [node]
  if len(items) == 1 and isinstance(items[0], (Either, Sequence)):
    return whole(items[0])
  begins = bool(items) and items[0] == BEGIN
  ends = bool(items) and items[-1] == END
  inner = items[begins : len(items) - ends]
  if any(_has_edge(each) for each in inner):
    return None
  return Sequence(
    (*([] if begins else [ALL]), *inner, *([] if ends else [ALL]))
  )


def _has_edge(node: Node) -> bool:
  """Whether a node has ^ or $ in it."""
  if isinstance(node, Repeat):
    return _has_edge(node.item)
  if isinstance(node, (Sequence, Either)):
    return any(_has_edge(each) for each in node.items)
  return isinstance(node, Edge)


def sets(node: Node) -> list[CharSet]:
  """Returns the sets of characters of a node."""
  if isinstance(node, Chars):
    return [node.chars]
  if isinstance(node, Repeat):
    return sets(node.item)
  if isinstance(node, (Sequence, Either)):
    return [each for item in node.items for each in sets(item)]
  return []


def lengths(node: Node) -> tuple[int, int | None]:
  """Returns the least and the largest number of characters of a node."""
  if isinstance(node, Chars):
    return 1, 1
  if isinstance(node, Edge):
    return 0, 0
  if isinstance(node, Repeat):
    least, most = lengths(node.item)
    if most == 0 or node.most == 0:
      return 0, 0
    is_open = node.most is None or most is None
    return least * node.least, None if is_open else most * node.most
  pairs = [lengths(each) for each in node.items]
  leasts, mosts = [low for low, _ in pairs], [high for _, high in pairs]
  if isinstance(node, Either):
    return min(leasts), None if None in mosts else max(mosts)
  return sum(leasts), None if None in mosts else sum(mosts)
