"""The compiled training step, from one state to the next."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from speccascade.models.parameters import shardings
from speccascade.models.sharding.partitioning import Layout, state_shardings
from speccascade.training import losses, optimizers, states
from speccascade.training.kinds import kind_of
from speccascade.training.lesson import Reading, disagreement

Array = jax.Array


def make_step(
  module: states.Network,
  optimizer: optimizers.Optimizer,
  objective: states.Objective,
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
    """Takes a step, and places the next state where the state lies.

    Without the constraint XLA may choose another place for a leaf, and the
    program, which is compiled for the state's places, would not take it back.
    """
    places = shardings(module.config, layout)
    places = state_shardings(state, state.params, places)
    return jax.lax.with_sharding_constraint(step(state, *args), places)

  return jax.jit(step if layout is None else step_on_mesh, donate_argnums=0)


def _make_gradients(
  module: states.Network, objective: states.Objective, layout: Layout | None
) -> Callable[..., tuple[Any, states.Sums]]:
  """Returns the gradient of a batch's summed loss, computed part by part.

  It is a function of (params, step, rng, teacher, rows). `rows` is a dict
  of what has one entry for each row of the batch: the "batch" itself, the
  target tokens' "weights" [B, T], and the rows' "numbers" [B].
  """
  count, kind = objective.microbatches, kind_of(module.config)

  def summed_loss(params, step, rng, teacher, rows):
    if count > 1 and rng is not None:
      # Each part draws for itself. Part i of n holds the rows i, i + n,
      # i + 2 n, ..., so the number of its first row tells the parts apart.
      rng = jax.random.fold_in(rng, rows["numbers"][0])
    reading = Reading(
      module,
      params,
      rows["batch"],
      rows["weights"],
      step,
      objective,
      rng,
      teacher,
      layout,
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
        f"a batch of {num_rows} rows cannot be cut into {count} microbatches; "
        "choose a number that divides it"
      )
    # optax takes every count-th row for a part. On a mesh each device then
    # finds rows of every part among its own, and no row moves.
    by_part = optax.microbatch(gradient, 4, num_rows // count)
    return by_part(params, step, rng, teacher, rows)

  return summed_gradient
