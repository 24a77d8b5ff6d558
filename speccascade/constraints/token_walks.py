"""Which tokens lead alike in an automaton over bytes, for large vocabularies.

From most states a token leads to one state: the dead state of a grammar, or
the place after the token in a search for strings. What it does elsewhere are
its exceptions. They only become fewer with each further byte, so that the
tokens of a vocabulary are walked through the automaton together, byte by byte,
without a table of states and tokens.

Axes: V vocabulary, S states of bytes, A columns of symbols, K kinds of tokens.
"""

from collections.abc import Callable
import dataclasses

import numpy as np

BYTE_TOKENS = 256  # the symbol of a token for byte 0, after bytes of pieces
NUM_SYMBOLS = 512
_EXCEPTION_BYTES = 32  # of memory, while functions are made of others
_AT_A_TIME = 1 << 19  # exceptions that are followed together


@dataclasses.dataclass(frozen=True)
class ByteAutomaton:
  """A deterministic automaton over symbols. A text begins in state 0.

  Attributes:
    step: [S, A] int32, the state after a symbol of each column.
    columns: [NUM_SYMBOLS] int32, the column of each symbol: of a byte of a
      piece, and of a token that stands for one byte.
    usual: the state from which a token's usual way begins.
    halt: a state that no symbol leaves; None if there is none.
  """

  step: np.ndarray
  columns: np.ndarray
  usual: int = 0
  halt: int | None = None


@dataclasses.dataclass(frozen=True)
class Spelling:
  """The symbols of all tokens.

  Attributes:
    symbols: [N] int, those of all tokens, one token after another.
    starts: [V] int, the place of a token's first symbol.
    lengths: [V] int, how many symbols each token has.
  """

  symbols: np.ndarray
  starts: np.ndarray
  lengths: np.ndarray

  @property
  def is_empty(self) -> np.ndarray:
    """[V] bool, the tokens without symbols."""
    return self.lengths == 0

  def active(self, tokens: np.ndarray, place: int) -> np.ndarray:
    """Returns those of some tokens that have a symbol at a place."""
    return tokens[self.lengths[tokens] > place]


@dataclasses.dataclass(frozen=True)
class _Exceptions:
  """The states that functions take elsewhere than the usual way.

  Attributes:
    usual: [F] int32, the state that each function gives most states.
    starts: [F + 1] int, where the exceptions of each function begin.
    states: [E] int32, the states that are exceptions.
    after: [E] int32, what the function gives for them.
    hashes: [F] uint64, equal for equal functions alone.
  """

  usual: np.ndarray
  starts: np.ndarray
  states: np.ndarray
  after: np.ndarray
  hashes: np.ndarray

  def take(self, which: np.ndarray) -> "_Exceptions":
    """Returns some of the functions."""
    counts = np.diff(self.starts)[which]
    places = ranges(self.starts[which], counts)
    return _Exceptions(
      self.usual[which],
      np.concatenate([[0], np.cumsum(counts)]),
      self.states[places],
      self.after[places],
      self.hashes[which],
    )


@dataclasses.dataclass(frozen=True)
class Walks:
  """What each token does to the states of a `ByteAutomaton`.

  Attributes:
    kinds: [V] int, the kind of each token.
    usual: [K] int32, the state after a kind from every state without an
      exception.
    kind: [E] int, the kind of each exception.
    states: [E] int32, its state.
    after: [E] int32, where the kind leads from there.
    halting: [V] int, which of `halts` each token has.
    halts: [H, S] bool, the states from which a token reaches `halt`; from
      these, `usual` and `after` are undefined. Without a `halt`
      no state is among them.
  """

  kinds: np.ndarray
  usual: np.ndarray
  kind: np.ndarray
  states: np.ndarray
  after: np.ndarray
  halting: np.ndarray
  halts: np.ndarray


def run(automaton: ByteAutomaton, spelling: Spelling) -> np.ndarray:
  """Returns the state [V] after each token from the beginning of a text."""
  states = np.zeros(len(spelling.lengths), np.int32)
  tokens, place = np.flatnonzero(spelling.lengths), 0
  while len(tokens):
    column = _columns(automaton, spelling, tokens, place)
    states[tokens] = automaton.step[states[tokens], column]
    place += 1
    tokens = spelling.active(tokens, place)
  return states


