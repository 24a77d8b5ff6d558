"""Two readings of a rendering function: one draw, or all renderings.

A rendering function builds German text with `seq` and `alt`. Under `Draw`
each `alt` picks one option and the result is a string. Under `Everything` it
is a lattice that holds all renderings with their probabilities without
listing them: `matches` answers membership exactly, `best` lists the most
probable, `count` says how many there are.

Texts hold words, "," and ";", the comma that closes a clause inside another:
it is silent before a comma or the end of the sentence.
"""

import heapq


def finish(text: str) -> str:
  """The sentence of words and commas: capital, punctuation, full stop.

  >>> finish("der Hund , der schläft ; , aber er sieht die Katze , die bellt ;")
  'Der Hund, der schläft, aber er sieht die Katze, die bellt.'
  """
  text += " ."
  text = text.replace(" ; ,", " ,").replace(" ; .", " .").replace(";", ",")
  text = text.replace(" ,", ",").replace(" .", ".")
  return text[0].upper() + text[1:]


class Draw:
  """Draws one rendering.

  Args:
    uniform: function that gives the next uniform number in [0, 1).
  """

  def __init__(self, uniform):
    self._uniform = uniform

  def alt(self, choice, build):
    """`build` of one value of the choice."""
    values = choice.values
    if len(values) == 1:
      return build(values[0])
    left = self._uniform()
    for weight, value in zip(choice.weights, values):
      left -= weight
      if left < 0:
        return build(value)
    return build(values[-1])

  def seq(self, *parts):
    """The parts in order, empty ones left out."""
    return " ".join([part for part in parts if part])


class _Alt:
  __slots__ = ("options",)

  def __init__(self, options):
    self.options = options


class _Seq:
  __slots__ = ("parts",)

  def __init__(self, parts):
    self.parts = parts


class Everything:
  """Keeps every option."""

  def alt(self, choice, build):
    """The alternatives that `build` makes of the choice's values."""
    if len(choice.values) == 1:
      return build(choice.values[0])
    return _Alt(
      [(w, build(value)) for w, value in zip(choice.weights, choice.values)]
    )

  def seq(self, *parts):
    """The parts in order, empty ones left out."""
    parts = [part for part in parts if part]
    if len(parts) < 2:
      return parts[0] if parts else ""
    return _Seq(parts)


def count(node) -> int:
  """The number of renderings (ways through the lattice)."""
  if isinstance(node, _Alt):
    return sum(count(option) for _, option in node.options)
  if isinstance(node, _Seq):
    total = 1
    for part in node.parts:
      total *= count(part)
    return total
  return 1


def best(node, limit: int) -> list[tuple[float, str]]:
  """The most probable texts, before `finish`.

  Args:
    node: a lattice.
    limit: how many at most.

  Returns:
    (probability, text), the probability not increasing.
  """
  memo = {}

  def visit(node):
    if isinstance(node, str):
      return [(1.0, node)]
    if id(node) not in memo:
      if isinstance(node, _Alt):
        found = [
          (weight * p, text)
          for weight, option in node.options
          for p, text in visit(option)
        ]
        found.sort(key=lambda pair: -pair[0])
        found = found[:limit]
      else:
        found = [(1.0, "")]
        for part in node.parts:
          options = visit(part)
          joined = [
            (p * q, f"{head} {tail}" if head and tail else head or tail)
            for p, head in found
            for q, tail in options
          ]
          if len(joined) > limit:
            joined = heapq.nlargest(limit, joined, key=lambda pair: pair[0])
          else:
            joined.sort(key=lambda pair: -pair[0])
          found = joined
      memo[id(node)] = found
    return memo[id(node)]

  return visit(node)


def matches(node, text: str) -> bool:
  """Whether the finished sentence `text` is one of the renderings."""
  if not text.endswith(".") or ",," in text or ",." in text:
    return False
  tokens = text[:-1].replace(",", " , ").split()
  # What `finish` would print: rules out odd spacing.
  if not tokens or finish(" ".join(tokens)) != text:
    return False
  memo = {}

  def word(node, at):
    ends = {at}
    for token in node.split():
      following = set()
      for i in ends:
        seen = tokens[i] if i < len(tokens) else "."
        if token == ";":
          if seen == ",":
            following.add(i + 1)
          if seen in ",.":
            following.add(i)
        else:
          wanted = token[0].upper() + token[1:] if i == 0 else token
          if seen == wanted:
            following.add(i + 1)
      ends = following
    return ends

  def visit(node, at):
    key = (id(node), at)
    if key not in memo:
      if isinstance(node, str):
        memo[key] = word(node, at)
      elif isinstance(node, _Alt):
        memo[key] = set().union(*(visit(o, at) for _, o in node.options))
      else:
        ends = {at}
        for part in node.parts:
          ends = set().union(*(visit(part, i) for i in ends))
        memo[key] = ends
    return memo[key]

  return len(tokens) in visit(node, 0)
