"""Tables over tokens, of automata over bytes.

Axes: V vocabulary, S states, C classes of tokens, K kinds of tokens.
"""

from collections.abc import Sequence

import numpy as np

from speccascade.constraints import automaton_tables
from speccascade.constraints.automaton_tables import (
  ConstraintError,
  Tables,
  dtype_of,
)
from speccascade.constraints.token_bytes import TokenBytes
from speccascade.constraints.token_walks import (
  ByteAutomaton,
  Walks,
  ranges,
  run,
  walk,
)
from speccascade.decoding.records.automaton import START


def of_search(
  search: ByteAutomaton,
  known: TokenBytes,
  name: str,
  *,
  ids: Sequence[int] = (),
  ends: bool,
) -> Tables:
  """Returns the automaton that finds strings or tokens in texts.

  Args:
    search: an automaton whose last state is its halt.
    known: the bytes of the V tokens.
    name: what is held to it, for messages.
    ids: tokens that complete what is looked for by themselves.
    ends: whether a text ends there. If not, what would complete a string is not
      allowed.

  Raises:
    ConstraintError: the tables would be too large.
  """
  num = len(search.step) - 1
  num_rows = 1 + num + ends  # of the place before a text, and of the halt
  automaton_tables.check_size(num_rows, 1, name)
  walks = _walk(search, known, name)
  begin = run(search, known.first_spelling)
  halts_first = (begin == num) & ~known.starts_inert
  usual = np.where(walks.usual == num, START, walks.usual + 1)
  always = np.zeros(len(begin), bool)
  always[list(ids)] = True
  # Where a token halts it leads nowhere: what it shares a class with decides.
  begin = np.where(known.starts_inert, START, begin + 1)
  begin = np.where(halts_first | always, usual[walks.kinds], begin)
  kinds, movers = automaton_tables.refined(walks.kinds, begin)
  classes, halters = automaton_tables.refined(
    walks.halting, halts_first, always
  )
  _, pairs = joint = automaton_tables.refined(kinds, classes)
  width = np.dtype(dtype_of(num_rows)).itemsize
  is_split = num_rows * len(pairs) * (width + 1) > automaton_tables.FEW_BYTES
  if not is_split:
    classes, movers = joint
    halters = movers
  automaton_tables.check_size(
    num_rows, len(halters), name, len(movers) if is_split else None
  )
  halts = np.zeros((num_rows, len(halters)), bool)
  halts[START] = (halts_first | always)[halters]
  halts[1 : num + 1] = walks.halts[walks.halting[halters], :num].T
  halts[1 : num + 1] |= always[halters]
  moves = _moves(walks, begin, usual, movers, num_rows, num)
  is_end = np.zeros(num_rows, bool)
  allowed = ~halts
  halt = None
  if ends:
    is_end[-1] = True
    if is_split:
      halt = num_rows - 1
    else:
      moves[halts] = num_rows - 1
      allowed[:] = True
  elif not is_split:
    moves[halts] = START
  return Tables(
    classes=classes,
    moves=moves,
    allowed=allowed,
    ends=is_end,
    kinds=kinds if is_split else None,
    halt=halt,
  )


def of_language(
  language: ByteAutomaton,
  is_final: np.ndarray,
  known: TokenBytes,
  name: str,
  eos_ids: Sequence[int],
) -> Tables:
  """Returns the automaton of the texts that an automaton over bytes takes.

  Args:
    language: the automaton, whose last state is dead, and the usual one.
    is_final: [S - 1] bool, the states in which a text may end.
    known: the bytes of the V tokens.
    name: what is held to it, for messages.
    eos_ids: the tokens that end a text.

  Raises:
    ConstraintError: the tables would be too large.
  """
  num = len(language.step) - 1
  automaton_tables.check_size(num + 1, 1, name)
  walks = _walk(language, known, name)
  begin = run(language, known.first_spelling)
  is_eos = np.zeros(len(begin), bool)
  is_eos[list(eos_ids)] = True
  # What adds nothing to a text is not part of one, and may not stand in it.
  begin[known.first_spelling.is_empty | is_eos] = num
  is_dead = known.spelling.is_empty | is_eos
  classes, tokens = automaton_tables.refined(
    walks.kinds, begin, is_dead, is_eos
  )
  automaton_tables.check_size(num + 1, len(tokens), name)
  begin = np.where(begin == num, START, begin + 1)
  usual = np.full(len(walks.usual), START, np.int32)
  moves = _moves(walks, begin, usual, tokens, num + 1, num)
  moves[1:, is_dead[tokens]] = START
  allowed = moves != START
  may_end = np.concatenate([is_final[:1], is_final])
  allowed[:, is_eos[tokens]] = may_end[:, None]
  return Tables(classes, moves, allowed, np.zeros(num + 1, bool))


def _walk(automaton: ByteAutomaton, known: TokenBytes, name: str) -> Walks:
  """Returns what tokens do; raises ConstraintError where that is too much."""
  num = len(automaton.step)

  def check(num_bytes: int):
    if num_bytes > automaton_tables.MOST_BYTES:
      raise ConstraintError(
        f"{name} makes an automaton of {num:,} states or more, whose tokens"
        f" take over {automaton_tables.MOST_BYTES >> 20} MB: allow less at a"
        " time"
      )

  return walk(automaton, known.spelling, check)


def _moves(
  walks: Walks,
  begin: np.ndarray,
  usual: np.ndarray,
  tokens: np.ndarray,
  num_rows: int,
  num: int,
) -> np.ndarray:
  """Returns [num_rows, K], the states after tokens of each kind.

  Args:
    walks: what tokens do to the `num` states.
    begin: [V], the state after a token before a text.
    usual: the state after each kind of `walks` from every other state.
    tokens: [K], a token of each kind of the result.
    num_rows: S.
    num: the number of states of bytes, which are the rows after the first.
  """
  kinds = walks.kinds[tokens]
  moves = automaton_tables.with_room(num_rows, len(tokens))
  moves[:] = usual[kinds]
  moves[START] = begin[tokens]
  # A kind of the walks may be several kinds here, which `order` puts together.
  order = np.argsort(kinds, kind="stable")
  starts = np.searchsorted(kinds[order], np.arange(len(walks.usual) + 1))
  counts = np.diff(starts)[walks.kind]
  which = np.repeat(np.arange(len(walks.kind)), counts)
  columns = order[ranges(starts[walks.kind], counts)]
  states, after = walks.states[which], walks.after[which]
  is_row = (states < num) & (after < num)
  moves[states[is_row] + 1, columns[is_row]] = after[is_row] + 1
  return moves
