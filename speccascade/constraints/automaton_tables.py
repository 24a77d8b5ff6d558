"""Automata over tokens as tables on the host, before a program gets them.

Axes: V vocabulary, S states, C classes of tokens, K kinds of tokens.
"""

from collections.abc import Sequence
import dataclasses

import jax.numpy as jnp
import numpy as np

from speccascade.decoding.records.automaton import START, TokenAutomaton

# Tables of more bytes than this are refused.
MOST_BYTES = 256 << 20
FEW_BYTES = 1 << 22  # of a table that need not be split in two
_ROWS_AT_A_TIME = 256


class ConstraintError(ValueError):
  """What texts are to be held to cannot be: no text is allowed, or too much."""


@dataclasses.dataclass(frozen=True)
class Tables:
  """An automaton over tokens, whose state before a text is `START`.

  Attributes:
    classes: [V] int32, the class of each token.
    moves: [S, C] int, the state after a token of each class; [S, K] where there
      are `kinds`.
    allowed: [S, C] bool, whether a token of the class may follow. With a `halt`
      it says whether the text continues after the token.
    ends: [S] bool, whether a text ends in the state.
    kinds: [V] int32, the kind of each token, by which it moves. None where
      classes are the kinds.
    halt: the state after a token of which `allowed` says that the text does not
      continue; None where `moves` has all states.
  """

  classes: np.ndarray
  moves: np.ndarray
  allowed: np.ndarray
  ends: np.ndarray
  kinds: np.ndarray | None = None
  halt: int | None = None

  def joint(self, name: str) -> "Tables":
    """Returns the same automaton without `kinds`.

    Args:
      name: what is held to it, for messages.

    Raises:
      ConstraintError: the tables would be too large.
    """
    if self.kinds is None:
      return self
    classes, tokens = refined(self.classes, self.kinds)
    check_size(len(self.moves), len(tokens), name)
    allowed = self.allowed[:, self.classes[tokens]]
    moves = self.moves[:, self.kinds[tokens]]
    if self.halt is not None:
      moves[~allowed] = self.halt
      allowed[:] = True
    return Tables(classes, moves, allowed, self.ends)

  @property
  def forced(self) -> np.ndarray | None:
    """[S] int32, as in `TokenAutomaton`."""
    tokens, sizes = np.unique(
      self.classes, return_index=True, return_counts=True
    )[1:]
    forced = np.full(len(self.allowed), -1, np.int32)
    for start in range(0, len(forced), _ROWS_AT_A_TIME):
      # Sums of integers are copies of the rows that are larger than they are.
      allowed = self.allowed[start : start + _ROWS_AT_A_TIME]
      allows_one = allowed @ sizes == 1
      rows = start + np.flatnonzero(allows_one)
      forced[rows] = tokens[self.allowed[rows].argmax(axis=1)]
    return forced if (forced >= 0).any() else None

  def to_device(self, name: str = "the automaton") -> TokenAutomaton:
    """Returns the automaton that a decoder takes.

    The numbers of states and classes are padded, so that other tables of about
    this size compile nothing.

    Args:
      name: what is held to it, for messages.

    Raises:
      ConstraintError: the tables are too large.
    """
    num_states = len(self.moves)
    check_size(
      num_states,
      self.allowed.shape[1],
      name,
      None if self.kinds is None else self.moves.shape[1],
    )
    states = padded_size(num_states)
    forced = self.forced
    if forced is not None:
      forced = _padded(forced, (states,), -1)
    kinds = None if self.kinds is None else jnp.asarray(self.kinds)
    is_split = self.halt is not None
    return TokenAutomaton(
      classes=jnp.asarray(self.classes),
      moves=_padded(self.moves, (states, padded_size(self.moves.shape[1])), 0),
      allowed=_padded(
        self.allowed, (states, padded_size(self.allowed.shape[1])), True
      ),
      ends=_padded(self.ends, (states,), False),
      forced=None if is_split else forced,
      kinds=kinds,
      halt=jnp.int32(self.halt) if is_split else None,
    )


