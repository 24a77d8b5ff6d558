"""The built-in task: English to German, made by the package itself.

A small grammar draws English sentences and knows every right German rendering
of each, at most 8. Words are drawn nearly independently, so the sentences are
often silly; the German is meant to be right. What has to be learned: gender,
case, number and their endings, separable verbs, verb-second and verb-final
order, relative clauses, pronouns that agree with what they stand for, names and
numbers to copy. Where German has a choice (synonyms, the place of adverbials)
the target is drawn.

  words, words.txt  the lexicon
  grammar           a sentence in both languages
  examples          pairs by index, with all right renderings
  vocabulary        the SentencePiece model, a file beside it
  task              seqio (imports TensorFlow, nothing else here does)

>>> from speccascade.data import generated
>>> example = generated.example("test", 0)
>>> example.targets in example.references
True
"""

from speccascade.data.generated.examples import (
  SPLITS,
  Example,
  example,
  pair,
  split_of,
)
from speccascade.data.generated.vocabulary import encode

__all__ = ["SPLITS", "Example", "encode", "example", "pair", "split_of"]
