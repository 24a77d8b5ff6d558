"""A pair of models in a program or a notebook.

`load_pair` reads a pair, and `built_in_pair` the package's own pair. A pair has
the methods `generate` (module generation), `compare` (comparison), `stream` and
`chat` (text_stream and conversation in `generate/turns/`).
"""

from speccascade.generate.api.loading import (
  Chat,
  Generation,
  Pair,
  PairError,
  TextStream,
  built_in_pair,
  load_pair,
)

__all__ = [
  "Chat",
  "Generation",
  "Pair",
  "PairError",
  "TextStream",
  "built_in_pair",
  "load_pair",
]
