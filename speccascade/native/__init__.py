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
from speccascade.native.passes import ACTIVATIONS, decoder_pass, encoder_pass
from speccascade.native.sublayers import (
  Biases,
  CachedAttention,
  DecoderSublayer,
  EncoderAttention,
  EncoderSublayer,
  HeadNorms,
  MlpSublayer,
  Projections,
  RotaryAttention,
  SourceAttention,
  SourceKernels,
  Sublayer,
)

__all__ = [
  "ACTIVATIONS",
  "Biases",
  "CachedAttention",
  "DecoderSublayer",
  "EncoderAttention",
  "EncoderSublayer",
  "HeadNorms",
  "MlpSublayer",
  "Packer",
  "Panels",
  "Projections",
  "RotaryAttention",
  "SourceAttention",
  "SourceKernels",
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
