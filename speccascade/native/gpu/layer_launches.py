"""The launches of a T5's decoder layer: twice attention, the MLP, or joined.

Each adds what the launch before it computed, norms the rows, and returns the
sums in parts that the next launch adds: XLA's reference returns one part, the
kernels one for each head, or slice of the MLP's width. The kernels are in CUDA
C++, for GPUs with clusters of blocks, and take bfloat16.

Axes: B rows, N tokens of a row, M = B N, P parts, E model width, H heads, D
head width, L slots, F width of the MLP.
"""

from collections.abc import Sequence
import functools
import operator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from speccascade.native.gpu import cuda_launches
from speccascade.native.gpu.block_attention import block_attention
from speccascade.native.gpu.cuda_launches import (
  AttentionArrays,
  LayerArrays,
  MlpArrays,
)
from speccascade.native.gpu.operation import Operation
from speccascade.native.gpu.row_products import ACTIVATIONS
from speccascade.native.lowering import capability, multiprocessors

# Of the first GPUs with clusters. Later ones assemble the PTX for themselves.
LEAST_CAPABILITY = 9.0
EPSILON = 1e-6


class _Launch(Operation):
  """An operation whose kernel NVRTC compiles for GPUs with clusters."""

  def missing(self, implementation: str) -> str | None:
    """Returns why an implementation cannot run here; None if it can."""
    reason = super().missing(implementation)
    if reason is not None or implementation != "cuda":
      return reason
    from speccascade.native.gpu import nvrtc

    found = capability()
    if found is not None and found < LEAST_CAPABILITY:
      return f"the GPU has no clusters: its compute capability is {found}"
    if not nvrtc.is_available():
      return "NVRTC is not installed, which jax[cuda12] brings"
    return None


def _parts(x: jax.Array) -> jax.Array:
  """Returns [1, M, E] float32 of [B, N, E]."""
  return x.astype(jnp.float32).reshape(1, -1, x.shape[-1])


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
  wide = x.astype(jnp.float32)
  square = jnp.mean(wide * wide, axis=-1, keepdims=True)
  normed = (wide * jax.lax.rsqrt(square + EPSILON)).astype(x.dtype)
  return normed * jnp.broadcast_to(scale, x.shape)


class AttentionLaunch(_Launch):
  """Norm, attention to a cache or a source, and its output."""

  name = "attention_launch"
  modules: ClassVar = {"cuda": "speccascade.native.gpu.attention_launch_cuda"}

  def reference(
    self,
    x: jax.Array,
    parts: jax.Array | None,
    norm: jax.Array,
    kernels: tuple[jax.Array, ...],
    bias: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    start: jax.Array | None = None,
    upcoming: Sequence[jax.Array] = (),
  ) -> tuple[jax.Array, ...]:
    """Attends to a block and the slots before it, or to a source.

    Args:
      x: [B, N, E], the residual without `parts`.
      parts: [P, M, E] float32, what is added to it first; None is nothing.
      norm: [E], the scale of the norm.
      kernels: of queries, keys and values [E, H D], and of the output
        [H D, E]; of queries and the output alone for a source.
      bias: [B or 1, H or 1, N or 1, L], position bias and mask.
      keys: [B, H, D, L].
      values: [B, H, L, D].
      start: [B] int32, the slot of each row's first token, where the block is
        written to a cache: NaN and infinities as 0. None for a source.
      upcoming: at most 8 arrays that later launches read.

    Returns:
      ([B, N, E], the residual with `parts`; [P, M, E] float32, the output;
      and with a cache its keys and values).
    """
    del upcoming
    x = cuda_launches.total(x, parts)
    normed = _norm(x, norm)
    sizes = (*x.shape[:2], *keys.shape[1:3])
    query, *new = (
      jnp.dot(normed, kernel).reshape(sizes) for kernel in kernels[:-1]
    )
    mixed, *written = block_attention.reference(
      query,
      keys,
      values,
      bias,
      new=(new[0], new[1]) if new else None,
      start=start,
    )
    joined = mixed.reshape(*x.shape[:2], -1)
    return (x, _parts(jnp.dot(joined, kernels[-1])), *written)

  def key(self, *arrays: Any, **options: Any) -> str:
    """Returns such as "1024 wide, 16 heads of 64, cached, bfloat16"."""
    del options
    given = AttentionArrays(*arrays)
    kind = "cached" if len(given.kernels) == 4 else "whole"
    heads, width = given.keys.shape[1:3]
    x = given.x
    return (
      f"{x.shape[-1]} wide, {heads} heads of {width}, {kind}, {x.dtype.name}"
    )

  def unfit(self, *arrays: Any, **options: Any) -> str | None:
    """Returns why no kernel computes a call; None where they do."""
    del options
    from speccascade.native.gpu import attention_launch_cuda as kernel

    x, _, norm, kernels, *others = given = AttentionArrays(*arrays)
    rows, fed, emb = x.shape
    width, slots = given.keys.shape[2:]
    return cuda_launches.reason_against(
      x, norm, *kernels, *others
    ) or kernel.reason_against(rows, fed, emb, width, slots, len(kernels) == 4)


