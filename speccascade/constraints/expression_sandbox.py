"""Compiles regular expressions to automata over bytes, in its own process.

A short expression may have any number of states, and `outlines-core` has no
bound on them and does not hear Ctrl-C. So the process has bounds on its time
and memory; see `runtime.worker_main`, which imports this file. It imports
nothing of this package, so that the process starts fast and holds little.
"""

import array
import base64

MOST_BYTES = 1 << 28  # of memory, for the whole process
MOST_S = 6  # of a processor's time, for one expression
_MOST_CELLS = 1 << 22  # of an answer's table
# Numbers of the words that outlines-core reads: that of a byte is one more
# than the byte. The mark, which begins each match, is one word of two bytes.
_END_ID, _MARK, _MARK_ID = 0, b"\0\0", 257


def prepare():
  """Imports what compiles expressions."""
  import outlines_core  # noqa: F401


def answer(request: dict) -> dict:
  """Returns the automaton of a regular expression.

  Args:
    request: {"pattern": one group, in the syntax of Rust's regex}.

  Returns:
    {"columns": the column of each byte, "step": base64 of int32 [S, A], the
    state after a byte of each column, or -1, "finals": the states in which a
    text may end}. State 0 is before a text. Or {"error": why there is none}.
  """
  from outlines_core import Index, Vocabulary

  words = {bytes([byte]): [byte + 1] for byte in range(256)}
  words[_MARK] = [_MARK_ID]
  try:
    index = Index(_marked(request["pattern"]), Vocabulary(_END_ID, words))
    return _table(index)
  except MemoryError:
    return {"error": "takes more memory than it may"}
  except BaseException as error:  # A panic of Rust is not an Exception.
    if isinstance(error, KeyboardInterrupt | SystemExit):
      raise
    reason = " ".join(str(error)[:1000].split()) or type(error).__name__
    # The words are all bytes: where none may follow, no text does.
    if "Found no transitions" in reason:
      reason = (
        "has a part that no text matches, such as [^\\s\\S]: leave it out"
      )
    return {"error": reason[:200]}


def _marked(group: str) -> str:
  """Returns an expression whose automaton is that of a group's whole texts.

  outlines-core drops what follows a match, such as "ab" of "a|ab": at `\\z`
  nothing follows. It also follows matches that begin later in a text, which
  may take 2**n states for n letters. A match of lower priority than the group,
  here the empty one at the start, makes it drop those that begin later. The
  empty match would drop each word of one byte after it, but not the mark.
  """
  return rf"\x00\x00{group}\z|"


def _table(index) -> dict:
  """Returns the answer for an index of outlines-core."""
  every = index.get_transitions()
  start = every[index.get_initial_state()][_MARK_ID]
  place, transitions = {start: 0}, {}
  for state in (waiting := [start]):
    moves = transitions[state] = every.get(state, {})
    # In place, since a copy of all moves takes much memory.
    for number in (_END_ID, _MARK_ID):
      moves.pop(number, None)
    for after in moves.values():
      if after not in place:
        place[after] = len(place)
        waiting.append(after)
  finals = index.get_final_states() & place.keys()
  kinds = _columns(transitions)
  num = 1 + max(kinds)
  if len(place) * num > _MOST_CELLS:
    return {"error": f"has {len(place):,} states or more"}
  step = array.array("i", [-1]) * (len(place) * num)
  for state, moves in transitions.items():
    begin = place[state] * num
    for number, after in moves.items():
      step[begin + kinds[number - 1]] = place[after]
  return {
    "columns": kinds,
    "step": base64.b64encode(step.tobytes()).decode(),
    "finals": [place[state] for state in finals],
  }


def _columns(transitions) -> list[int]:
  """Returns a column for each byte; bytes that always lead alike share one."""
  kinds, sizes = [0] * 256, [256]
  for moves in transitions.values():
    groups: dict[tuple[int, int], list[int]] = {}
    for number, after in moves.items():
      groups.setdefault((kinds[number - 1], after), []).append(number - 1)
    for (kind, _), bytes_of in groups.items():
      # The others of this kind lead elsewhere, or nowhere.
      if len(bytes_of) < sizes[kind]:
        for byte in bytes_of:
          kinds[byte] = len(sizes)
        sizes[kind] -= len(bytes_of)
        sizes.append(len(bytes_of))
    if len(sizes) == 256:
      break
  return kinds
