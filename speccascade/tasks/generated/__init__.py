"""The built-in task: English to German sentences that the package draws itself.

A small grammar draws English sentences and knows every right German rendering
of each sentence, at most 8. Words are drawn nearly independently of each other,
so that the sentences are often silly; the German is meant to be right. A model
has to learn gender, case, number and their endings, separable verbs, the second
and the last place of verbs, relative clauses, pronouns that agree with their
nouns, and to copy names and numbers. If German has a choice (synonyms, the
place of adverbials), the target is drawn.

  words, words.txt  the lexicon
  grammar           a sentence in both languages
  examples          pairs by index, with all right renderings
  task_pieces       the SentencePiece model, a file beside the module
  task              the task of seqio; this module alone imports TensorFlow

>>> from speccascade.tasks import generated
>>> example = generated.example("test", 0)
>>> example.targets in example.references
True
"""

from speccascade.tasks.generated.examples import (
  SPLITS,
  Example,
  built_in_examples,
  example,
  pair,
  split_of,
)
from speccascade.tasks.generated.task_pieces import encode

__all__ = [
  "SPLITS",
  "Example",
  "built_in_examples",
  "encode",
  "example",
  "pair",
  "split_of",
]
