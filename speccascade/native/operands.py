"""The operands and results of a native pass, each checked as it is added."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native.operations import call
from speccascade.native.panels import Panels, Shared, packed_shape
from speccascade.native.sublayers import (
  CachedAttention,
  RotaryAttention,
  Sublayer,
)


class PassOperands:
  """What a call reads and returns.

  Attributes:
    arrays: the operands in order, without the arrays of kernels, which come
      after them.
    results: the results in order.
    aliases: by the number of an operand, the number of the result that takes
      its place in memory.
    shared: the arrays of kernels.
    columns: number of outputs of each kernel.
    num_weights: weights of all kernels together.
    rounds: whether rows are rounded before each kernel.
    num_slots: slots of the smallest cache; 0 before a cache is added.
    like: `Panels` of the kind that the kernels of sublayers must have.
  """

  def __init__(self, like: Panels):
    self.arrays: list[jax.Array] = []
    self.results: list[jax.ShapeDtypeStruct] = []
    self.aliases: dict[int, int] = {}
    self.shared = Shared()
    self.columns: list[int] = []
    self.rounds: list[bool] = []
    self.num_weights = 0
    self.num_slots = 0
    self.like = like

  def add(
    self,
    array: jax.Array | Panels,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike = jnp.float32,
    like: Panels | None = None,
  ) -> None:
    """Adds an array, or the panels of a kernel [in, out], of this shape.

    Args:
      array: the array, or the panels.
      shape: the shape wanted.
      dtype: of an array.
      like: `Panels` of the kind that a kernel must have, `self.like` for None.

    Raises:
      ValueError: the operand has another shape or dtype.
    """
    if isinstance(array, Panels):
      self._add_kernel(array, shape, like or self.like)
      return
    if (array.shape, array.dtype) != (shape, dtype):
      raise ValueError(
        f"operand {len(self.arrays)} of a native pass is {array.dtype}"
        f"{array.shape}, wanted {jnp.dtype(dtype)}{shape}"
      )
    self.arrays.append(array)

  def _add_kernel(
    self, kernel: Panels, shape: tuple[int, ...], like: Panels
  ) -> None:
    num_in, num_out = shape
    if not kernel.fits((num_in, num_out), like):
      raise ValueError(
        f"kernel {len(self.columns)} of a native pass is {kernel}, wanted a"
        f" kernel {shape}, like {like}"
      )
    self.columns.append(num_out)
    self.rounds.append(kernel.rounds)
    packed = packed_shape((num_in, num_out), kernel.array.dtype)
    self.num_weights += math.prod(packed)
    self.shared.add(kernel)

  def add_table(
    self, table: jax.Array | Panels, width: int
  ) -> dict[str, np.int64]:
    """Adds the vectors of tokens.

    Args:
      table: [V, E] float32, or `Panels` [E, V], whose columns are the vectors.
      width: E.

    Returns:
      The attributes of the table: V, and its first panel where it is packed.

    Raises:
      ValueError: the table has another shape or dtype.
    """
    if not isinstance(table, Panels):
      self.add(table, (table.shape[0], width))
      return {"vocab": np.int64(table.shape[0]), "panel": np.int64(0)}
    # The table is checked as a kernel of any kind, and added as an array: no
    # sublayer multiplies by it.
    PassOperands(table).add(table, (width, table.num_out))
    self.arrays.append(table.array)
    return {"vocab": np.int64(table.num_out), "panel": np.int64(table.first)}

  def add_result(
    self, shape: tuple[int, ...], dtype: jax.typing.DTypeLike = jnp.float32
  ) -> None:
    """Adds a result of this shape."""
    self.results.append(jax.ShapeDtypeStruct(shape, dtype))

  def add_sublayer(self, sublayer: Sublayer, batch: int, num_fed: int) -> None:
    """Adds all operands of a sublayer, and its caches as results.

    Args:
      sublayer: the sublayer.
      batch: B.
      num_fed: tokens of a row that the operands are for.

    Raises:
      ValueError: an operand has another shape or dtype than the others imply.
    """
    if isinstance(sublayer, CachedAttention | RotaryAttention):
      # Keys and values are the first operands of such a sublayer.
      for i, cache in enumerate((sublayer.keys, sublayer.values)):
        self.aliases[len(self.arrays) + i] = len(self.results)
        self.add_result(cache.shape)
      slots = sublayer.keys.shape[3]
      self.num_slots = min(slots, self.num_slots or slots)
    for operand in sublayer.operands(batch, num_fed):
      self.add(operand.array, operand.shape)

  def call(self, name: str, **attributes: Any) -> list[jax.Array]:
    """Returns the results of a call with these operands.

    Args:
      name: name of the handler.
      **attributes: attributes of the handler; those of the kernels are added.
    """
    return call(
      name,
      self.results,
      *self.arrays,
      *self.shared.arrays,
      aliases=self.aliases,
      num_arrays=np.int64(len(self.shared.arrays)),
      numbers=self.shared.numbers,
      firsts=self.shared.firsts,
      columns=np.asarray(self.columns, np.int32),
      num_weights=np.int64(self.num_weights),
      rounds=np.asarray(self.rounds, np.int32),
      **attributes,
    )
