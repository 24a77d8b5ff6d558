"""The English side of the generated task as a grammar; see `cfg`.

Sentences are often silly ("A friendly elephant complains about the summer
door."): words are drawn nearly independently, grammar is what is learned.

Symbols carry their features in the name: NP.thing.s.rich is a singular noun
phrase about a thing that may hold a relative clause. The start symbol is S.
"""

from speccascade.data.generated import (
  determiners,
  english_clauses,
  english_phrases,
)
from speccascade.data.generated.cfg import Grammar


def build() -> Grammar:
  """The whole grammar, frozen."""
  grammar = Grammar()
  determiners.add(grammar)
  english_phrases.add(grammar)
  english_clauses.add(grammar)
  grammar.freeze()
  return grammar