class MlpLaunch(_Launch):
  """Norm and MLP, plain or gated."""

  name = "mlp_launch"
  modules: ClassVar = {"cuda": "speccascade.native.gpu.mlp_launch_cuda"}

  def reference(
    self,
    x: jax.Array,
    parts: jax.Array | None,
    norm: jax.Array,
    kernels: tuple[jax.Array, ...],
    *,
    activations: tuple[str, ...],
    upcoming: Sequence[jax.Array] = (),
  ) -> tuple[jax.Array, jax.Array]:
    """Computes the MLP; arguments as of `AttentionLaunch.reference`.

    Args:
      x: [B, N, E].
      parts: [P, M, E] float32, or None.
      norm: [E].
      kernels: one or two [E, F], and the one back [F, E].
      activations: of the products with all kernels but the last, keys of
        `row_products.ACTIVATIONS`; their results are multiplied.
      upcoming: at most 8 arrays that later launches read.

    Returns:
      ([B, N, E], [P, M, E] float32).
    """
    del upcoming
    x = cuda_launches.total(x, parts)
    normed = _norm(x, norm)
    gates = [
      ACTIVATIONS[name](jnp.dot(normed, kernel).astype(jnp.float32))
      for name, kernel in zip(activations, kernels)
    ]
    inner = functools.reduce(operator.mul, gates).astype(x.dtype)
    return x, _parts(jnp.dot(inner, kernels[-1]))

  def key(self, *arrays: Any, **options: Any) -> str:
    """Returns such as "1024 wide, MLP of 2816, 2 gates, bfloat16"."""
    del options
    x, _, _, kernels = MlpArrays(*arrays)
    return (
      f"{x.shape[-1]} wide, MLP of {kernels[-1].shape[0]},"
      f" {len(kernels) - 1} gates, {x.dtype.name}"
    )

  def unfit(
    self, *arrays: Any, activations: tuple[str, ...], **options: Any
  ) -> str | None:
    """Returns why no kernel computes a call; None where they do."""
    del options
    from speccascade.native.gpu import mlp_launch_cuda as kernel

    x, _, norm, kernels = MlpArrays(*arrays)
    rows, fed, emb = x.shape
    return cuda_launches.reason_against(
      x, norm, *kernels
    ) or kernel.reason_against(
      rows, fed, emb, kernels[-1].shape[0], activations
    )


attention_launch = AttentionLaunch()
mlp_launch = MlpLaunch()


class LayerLaunch(_Launch):
  """Both attentions, or a whole layer of a small model."""

  name = "layer_launch"
  modules: ClassVar = {"cuda": "speccascade.native.gpu.layer_launch_cuda"}

  def reference(
    self,
    *arrays: Any,
    start: jax.Array,
    activations: tuple[str, ...] = (),
    upcoming: Sequence[jax.Array] = (),
  ) -> tuple[jax.Array, ...]:
    """Computes a layer, or all but its MLP; arguments as of its launches.

    Args:
      *arrays: `cuda_launches.LayerArrays`: x and its parts; the norms, [E]
        each; the kernels of attention to the block, of that to the source, and
        of the MLP, () without it; the two biases; keys and values of the cache,
        and of the source.
      start: [B] int32.
      activations: as of `MlpLaunch.reference`.
      upcoming: at most 8 arrays that later launches read.

    Returns:
      ([B, N, E], the residual; [P, M, E] float32, the last step's output;
      [B, N, E], what the layer was given, with `parts`; and the cache's keys
      and values).
    """
    del upcoming
    of_self, of_source, of_mlp = LayerArrays(*arrays).split()
    given, parts, *written = attention_launch.reference(*of_self, start=start)
    x, parts, *_ = attention_launch.reference(given, parts, *of_source[2:])
    if of_mlp is not None:
      x, parts = mlp_launch.reference(
        x, parts, *of_mlp[2:], activations=activations
      )
    return x, parts, given, *written

  def key(self, *arrays: Any, **options: Any) -> str:
    """Returns such as "512 wide, 6 heads of 64, MLP of 1024, bfloat16"."""
    del options
    given = LayerArrays(*arrays)
    heads, width = given.cache[0].shape[1:3]
    inner = given.of_mlp[-1].shape[0] if given.of_mlp else 0
    return (
      f"{given.x.shape[-1]} wide, {heads} heads of {width},"
      f" MLP of {inner}, {given.x.dtype.name}"
    )

  def unfit(
    self, *arrays: Any, activations: tuple[str, ...] = (), **options: Any
  ) -> str | None:
    """Returns why no kernel computes a call; None where they do."""
    del options
    from speccascade.native.gpu import layer_launch_cuda as kernel

    cores = multiprocessors()
    if cores is not None and cores < kernel.LEAST_MULTIPROCESSORS:
      return (
        f"the GPU has {cores} multiprocessors, and at least"
        f" {kernel.LEAST_MULTIPROCESSORS} hold all clusters at once"
      )
    given = LayerArrays(*arrays)
    of_self, of_source, of_mlp = given.split()
    reason = attention_launch.unfit(*of_self)
    reason = reason or attention_launch.unfit(*of_source)
    if of_mlp is not None:
      reason = reason or mlp_launch.unfit(*of_mlp, activations=activations)
    return reason or kernel.reason_against(given)


layer_launch = LayerLaunch()
