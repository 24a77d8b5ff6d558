"""C++ for a CPU, where XLA is slow: a block of few tokens, and its laws."""

from speccascade.native.attention import attend
from speccascade.native.decoder_pass import (
  ACTIVATIONS,
  Sublayer,
  decoder_pass,
)
from speccascade.native.laws import draw, laws, replacement, takes
from speccascade.native.library import is_available
from speccascade.native.panels import Panels, pack, products

__all__ = [
  "ACTIVATIONS",
  "Panels",
  "Sublayer",
  "attend",
  "decoder_pass",
  "draw",
  "is_available",
  "laws",
  "pack",
  "products",
  "replacement",
  "takes",
]
