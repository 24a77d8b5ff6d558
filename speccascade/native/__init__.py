"""C++ for a CPU, where XLA is slow: a block of few tokens, and its laws."""

from speccascade.native.library import is_available
from speccascade.native.operations import (
  attend,
  copies,
  draw,
  laws,
  nucleus,
  overlap,
  products,
  replacement,
  takes,
)
from speccascade.native.panels import Packer, Panels, pack, packed_shape
from speccascade.native.passes import (
  ACTIVATIONS,
  Sublayer,
  decoder_pass,
  encoder_pass,
)

__all__ = [
  "ACTIVATIONS",
  "Packer",
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
  "packed_shape",
  "products",
  "replacement",
  "takes",
]
