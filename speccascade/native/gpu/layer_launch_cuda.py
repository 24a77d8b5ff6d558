"""A whole layer of a small T5's decoder as one launch, in CUDA C++.

The kernel is `layer` of `cuda/layers.cu`. Arguments are as of
`layer_launches.LayerLaunch`. Its clusters wait for one another, so that all of
them have to be on the GPU at once: at most `MOST_CLUSTERS`.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax

from speccascade.native.gpu import (
  attention_launch_cuda,
  cuda_launches,
  mlp_launch_cuda,
)
from speccascade.native.gpu.cuda_launches import CLUSTER, LayerArrays

# Each group of an H100's multiprocessors has room for a cluster of 8 blocks, and
# there are 8 groups, or 7 where parts are switched off that take two.
MOST_CLUSTERS = 8
_KEYS = 8  # number of the operand


@dataclasses.dataclass(frozen=True)
class Configuration:
  """How a layer is cut, and how a launch helps later ones.

  Attributes:
    slices: of the MLP's width, one for each cluster.
    ahead: whether it asks for what later launches read.
  """

  slices: int
  ahead: bool = True


def configuration(*arrays: Any, **options: Any) -> Configuration:
  """Returns the configuration of a launch, by its sizes."""
  del options
  slices = num_slices(LayerArrays(*arrays))
  assert slices is not None  # see `reason_against`
  return Configuration(slices)


def num_bytes(arrays: LayerArrays, slices: int) -> int:
  """Returns bytes of shared memory of a block."""
  rows, fed, emb = arrays.x.shape
  padded = 8 * cuda_launches.num_tiles(rows * fed)
  inner, gates = arrays.of_mlp[-1].shape[0], len(arrays.of_mlp) - 1
  sizes = list(
    mlp_launch_cuda.sizes_of_arrays(rows * fed, emb, inner // slices, gates)
  )
  for keys, is_self in ((arrays.cache[0], True), (arrays.source[0], False)):
    sizes += attention_launch_cuda.sizes_of_arrays(
      rows, fed, emb, *keys.shape[2:], is_self
    )
  residual = padded * (emb // CLUSTER) * 2
  return cuda_launches.shared_bytes(emb, padded, *sizes, residual)


def num_slices(arrays: LayerArrays) -> int | None:
  """Returns the most slices that an MLP is cut into, or None if none fits.

  They are no fewer than heads: each cluster has a slice, and the first ones have
  a head.
  """
  heads, inner = arrays.cache[0].shape[1], arrays.of_mlp[-1].shape[0]
  for number in range(MOST_CLUSTERS, heads - 1, -1):
    width = inner // number
    if (
      inner % (16 * number) == 0
      and (len(arrays.of_mlp) - 1) * width <= cuda_launches.MOST_OUTPUTS
      and num_bytes(arrays, number) <= cuda_launches.MOST_SHARED
    ):
      return number
  return None


def reason_against(arrays: LayerArrays) -> str | None:
  """Returns why no kernel computes a layer at once, or None if one does."""
  heads = arrays.cache[0].shape[1]
  if heads > MOST_CLUSTERS:
    return f"{heads} heads are over {MOST_CLUSTERS} clusters"
  if num_slices(arrays) is None:
    return f"no {heads} to {MOST_CLUSTERS} slices of the MLP fit"
  return None


def run(
  *arrays: Any,
  configuration: Configuration,
  interpret: bool,
  start: jax.Array,
  activations: tuple[str, ...],
  upcoming: Sequence[jax.Array] = (),
) -> tuple[jax.Array, ...]:
  """Returns what `LayerLaunch.reference` does, with a part a slice."""
  launch, operands = built(
    LayerArrays(*arrays),
    start,
    activations,
    configuration.slices,
    upcoming if configuration.ahead else (),
  )
  return tuple(cuda_launches.call(launch, operands, interpret))


def built(
  arrays: LayerArrays,
  start: jax.Array,
  activations: Sequence[str],
  slices: int,
  upcoming: Sequence[jax.Array],
) -> tuple[cuda_launches.Launch, list[jax.Array]]:
  """Returns the launch and its operands."""
  x, parts, norms, of_self, of_source, of_mlp, biases, cache, source = arrays
  rows, fed, emb = x.shape
  heads, width, slots = cache[0].shape[1:]
  *first, down = of_mlp
  numbers = [cuda_launches.ACTIVATIONS.index(each) for each in activations]
  launch = cuda_launches.make(
    "layer",
    x,
    parts,
    slices,
    cache,
    _KEYS,
    upcoming,
    more=(x,),
    HEADS=heads,
    WIDTH=width,
    SLOTS=slots,
    SOURCE_SLOTS=source[0].shape[3],
    **attention_launch_cuda.strides_of(biases[0]),
    **attention_launch_cuda.strides_of(biases[1], "SOURCE_"),
    INNER=down.shape[0],
    SLICE=down.shape[0] // slices,
    GATES=len(first),
    ACTIVATION_0=numbers[0],
    ACTIVATION_1=numbers[-1],
    # Of two exchanges.
    PACKETS=2 * heads * rows * fed * emb,
    SHARED=num_bytes(arrays, slices),
  )
  given = [norms[0], *of_self, biases[0], *cache, start]
  given += [norms[1], *of_source, biases[1], *source]
  given += [norms[2], first[0], first[-1], down]
  return launch, cuda_launches.operands(x, parts, given, upcoming)
