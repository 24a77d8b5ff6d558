"""The built-in task: English to German, made by the package itself.

A grammar draws English sentences and knows every right German rendering of
each that its words and rules allow. Words are drawn nearly independently, so
the sentences are often silly ("A heavy mouse secretly sells the dream car");
the German is meant to be right. What has to be learned: gender, case, number
and adjective endings, dative plurals, separable and reflexive verbs, perfect,
passive and modals, verb-second and verb-final order, relative and infinitive
clauses, compounds, number words, prices, dates and times. Where German has a
choice (synonyms, "teacher" as Lehrer or Lehrerin, the place of adverbials) the
target is drawn: a model that knows the grammar reaches about 83 BLEU against
the drawn target when it decodes greedily and about 77 when it samples
(`metrics.ceilings`), and close to 100 against up to 8 references.

  grammar, words    english_grammar, english_*, determiners, lexicon
  renderings        rendering, german_*, word_order, german, lattice
  pairs by index    examples
  vocabulary        vocabulary
  quality           metrics
  seqio             task (imports TensorFlow, nothing else here does)

>>> from speccascade.data import generated
>>> generated.is_rendering("The old man sleeps.", "Der alte Mann schläft.")
True
"""

from speccascade.data.generated.examples import (
  SPLITS,
  Example,
  draw,
  example,
  is_rendering,
  num_renderings,
  num_sentences,
  pair,
  pairs,
  references,
  renderings,
  split_of,
)
from speccascade.data.generated.vocabulary import decode, encode, pad

__all__ = [
  "SPLITS",
  "Example",
  "decode",
  "draw",
  "encode",
  "example",
  "is_rendering",
  "num_renderings",
  "num_sentences",
  "pad",
  "pair",
  "pairs",
  "references",
  "renderings",
  "split_of",
]
