"""Operations of few tokens, with kernels for a GPU; see `operation`."""

from speccascade.native.gpu.block_attention import block_attention
from speccascade.native.gpu.chain_review import chain_review
from speccascade.native.gpu.choice import gpu_kernels
from speccascade.native.gpu.filtered_laws import filtered_laws
from speccascade.native.gpu.kept_path import kept_path
from speccascade.native.gpu.layer_launches import (
  attention_launch,
  layer_launch,
  mlp_launch,
)
from speccascade.native.gpu.mixed_review import mixed_review
from speccascade.native.gpu.operation import Operation, UnavailableError
from speccascade.native.gpu.row_children import row_children
from speccascade.native.gpu.row_draws import row_draws
from speccascade.native.gpu.row_laws import row_laws
from speccascade.native.gpu.row_products import row_products
from speccascade.native.gpu.tree_review import tree_review

__all__ = [
  "Operation",
  "UnavailableError",
  "attention_launch",
  "block_attention",
  "chain_review",
  "filtered_laws",
  "gpu_kernels",
  "kept_path",
  "layer_launch",
  "mixed_review",
  "mlp_launch",
  "row_children",
  "row_draws",
  "row_laws",
  "row_products",
  "tree_review",
]
