"""C++ for a CPU, where XLA is slow: a block of few tokens, and its laws."""

from speccascade.native.library import is_available
from speccascade.native.operations import (
  Panels,
  attend,
  draw,
  laws,
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

__all__ = ["ACTIVATIONS", "Panels", "Sublayer", "attend", "decoder_pass"]
__all__ += ["draw", "encoder_pass", "is_available", "laws", "overlap", "pack"]
__all__ += ["products", "replacement", "takes"]
