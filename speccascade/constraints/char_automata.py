"""Small automata over characters: intersections, and back to expressions."""

from collections.abc import Callable, Hashable, Sequence
import dataclasses
import heapq

from speccascade.constraints import char_sets, parts, patterns
from speccascade.constraints.char_sets import CharSet
from speccascade.constraints.parts import Expression

MOST_NODES = 4_000
MOST_STATES = 1_000
# States of a pattern that are left, over all characters that are followed.
MOST_MOVES = 100_000


class TooMany(ValueError):
  """An automaton of more states than are followed here."""


class Nfa:
  """The automaton of a pattern that is looked for in a text.

  States have moves over characters, and edges without any: some of them can be
  passed at the beginning or at the end of a text alone.

  Attributes:
    moves: for each state (set of characters, state) pairs.
    edges: for each state (kind, state) pairs; kind is None, "begin" or "end".
  """

  def __init__(self, node: patterns.Node):
    self.moves: list[list[tuple[CharSet, int]]] = []
    self.edges: list[list[tuple[str | None, int]]] = []
    self._num_left = 0
    self.start = self._state()
    self.final = self._add(node, self.start)

  def _state(self) -> int:
    if len(self.moves) >= MOST_NODES:
      raise TooMany(f"the pattern takes more than {MOST_NODES:,} states")
    self.moves.append([])
    self.edges.append([])
    return len(self.moves) - 1

  def _add(self, node: patterns.Node, state: int) -> int:
    """Adds a node after a state, and returns the state after it."""
    if isinstance(node, patterns.Sequence):
      for each in node.items:
        state = self._add(each, state)
      return state
    after = self._state()
    if isinstance(node, patterns.Chars):
      self.moves[state].append((node.chars, after))
    elif isinstance(node, patterns.Edge):
      self.edges[state].append(("end" if node.is_end else "begin", after))
    elif isinstance(node, patterns.Either):
      for each in node.items:
        self.edges[self._add(each, state)].append((None, after))
    else:
      for _ in range(node.least):
        state = self._add(node.item, state)
      if node.most is None:
        again = self._state()
        self.edges[state].append((None, again))
        self.edges[self._add(node.item, again)].append((None, again))
        state = again
      for _ in range((node.most or 0) - node.least):
        self.edges[state].append((None, after))
        state = self._add(node.item, state)
      self.edges[state].append((None, after))
    return after

  def reach(self, states: Sequence[int], *kinds: str) -> frozenset[int]:
    """Returns all states that are reached without a character."""
    seen, waiting = set(states), list(states)
    while waiting:
      for kind, after in self.edges[waiting.pop()]:
        if (kind is None or kind in kinds) and after not in seen:
          seen.add(after)
          waiting.append(after)
    return frozenset(seen)

  def begin(self) -> frozenset[int]:
    """Returns the states before a text."""
    return self.reach([self.start], "begin")

  def step(self, states: frozenset[int], code: int) -> frozenset[int]:
    """Returns the states after a character."""
    self._num_left += len(states)
    if self._num_left > MOST_MOVES:
      raise TooMany(f"the pattern takes more than {MOST_MOVES:,} moves")
    return self.reach(
      [
        after
        for state in states
        for chars, after in self.moves[state]
        if char_sets.contains(chars, code)
      ]
    )

  def ends(self, states: frozenset[int], is_empty: bool) -> bool:
    """Whether a text may end in some states."""
    kinds = ("begin", "end") if is_empty else ("end",)
    return self.final in self.reach(list(states), *kinds)


def search(node: patterns.Node) -> Nfa:
  """Returns the automaton of the texts in which a pattern is found."""
  return Nfa(patterns.Sequence((patterns.ALL, node, patterns.ALL)))


