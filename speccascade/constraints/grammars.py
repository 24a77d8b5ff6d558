"""Regular expressions as automata over the tokens of a vocabulary.

`outlines-core` compiles them, which is the extra `grammar`: it makes an
automaton over bytes ahead of time, whose table over tokens a compiled loop can
read. Libraries that follow a grammar token by token on the host cannot run
inside of one.
"""

from collections.abc import Sequence
import re

from speccascade.constraints import byte_tables, expression_compiler
from speccascade.constraints.automaton_tables import (
  ConstraintError,
  Tables,
  without_dead_ends,
)
from speccascade.constraints.token_bytes import TokenBytes

# The parts of an expression: letters, which are the groups, and all others.
_PARTS = re.compile(
  r"""\\[pPxuU]\{[^}]*\} | \{\d+,?\d*\} | \(\?[^:)]*[:)] | [.^$()|?*+]
  | \[\^?(\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*)\] | (\\.|.)""",
  re.VERBOSE | re.DOTALL,
)


def automaton(
  pattern: str,
  known: TokenBytes,
  eos_ids: Sequence[int],
  name: str = "the grammar",
) -> Tables:
  """Returns the automaton of the texts that a regular expression matches.

  A text ends where it matches whole, by any of the tokens that end one. No
  token is allowed after which there is no way to such an end.

  Args:
    pattern: the regular expression, in the syntax of Rust's regex.
    known: the bytes of the V tokens.
    eos_ids: the tokens that end a text.
    name: what a message calls the expression.

  Raises:
    ConstraintError: outlines-core is missing, the pattern is not valid, the
      vocabulary cannot spell it, or the tables are too large.
  """
  language, is_final = expression_compiler.compiled(pattern)
  eos_ids = [token for token in eos_ids if token < len(known.tokens)]
  if not eos_ids:
    raise ConstraintError(
      f"{name} ends in an EOS, and the models have no token that ends a text"
    )
  _check_special(pattern, known)
  tables = byte_tables.of_language(language, is_final, known, name, eos_ids)
  try:
    return without_dead_ends(tables, name, eos_ids)
  except ConstraintError as error:
    raise ConstraintError(f"{error}{_lacks(pattern, known)}") from error


def _check_special(pattern: str, known: TokenBytes):
  """Raises ConstraintError where a pattern spells a special token out."""
  # "\|" is the letter "|"; classes and repeats spell no token.
  plain = re.sub(r"\\([^\w\s])", r"\1", pattern)
  inside = [
    text for text in known.special if len(text.strip()) > 2 and text in plain
  ]
  if inside:
    raise ConstraintError(
      f"the grammar {pattern!r:.80} spells {max(inside, key=len)!r}, which is a"
      " special token and no part of a text: leave it out; a text that matches"
      " ends in an EOS by itself"
    )


def _lacks(pattern: str, known: TokenBytes) -> str:
  """Returns words on the letters of a pattern that no token spells."""
  named = {"n": "\n", "t": "\t", "r": "\r"}
  letters = []
  for part in _PARTS.finditer(pattern):
    # Of a class all letters are named but for the sign of a range.
    parts = [part[2]] if part[2] else re.findall(r"\\.|[^-]", part[1] or "")
    for letter in parts:
      if letter[0] == "\\":
        letter = named.get(letter[1], "" if letter[1].isalnum() else letter[1])
      letters += known.lacks(letter)
  if not letters:
    return ""
  listed = ", ".join(repr(letter) for letter in dict.fromkeys(letters))
  return f"; the vocabulary has no token for {listed}"
