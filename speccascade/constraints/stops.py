"""Strings that end a text: their automaton, and where they cut a text."""

from collections.abc import Sequence

import numpy as np

from speccascade.constraints.automaton_tables import Tables, of_bytes
from speccascade.constraints.token_bytes import TokenBytes


def automaton(stops: Sequence[str], known: TokenBytes) -> Tables:
  """Returns the automaton that ends a text where a string is complete.

  A string may begin and end inside of tokens.

  Args:
    stops: the strings, none of them empty.
    known: the bytes of the tokens.
  """
  step, halt = _search(stops)
  moves = of_bytes(step, known, halt)
  allowed = np.ones(moves.shape, bool)
  return Tables.of_tokens(moves, allowed, ends=[halt + 1])


def without(strings: Sequence[str], known: TokenBytes) -> Tables:
  """Returns the automaton of the texts in which no string occurs."""
  step, halt = _search(strings)
  moves = of_bytes(step, known, halt)
  return Tables.of_tokens(moves, moves != halt + 1)


def _search(strings: Sequence[str]) -> tuple[np.ndarray, int]:
  """Returns the automaton over bytes that finds the first of some strings.

  Returns:
    [S, 256] int32, the state after each byte; and the state in which a string
    is complete, which no byte leaves.

  Source: Aho and Corasick, "Efficient string matching" (1975).
  """
  children: list[dict[int, int]] = [{}]
  is_whole = [False]
  for string in strings:
    node = 0
    for byte in string.encode():
      if byte not in children[node]:
        children[node][byte] = len(children)
        children.append({})
        is_whole.append(False)
      node = children[node][byte]
    is_whole[node] = True
  halt = len(children)
  step = np.zeros((halt + 1, 256), np.int32)
  step[halt] = halt
  # Level by level: what a node misses, the longest suffix of it that is a node
  # has. A node whose suffix is whole is whole.
  suffix = [0] * halt
  waiting = [0]
  for node in waiting:
    is_whole[node] |= is_whole[suffix[node]]
    if node:
      step[node] = step[suffix[node]]
    for byte, child in children[node].items():
      suffix[child] = int(step[suffix[node], byte]) if node else 0
      step[node, byte] = child
      waiting.append(child)
  step[np.append(is_whole, True)] = halt
  whole = np.append(is_whole, True)
  return np.where(whole[step], halt, step).astype(np.int32), halt


def cut(text: str, stops: Sequence[str], *, include: bool = False) -> str:
  """Returns a text up to the first stop that is complete in it.

  Of several that are complete at one place, the longest counts.

  Args:
    text: the text.
    stops: the strings.
    include: whether the stop itself is kept.

  >>> cut("one two; three", ["; ", "two;"])
  'one '
  >>> cut("one two; three", [";"], include=True)
  'one two;'
  """
  found = [(text.find(stop), stop) for stop in stops]
  ends = [(at + len(stop), at) for at, stop in found if at >= 0]
  if not ends:
    return text
  end, start = min(ends)
  return text[:end] if include else text[:start]


def held_back(text: str, stops: Sequence[str]) -> int:
  """Returns how many of the last characters of a text may begin a stop.

  >>> held_back("one tw", ["two;"]), held_back("one", ["two;"])
  (2, 0)
  """
  most = 0
  for stop in stops:
    for size in range(min(len(stop) - 1, len(text)), most, -1):
      if text.endswith(stop[:size]):
        most = size
        break
  return most
