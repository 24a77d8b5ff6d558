"""Automata over tokens as tables on the host, before a program gets them.

Axes: V vocabulary, S states, C classes of tokens.
"""

from collections.abc import Sequence
import dataclasses

import jax.numpy as jnp
import numpy as np

from speccascade.constraints.token_bytes import TokenBytes
from speccascade.decoding.records.automaton import START, TokenAutomaton

# A table of more bytes than this is refused.
MOST_BYTES = 256 << 20


class ConstraintError(ValueError):
  """What texts are to be held to cannot be: no text is allowed, or too much."""


@dataclasses.dataclass(frozen=True)
class Tables:
  """An automaton over tokens, whose state before a text is `START`.

  Attributes:
    classes: [V] int32, the class of each token.
    moves: [S, C] int32, the state after a token of each class.
    allowed: [S, C] bool, whether a token of the class may follow.
    ends: [S] bool, whether a text ends in the state.
  """

  classes: np.ndarray
  moves: np.ndarray
  allowed: np.ndarray
  ends: np.ndarray

  @property
  def num_bytes(self) -> int:
    """The bytes of the tables on a device."""
    return sum(array.nbytes for array in vars(self).values())

  @classmethod
  def of_tokens(
    cls, moves: np.ndarray, allowed: np.ndarray, ends: Sequence[int] = ()
  ) -> "Tables":
    """Returns the tables of moves and allowed tokens, [S, V] each.

    Args:
      moves: the state after each token.
      allowed: whether each token may follow.
      ends: the states in which a text ends.
    """
    both = np.concatenate([moves.T.astype(np.int32), allowed.T], axis=1)
    _, first, classes = np.unique(
      _rows_as_bytes(both), return_index=True, return_inverse=True
    )
    return cls(
      classes=classes.reshape(-1).astype(np.int32),
      moves=moves[:, first].astype(np.int32),
      allowed=allowed[:, first],
      ends=np.isin(np.arange(len(moves)), ends),
    )

  @property
  def forced(self) -> np.ndarray | None:
    """[S] int32, as in `TokenAutomaton`."""
    tokens, sizes = np.unique(
      self.classes, return_index=True, return_counts=True
    )[1:]
    allows_one = self.allowed @ sizes == 1
    if not allows_one.any():
      return None
    token = tokens[self.allowed.argmax(axis=1)]
    return np.where(allows_one, token, -1).astype(np.int32)

  def to_device(self, name: str = "the automaton") -> TokenAutomaton:
    """Returns the automaton that a decoder takes.

    The numbers of states and classes are padded, so that other tables of about
    this size compile nothing.

    Args:
      name: what is held to it, for messages.

    Raises:
      ConstraintError: the tables are too large.
    """
    check_size(*self.moves.shape, name)
    states, classes = (_padded_size(size) for size in self.moves.shape)
    more = ((0, states - len(self.moves)), (0, classes - self.moves.shape[1]))
    forced = self.forced
    if forced is not None:
      forced = jnp.asarray(np.pad(forced, more[0], constant_values=-1))
    return TokenAutomaton(
      classes=jnp.asarray(self.classes),
      moves=jnp.asarray(np.pad(self.moves, more)),
      allowed=jnp.asarray(np.pad(self.allowed, more, constant_values=True)),
      ends=jnp.asarray(np.pad(self.ends, more[0])),
      forced=forced,
    )


def _padded_size(size: int) -> int:
  """Returns the power of two from 8 on that holds a size."""
  return max(8, 1 << (size - 1).bit_length())


def _rows_as_bytes(table: np.ndarray) -> np.ndarray:
  """Returns each row of a table as one value that can be compared."""
  table = np.ascontiguousarray(table)
  return table.view(np.dtype((np.void, table.shape[1] * table.itemsize)))[:, 0]


def follow(step: np.ndarray, tokens: Sequence[bytes], halt: int) -> np.ndarray:
  """Returns the state after each token, from each state of a byte automaton.

  Args:
    step: [S, 256] int32, the state after each byte.
    tokens: the bytes of the V tokens.
    halt: a state that no byte leaves.

  Returns:
    [S, V] int32.
  """
  lengths = np.array([len(token) for token in tokens])
  width = int(lengths.max(initial=0))
  padded = b"".join(token.ljust(width, b"\0") for token in tokens)
  values = np.frombuffer(padded, np.uint8).reshape(len(tokens), width)
  states = np.repeat(
    np.arange(len(step), dtype=np.int32)[:, None], len(tokens), 1
  )
  for place in range(width):
    goes_on = np.flatnonzero(lengths > place)
    before = states[:, goes_on]
    after = step[before, values[goes_on, place][None]]
    states[:, goes_on] = np.where(before == halt, halt, after)
  return states


