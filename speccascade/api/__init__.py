"""A pair of models in a program or a notebook.

`load_pair` reads the pair. Its methods are `generate` (module generation),
`compare` (comparison), `stream` (text_stream) and `chat` (conversation).
"""

from speccascade.api.loading import (
  Chat,
  Comparison,
  Generation,
  Pair,
  PairError,
  TextStream,
  load_pair,
)

__all__ = [
  "Chat",
  "Comparison",
  "Generation",
  "Pair",
  "PairError",
  "TextStream",
  "load_pair",
]