def is_found(node: patterns.Node, text: str) -> bool:
  """Whether a pattern is found in a text."""
  any_ = patterns.Repeat(patterns.Chars(((0, char_sets.LAST),)), 0, None)
  nfa = Nfa(patterns.Sequence((any_, node, any_)))
  states = nfa.begin()
  for letter in text:
    states = nfa.step(states, ord(letter))
  return nfa.ends(states, not text)


@dataclasses.dataclass
class Dfa:
  """An automaton over classes of characters, which starts in state 0.

  Attributes:
    classes: the set of characters of each class.
    moves: for each state the state after each class; -1 where a text cannot
      continue.
    ends: for each state whether a text may end there.
  """

  classes: Sequence[CharSet]
  moves: list[list[int]]
  ends: list[bool]

  @property
  def is_empty(self) -> bool:
    """Whether no text is in the automaton."""
    return not any(self.ends)


def explore(
  classes: Sequence[CharSet],
  start: Hashable,
  step: Callable[[Hashable, int], Hashable | None],
  ends: Callable[[Hashable], bool],
) -> Dfa:
  """Returns the smallest automaton of a rule for single steps.

  Args:
    classes: the set of characters of each class.
    start: the state before a text.
    step: (state, a character) -> the state after it, or None.
    ends: whether a text may end in a state.

  Raises:
    TooMany: the rule has more states than are followed.
  """
  place, order, moves = {start: 0}, [start], []
  for state in order:
    row = []
    for chars in classes:
      after = step(state, chars[0][0])
      if after is None:
        row.append(-1)
        continue
      if after not in place:
        if len(order) >= MOST_STATES:
          raise TooMany(f"the automaton has more than {MOST_STATES:,} states")
        place[after] = len(order)
        order.append(after)
      row.append(place[after])
    moves.append(row)
  return _smallest(Dfa(classes, moves, [ends(each) for each in order]))


def intersection(nodes: Sequence[patterns.Node], least: int, most: int | None):
  """Returns the automaton of the texts in which all patterns are found.

  Args:
    nodes: the patterns.
    least: the least number of characters of a text.
    most: the largest; None for no limit.

  Raises:
    TooMany: it has more states than are followed.
  """
  nfas = [search(node) for node in nodes]
  classes = char_sets.classes(
    [one for node in nodes for one in patterns.sets(node)]
  )
  # Lengths are counted as far as they matter.
  cap = max(least, 1) if most is None else most
  if cap > MOST_STATES:
    raise TooMany(f"the automaton has more than {MOST_STATES:,} states")
  memo: list[dict] = [{} for _ in nfas]

  def step(state, code):
    length, inside = state
    if most is not None and length == most:
      return None
    after = []
    for nfa, states, known in zip(nfas, inside, memo):
      if (states, code) not in known:
        known[states, code] = nfa.step(states, code)
      if not known[states, code]:
        return None
      after.append(known[states, code])
    return min(length + 1, cap), tuple(after)

  def ends(state):
    length, inside = state
    return length >= least and all(
      nfa.ends(states, not length) for nfa, states in zip(nfas, inside)
    )

  start = (0, tuple(nfa.begin() for nfa in nfas))
  return explore(classes, start, step, ends)


def _smallest(dfa: Dfa) -> Dfa:
  """Returns an automaton without equal states and without dead ones."""
  num = len(dfa.moves)
  before: list[set[int]] = [set() for _ in range(num)]
  for state, row in enumerate(dfa.moves):
    for after in row:
      if after >= 0:
        before[after].add(state)
  alive = {state for state in range(num) if dfa.ends[state]}
  waiting = list(alive)
  while waiting:
    for state in before[waiting.pop()]:
      if state not in alive:
        alive.add(state)
        waiting.append(state)
  block = [
    int(dfa.ends[state]) if state in alive else -1 for state in range(num)
  ]
  size = len(set(block))
  while True:
    keys: dict[tuple, int] = {}
    new = []
    for state, row in enumerate(dfa.moves):
      key = (block[state], *(block[a] if a >= 0 else -1 for a in row))
      new.append(-1 if block[state] < 0 else keys.setdefault(key, len(keys)))
    block = new
    if len(set(block)) == size:
      break
    size = len(set(block))
  if block[0] < 0:
    return Dfa(dfa.classes, [[-1] * len(dfa.classes)], [False])
  # The start comes first; states that are not reached any more stay out.
  place, order = {block[0]: 0}, [0]
  moves = []
  for state in order:
    row = []
    for after in dfa.moves[state]:
      kind = block[after] if after >= 0 else -1
      if kind >= 0 and kind not in place:
        place[kind] = len(order)
        order.append(after)
      row.append(place[kind] if kind >= 0 else -1)
    moves.append(row)
  return Dfa(dfa.classes, moves, [dfa.ends[state] for state in order])


