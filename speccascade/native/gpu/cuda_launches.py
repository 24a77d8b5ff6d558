"""Launches of the kernels in `cuda/layers.cu`: sizes, shared memory, the call.

NVRTC compiles the source for a shape while a program is traced, and XLA's own
custom call launches the PTX: nothing is registered, no library is built, and
XLA's graphs contain the launches.

Axes: B rows, N tokens of a row, M = B N, P parts, E model width, H heads, D
head width, L slots, F width of the MLP.
"""

from collections.abc import Sequence
import dataclasses
import functools
import pathlib
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

FOLDER = pathlib.Path(__file__).parent / "cuda"
CLUSTER, THREADS = 8, 256  # blocks of a cluster, threads of a block
MOST_SHARED = 232448  # bytes of shared memory that a block may ask for
MOST_TOKENS = 32  # M
MOST_OUTPUTS = 512  # of a product in a block: 4 tiles of 16 for 8 warps
ACTIVATIONS = ("gelu", "relu", "silu", "linear")  # by number in the source
# What the source has a number for; those that a kernel does not use are 0.
SIZES = (
  *("ROWS", "FED", "EMB", "HEADS", "WIDTH", "SLOTS", "PARTS", "BIAS_ROW"),
  *("BIAS_HEAD", "BIAS_TOKEN", "SOURCE_SLOTS", "SOURCE_BIAS_ROW"),
  *("SOURCE_BIAS_HEAD", "SOURCE_BIAS_TOKEN", "INNER", "SLICE", "GATES"),
  *("ACTIVATION_0", "ACTIVATION_1", "NEXT_0", "NEXT_1", "NEXT_2", "NEXT_3"),
  *("NEXT_4", "NEXT_5", "NEXT_6", "NEXT_7", "PACKETS", "SHARED"),
)
NUM_NEXT = 8  # arrays of later launches
# XLA's name of a call of PTX; it is internal, and a test compiles it.
TARGET = "__gpu$xla.gpu.ptx"
_TILES = (1, 2, 4)
_LANES = 32  # of a warp
Kind = Literal["attend_self", "attend_source", "gated", "attend_both", "layer"]


class AttentionArrays(NamedTuple):
  """The arrays of `layer_launches.AttentionLaunch`, in their order."""

  x: jax.Array
  parts: jax.Array | None
  norm: jax.Array
  kernels: tuple[jax.Array, ...]
  bias: jax.Array
  keys: jax.Array
  values: jax.Array


class MlpArrays(NamedTuple):
  """The arrays of `layer_launches.MlpLaunch`, in their order."""

  x: jax.Array
  parts: jax.Array | None
  norm: jax.Array
  kernels: tuple[jax.Array, ...]


class LayerArrays(NamedTuple):
  """The arrays of `layer_launches.LayerLaunch`, in their order."""

  x: jax.Array
  parts: jax.Array | None
  norms: tuple[jax.Array, ...]
  of_self: tuple[jax.Array, ...]
  of_source: tuple[jax.Array, ...]
  of_mlp: tuple[jax.Array, ...]
  biases: tuple[jax.Array, ...]
  cache: tuple[jax.Array, ...]
  source: tuple[jax.Array, ...]

  def split(self) -> tuple[AttentionArrays, AttentionArrays, MlpArrays | None]:
    """Returns the arrays of the three launches, each with the first's x.

    Without the MLP's kernels there are two.
    """
    start = self.x, self.parts
    return (
      AttentionArrays(
        *start, self.norms[0], self.of_self, self.biases[0], *self.cache
      ),
      AttentionArrays(
        *start, self.norms[1], self.of_source, self.biases[1], *self.source
      ),
      MlpArrays(*start, self.norms[2], self.of_mlp) if self.of_mlp else None,
    )


@dataclasses.dataclass(frozen=True)
class Launch:
  """One launch of a kernel for one shape; equal ones are compiled once.

  Attributes:
    kind: the kernel.
    tiles: of 8 tokens.
    sizes: every size that the source names, with its number.
    clusters: of 8 blocks.
    results: shape and dtype of each.
    aliases: a result's number and the operand whose place it takes.
  """

  kind: Kind
  tiles: int
  sizes: tuple[tuple[str, int], ...]
  clusters: int
  results: tuple[tuple[tuple[int, ...], np.dtype], ...]
  aliases: tuple[tuple[int, int], ...] = ()

  @property
  def entry(self) -> str:
    """The name of the kernel in what is compiled."""
    return f"{self.kind}_{self.tiles}"

  @property
  def shared_bytes(self) -> int:
    """Bytes of shared memory that a block asks for."""
    return dict(self.sizes)["SHARED"]


def text(name: str) -> str:
  """Returns the text of a source."""
  return (FOLDER / name).read_text(encoding="utf-8")


def num_tiles(num_tokens: int) -> int:
  """Returns how many tiles of 8 tokens the kernels for a block have."""
  return next(each for each in _TILES if num_tokens <= 8 * each)


