"""Regular expressions, and the regular part of JSON schemas, as automata.

`outlines-core` compiles them for the tokens of a vocabulary; it is the extra
`grammar`. It makes the table of a regular expression over bytes ahead of time,
which a compiled loop can read. Libraries that follow a grammar token by token
on the host cannot run inside of one.
"""

from collections.abc import Sequence

import numpy as np

from speccascade.constraints import json_schema
from speccascade.constraints.automaton_tables import (
  ConstraintError,
  Tables,
  check_size,
  without_dead_ends,
)
from speccascade.constraints.token_bytes import TokenBytes

MISSING = (
  "a grammar needs outlines-core, which is not installed: pip install"
  " 'speccascade[grammar]'"
)


def of_schema(schema: str) -> str:
  """Returns the regular expression of a JSON schema.

  Every text that it matches is JSON that the schema allows.

  Args:
    schema: a JSON schema, as text.

  Raises:
    ConstraintError: the text is no JSON schema, or the schema has a keyword
      that the expression would not hold.
  """
  return json_schema.expression(schema)


def automaton(
  pattern: str, known: TokenBytes, eos_ids: Sequence[int]
) -> Tables:
  """Returns the automaton of the texts that a regular expression matches.

  A text ends where it matches whole, by any of the tokens that end one.

  Args:
    pattern: the regular expression, in the syntax of Rust's regex.
    known: the bytes of the V tokens.
    eos_ids: the tokens that end a text.

  Raises:
    ConstraintError: outlines-core is missing, the pattern is not valid, the
      vocabulary cannot spell it, or the tables are too large.
  """
  try:
    from outlines_core import Index, Vocabulary
  except ImportError as error:
    raise ConstraintError(MISSING) from error
  # A number for each spelling. What a token adds at the beginning of a text may
  # be spelled as another token is inside of it.
  spellings = sorted({*known.tokens, *known.first} - {b""})
  number = {spelling: i for i, spelling in enumerate(spellings, start=1)}
  try:
    words = {spelling: [i] for spelling, i in number.items()}
    index = Index(pattern, Vocabulary(0, words))
  except BaseException as error:  # A panic of Rust is no Exception.
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
      raise
    raise ConstraintError(
      f"the grammar {pattern!r:.80} cannot be compiled:"
      f" {error!s:.200}{_lacks(pattern, known)}"
    ) from error
  transitions = index.get_transitions()
  start, finals = index.get_initial_state(), index.get_final_states()
  states = {start, *transitions, *finals}
  for moves in transitions.values():
    states |= set(moves.values())
  order = [start, *sorted(states - {start})]
  place = {state: i for i, state in enumerate(order)}
  check_size(len(order) + 1, 1, "the grammar")
  # Moves over spellings, then over tokens: state 0 is the place before a text.
  step = np.full((len(order), len(number) + 1), -1, np.int32)
  for state, moves in transitions.items():
    ids = np.fromiter(moves.keys(), np.int64, len(moves))
    after = [place[each] for each in moves.values()]
    step[place[state], ids] = after
  step[:, 0] = -1  # of tokens without a spelling
  inside = step[:, [number.get(token, 0) for token in known.tokens]]
  begin = step[:1, [number.get(token, 0) for token in known.first]]
  moves = np.concatenate([begin, inside]) + 1
  allowed = moves > 0
  may_end = [start in finals, *(state in finals for state in order)]
  allowed[np.ix_(np.flatnonzero(may_end), list(eos_ids))] = True
  tables = Tables.of_tokens(moves, allowed)
  try:
    return without_dead_ends(tables, "the grammar")
  except ConstraintError as error:
    raise ConstraintError(f"{error}{_lacks(pattern, known)}") from error


def _lacks(pattern: str, known: TokenBytes) -> str:
  """Returns words on the letters of a pattern that no token spells."""
  spelled = set().union(*known.tokens)
  named = {"n": "\n", "t": "\t", "r": "\r"}
  letters, rest = [], iter(pattern)
  for letter in rest:
    if letter == "\\":
      letter = next(rest, "")
      letter = named.get(letter, "" if letter.isalnum() else letter)
    elif letter in "()[]{}|?*+.^$":
      continue
    if letter and not set(letter.encode()) <= spelled:
      letters.append(letter)
  if not letters:
    return ""
  listed = ", ".join(repr(letter) for letter in dict.fromkeys(letters))
  return f"; the vocabulary has no token for {listed}"
