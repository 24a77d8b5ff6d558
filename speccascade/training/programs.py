"""Compiled training steps, one for each shape of batch."""

from collections.abc import Mapping
import concurrent.futures
import functools
import os
import threading

import jax
import numpy as np

from speccascade.models.sharding.partitioning import Layout
from speccascade.training import optimizers, states


def shapes(
  batch: Mapping[str, np.ndarray], teacher: states.Teacher | None = None
) -> tuple:
  """Returns what tells apart the batches that need programs of their own."""
  named = tuple(
    (name, np.shape(leaf), np.result_type(leaf).name)
    for name, leaf in sorted(batch.items())
  )
  return named, jax.tree.structure(teacher)


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
  workers = min(4, os.cpu_count() or 1)
  return concurrent.futures.ThreadPoolExecutor(workers, "compile")


class Programs:
  """A training step whose shapes are compiled ahead, side by side.

  XLA compiles outside Python's lock, so two cores compile two shapes at once
  while the first ones to be ready already train. See `programs`.
  """

  def __init__(
    self,
    module: states.Network,
    optimizer: optimizers.Optimizer,
    objective: states.Objective,
    layout: Layout | None = None,
  ):
    self._step = states.make_step(module, optimizer, objective, layout)
    self._layout = layout
    self._futures: dict[tuple, concurrent.futures.Future] = {}
    self._lock = threading.Lock()

  def __len__(self) -> int:
    """How many shapes were met."""
    return len(self._futures)

  @property
  def num_ready(self) -> int:
    """How many of them are compiled."""
    with self._lock:
      return sum(future.done() for future in self._futures.values())

  def prepare(
    self,
    state: states.TrainState,
    batch: Mapping[str, np.ndarray],
    teacher: states.Teacher | None = None,
  ) -> concurrent.futures.Future:
    """Returns the program of a batch, to be had when it is compiled."""
    key = shapes(batch, teacher)
    with self._lock:
      future = self._futures.get(key)
      if future is not None and not (future.done() and future.exception()):
        return future
      shaped = self._shaped(state, dict(batch), teacher)
      compiled = lambda: self._step.lower(*shaped).compile()
      self._futures[key] = _pool().submit(compiled)
      return self._futures[key]

  def __call__(
    self,
    state: states.TrainState,
    batch: Mapping[str, np.ndarray],
    teacher: states.Teacher | None = None,
  ) -> states.TrainState:
    """Takes one step; does not wait for the device. Writes over `state`."""
    program = self.prepare(state, batch, teacher).result()
    if self._layout is not None:
      batch = self._layout.rows(dict(batch))
    return program(state, batch, teacher)

  def _shaped(self, state, batch, teacher) -> tuple:
    """Returns the arguments of a step without their numbers."""
    if (layout := self._layout) is None:
      return jax.eval_shape(lambda *args: args, state, batch, teacher)
    shaped = lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    )
    cut = lambda leaf: shaped(leaf, layout.rows_sharding(leaf.shape[0]))
    whole = lambda leaf: shaped(leaf, leaf.sharding)
    return (
      jax.tree.map(whole, state),
      jax.tree.map(cut, batch),
      jax.tree.map(whole, teacher),
    )


# Of a kind of run; equal arguments share them.
programs = functools.lru_cache(maxsize=8)(Programs)
