"""Strings and tokens that end a text, or that no text has.

`automaton` and `without` make automata over tokens of them; `cut` and
`held_back` look for the strings in a text.
"""

from collections.abc import Sequence

from absl import logging
import numpy as np

from speccascade.constraints import byte_tables
from speccascade.constraints.automaton_tables import ConstraintError, Tables
from speccascade.constraints.token_bytes import TokenBytes
from speccascade.constraints.token_walks import ByteAutomaton

_HALF = "\N{REPLACEMENT CHARACTER}"
_MOST_NODES, _MOST_CELLS = 1 << 17, 1 << 24  # of a search over bytes
_BAD = 8  # the state of UTF-8 after bytes that are none


def automaton(
  stops: Sequence[str | int], known: TokenBytes, name: str = "STOP"
) -> Tables:
  """Returns the automaton that ends a text where a stop is complete.

  A string may begin and end inside of tokens. One that is a special token is
  complete at its id, too.

  Args:
    stops: strings, none of them empty, and ids of tokens.
    known: the bytes of the tokens.
    name: what a message calls the stops.

  Raises:
    ConstraintError: the tables would be too large.
  """
  return _tables(stops, known, name, ends=True)


def without(
  banned: Sequence[str | int], known: TokenBytes, name: str = "BANNED"
) -> Tables:
  """Returns the automaton of the texts in which no string or token occurs.

  Args:
    banned: strings, none of them empty, and ids of tokens.
    known: the bytes of the tokens.
    name: what a message calls them.

  Raises:
    ConstraintError: the tables would be too large.
  """
  return _tables(banned, known, name, ends=False)


def check(
  strings: Sequence[str | int],
  known: TokenBytes,
  name: str,
  *,
  ends: bool = False,
):
  """Raises ConstraintError for what no text has, and for ids without a token.

  Args:
    strings: strings and ids.
    known: the bytes of the tokens.
    name: what a message calls them.
    ends: whether they end texts, so that a warning names one which no tokens
      spell.
  """
  num = len(known.tokens)
  # Shorter ones, such as blanks that a tokenizer adds, stand in any text.
  joined = "\n".join(each for each in strings if isinstance(each, str))
  special = [
    text for text in known.special if len(text.strip()) > 2 and text in joined
  ]
  for each in strings:
    fault = None
    if isinstance(each, int):
      if each >= num:
        raise ConstraintError(
          f"{name} has the id {each}, and the models have {num} tokens"
        )
    elif each in known.special:
      continue
    elif _HALF in each:
      fault = "U+FFFD stands for bytes that are not text: leave it out"
    elif inside := [text for text in special if text in each]:
      fault = (
        f"{max(inside, key=len)!r} is a special token and no part of a text:"
        " give the special token by itself"
      )
    elif ends and (letters := known.lacks(each)):
      listed = ", ".join(map(repr, letters[:9]))
      logging.warning(
        "%s has %.60r, which ends no text: the vocabulary has no token for %s",
        name,
        each,
        listed,
      )
    if fault:
      raise ConstraintError(
        f"{name} has {each!r:.60}, which no text has: {fault}"
      )


def _tables(
  strings: Sequence[str | int], known: TokenBytes, name: str, *, ends: bool
) -> Tables:
  """Returns the tables that look for strings and tokens."""
  ids = [each for each in strings if isinstance(each, int)]
  texts = [each for each in strings if isinstance(each, str)]
  ids += [known.special[text] for text in texts if text in known.special]
  search = _search(texts, name, whole_runs=len(known.byte_tokens) > 0)
  return byte_tables.of_search(search, known, name, ids=ids, ends=ends)


def _search(
  strings: Sequence[str], name: str, *, whole_runs: bool = False
) -> ByteAutomaton:
  """Returns the automaton over bytes that finds the first of some strings.

  Its last state is the halt, in which a string is complete.

  Args:
    strings: the strings, none of them empty.
    name: what they are, for messages.
    whole_runs: whether a run of byte tokens that is not UTF-8 is not text as a
      whole; see `TokenBytes.byte_tokens`.

  Source: Aho and Corasick, "Efficient string matching" (1975).
  """
  texts = [string.encode() for string in strings]
  letters = sorted(set(b"".join(texts)))
  # All bytes that no string has share the last column.
  columns = np.full(256, len(letters), np.int32)
  columns[letters] = np.arange(len(letters))
  column = columns.tolist()
  children: list[dict[int, int]] = [{}]
  is_whole, partial = [False], [0]
  utf8 = _utf8() if whole_runs else None
  for text in texts:
    node = 0
    for byte in text:
      child = children[node].get(column[byte])
      if child is None:
        child = children[node][column[byte]] = len(children)
        children.append({})
        is_whole.append(False)
        after = 0 if utf8 is None else int(utf8[partial[node], byte])
        partial.append(after)
        if child * (len(letters) + 1) > _MOST_CELLS or child > _MOST_NODES:
          raise ConstraintError(
            f"{name} has strings that make an automaton of {child:,} states or"
            " more: give fewer letters in all"
          )
      node = child
    is_whole[node] = True
  step = np.zeros((len(children) + 1, len(letters) + 1), np.int32)
  # Level by level: what a node misses, the longest suffix of it that is a node
  # has. A node whose suffix is whole is whole.
  suffix = [0] * len(children)
  waiting = [0]
  for node in waiting:
    is_whole[node] |= is_whole[suffix[node]]
    if node:
      step[node] = step[suffix[node]]
    for letter, child in children[node].items():
      suffix[child] = int(step[suffix[node], letter]) if node else 0
      step[node, letter] = child
      waiting.append(child)
  # The nodes that are whole become the halt, which comes last.
  whole = np.append(is_whole, True)
  live = np.flatnonzero(~whole)
  number = np.full(len(whole), len(live), np.int32)
  number[live] = np.arange(len(live))
  step = np.concatenate([number[step[live]], step[-1:]])
  step[-1] = len(live)
  if whole_runs:
    return _with_runs(step, columns, np.array(partial)[live])
  columns = np.concatenate([columns, columns])
  return ByteAutomaton(step, columns, halt=len(live))


