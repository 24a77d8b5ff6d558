"""Expressions of JSON strings: lengths, patterns and formats."""

from collections.abc import Sequence

from speccascade.constraints import char_automata, char_sets, parts, patterns
from speccascade.constraints.parts import Expression

_DAY = (
  r"[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
  r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = (
  r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
  r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_HOST = r"(?:[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\.){1,4}[a-z]{2,12}"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
# Each matches texts of its format alone, and not all of them.
FORMATS = {
  "date": rf"^{_DAY}$",
  "time": rf"^{_TIME}$",
  "date-time": rf"^{_DAY}T{_TIME}$",
  "uuid": r"^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$",
  "email": rf"^[a-z0-9]+(?:[._+-][a-z0-9]+)*@{_HOST}$",
  "uri": rf"^https?://{_HOST}(?:/[a-zA-Z0-9._~-]+)*/?$",
  "ipv4": rf"^(?:{_BYTE}\.){{3}}{_BYTE}$",
}

_ONE = char_sets.json_part(char_sets.WRITABLE)


def text_part(
  nodes: Sequence[patterns.Node], least: int, most: int | None
) -> Expression | None:
  """Returns the expression of a JSON string, with its quotes.

  Args:
    nodes: the patterns that are found in the text.
    least: the least number of characters.
    most: the largest; None for no limit.

  Returns:
    The expression, or None where no text is left.

  Raises:
    char_automata.TooMany: an automaton has too many states.
    parts.TooLarge: the expression is too large.
  """
  if most is not None and most < least:
    return None
  inner = _inner(list(dict.fromkeys(nodes)), least, most)
  if inner is None:
    return None
  quote = parts.literal('"')
  return parts.sequence(quote, inner, quote)


def _inner(nodes: list, least: int, most: int | None) -> Expression | None:
  """Returns the expression of a text between quotes."""
  if not nodes:
    return parts.repeat(_ONE, least, most)
  if len(nodes) == 1:
    node = patterns.whole(nodes[0])
    node = None if node is None else _with_lengths(node, least, most)
    if node is not None:
      return part_of(node, char_sets.json_part)
  dfa = char_automata.intersection(nodes, least, most)
  return char_automata.expression(dfa)


def _with_lengths(
  node: patterns.Node, least: int, most: int | None
) -> patterns.Node | None:
  """Returns a node of bounded length, or None where an automaton is needed."""
  low, high = patterns.lengths(node)
  if low >= least and (most is None or (high is not None and high <= most)):
    return node
  items = list(node.items) if isinstance(node, patterns.Sequence) else [node]
  spans = [patterns.lengths(each) for each in items]
  open_ = [i for i, (low, high) in enumerate(spans) if low != high]
  if len(open_) != 1:
    return None
  place = open_[0]
  item = items[place]
  while isinstance(item, patterns.Sequence) and len(item.items) == 1:
    item = item.items[0]
  if not isinstance(item, patterns.Repeat):
    return None
  if not isinstance(item.item, patterns.Chars):
    return None
  fixed = sum(low for i, (low, _) in enumerate(spans) if i != place)
  low = max(item.least, least - fixed)
  room = None if most is None else most - fixed
  high = min((x for x in (item.most, room) if x is not None), default=None)
  if high is not None and high < low:
    return patterns.Either(())
  items[place] = patterns.Repeat(item.item, low, high)
  return patterns.Sequence(tuple(items))


def part_of(node: patterns.Node, spell) -> Expression | None:
  """Returns the expression of a node without edges; None without any text.

  Args:
    node: the node.
    spell: the expression of one character of a set.
  """
  if isinstance(node, patterns.Chars):
    return spell(node.chars)
  if isinstance(node, patterns.Repeat):
    item = part_of(node.item, spell)
    if item is None:
      return parts.EMPTY if node.least == 0 else None
    return parts.repeat(item, node.least, node.most)
  items = [part_of(each, spell) for each in node.items]
  if isinstance(node, patterns.Either):
    items = [each for each in items if each is not None]
    return parts.either(items) if items else None
  return None if None in items else parts.sequence(*items)
