"""Operations of few tokens, with kernels for a GPU; see `operation`."""

from speccascade.native.gpu.block_attention import block_attention
from speccascade.native.gpu.choice import gpu_kernels
from speccascade.native.gpu.layer_launches import attention_launch, mlp_launch
from speccascade.native.gpu.operation import Operation, UnavailableError
from speccascade.native.gpu.row_products import row_products

__all__ = [
  "Operation",
  "UnavailableError",
  "attention_launch",
  "block_attention",
  "gpu_kernels",
  "mlp_launch",
  "row_products",
]
