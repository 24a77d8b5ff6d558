"""The built-in task: English to German, made by the package itself.

A grammar draws English sentences and knows every right German rendering of
each; see `english_grammar` and `rendering`. The sentences are often silly,
the German is meant to be right.

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
