"""C++ for a CPU, where XLA is slow: blocks of few tokens, and draws."""

from speccascade.native.chain_calls import (
  ChainDraws,
  ChainPrefix,
  ChainStates,
  angles_of_chain,
  draft_chain,
)
from speccascade.native.gpu import gpu_kernels
from speccascade.native.library import is_available
from speccascade.native.lowering import platform, tracing_for
from speccascade.native.operations import (
  attend,
  copies,
  draw,
  laws,
  nucleus,
  overlap,
  plain_laws,
  products,
  replacement,
  takes,
)
from speccascade.native.panels import Packer, Panels, pack, packed_shape
from speccascade.native.passes import ACTIVATIONS, decoder_pass, encoder_pass
from speccascade.native.quantised import Quantised, quantise
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
from speccascade.native.tpu import preferred_on_tpu, tpu_kernels
from speccascade.native.tree_calls import (
  keep_path,
  tree_children,
  tree_walk,
)

__all__ = [
  "ACTIVATIONS",
  "Biases",
  "CachedAttention",
  "ChainDraws",
  "ChainPrefix",
  "ChainStates",
  "DecoderSublayer",
  "EncoderAttention",
  "EncoderSublayer",
  "HeadNorms",
  "MlpSublayer",
  "Packer",
  "Panels",
  "Projections",
  "Quantised",
  "RotaryAttention",
  "SourceAttention",
  "SourceKernels",
  "Sublayer",
  "angles_of_chain",
  "attend",
  "copies",
  "decoder_pass",
  "draft_chain",
  "draw",
  "encoder_pass",
  "gpu_kernels",
  "is_available",
  "keep_path",
  "laws",
  "nucleus",
  "overlap",
  "pack",
  "packed_shape",
  "plain_laws",
  "platform",
  "preferred_on_tpu",
  "products",
  "quantise",
  "replacement",
  "takes",
  "tpu_kernels",
  "tracing_for",
  "tree_children",
  "tree_walk",
]
