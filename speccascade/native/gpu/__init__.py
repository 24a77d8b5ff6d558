"""Kernels for a GPU, imported where a program is traced for one."""

from speccascade.native.gpu.choice import (
  gpu_kernels,
  has_gpu_kernels,
  is_interpreted,
)

__all__ = ["gpu_kernels", "has_gpu_kernels", "is_interpreted"]