def walk(
  automaton: ByteAutomaton,
  spelling: Spelling,
  check: Callable[[int], object] = lambda num_bytes: None,
) -> Walks:
  """Returns what each token does to each state.

  Args:
    automaton: the automaton.
    spelling: the symbols of the tokens.
    check: called with the bytes that the walk holds; it raises an error where
      they are too many.
  """
  num = len(automaton.step)
  halts = _Halts(num, len(spelling.lengths), check)
  states = np.arange(num, dtype=np.int32)
  states = np.delete(states, automaton.usual)
  if automaton.halt is not None:
    states = states[states != automaton.halt]
  functions = _Exceptions(
    np.array([automaton.usual], np.int32),
    np.array([0, len(states)]),
    states,
    states,
    np.zeros(1, np.uint64),
  )
  which = np.zeros(len(spelling.lengths), np.int64)
  tokens, place = np.arange(len(which)), 0
  ended: list[_Exceptions] = []
  kinds, num_ended = np.zeros(len(which), np.int64), 0
  while True:
    has_ended = spelling.lengths[tokens] == place
    if has_ended.any():
      done = tokens[has_ended]
      used, inverse = np.unique(which[done], return_inverse=True)
      kinds[done] = num_ended + inverse
      num_ended += len(used)
      ended.append(functions.take(used))
    tokens = tokens[~has_ended]
    if not len(tokens):
      break
    column = _columns(automaton, spelling, tokens, place)
    width = automaton.step.shape[1]
    pairs, inverse = np.unique(
      which[tokens] * width + column, return_inverse=True
    )
    functions, same = _extended(
      automaton, functions, *np.divmod(pairs, width), halts, check
    )
    halts.add(tokens, inverse)
    which[tokens] = same[inverse]
    place += 1
  whole = _joined(ended)
  _, first, same = np.unique(
    whole.hashes, return_index=True, return_inverse=True
  )
  whole = whole.take(first)
  return Walks(
    kinds=same[kinds],
    usual=whole.usual,
    kind=np.repeat(np.arange(len(whole.usual)), np.diff(whole.starts)),
    states=whole.states,
    after=whole.after,
    halting=halts.of_token,
    halts=halts.table(),
  )


def _extended(
  automaton: ByteAutomaton,
  functions: _Exceptions,
  before: np.ndarray,
  column: np.ndarray,
  halts: "_Halts",
  check: Callable[[int], object],
) -> tuple[_Exceptions, np.ndarray]:
  """Returns functions with a symbol more, and which of them each pair is.

  Args:
    automaton: the automaton.
    functions: the functions of the symbols before.
    before: [P] int, the function of each pair.
    column: [P] int, the column of its symbol.
    halts: learns from which states the symbol of a pair reaches the halt.
    check: as in `walk`.
  """
  step, halt = automaton.step, automaton.halt
  usual = step[functions.usual[before], column]
  counts = np.diff(functions.starts)[before]
  parts, num = [], 0
  halts.begin(len(before))
  if halt is not None:
    was_halted = functions.usual[before] == halt
    halts.all_halt(np.flatnonzero((usual == halt) & ~was_halted))
  # The pairs go in parts of a bounded number of exceptions.
  total = np.cumsum(counts)
  begin = 0
  while begin < len(before):
    reach = total[begin - 1] if begin else 0
    end = int(np.searchsorted(total, reach + _AT_A_TIME, side="right"))
    end = max(end, begin + 1)
    size = counts[begin:end]
    pair = np.repeat(np.arange(begin, end), size)
    places = ranges(functions.starts[before[begin:end]], size)
    states = functions.states[places]
    after = step[functions.after[places], column[pair]]
    if halt is not None:
      # Of a token that always halts nothing else is of interest.
      is_halt = (after == halt) & (usual[pair] != halt)
      halts.some_halt(pair[is_halt], states[is_halt])
      keeps = (after != halt) & (usual[pair] != halt) & (after != usual[pair])
    else:
      keeps = after != usual[pair]
    parts.append((pair[keeps], states[keeps], after[keeps]))
    num += len(parts[-1][0])
    check(num * _EXCEPTION_BYTES)
    begin = end
  pair, states, after = (np.concatenate(each) for each in zip(*parts))
  hashes = _mix(usual.astype(np.uint64) + np.uint64(1 << 40))
  hashes += _sums(
    _mix(_mix(states.astype(np.uint64)) + after.astype(np.uint64)),
    pair,
    len(before),
  )
  starts = np.searchsorted(pair, np.arange(len(before) + 1))
  whole = _Exceptions(usual, starts, states, after, hashes)
  _, first, same = np.unique(hashes, return_index=True, return_inverse=True)
  return whole.take(first), same


