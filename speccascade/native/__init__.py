"""C++ for a CPU, where XLA is slow: a block of few tokens, and its laws."""

from speccascade.native.library import is_available
from speccascade.native.operations import (
  Panels,
  attend,
  copies,
  draw,
  laws,
  nucleus,
  overlap,
  pack,
  products,
  replacement,
  takes,
)
from speccascade.native.passes import (
  ACTIVATIONS,
  Sublayer,
  decoder_pass,
  encoder_pass,
)

__all__ = [
  "ACTIVATIONS",
  "Panels",
  "Sublayer",
  "attend",
  "copies",
  "decoder_pass",
  "draw",
  "encoder_pass",
  "is_available",
  "laws",
  "nucleus",
  "overlap",
  "pack",
  "products",
  "replacement",
  "takes",
]
