"""The parts that a native pass is made of, each a record with named fields.

A sublayer computes x + f(norm(x)) for rows x. Its record lists what f reads, in
`operands`, in the order in which `pass.cc` reads it.

Axes: B rows, N fed tokens, E model width, H heads, K key heads, D head width, L
slots of a cache, S source length.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax

from speccascade.native.panels import Panels

# In the order of enum Kind in pass.h.
KINDS = ("cached", "source", "mlp", "encoder", "rotary")


class Operand(NamedTuple):
  """What a pass reads, and the shape that it must have.

  Attributes:
    array: float32 numbers, or the panels of a kernel.
    shape: the shape wanted; (in, out) for a kernel.
  """

  array: jax.Array | Panels
  shape: tuple[int, ...]


class Projections(NamedTuple):
  """The kernels that make queries, keys and values of the normed rows."""

  query: Panels
  key: Panels
  value: Panels

  def operands(self, width: int, queries: int, keys: int) -> list[Operand]:
    """Returns the kernels, [width, queries], then two of [width, keys]."""
    return [
      Operand(self.query, (width, queries)),
      Operand(self.key, (width, keys)),
      Operand(self.value, (width, keys)),
    ]


class Biases(NamedTuple):
  """What is added to queries, keys and values before they are turned.

  Attributes:
    query: [H * D] float32.
    key: [K * D] float32.
    value: [K * D] float32.
  """

  query: jax.Array
  key: jax.Array
  value: jax.Array


class HeadNorms(NamedTuple):
  """Scales of the norms of each head's query and key.

  Attributes:
    query: [D] float32.
    key: [D] float32.
  """

  query: jax.Array
  key: jax.Array


@dataclasses.dataclass(frozen=True)
class CachedAttention:
  """Attention to a cache that the fed tokens are written to first; as in T5.

  Attributes:
    scale: [E] float32, scale of the norm.
    kernels: query, key and value, [E, H * D] each.
    out: [H * D, E].
    keys: [B, H, D, L] float32, the cache.
    values: [B, H, L, D] float32, the cache.
    bias: [B, H, 2 L - 1] float32, entry j is for a key at distance j - (L - 1)
      from the query.
  """

  kind: ClassVar[str] = "cached"
  window: ClassVar[None] = None

  scale: jax.Array
  kernels: Projections
  out: Panels
  keys: jax.Array
  values: jax.Array
  bias: jax.Array

  def operands(self, batch: int, num_fed: int) -> list[Operand]:
    """Returns the operands of the attention, of the norm, and the kernels."""
    [width], [_, heads, dim, slots] = self.scale.shape, self.keys.shape
    return [
      Operand(self.keys, (batch, heads, dim, slots)),
      Operand(self.values, (batch, heads, slots, dim)),
      Operand(self.bias, (batch, heads, 2 * slots - 1)),
      Operand(self.scale, (width,)),
      *self.kernels.operands(width, heads * dim, heads * dim),
      Operand(self.out, (heads * dim, width)),
    ]


@dataclasses.dataclass(frozen=True)
class RotaryAttention:
  """Attention to a cache, with queries and keys turned by their positions.

  H / K query heads share a key head. Tokens are written to the cache first.

  Attributes:
    scale: [E] float32, scale of the norm.
    kernels: query [E, H * D], key and value [E, K * D].
    out: [H * D, E].
    keys: [B, K, D, L] float32, the cache.
    values: [B, K, L, D] float32, the cache.
    cosines: [B, N, D / 2] float32, of the fed tokens' angles.
    sines: [B, N, D / 2] float32, of the fed tokens' angles.
    biases: biases of queries, keys and values, or None.
    head_norms: scales of the norms of queries and keys, or None.
    window: how many slots back a token sees, itself included; None is all.
  """

  kind: ClassVar[str] = "rotary"

  scale: jax.Array
  kernels: Projections
  out: Panels
  keys: jax.Array
  values: jax.Array
  cosines: jax.Array
  sines: jax.Array
  biases: Biases | None = None
  head_norms: HeadNorms | None = None
  window: int | None = None

  def operands(self, batch: int, num_fed: int) -> list[Operand]:
    """Returns the operands of the attention, of the norm, and the kernels."""
    [width], [_, heads, dim, slots] = self.scale.shape, self.keys.shape
    keys = heads * dim
    # Any number of query heads that the key heads divide is right.
    queries = max(self.kernels.query.num_out // keys, 1) * keys
    operands = [
      Operand(self.keys, (batch, heads, dim, slots)),
      Operand(self.values, (batch, heads, slots, dim)),
      Operand(self.cosines, (batch, num_fed, dim // 2)),
      Operand(self.sines, (batch, num_fed, dim // 2)),
    ]
    if self.biases is not None:
      operands.append(Operand(self.biases.query, (queries,)))
      operands.append(Operand(self.biases.key, (keys,)))
      operands.append(Operand(self.biases.value, (keys,)))
    if self.head_norms is not None:
      operands.append(Operand(self.head_norms.query, (dim,)))
      operands.append(Operand(self.head_norms.key, (dim,)))
    return [
      *operands,
      Operand(self.scale, (width,)),
      *self.kernels.operands(width, queries, keys),
      Operand(self.out, (queries, width)),
    ]


@dataclasses.dataclass(frozen=True)
class SourceAttention:
  """Attention to the keys and values of a source, which stay as they are.

  Attributes:
    scale: [E] float32, scale of the norm.
    query: [E, H * D].
    out: [H * D, E].
    keys: [B, H, D, S] float32.
    values: [B, H, S, D] float32.
    mask: [B, 1, 1, S] float32, added to the scores of each key.
  """

  kind: ClassVar[str] = "source"
  window: ClassVar[None] = None

  scale: jax.Array
  query: Panels
  out: Panels
  keys: jax.Array
  values: jax.Array
  mask: jax.Array

  def operands(self, batch: int, num_fed: int) -> list[Operand]:
    """Returns the operands of the attention, of the norm, and the kernels."""
    [width], [_, heads, dim, length] = self.scale.shape, self.keys.shape
    return [
      Operand(self.keys, (batch, heads, dim, length)),
      Operand(self.values, (batch, heads, length, dim)),
      Operand(self.mask, (batch, 1, 1, length)),
      Operand(self.scale, (width,)),
      Operand(self.query, (width, heads * dim)),
      Operand(self.out, (heads * dim, width)),
    ]


@dataclasses.dataclass(frozen=True)
class EncoderAttention:
  """Attention of an encoder's tokens to each other.

  Attributes:
    scale: [E] float32, scale of the norm.
    kernels: query, key and value, [E, H * D] each.
    out: [H * D, E].
    bias: [H, 2 N - 1] float32, entry j is for a key at distance j - (N - 1)
      from the query.
  """

  kind: ClassVar[str] = "encoder"
  window: ClassVar[None] = None

  scale: jax.Array
  kernels: Projections
  out: Panels
  bias: jax.Array

  def operands(self, batch: int, num_fed: int) -> list[Operand]:
    """Returns the operands of the attention, of the norm, and the kernels."""
    [width], joined = self.scale.shape, self.kernels.query.num_out
    return [
      Operand(self.bias, (self.bias.shape[0], 2 * num_fed - 1)),
      Operand(self.scale, (width,)),
      *self.kernels.operands(width, joined, joined),
      Operand(self.out, (joined, width)),
    ]


@dataclasses.dataclass(frozen=True)
class MlpSublayer:
  """The feed-forward block.

  Attributes:
    scale: [E] float32, scale of the norm.
    inner: one or two kernels [E, inner width]; the results of two, each after
      its activation, are multiplied.
    out: [inner width, E].
  """

  kind: ClassVar[str] = "mlp"
  window: ClassVar[None] = None

  scale: jax.Array
  inner: tuple[Panels, ...]
  out: Panels

  def operands(self, batch: int, num_fed: int) -> list[Operand]:
    """Returns the scale of the norm, and the kernels."""
    [width], inner_width = self.scale.shape, self.inner[0].num_out
    return [
      Operand(self.scale, (width,)),
      *(Operand(kernel, (width, inner_width)) for kernel in self.inner),
      Operand(self.out, (inner_width, width)),
    ]


DecoderSublayer = (
  CachedAttention | RotaryAttention | SourceAttention | MlpSublayer
)
EncoderSublayer = EncoderAttention | MlpSublayer
Sublayer = DecoderSublayer | EncoderSublayer


class SourceKernels(NamedTuple):
  """The kernels that make one decoder layer's keys and values of a source.

  Attributes:
    key: [E, H * D].
    value: [E, H * D].
  """

  key: Panels
  value: Panels
