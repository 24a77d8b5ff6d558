"""Compiled training steps, one program for each shape of batch."""

from collections.abc import Mapping
import concurrent.futures
import functools
import os
import threading

import jax
import numpy as np

from speccascade.models.sharding.partitioning import Layout
from speccascade.training import optimizers, states, training_step


def shape_key(
  batch: Mapping[str, np.ndarray], teacher: states.Teacher | None = None
) -> tuple:
  """Returns a hashable key; batches of one key share a compiled program.

  Args:
    batch: the arrays of a batch, by name.
    teacher: the teacher that the step takes, or None.
  """
  arrays = tuple(
    (name, np.shape(leaf), np.result_type(leaf).name)
    for name, leaf in sorted(batch.items())
  )
  return arrays, jax.tree.structure(teacher)


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
  # Each compilation takes a core, and memory of its own.
  workers = min(4, os.cpu_count() or 1)
  return concurrent.futures.ThreadPoolExecutor(workers, "compile")


class Programs:
  """A training step whose programs are compiled ahead, several at once.

  XLA compiles outside Python's lock, so two cores compile two shapes at once,
  and the shapes that are ready already train while others still compile. Use
  `programs`, which returns the same object for equal arguments.
  """

  def __init__(
    self,
    module: states.Network,
    optimizer: optimizers.Optimizer,
    objective: states.Objective,
    layout: Layout | None = None,
  ):
    """Prepares a step; nothing is compiled yet.

    Args:
      module: the network.
      optimizer: an optimizer from `optimizers`.
      objective: what is minimised.
      layout: where the parameters lie; None on one device.
    """
    self._step = training_step.make_step(module, optimizer, objective, layout)
    self._layout = layout
    self._futures: dict[tuple, concurrent.futures.Future] = {}
    self._lock = threading.Lock()

  def __len__(self) -> int:
    """Returns how many programs were asked for."""
    return len(self._futures)

  @property
  def num_ready(self) -> int:
    """How many of the programs are compiled."""
    with self._lock:
      return sum(future.done() for future in self._futures.values())

  def prepare(
    self,
    state: states.TrainState,
    batch: Mapping[str, np.ndarray],
    teacher: states.Teacher | None = None,
  ) -> concurrent.futures.Future:
    """Starts compiling a batch's program, and returns the program's future.

    A program that is compiled, or is being compiled, is not compiled again.

    Args:
      state: the training state; only its shapes and places are read.
      batch: the batch; only its shapes and dtypes are read.
      teacher: the teacher that the step takes, or None.
    """
    key = shape_key(batch, teacher)
    with self._lock:
      future = self._futures.get(key)
      # A compilation that failed is tried again: it may have failed for want of
      # memory, and these objects outlive the run (see `programs`).
      if future is not None and not (future.done() and future.exception()):
        return future
      # The shapes are taken here, in the caller's thread: the compiling thread
      # must not read the state, which the next step writes over.
      shapes = self._shapes(state, dict(batch), teacher)
      self._futures[key] = _pool().submit(self._compile, shapes)
      return self._futures[key]

  def __call__(
    self,
    state: states.TrainState,
    batch: Mapping[str, np.ndarray],
    teacher: states.Teacher | None = None,
  ) -> states.TrainState:
    """Returns the state after a step; writes over the state that it takes.

    The call waits for the program to be compiled, but not for the device.
    """
    program = self.prepare(state, batch, teacher).result()
    if self._layout is not None:
      batch = self._layout.rows(dict(batch))
    return program(state, batch, teacher)

  def _compile(self, shapes: tuple) -> jax.stages.Compiled:
    return self._step.lower(*shapes).compile()

  def _shapes(self, state, batch, teacher) -> tuple:
    """Returns a step's arguments as ShapeDtypeStructs.

    On a mesh the structs say where the arrays lie. A batch is still on the
    host, so its structs say where `__call__` will put its rows.
    """
    layout = self._layout
    if layout is None:
      return jax.eval_shape(lambda *args: args, state, batch, teacher)

    def placed_shape(leaf):
      return jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=leaf.sharding
      )

    def cut_shape(leaf):
      sharding = layout.rows_sharding(leaf.shape[0])
      return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return (
      jax.tree.map(placed_shape, state),
      jax.tree.map(cut_shape, batch),
      jax.tree.map(placed_shape, teacher),
    )


# Returns the `Programs` of a network, optimizer, objective and layout. Equal
# arguments share one object, so a second `fit` in a process compiles nothing
# again. Old entries are dropped, because programs hold memory.
programs = functools.lru_cache(maxsize=8)(Programs)
