"""Markers: strings and tokens after which an output is in another phase."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from speccascade.constraints import stops, token_bytes
from speccascade.constraints.automaton_tables import Tables
from speccascade.constraints.token_bytes import TextOf, TokenBytes
from speccascade.decoding.records.automaton import TokenAutomaton

_NAME = "MARKER"


def compiled(
  marker: Sequence[str | int], vocabulary, text_of: TextOf, vocab_size: int
) -> TokenAutomaton:
  """Returns the automaton of a marker, as `PhasedAlpha` takes it.

  Args:
    marker: strings, none of them empty, and ids of tokens.
    vocabulary: the tokens, as `token_bytes.read` takes them.
    text_of: ids -> text, as outputs are written.
    vocab_size: V of the models; ids past the vocabulary are not text.

  Raises:
    ConstraintError: no text has the marker, or its tables would be too large.
  """
  known = token_bytes.TokenBytes((), ()).padded(vocab_size)
  if any(isinstance(each, str) for each in marker):
    known = token_bytes.read(vocabulary, text_of).padded(vocab_size)
  stops.check(marker, known, _NAME, ends=True)
  return automaton(marker, known).to_device(_NAME)


def automaton(marker: Sequence[str | int], known: TokenBytes) -> Tables:
  """Returns the search for a marker, which stays where one is complete."""
  tables = stops.automaton(marker, known, _NAME)
  # A text ends in such a state. Here it goes on, in the same state.
  moves, ends = tables.moves.copy(), np.flatnonzero(tables.ends)
  moves[ends] = ends[:, None]
  return dataclasses.replace(tables, moves=moves)
