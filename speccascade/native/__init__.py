"""C++ for a CPU, where XLA is slow: a block of few tokens, and its laws."""

from speccascade.native.attention import attend
from speccascade.native.laws import draw, laws, replacement, takes
from speccascade.native.library import is_available
from speccascade.native.panels import Panels, pack, products

__all__ = [
  "Panels",
  "attend",
  "draw",
  "is_available",
  "laws",
  "pack",
  "products",
  "replacement",
  "takes",
]