def of_bytes(step: np.ndarray, known: TokenBytes, halt: int) -> np.ndarray:
  """Returns moves [1 + S, V] over tokens of an automaton over bytes.

  State 0 is the place before a text, where a tokenizer may drop a blank. A
  token without bytes leaves the automaton there; any other takes it to a state
  of `step`, whose state 0 is the state 1 here.

  Args:
    step: [S, 256] int32; the text begins in state 0.
    known: the bytes of the V tokens.
    halt: a state of `step` that no byte leaves.
  """
  inside = follow(step, known.tokens, halt) + 1
  begin = follow(step, known.first, halt)[0] + 1
  inert = known.first if known.stays_first else known.tokens
  is_empty = np.array([not token for token in inert])
  begin = np.where(is_empty, START, begin)
  return np.concatenate([begin[None], inside]).astype(np.int32)


def both(first: Tables, second: Tables, name: str) -> Tables:
  """Returns the automaton that allows what two automata allow.

  Args:
    first: an automaton.
    second: another, over the same tokens; no state of either ends a text.
    name: what is held to them, for messages.

  Raises:
    ConstraintError: the tables would be too large.
  """
  pairs = np.stack([first.classes, second.classes], axis=1)
  kinds, classes = np.unique(pairs, axis=0, return_inverse=True)
  place = {(START, START): START}
  moves, allowed = [], []
  waiting = [(START, START)]
  for one, two in waiting:
    ones = first.moves[one, kinds[:, 0]]
    twos = second.moves[two, kinds[:, 1]]
    may = first.allowed[one, kinds[:, 0]] & second.allowed[two, kinds[:, 1]]
    row = []
    for pair, goes_on in zip(zip(ones.tolist(), twos.tolist()), may.tolist()):
      # What is not allowed is fed to models all the same, and leads anywhere.
      if not goes_on:
        row.append(START)
        continue
      if pair not in place:
        place[pair] = len(waiting)
        waiting.append(pair)
        check_size(len(waiting), len(kinds), name)
      row.append(place[pair])
    moves.append(row)
    allowed.append(may)
  return Tables(
    classes=classes.reshape(-1).astype(np.int32),
    moves=np.array(moves, np.int32),
    allowed=np.array(allowed),
    ends=np.zeros(len(moves), bool),
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
  classes = parts[0].classes
  for each in parts[1:]:
    # Tokens that are of one class in all automata so far are of one class.
    both = classes.astype(np.int64) * (1 + each.classes.max()) + each.classes
    _, classes = np.unique(both, return_inverse=True)
  _, tokens = np.unique(classes, return_index=True)
  firsts = np.cumsum([0, *(len(each.moves) for each in parts)])
  check_size(int(firsts[-1]), len(tokens), name)
  columns = [each.classes[tokens] for each in parts]
  joined = Tables(
    classes=classes.astype(np.int32),
    moves=np.concatenate(
      [
        each.moves[:, kinds] + np.int32(first)
        for each, kinds, first in zip(parts, columns, firsts)
      ]
    ),
    allowed=np.concatenate(
      [each.allowed[:, kinds] for each, kinds in zip(parts, columns)]
    ),
    ends=np.concatenate([each.ends for each in parts]),
  )
  return joined, (firsts[:-1] + START).tolist()


def check_size(num_states: int, num_classes: int, name: str):
  """Raises ConstraintError where tables would be too large."""
  size = 5 * _padded_size(num_states) * _padded_size(num_classes)
  if size > MOST_BYTES:
    raise ConstraintError(
      f"{name} makes an automaton of {num_states:,} states or more and"
      f" {num_classes:,} classes of tokens, {size >> 20} MB; wanted"
      f" {MOST_BYTES >> 20} MB at most: allow less at a time"
    )


def without_dead_ends(tables: Tables, name: str) -> Tables:
  """Returns tables in which every state that is reached allows some token.

  A token that leads to nothing but dead ends is not allowed.

  Raises:
    ConstraintError: no text is allowed.
  """
  allowed = tables.allowed.copy()
  while True:
    is_dead = ~allowed.any(axis=1)
    pruned = allowed & ~is_dead[tables.moves]
    if (pruned == allowed).all():
      break
    allowed = pruned
  if is_dead[START]:
    raise ConstraintError(f"{name} allows no text at all: allow more")
  # Nobody is in a dead state but behind a draft that is rejected.
  allowed[is_dead] = True
  return dataclasses.replace(tables, allowed=allowed)
