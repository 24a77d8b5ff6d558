"""Norm, attention and its output as one launch, in CUDA C++.

The kernels are `attend_self` and `attend_source` of `cuda/layers.cu`. Arguments
are as of `layer_launches.AttentionLaunch`.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax

from speccascade.native.gpu import cuda_launches
from speccascade.native.gpu.cuda_launches import (
  CLUSTER,
  AttentionArrays,
  pitch,
)


@dataclasses.dataclass(frozen=True)
class Configuration:
  """How a launch helps later ones.

  Attributes:
    ahead: whether it asks for what later launches read.
  """

  ahead: bool = True


def configuration(*arrays: Any, **options: Any) -> Configuration:
  """Returns the configuration of a launch."""
  del arrays, options
  return Configuration()


def num_bytes(
  rows: int, fed: int, emb: int, width: int, slots: int, is_self: bool
) -> int:
  """Returns bytes of shared memory of a block; arguments as of a reason."""
  padded = 8 * cuda_launches.num_tiles(rows * fed)
  sizes = sizes_of_arrays(rows, fed, emb, width, slots, is_self)
  return cuda_launches.shared_bytes(emb, padded, *sizes)


def sizes_of_arrays(
  rows: int, fed: int, emb: int, width: int, slots: int, is_self: bool
) -> tuple[int, ...]:
  """Returns bytes of each array of `Attention` in the source."""
  padded, outputs = 8 * cuda_launches.num_tiles(rows * fed), emb // CLUSTER
  columns, share = (3 if is_self else 1) * width, -(-slots // CLUSTER)
  return (
    outputs * pitch(columns * 2),
    width * pitch(outputs * 2),
    padded * columns * 4,
    padded * width * 4,
    rows * width * share * 2,
    rows * share * (width + 8) * 2,
    rows * fed * share * 4,
    padded * 8,
    padded * width * 4,
    padded * pitch(width * 2),
    rows * 4,
  )


def reason_against(
  rows: int, fed: int, emb: int, width: int, slots: int, is_self: bool
) -> str | None:
  """Returns why no kernel attends, or None if one does.

  Args:
    rows: B.
    fed: N.
    emb: E.
    width: D.
    slots: L.
    is_self: whether the block is written to a cache.
  """
  if width % 16 or 3 * width > cuda_launches.MOST_OUTPUTS:
    return f"the head width {width} is not a multiple of 16 up to 160"
  if (
    num_bytes(rows, fed, emb, width, slots, is_self) > cuda_launches.MOST_SHARED
  ):
    return f"{rows} rows of {slots} slots do not fit the blocks of a cluster"
  return None


def run(
  *arrays: Any,
  configuration: Configuration,
  interpret: bool,
  start: jax.Array | None = None,
  upcoming: Sequence[jax.Array] = (),
) -> tuple[jax.Array, ...]:
  """Returns what `AttentionLaunch.reference` does, with a part a head."""
  launch, operands = built(
    AttentionArrays(*arrays), start, upcoming if configuration.ahead else ()
  )
  return tuple(cuda_launches.call(launch, operands, interpret))


def built(
  arrays: AttentionArrays,
  start: jax.Array | None,
  upcoming: Sequence[jax.Array],
) -> tuple[cuda_launches.Launch, list[jax.Array]]:
  """Returns the launch and its operands."""
  x, parts, norm, kernels, bias, keys, values = arrays
  heads, width, slots = keys.shape[1:]
  rows, fed, emb = x.shape
  is_self = start is not None
  given = [norm, *kernels, bias, keys, values]
  launch = cuda_launches.make(
    "attend_self" if is_self else "attend_source",
    x,
    parts,
    heads,
    (keys, values) if is_self else (),
    len(given),  # x and the parts are before, keys and values the last
    upcoming,
    (),
    HEADS=heads,
    WIDTH=width,
    SLOTS=slots,
    **strides_of(bias),
    SHARED=num_bytes(rows, fed, emb, width, slots, is_self),
  )
  if start is not None:
    given.append(start)
  return launch, cuda_launches.operands(x, parts, given, upcoming)


def strides_of(bias: jax.Array, of: str = "") -> dict[str, int]:
  """Returns sizes of the source: a bias' strides, 0 along what is shared.

  Args:
    bias: [B or 1, H or 1, N or 1, L].
    of: what their names begin with.
  """
  rows, heads, tokens, slots = bias.shape
  return {
    f"{of}BIAS_ROW": heads * tokens * slots * (rows > 1),
    f"{of}BIAS_HEAD": tokens * slots * (heads > 1),
    f"{of}BIAS_TOKEN": slots * (tokens > 1),
  }
