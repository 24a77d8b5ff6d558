"""Norm and MLP as one launch, in CUDA C++.

The kernel is `gated` of `cuda/layers.cu`. Arguments are as of
`layer_launches.MlpLaunch`.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax

from speccascade.native.gpu import cuda_launches
from speccascade.native.gpu.cuda_launches import CLUSTER, MlpArrays, pitch

_SLICES = 16  # with clusters of 8, one block for all but 4 multiprocessors


@dataclasses.dataclass(frozen=True)
class Configuration:
  """How the MLP is cut, and how a launch helps later ones.

  Attributes:
    slices: of its width, one for each cluster.
    ahead: whether it asks for what later launches read.
  """

  slices: int
  ahead: bool = True


def configuration(*arrays: Any, **options: Any) -> Configuration:
  """Returns the configuration of a launch, by its sizes."""
  del options
  x, _, _, kernels = MlpArrays(*arrays)
  rows, fed, emb = x.shape
  inner, gates = kernels[-1].shape[0], len(kernels) - 1
  slices = num_slices(rows, fed, emb, inner, gates)
  assert slices is not None  # see `reason_against`
  return Configuration(slices)


def num_bytes(num_tokens: int, emb: int, width: int, gates: int) -> int:
  """Returns bytes of shared memory of a block with a slice of some width."""
  padded = 8 * cuda_launches.num_tiles(num_tokens)
  sizes = sizes_of_arrays(num_tokens, emb, width, gates)
  return cuda_launches.shared_bytes(emb, padded, *sizes)


def sizes_of_arrays(
  num_tokens: int, emb: int, width: int, gates: int
) -> tuple[int, ...]:
  """Returns bytes of each array of `Mlp` in the source."""
  padded, outputs = 8 * cuda_launches.num_tiles(num_tokens), emb // CLUSTER
  return (
    outputs * pitch(gates * width * 2),
    width * pitch(outputs * 2),
    padded * gates * width * 4,
    padded * pitch(width * 2),
  )


def num_slices(
  rows: int, fed: int, emb: int, inner: int, gates: int
) -> int | None:
  """Returns into how many slices an MLP is cut, or None where none fits."""
  numbers = [i for i in range(1, inner // 16 + 1) if not inner // 16 % i]
  # The most that are not over 16; beyond, as few as fit.
  few = [i for i in numbers if i <= _SLICES][-1:]
  for number in (*few, *(i for i in numbers if i > _SLICES)):
    width = inner // number
    size = num_bytes(rows * fed, emb, width, gates)
    if (
      gates * width <= cuda_launches.MOST_OUTPUTS
      and size <= cuda_launches.MOST_SHARED
    ):
      return number
  return None


def reason_against(
  rows: int, fed: int, emb: int, inner: int, activations: Sequence[str]
) -> str | None:
  """Returns why no kernel computes an MLP, or None if one does.

  Args:
    rows: B.
    fed: N.
    emb: E.
    inner: F.
    activations: of the kernels but the last.
  """
  unknown = {*activations} - {*cuda_launches.ACTIVATIONS}
  if unknown or len(activations) > 2:
    return f"the MLP's activations are {', '.join(activations)}"
  if inner % 16:
    return f"the MLP's width {inner} is not a multiple of 16"
  if num_slices(rows, fed, emb, inner, len(activations)) is None:
    return f"a slice of an MLP of {emb} by {inner} does not fit a cluster"
  return None


def run(
  *arrays: Any,
  configuration: Configuration,
  interpret: bool,
  activations: tuple[str, ...],
  upcoming: Sequence[jax.Array] = (),
) -> tuple[jax.Array, ...]:
  """Returns what `MlpLaunch.reference` does, with a part a slice."""
  launch, operands = built(
    MlpArrays(*arrays),
    activations,
    configuration.slices,
    upcoming if configuration.ahead else (),
  )
  return tuple(cuda_launches.call(launch, operands, interpret))


def built(
  arrays: MlpArrays,
  activations: Sequence[str],
  slices: int,
  upcoming: Sequence[jax.Array],
) -> tuple[cuda_launches.Launch, list[jax.Array]]:
  """Returns the launch and its operands."""
  x, parts, norm, kernels = arrays
  rows, fed, emb = x.shape
  *first, down = kernels
  inner, gates = down.shape[0], len(first)
  numbers = [cuda_launches.ACTIVATIONS.index(each) for each in activations]
  launch = cuda_launches.make(
    "gated",
    x,
    parts,
    slices,
    (),
    0,
    upcoming,
    (),
    INNER=inner,
    SLICE=inner // slices,
    GATES=gates,
    ACTIVATION_0=numbers[0],
    ACTIVATION_1=numbers[-1],
    SHARED=num_bytes(rows * fed, emb, inner // slices, gates),
  )
  given = [norm, first[0], first[-1], down]
  return launch, cuda_launches.operands(x, parts, given, upcoming)