def expression(
  dfa: Dfa, spell: Callable[[CharSet], Expression | None] = char_sets.json_part
) -> Expression | None:
  """Returns the expression of an automaton; None where it has no text.

  Args:
    dfa: the automaton.
    spell: the expression of one character of a set.

  Raises:
    parts.TooLarge: the expression is larger than the limits.
  """
  edges: dict[tuple[int, int], Expression] = {}
  for state, row in enumerate(dfa.moves):
    for after in set(row) - {-1}:
      chars = char_sets.union(
        *(one for one, to in zip(dfa.classes, row) if to == after)
      )
      if (part := spell(chars)) is not None:
        edges[state, after] = part
  return eliminate(len(dfa.moves), edges, dfa.ends)


def eliminate(
  num: int, edges: dict[tuple[int, int], Expression], ends: Sequence[bool]
) -> Expression | None:
  """Returns the expression of all paths from state 0 to an end.

  Args:
    num: the number of states.
    edges: the expression between two states.
    ends: for each state whether a path may end there.

  Raises:
    parts.TooLarge: the expression is larger than the limits.
  """
  first, last = -1, num
  into: dict[int, dict[int, Expression]] = {
    state: {} for state in range(-1, num + 1)
  }
  out: dict[int, dict[int, Expression]] = {
    state: {} for state in range(-1, num + 1)
  }

  def add(state: int, after: int, part: Expression):
    known = out[state].get(after)
    part = part if known is None else parts.either([known, part])
    out[state][after] = into[after][state] = part

  add(first, 0, parts.EMPTY)
  for (state, after), part in edges.items():
    add(state, after, part)
  for state in range(num):
    if ends[state]:
      add(state, last, parts.EMPTY)

  def weight(state: int) -> int:
    """What the expressions grow by where a state is taken out."""
    ways_in = [len(p.text) for s, p in into[state].items() if s != state]
    ways_out = [len(p.text) for s, p in out[state].items() if s != state]
    loop = len(out[state][state].text) if state in out[state] else 0
    return (
      sum(ways_in) * (len(ways_out) - 1)
      + sum(ways_out) * (len(ways_in) - 1)
      + loop * (len(ways_in) * len(ways_out) - 1)
    )

  queue = [(weight(state), state) for state in range(num)]
  heapq.heapify(queue)
  gone: set[int] = set()
  while queue:
    estimate, state = heapq.heappop(queue)
    if state in gone:
      continue
    now = weight(state)
    if now > estimate:
      heapq.heappush(queue, (now, state))
      continue
    gone.add(state)
    loop = out[state].pop(state, None)
    into[state].pop(state, None)
    again = parts.EMPTY if loop is None else parts.repeat(loop, 0, None)
    ways_in, ways_out = into.pop(state), out.pop(state)
    for before in ways_in:
      del out[before][state]
    for after in ways_out:
      del into[after][state]
    for before, come in ways_in.items():
      for after, go in ways_out.items():
        add(before, after, parts.sequence(come, again, go))
    for near in (set(ways_in) | set(ways_out)) - {first, last}:
      heapq.heappush(queue, (weight(near), near))
  return out[first].get(last)