def pitch(num_bytes: int) -> int:
  """Returns `pitch` of the source."""
  return (num_bytes // 16 | 1) * 16


def shared_bytes(emb: int, padded: int, *sizes: int) -> int:
  """Returns the bytes of `Rows` in the source, and of other arrays.

  Args:
    emb: E.
    padded: tokens of all tiles.
    *sizes: bytes of each other array.
  """
  inputs = emb // CLUSTER
  pieces = -(-inputs // _LANES)
  of_rows = (padded * pitch(inputs * 2), padded * pieces * 4, padded * 4)
  return sum(-(-size // 16) * 16 for size in (*of_rows, *sizes))


def reason_against(x: jax.Array, *arrays: jax.Array) -> str | None:
  """Returns why no kernel takes a block, or None where all may.

  Args:
    x: [B, N, E].
    *arrays: all others that have to be of the same dtype.
  """
  rows, fed, emb = x.shape
  # (Weights that are packed may have no dtype.)
  dtypes = {str(getattr(each, "dtype", "packed")) for each in (x, *arrays)}
  if others := dtypes - {"bfloat16"}:
    return f"numbers are {min(others)} and not bfloat16"
  if rows * fed > MOST_TOKENS:
    return f"a block of {rows * fed} tokens is over {MOST_TOKENS}"
  if emb % (16 * CLUSTER) or emb // CLUSTER > MOST_OUTPUTS:
    return f"the model width {emb} is not a multiple of 128 up to 4096"
  return None


def make(
  kind: Kind,
  x: jax.Array,
  parts: jax.Array | None,
  clusters: int,
  written: Sequence[jax.Array],
  first_written: int,
  upcoming: Sequence[jax.Array],
  more: Sequence[jax.Array],
  **sizes: int,
) -> Launch:
  """Returns a launch.

  Args:
    kind: the kernel.
    x: [B, N, E].
    parts: [P, M, E], or None.
    clusters: of 8 blocks; each writes a part.
    written: operands whose place results take.
    first_written: number of the first of them.
    upcoming: what later launches read.
    more: arrays like results that are between the parts and what is written.
    **sizes: of `SIZES`.
  """
  rows, fed, emb = x.shape
  given = dict.fromkeys(SIZES, 0)
  given |= {"ROWS": rows, "FED": fed, "EMB": emb, **sizes}
  given["PARTS"] = 0 if parts is None else parts.shape[0]
  for number, each in enumerate(upcoming):
    given[f"NEXT_{number}"] = each.size * each.dtype.itemsize
  results = [
    (x.shape, np.dtype(x.dtype)),
    ((clusters, rows * fed, emb), np.dtype(np.float32)),
    *((each.shape, np.dtype(each.dtype)) for each in (*more, *written)),
  ]
  first = len(results) - len(written)
  aliases = [(first + i, first_written + i) for i in range(len(written))]
  return Launch(
    kind,
    num_tiles(rows * fed),
    tuple(given.items()),
    clusters,
    tuple(results),
    tuple(aliases),
  )


def operands(
  x: jax.Array,
  parts: jax.Array | None,
  given: Sequence[jax.Array],
  upcoming: Sequence[jax.Array],
) -> list[jax.Array]:
  """Returns the operands; x stands where there is nothing to read."""
  spare = [x] * (NUM_NEXT - len(upcoming))
  return [x, x if parts is None else parts, *given, *upcoming, *spare]


def call(
  launch: Launch, arrays: Sequence[jax.Array], emulate: bool
) -> list[jax.Array]:
  """Returns the results of a launch.

  Args:
    launch: the kernel and its sizes.
    arrays: the operands.
    emulate: compute on a CPU, thread by thread; see `emulated`.
  """
  shapes = [jax.ShapeDtypeStruct(*each) for each in launch.results]
  with jax.named_scope(launch.kind):
    if emulate:
      run = functools.partial(_emulate, launch)
      return list(jax.pure_callback(run, tuple(shapes), *arrays))
    return _on_gpu(launch, shapes, arrays)


def _emulate(launch: Launch, *arrays: jax.Array) -> tuple[np.ndarray, ...]:
  from speccascade.native.gpu import emulated

  return emulated.run(launch, tuple(np.asarray(each) for each in arrays))


def _on_gpu(
  launch: Launch,
  shapes: list[jax.ShapeDtypeStruct],
  arrays: Sequence[jax.Array],
) -> list[jax.Array]:
  from speccascade.native.gpu import nvrtc

  kernel = jax.ffi.ffi_call(
    TARGET,
    shapes,
    input_output_aliases={given: result for result, given in launch.aliases},
  )
  results = kernel(
    *arrays,
    name=launch.entry,
    kernel_type="ptx",
    kernel_data=nvrtc.ptx(launch),
    grid_x=np.int32(launch.clusters * CLUSTER),
    grid_y=np.int32(1),
    grid_z=np.int32(1),
    block_x=np.int32(THREADS),
    block_y=np.int32(1),
    block_z=np.int32(1),
    shared_mem_bytes=np.int32(launch.shared_bytes),
  )
  return list(results)


def total(x: jax.Array, parts: jax.Array | None) -> jax.Array:
  """Returns the residual [B, N, E] with its parts [P, M, E]."""
  if parts is None:
    return x
  sums = parts.sum(axis=0).reshape(x.shape)
  return (x.astype(jnp.float32) + sums).astype(x.dtype)
