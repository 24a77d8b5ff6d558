"""A path of a tree kept in all caches, as one kernel for a GPU, in Pallas.

XLA launches a kernel for each array, two a layer. Here one program moves a part
of the width of one head in one row, through all arrays. It reads some arrays,
and then writes them, so that their reads are in flight together. A slot may be
read for one node and written for another, so a program is one warp: none of its
threads writes before all have read.

Axes: B rows, K heads, D head width, L slots, G nodes of a path.
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from speccascade.native.gpu.kept_path import Caches


@dataclasses.dataclass(frozen=True)
class Configuration:
  """How a program moves slots.

  Attributes:
    arrays: that are read before the first of them is written.
    width: of a head, that one program moves.
  """

  arrays: int = 48
  width: int = 16


def configuration(*arrays: Any, **options: Any) -> Configuration:
  """Returns the configuration of every size."""
  del arrays, options
  return Configuration()


def _kernel(
  slots_ref: Any, first_ref: Any, *refs: Any, at_once: int, width: int
) -> None:
  """Moves a part of the slots of one head in one row."""
  num = len(refs) // 2
  row, head, part = (pl.program_id(axis) for axis in range(3))
  num_moved = slots_ref.shape[1]
  d = (part * width + jnp.arange(width))[:, None]
  number = jnp.arange(pl.next_power_of_2(num_moved))
  is_moved = number < num_moved
  mask = (d < refs[0].shape[2]) & is_moved[None, :]
  old = triton.load(slots_ref.at[row, number], mask=is_moved, other=0)[None, :]
  new = first_ref[row] + number[None, :]

  def place(i: int, slot: jax.Array) -> tuple[Any, ...]:
    # Keys and values take turns.
    return (row, head, *((slot, d) if i % 2 else (d, slot)))

  for begin in range(0, num, at_once):
    numbers = range(begin, min(begin + at_once, num))
    moved = [
      triton.load(refs[i].at[place(i, old)], mask=mask, other=0.0)
      for i in numbers
    ]
    for i, values in zip(numbers, moved):
      triton.store(refs[num + i].at[place(i, new)], values, mask=mask)


@functools.partial(jax.jit, static_argnames=("configuration", "interpret"))
def run(
  caches: Sequence[tuple[jax.Array, jax.Array]],
  slots: jax.Array,
  first: jax.Array,
  *,
  configuration: Configuration,
  interpret: bool,
) -> Caches:
  """Returns what `KeptPath.reference` does."""
  arrays = [array for pair in caches for array in pair]
  parts = pl.cdiv(arrays[0].shape[2], configuration.width)
  results = pl.pallas_call(
    functools.partial(
      _kernel, at_once=configuration.arrays, width=configuration.width
    ),
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays],
    grid=(*arrays[0].shape[:2], parts),
    input_output_aliases={2 + i: i for i in range(len(arrays))},
    interpret=interpret,
    compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
    name="kept_path",
  )(slots, first, *arrays)
  return tuple(zip(results[::2], results[1::2]))
