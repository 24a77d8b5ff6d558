"""A pair of models in a notebook: load, generate, compare, stream, chat."""

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