def _with_runs(
  step: np.ndarray, columns: np.ndarray, partial: np.ndarray
) -> ByteAutomaton:
  """Returns a search that reads the bytes of byte tokens as a decoder does.

  A run of byte tokens is a text where it is UTF-8 as a whole. Else each of its
  bytes is U+FFFD, which is in no string. A half character at the end of a run
  may still be completed by the run.

  Args:
    step: [S, A], the search over bytes, whose last state is the halt.
    columns: [256], the column of each byte.
    partial: [S - 1], the state of UTF-8 in each state.
  """
  utf8, num = _utf8(), len(step) - 1
  # Seven states of a half character that begins no string, a bad run, the halt.
  half, bad, halt = num - 1, num + 7, num + 8
  number = np.arange(num + 1, dtype=np.int32)
  number[-1] = halt
  step = number[step]
  others = np.repeat(step[:1], 8, axis=0)
  step = np.concatenate([step[:-1], others, step[-1:]])
  state = np.concatenate([partial, np.arange(1, 8)])
  # Bytes that are alike in the search and in UTF-8 share a column.
  both = np.concatenate([columns[None], utf8]).T
  _, first, kinds = np.unique(
    both, axis=0, return_index=True, return_inverse=True
  )
  after = utf8[state][:, first]
  found = step[: num + 7, columns[first]]
  found = np.where((found == 0) & (after > 0), half + after, found)
  found = np.where(after == _BAD, bad, found)
  ends = np.full((2, len(first)), bad, np.int32)
  ends[1] = halt
  whole = np.concatenate([step, np.concatenate([found, ends])], axis=1)
  places = np.concatenate([columns, kinds.reshape(-1) + step.shape[1]])
  # Byte tokens leave a bad run alone where it is: a bad run is the usual state.
  return ByteAutomaton(
    whole.astype(np.int32), places.astype(np.int32), usual=bad, halt=halt
  )


def _utf8() -> np.ndarray:
  """Returns [9, 256] int, the states of UTF-8 after each byte.

  State 0 is after a whole character, 1 to 3 before so many further bytes, 4 to
  7 after 0xE0, 0xED, 0xF0 and 0xF4, whose next byte has a narrower range, and
  `_BAD` after bytes that are not UTF-8.
  """
  table = np.full((9, 256), _BAD)
  table[0, :0x80] = 0
  table[0, 0xC2:0xE0] = 1
  table[0, 0xE0:0xF0] = 2
  table[0, 0xF0:0xF5] = 3
  table[0, [0xE0, 0xED, 0xF0, 0xF4]] = 4, 5, 6, 7
  table[[[1], [2], [3]], np.arange(0x80, 0xC0)] = [[0], [1], [2]]
  table[4, 0xA0:0xC0] = 1
  table[5, 0x80:0xA0] = 1
  table[6, 0x90:0xC0] = 2
  table[7, 0x80:0x90] = 2
  return table


def cut(text: str, stops: Sequence[str | int], *, include: bool = False) -> str:
  """Returns a text up to the first stop that is complete in it.

  Of several that are complete at one place, the longest counts.

  Args:
    text: the text.
    stops: the strings; ids of tokens cut no text.
    include: whether the stop itself is kept.

  >>> cut("one two; three", ["; ", "two;"])
  'one '
  >>> cut("one two; three", [";"], include=True)
  'one two;'
  """
  strings = [stop for stop in stops if isinstance(stop, str)]
  found = [(text.find(stop), stop) for stop in strings]
  ends = [(at + len(stop), at) for at, stop in found if at >= 0]
  if not ends:
    return text
  end, start = min(ends)
  return text[:end] if include else text[:start]


def held_back(text: str, stops: Sequence[str | int]) -> int:
  """Returns how many of the last characters of a text may begin a stop.

  >>> held_back("one tw", ["two;"]), held_back("one", ["two;"])
  (2, 0)
  """
  most = 0
  for stop in stops:
    if isinstance(stop, int):
      continue
    for size in range(min(len(stop) - 1, len(text)), most, -1):
      if text.endswith(stop[:size]):
        most = size
        break
  return most