def padded_size(size: int) -> int:
  """Returns the size from 8 on to which an axis is padded."""
  # Powers of two, and eight sizes from one to the next where they are large.
  power = max(8, 1 << (size - 1).bit_length())
  step = power // 16 if power > 1024 else power
  return -(-size // step) * step


def with_room(num_states: int, num_kinds: int) -> np.ndarray:
  """Returns a table of zeros for `moves`, which `to_device` need not copy."""
  shape = padded_size(num_states), padded_size(num_kinds)
  return np.zeros(shape, dtype_of(num_states))[:num_states, :num_kinds]


def _padded(table: np.ndarray, shape: tuple[int, ...], value):
  """Returns a table on the device, filled up to a shape."""
  base = table.base
  if base is not None and base.shape == shape and base.strides == table.strides:
    return jnp.asarray(base)  # of `with_room`
  whole = np.full(shape, value, table.dtype)
  whole[tuple(map(slice, table.shape))] = table
  return jnp.asarray(whole)


def dtype_of(num_states: int) -> type:
  """Returns the smallest type of NumPy's that numbers so many states."""
  return np.int16 if num_states <= np.iinfo(np.int16).max else np.int32


def refined(*classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the classes that differ where any of some classes do.

  Returns:
    [V] int32, the class of each token; and a token of each class.
  """
  joined = classes[0].astype(np.int64)
  for each in classes[1:]:
    joined = joined * (1 + int(each.max(initial=0))) + each
    joined = np.unique(joined, return_inverse=True)[1]
  _, tokens, joined = np.unique(joined, return_index=True, return_inverse=True)
  return joined.astype(np.int32), tokens


def with_limits(tables: Tables, is_allowed: np.ndarray, name: str) -> Tables:
  """Returns an automaton that allows only some tokens in all states.

  Args:
    tables: the automaton.
    is_allowed: [V] bool.
    name: what is held to it, for messages.

  Raises:
    ConstraintError: the tables would be too large.
  """
  classes, tokens = refined(tables.classes, is_allowed)
  columns = tables.classes[tokens]
  moves, kinds = tables.moves, tables.kinds
  num_kinds = len(tokens) if kinds is None else moves.shape[1]
  check_size(len(moves), len(tokens), name, num_kinds)
  return dataclasses.replace(
    tables,
    classes=classes,
    moves=moves[:, columns] if kinds is None else moves,
    allowed=tables.allowed[:, columns] & is_allowed[tokens],
  )


def both(first: Tables, second: Tables, name: str) -> Tables:
  """Returns the automaton that allows what two automata allow.

  Args:
    first: an automaton.
    second: another, over the same tokens; no state of either ends a text.
    name: what is held to them, for messages.

  Raises:
    ConstraintError: the tables would be too large.
  """
  for one, other in ((first, second), (second, first)):
    if len(other.moves) == 1 and not other.moves.any():
      return with_limits(one, other.allowed[0][other.classes], name)
  first, second = first.joint(name), second.joint(name)
  classes, tokens = refined(first.classes, second.classes)
  check_size(max(len(first.moves), len(second.moves)), len(tokens), name)
  kinds = first.classes[tokens], second.classes[tokens]
  num = len(second.moves)
  place = {START * num + START: START}
  waiting = [START * num + START]
  # The system gives the pages of this room only where rows are written. The
  # factors and a copy on the device have memory beside it.
  room = MOST_BYTES // 3
  most = max(1, room // (3 * len(tokens)))
  if most > np.iinfo(np.int16).max:
    most = max(1, room // (5 * len(tokens)))
  moves = np.empty((most, len(tokens)), dtype_of(most))
  allowed = np.empty((most, len(tokens)), bool)
  for row, pair in enumerate(waiting):
    one, two = divmod(pair, num)
    may = first.allowed[one, kinds[0]] & second.allowed[two, kinds[1]]
    pairs = first.moves[one, kinds[0][may]].astype(np.int64) * num
    pairs, inverse = np.unique(
      pairs + second.moves[two, kinds[1][may]], return_inverse=True
    )
    after = []
    for each in pairs.tolist():
      if each not in place:
        place[each] = len(waiting)
        waiting.append(each)
      after.append(place[each])
    if len(waiting) > most:
      raise ConstraintError(
        f"{name} makes an automaton of {len(waiting):,} states or more and"
        f" {len(tokens):,} classes of tokens, over {room >> 20} MB: allow less"
        " at a time"
      )
    # What is not allowed is fed to models all the same, and leads anywhere.
    moves[row] = START
    moves[row, may] = np.array(after, moves.dtype)[inverse]
    allowed[row] = may
  size = len(waiting)
  return Tables(
    classes=classes,
    moves=moves[:size],
    allowed=allowed[:size],
    ends=np.zeros(size, bool),
  )


def side_by_side(
  parts: Sequence[Tables], name: str
) -> tuple[Tables, Sequence[int]]:
  """Returns one automaton that holds several, and the state of each before a
  text.

  A text that begins in the state of one of them is followed by that one alone.

  Args:
    parts: one automaton or more, over the same tokens.
    name: what they are together, for messages.

  Raises:
    ConstraintError: the tables would be too large.
  """
  firsts = np.cumsum([0, *(len(each.moves) for each in parts)])
  is_split = any(each.kinds is not None for each in parts)
  classes, tokens = refined(*(each.classes for each in parts))
  kinds, movers = classes, tokens
  if is_split:
    kinds, movers = refined(
      *(each.classes if each.kinds is None else each.kinds for each in parts)
    )
  check_size(
    int(firsts[-1]), len(tokens), name, len(movers) if is_split else None
  )
  halts = [
    int(first) + each.halt
    for each, first in zip(parts, firsts)
    if each.halt is not None
  ]
  dtype = dtype_of(int(firsts[-1]))
  columns = [
    (each.classes if each.kinds is None else each.kinds)[movers]
    for each in parts
  ]
  joined = Tables(
    classes=classes,
    moves=np.concatenate(
      [
        each.moves[:, column].astype(dtype) + dtype(first)
        for each, column, first in zip(parts, columns, firsts)
      ]
    ),
    allowed=np.concatenate(
      [each.allowed[:, each.classes[tokens]] for each in parts]
    ),
    ends=np.concatenate([each.ends for each in parts]),
    kinds=kinds if is_split else None,
    halt=halts[0] if halts else None,
  )
  return joined, (firsts[:-1] + START).tolist()


def check_size(
  num_states: int, num_classes: int, name: str, num_kinds: int | None = None
):
  """Raises ConstraintError where tables would be too large.

  Args:
    num_states: S.
    num_classes: C.
    name: what makes the tables, for messages.
    num_kinds: K; None is C.
  """
  num_kinds = num_classes if num_kinds is None else num_kinds
  width = np.dtype(dtype_of(num_states)).itemsize * padded_size(num_kinds)
  size = padded_size(num_states) * (width + padded_size(num_classes))
  if size > MOST_BYTES:
    raise ConstraintError(
      f"{name} makes an automaton of {num_states:,} states or more and"
      f" {max(num_classes, num_kinds):,} classes of tokens, {size >> 20} MB;"
      f" wanted {MOST_BYTES >> 20} MB at most: allow less at a time"
    )


def without_dead_ends(
  tables: Tables, name: str, ends: Sequence[int] | None = None
) -> Tables:
  """Returns tables that allow no token after which a text cannot continue.

  Args:
    tables: an automaton.
    name: what is held to it, for messages.
    ends: the tokens that end a text, which share a class with no other token.
      An end can then be reached from every state that is reached. None: some
      token may follow in each of these states.

  Raises:
    ConstraintError: no text is allowed, or the tables would be too large.
  """
  if ends is None and tables.allowed.any(axis=1).all():
    return tables
  tables = tables.joint(name)
  last = np.unique(tables.classes[list(ends or ())])
  before, after = _edges(tables.moves, tables.allowed)
  if ends is None:
    is_dead = _dead_ends(before, after, len(tables.moves))
  else:
    can_end = tables.allowed[:, last].any(axis=1)
    is_dead = ~leading_to(can_end, before, after)
  if is_dead[START]:
    kind = "no text at all" if ends is None else "no text at all that ends"
    raise ConstraintError(f"{name} allows {kind}: allow more")
  allowed = tables.allowed
  pruned = allowed & ~is_dead[tables.moves]
  pruned[:, last] = allowed[:, last]
  # Only a draft that is rejected leads to a dead end.
  pruned[is_dead] = True
  return dataclasses.replace(tables, allowed=pruned)


def _edges(
  moves: np.ndarray, allowed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the pairs of states of which the first leads to the second."""
  num, edges = len(moves), []
  for row, may in enumerate(allowed):
    after = np.unique(moves[row, may]).astype(np.int64)
    edges.append(row * num + after)
  before, after = np.divmod(np.concatenate(edges), num)
  return before, after


def _dead_ends(before: np.ndarray, after: np.ndarray, num: int) -> np.ndarray:
  """Returns [S] bool, the states from which all ways end."""
  ways = np.bincount(before, minlength=num)
  leading = _Leading(before, after, num)
  is_dead = ways == 0
  new = np.flatnonzero(is_dead)
  while len(new):
    states = leading.to(new)
    np.subtract.at(ways, states, 1)
    new = np.unique(states[ways[states] == 0])
    is_dead[new] = True
  return is_dead


def leading_to(
  is_end: np.ndarray, before: np.ndarray, after: np.ndarray
) -> np.ndarray:
  """Returns the states that lead to some states, or are of them.

  Args:
    is_end: [S] bool, the states.
    before: [E] int, the first state of each way.
    after: [E] int, where it leads.

  Returns:
    [S] bool.
  """
  leading = _Leading(before, after, len(is_end))
  is_seen, new = is_end.copy(), np.flatnonzero(is_end)
  while len(new):
    new = np.unique(leading.to(new))
    new = new[~is_seen[new]]
    is_seen[new] = True
  return is_seen


class _Leading:
  """The states that lead to each state."""

  def __init__(self, before: np.ndarray, after: np.ndarray, num: int):
    order = np.argsort(after, kind="stable")
    self._before = before[order]
    self._starts = np.searchsorted(after[order], np.arange(num + 1))

  def to(self, states: np.ndarray) -> np.ndarray:
    """Returns the states before some states, once for each way."""
    parts = [
      self._before[self._starts[each] : self._starts[each + 1]]
      for each in states.tolist()
    ]
    return np.concatenate([*parts, np.zeros(0, np.int64)]).astype(np.int64)
