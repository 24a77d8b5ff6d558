"""Context-free grammars that are sampled, parsed and counted.

A tree is a tuple (rule name, child, ...). Children are trees, lexical entries
and constants; literal words leave none. The English side of the task is such
a grammar, so a source text determines its trees by parsing, and with them all
of its translations, whichever tree it was drawn from.
"""

import bisect
import itertools


class Symbol:
  """A nonterminal: rules, or a list of phrases with their entries."""

  __slots__ = (
    "cumulative",
    "is_lexical",
    "longest",
    "name",
    "options",
    "table",
  )

  def __init__(self, name: str):
    self.name = name
    self.options = []
    self.cumulative = None
    self.is_lexical = False
    self.table = None
    self.longest = 0


_WORD, _SYMBOL, _CONST = range(3)


class Grammar:
  """Symbols by name. Add rules and words, then `freeze`."""

  def __init__(self):
    self._symbols = {}
    self._weights = {}
    self._constants = {"_": None}

  def symbol(self, name: str) -> Symbol:
    """The symbol of that name, made where it is new."""
    if name not in self._symbols:
      self._symbols[name] = Symbol(name)
      self._weights[name] = []
    return self._symbols[name]

  def constant(self, name: str, value) -> None:
    """Gives "=name" in rules a value other than the name itself."""
    self._constants[name] = value

  def words(self, name: str, phrases, weights=None) -> None:
    """Defines a lexical symbol.

    Args:
      name: of the symbol.
      phrases: (text, entry) pairs; a text may be empty.
      weights: of the pairs, by default equal.
    """
    symbol = self.symbol(name)
    symbol.is_lexical = True
    symbol.table = {}
    for text, entry in phrases:
      tokens = tuple(text.split())
      symbol.options.append((tokens, entry))
      symbol.table.setdefault(tokens, []).append(entry)
    symbol.longest = max(len(tokens) for tokens, _ in symbol.options)
    self._weights[name] = list(weights or [1.0] * len(symbol.options))

  def rule(self, name: str, weight: float, rule: str, items: str = "") -> None:
    """Adds a production.

    Args:
      name: of the symbol it expands.
      weight: relative to the symbol's other rules; 0 adds nothing.
      rule: name of the rule in trees; "" passes the only child through.
      items: words, "#NAME" for a symbol, "=name" for a silent child (None
        for "=_").
    """
    if weight <= 0:
      return
    parts = []
    for item in items.split():
      if item[0] == "#":
        parts.append((_SYMBOL, self.symbol(item[1:])))
      elif item[0] == "=":
        value = self._constants.get(item[1:], item[1:])
        parts.append((_CONST, value))
      else:
        parts.append((_WORD, item))
    self.symbol(name).options.append((rule, tuple(parts)))
    self._weights[name].append(weight)

  def freeze(self) -> None:
    """Normalises the weights.

    Raises:
      ValueError: where a symbol that is used was never defined.
    """
    for name, symbol in self._symbols.items():
      if not symbol.options:
        raise ValueError(f"symbol {name} has no rules")
      total = sum(self._weights[name])
      shares = [weight / total for weight in self._weights[name]]
      # Rounding must not push a draw of .999... past the last option.
      symbol.cumulative = [*itertools.accumulate(shares[:-1])]

  def sample(self, start: Symbol, uniform, out: list[str]):
    """A tree drawn from `start`; its words are appended to `out`.

    Args:
      start: the symbol to expand.
      uniform: function that gives the next uniform number in [0, 1).
      out: list the words are appended to.
    """
    cumulative = start.cumulative
    index = bisect.bisect(cumulative, uniform()) if cumulative else 0
    if start.is_lexical:
      tokens, entry = start.options[index]
      out += tokens
      return entry
    rule, parts = start.options[index]
    children = [rule]
    for kind, value in parts:
      if kind == _SYMBOL:
        children.append(self.sample(value, uniform, out))
      elif kind == _WORD:
        out.append(value)
      else:
        children.append(value)
    return tuple(children) if rule else children[1]

  def parse(self, start: Symbol, tokens: list[str]) -> list:
    """All trees of `start` whose words are `tokens`, in rule order."""
    memo = {}

    def expand(symbol, begin):
      found = memo.get((symbol.name, begin))
      if found is not None:
        return found
      found = []
      if symbol.is_lexical:
        for length in range(symbol.longest + 1):
          for entry in symbol.table.get(
            tuple(tokens[begin : begin + length]), ()
          ):
            if begin + length <= len(tokens):
              found.append((entry, begin + length))
      else:
        for rule, parts in symbol.options:
          partial = [((rule,) if rule else (), begin)]
          for kind, value in parts:
            following = []
            for children, at in partial:
              if kind == _CONST:
                following.append(((*children, value), at))
              elif kind == _WORD:
                if at < len(tokens) and tokens[at] == value:
                  following.append((children, at + 1))
              else:
                following += [
                  ((*children, child), end) for child, end in expand(value, at)
                ]
            partial = following
            if not partial:
              break
          found += [(c if rule else c[0], end) for c, end in partial]
      memo[symbol.name, begin] = found
      return found

    return [tree for tree, end in expand(start, 0) if end == len(tokens)]

  def count(self, start: Symbol, longest: int) -> list[int]:
    """The exact number of trees of `start` by their number of words.

    Args:
      start: a symbol; the grammar must not recur.
      longest: number of words counted up to.

    Returns:
      [longest + 1]: entry n counts the trees with n words.
    """
    memo = {}

    def times(left, right):
      product = [0] * (longest + 1)
      for i, a in enumerate(left):
        if a:
          for j in range(longest + 1 - i):
            product[i + j] += a * right[j]
      return product

    def lengths(symbol):
      if symbol.name not in memo:
        total = [0] * (longest + 1)
        if symbol.is_lexical:
          for tokens, _ in symbol.options:
            if len(tokens) <= longest:
              total[len(tokens)] += 1
        else:
          for _, parts in symbol.options:
            words = sum(kind == _WORD for kind, _ in parts)
            ways = [int(n == words) for n in range(longest + 1)]
            for kind, value in parts:
              if kind == _SYMBOL:
                ways = times(ways, lengths(value))
            total = [a + b for a, b in zip(total, ways)]
        memo[symbol.name] = total
      return memo[symbol.name]

    return lengths(start)
