"""What a block of few tokens costs most in, faster than XLA's on a CPU."""

from speccascade.models.native.attention import attend
from speccascade.models.native.decoder_pass import (
  ACTIVATIONS,
  Sublayer,
  decoder_pass,
)
from speccascade.models.native.library import is_available
from speccascade.models.native.panels import Panels, pack, products

__all__ = [
  "ACTIVATIONS",
  "Panels",
  "Sublayer",
  "attend",
  "decoder_pass",
  "is_available",
  "pack",
  "products",
]