class _Halts:
  """The states from which tokens reach the halt, as they are found.

  A set of states is a node: the set of another node, and further states.
  """

  def __init__(self, num_states: int, num_tokens: int, check):
    self._num_states, self._check = num_states, check
    self._of_token = np.zeros(num_tokens, np.int64)  # node of each token
    self._hashes = [np.zeros(1, np.uint64)]  # of all nodes
    self._parents = [(-1, np.zeros(0, np.int32))]
    self._ids: dict[int, int] = {0: 0}

  def begin(self, num_pairs: int):
    """Begins a further symbol of so many pairs of function and column."""
    self._num_pairs = num_pairs
    self._pairs: list[np.ndarray] = []
    self._states: list[np.ndarray] = []
    self._all = np.zeros(num_pairs, bool)

  def all_halt(self, pairs: np.ndarray):
    """Says that some pairs reach the halt from every state."""
    self._all[pairs] = True

  def some_halt(self, pairs: np.ndarray, states: np.ndarray):
    """Says from which states pairs reach the halt with this symbol."""
    self._pairs.append(pairs)
    self._states.append(states)

  def add(self, tokens: np.ndarray, pair: np.ndarray):
    """Adds what was said of the pairs to the tokens that have them."""
    pairs = np.concatenate([*self._pairs, np.zeros(0, np.int64)]).astype(int)
    states = np.concatenate([*self._states, np.zeros(0, np.int32)])
    has_more = self._all.copy()
    has_more[pairs] = True
    which = np.flatnonzero(has_more[pair])
    if not len(which):
      return
    tokens, pair = tokens[which], pair[which]
    starts = np.searchsorted(pairs, np.arange(self._num_pairs + 1))
    added = _sums(_mix(states.astype(np.uint64)), pairs, self._num_pairs)
    keys = self._of_token[tokens] * self._num_pairs + pair
    keys, inverse = np.unique(keys, return_inverse=True)
    ids = []
    for key in keys.tolist():
      node, place = divmod(key, self._num_pairs)
      every = bool(self._all[place])
      total = int(self._node_hash(node)) + int(added[place])
      code = 1 if every else total & (2**64 - 1)
      if code not in self._ids:
        more = states[starts[place] : starts[place + 1]]
        self._ids[code] = len(self._parents)
        self._hashes.append(np.array([code], np.uint64))
        self._parents.append((-2, more) if every else (node, more))
        self._check(self._num_states * len(self._parents))
      ids.append(self._ids[code])
    self._of_token[tokens] = np.array(ids)[inverse]

  def _node_hash(self, node: int) -> np.uint64:
    return self._hashes[node][0]

  @property
  def of_token(self) -> np.ndarray:
    """[V] int, which row of `table` each token has."""
    return np.unique(self._of_token, return_inverse=True)[1]

  def table(self) -> np.ndarray:
    """Returns [H, S] bool, the states of each set that a token has."""
    used = np.unique(self._of_token)
    table = np.zeros((len(used), self._num_states), bool)
    for row, node in zip(table, used.tolist()):
      while node >= 0:
        node, states = self._parents[node]
        row[states] = True
      if node == -2:
        row[:] = True
    return table


def _joined(parts: list[_Exceptions]) -> _Exceptions:
  """Returns the functions of several parts."""
  counts = np.concatenate([np.diff(part.starts) for part in parts])
  return _Exceptions(
    np.concatenate([part.usual for part in parts]),
    np.concatenate([[0], np.cumsum(counts)]),
    np.concatenate([part.states for part in parts]),
    np.concatenate([part.after for part in parts]),
    np.concatenate([part.hashes for part in parts]),
  )


def _columns(automaton, spelling, tokens, place) -> np.ndarray:
  """Returns the columns of the symbols that tokens have at a place."""
  return automaton.columns[spelling.symbols[spelling.starts[tokens] + place]]


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """Returns the numbers of ranges, given their starts and sizes.

  >>> ranges(np.array([5, 1]), np.array([2, 3])).tolist()
  [5, 6, 1, 2, 3]
  """
  shift = starts - (np.cumsum(counts) - counts)
  return np.arange(int(counts.sum())) + np.repeat(shift, counts)


def _sums(values: np.ndarray, groups: np.ndarray, num: int) -> np.ndarray:
  """Returns the sums [num] of uint64 by ascending groups, modulo 2^64."""
  total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values)])
  starts = np.searchsorted(groups, np.arange(num + 1))
  return total[starts[1:]] - total[starts[:-1]]


def _mix(values: np.ndarray) -> np.ndarray:
  """Returns a hash of each uint64; Steele et al. (2014), SplitMix64."""
  values = values + np.uint64(0x9E3779B97F4A7C15)
  values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return values ^ (values >> np.uint64(31))
