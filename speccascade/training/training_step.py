"""The training step, from one state to the next, compiled for each shape."""

from collections.abc import Callable, Mapping
import concurrent.futures
import functools
import os
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from speccascade.models.parameters import shardings
from speccascade.models.sharding.partitioning import Layout, state_shardings
from speccascade.training import losses, optimizers, states
from speccascade.training.kinds import kind_of
from speccascade.training.lesson import Reading, disagreement
from speccascade.training.objectives import Objective

Array = jax.Array


def make_step(
  module: states.Network,
  optimizer: optimizers.Optimizer,
  objective: Objective,
  layout: Layout | None = None,
) -> Callable[..., states.TrainState]:
  """Returns the compiled training step, which writes over the state it takes.

  The step takes a state, a batch, and a `Teacher` where the objective's loss
  reads one. It returns the next state without waiting for the device.
  It compiles once for each shape of batch.

  Args:
    module: the network.
    optimizer: an optimizer from `optimizers`.
    objective: what is minimised.
    layout: where the parameters lie; None on one device. The next state lies
      where the state before it lies.
  """
  module = module.clone(remat=objective.remat)
  gradients = _make_gradients(module, objective, layout)
  needs_rng = getattr(module.config, "dropout_rate", 0) > 0
  needs_rng |= kind_of(module.config).draws

  def step(
    state: states.TrainState,
    batch: Mapping,
    teacher: states.Teacher | None = None,
  ) -> states.TrainState:
    # Leave out what earlier drafters know. Weights that a batch lacks are those
    # that `normalize` would give it.
    if teacher is not None and teacher.earlier:
      weights, _ = losses.normalize(batch, None)
      weights *= disagreement(teacher, batch, layout)
      batch = {**batch, "decoder_loss_weights": weights}
    # Differentiate the summed loss.
    weights, divisor = losses.normalize(
      batch, objective.loss_normalizing_factor
    )
    rng = None
    if needs_rng:
      rng = jax.random.key(state.seed, impl="threefry2x32")
      rng = jax.random.fold_in(rng, state.step)
    # What has one entry for each row of the batch is split into parts with it.
    rows = {
      "batch": batch,
      "weights": weights,
      "numbers": jnp.arange(weights.shape[0]),
    }
    grads, sums = gradients(state.params, state.step, rng, teacher, rows)
    # Divide by the weight of the whole batch, not part by part: microbatches
    # then give the whole batch's gradient whatever their weights are.
    if objective.loss_normalizing_factor is not None:
      grads = jax.tree.map(lambda leaf: leaf / divisor, grads)
    grad_norm = optax.tree.norm(grads)
    # Update. An update that is not finite is applied too: `Totals.bad_step`
    # records it, and the loop raises before anything else reads the state.
    updates, opt_state = optimizer.transform.update(
      grads, state.opt_state, state.params
    )
    if objective.tuning is not None:
      updates = objective.tuning.scale(updates, state.step)
    return state.replace(
      step=state.step + 1,
      params=optax.apply_updates(state.params, updates),
      opt_state=opt_state,
      totals=state.totals.add(sums, weights.sum(), grad_norm, state.step),
    )

  def step_on_mesh(state: states.TrainState, *args) -> states.TrainState:
    """Takes a step, and places the next state where the state lies."""
    # Without the constraint XLA may choose another place for a leaf, and the
    # program, which is compiled for the state's places, would not take it back.
    places = shardings(module.config, layout)
    places = state_shardings(state, state.params, places)
    return jax.lax.with_sharding_constraint(step(state, *args), places)

  return jax.jit(step if layout is None else step_on_mesh, donate_argnums=0)


def _make_gradients(
  module: states.Network, objective: Objective, layout: Layout | None
) -> Callable[..., tuple[Any, states.Sums]]:
  """Returns the gradient of a batch's summed loss, computed part by part."""
  count, kind = objective.microbatches, kind_of(module.config)

  def summed_loss(params, step, rng, teacher, rows):
    if count > 1 and rng is not None:
      # Each part draws for itself. Part i of n holds the rows i, i + n,
      # i + 2 n, ..., so the number of its first row identifies the part.
      rng = jax.random.fold_in(rng, rows["numbers"][0])
    reading = Reading(
      module,
      params,
      rows["batch"],
      rows["weights"],
      step=step,
      objective=objective,
      rng=rng,
      teacher=teacher,
      layout=layout,
    )
    sums = kind.summed(reading)
    return sums.loss, sums

  gradient = jax.grad(summed_loss, has_aux=True)
  if count == 1:
    return gradient

  def summed_gradient(params, step, rng, teacher, rows):
    num_rows = rows["weights"].shape[0]
    if num_rows % count:
      raise ValueError(
        f"a batch of {num_rows} rows cannot be split into {count} microbatches;"
        " choose a number that divides it"
      )
    # optax takes every count-th row for a part. On a mesh each device then
    # finds rows of every part among its own, and no row moves.
    by_part = optax.microbatch(gradient, 4, num_rows // count)
    return by_part(params, step, rng, teacher, rows)

  return summed_gradient


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
    objective: Objective,
    layout: Layout | None = None,
  ):
    """Prepares a step; nothing is compiled yet.

    Args:
      module: the network.
      optimizer: an optimizer from `optimizers`.
      objective: what is minimised.
      layout: where the parameters lie; None on one device.
    """
    self._step = make_step(module, optimizer, objective, layout)
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
    """Returns a step's arguments as ShapeDtypeStructs."""
    # On a mesh the structs say where the arrays lie. A batch is still on the
    # host, so its structs say where `__call__` will put its rows.
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
