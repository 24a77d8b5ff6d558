"""Both attentions of a T5's decoder, or a whole layer, in CUDA C++.

The kernels are `attend_both` and `layer` of `cuda/layers.cu`. Arguments are as
of `layer_launches.LayerLaunch`. Their clusters wait for one another, so that
all of them have to be on the GPU at once: no launch has more than that.
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

# A cluster of 8 blocks is in one group of multiprocessors. An H100 has 114 or
# 132 of them in groups of at most 18, which hold 8 clusters however they are
# split, with a block on each.
LEAST_MULTIPROCESSORS, MOST_ALONE = 114, 8
# And 16 where two blocks may share a multiprocessor: each has half of its
# shared memory, less a KB of the driver's. (The source adds up 16 parts.)
MOST_CLUSTERS, MOST_OF_TWO = 16, 233472 // 2 - 1024
_KEYS = 8  # number of the operand


@dataclasses.dataclass(frozen=True)
class Configuration:
  """How a layer is cut, and how a launch helps later ones.

  Attributes:
    slices: of the MLP's width, one for each cluster; heads where there is none.
    ahead: whether it asks for what later launches read.
  """

  slices: int
  ahead: bool = True


def configuration(*arrays: Any, **options: Any) -> Configuration:
  """Returns the configuration of a launch, by its sizes."""
  del options
  slices = num_clusters(LayerArrays(*arrays))
  assert slices is not None  # see `reason_against`
  return Configuration(slices)


def num_bytes(arrays: LayerArrays, clusters: int) -> int:
  """Returns bytes of shared memory of a block."""
  rows, fed, emb = arrays.x.shape
  padded = 8 * cuda_launches.num_tiles(rows * fed)
  sizes = [padded * (emb // CLUSTER) * 2]  # of the residual
  if arrays.of_mlp:
    inner, gates = arrays.of_mlp[-1].shape[0], len(arrays.of_mlp) - 1
    sizes += mlp_launch_cuda.sizes_of_arrays(
      rows * fed, emb, inner // clusters, gates
    )
  # The source's weights take the place of those of the first products.
  sizes += _of_attention(arrays, True) + _of_attention(arrays, False)[2:]
  return cuda_launches.shared_bytes(emb, padded, *sizes)


def _of_attention(arrays: LayerArrays, is_self: bool) -> tuple[int, ...]:
  """Returns bytes of the arrays of one attention, its weights first."""
  rows, fed, emb = arrays.x.shape
  width, slots = (arrays.cache if is_self else arrays.source)[0].shape[2:]
  return attention_launch_cuda.sizes_of_arrays(
    rows, fed, emb, width, slots, is_self
  )


def num_clusters(arrays: LayerArrays) -> int | None:
  """Returns the clusters of a launch, or None where not all run at once.

  Each has a head; with an MLP each has a slice of it, and the first ones have a
  head.
  """
  heads, inner = arrays.cache[0].shape[1], 0
  numbers = [heads]
  if sum(_of_attention(arrays, False)[:2]) > _of_attention(arrays, True)[0]:
    return None
  if arrays.of_mlp:
    inner = arrays.of_mlp[-1].shape[0]
    numbers = list(range(MOST_CLUSTERS // 2, heads - 1, -1))
  for number in numbers:
    size = num_bytes(arrays, number) if inner % number == 0 else None
    if (
      size is not None
      and inner % (16 * number) == 0
      and (len(arrays.of_mlp) - 1) * inner // number
      <= cuda_launches.MOST_OUTPUTS
      and number <= (MOST_CLUSTERS if size <= MOST_OF_TWO else MOST_ALONE)
      and size <= cuda_launches.MOST_SHARED
    ):
      return number
  return None


def reason_against(arrays: LayerArrays) -> str | None:
  """Returns why no kernel computes a layer at once, or None if one does."""
  if num_clusters(arrays) is None:
    heads = arrays.cache[0].shape[1]
    return f"not all clusters of {heads} heads would run at once"
  return None


def run(
  *arrays: Any,
  configuration: Configuration,
  interpret: bool,
  start: jax.Array,
  activations: tuple[str, ...] = (),
  upcoming: Sequence[jax.Array] = (),
) -> tuple[jax.Array, ...]:
  """Returns what `LayerLaunch.reference` does, with a part a cluster."""
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
  clusters: int,
  upcoming: Sequence[jax.Array],
) -> tuple[cuda_launches.Launch, list[jax.Array]]:
  """Returns the launch and its operands."""
  x, parts, norms, of_self, of_source, of_mlp, biases, cache, source = arrays
  rows, fed, emb = x.shape
  heads, width, slots = cache[0].shape[1:]
  given = [norms[0], *of_self, biases[0], *cache, start]
  given += [norms[1], *of_source, biases[1], *source]
  more = {}
  if of_mlp:
    *first, down = of_mlp
    numbers = [cuda_launches.ACTIVATIONS.index(each) for each in activations]
    given += [norms[2], first[0], first[-1], down]
    more = {
      "INNER": down.shape[0],
      "SLICE": down.shape[0] // clusters,
      "GATES": len(first),
      "ACTIVATION_0": numbers[0],
      "ACTIVATION_1": numbers[-1],
    }
  launch = cuda_launches.make(
    "layer" if of_mlp else "attend_both",
    x,
    parts,
    clusters,
    cache,
    _KEYS,
    upcoming,
    (x,),
    HEADS=heads,
    WIDTH=width,
    SLOTS=slots,
    SOURCE_SLOTS=source[0].shape[3],
    **attention_launch_cuda.strides_of(biases[0]),
    **attention_launch_cuda.strides_of(biases[1], "SOURCE_"),
    **more,
    # Of an exchange, or two.
    PACKETS=(2 if of_mlp else 1) * heads * rows * fed * emb,
    SHARED=num_bytes(arrays, clusters),
  )
  return launch, cuda_launches.operands(x, parts, given, upcoming)
