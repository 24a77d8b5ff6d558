"""Optimizers and schedules, against T5X's updates."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from speccascade.checkpoints import load
from speccascade.checkpoints.architecture import flatten, unflatten
from speccascade.models.t5.network import Transformer
from speccascade.training import (
  checkpointing,
  optimizers,
  states,
  training_step,
)
from tests.training.conftest import same


@pytest.fixture(scope="module")
def golden_updates(golden):
  with np.load(golden / "golden_optimizer.npz") as arrays:
    return dict(arrays)


@pytest.fixture(scope="module")
def golden_checkpoint(golden):
  return load(golden / "t5x_native" / "checkpoint_3000", optimizer=True)


def part(arrays, prefix):
  """Returns the arrays under a prefix, without it."""
  return {
    name.removeprefix(prefix): value
    for name, value in arrays.items()
    if name.startswith(prefix)
  }


def test_one_step_from_a_t5x_checkpoint_equals_that_of_t5x(
  golden, golden_config, golden_batch, golden_arrays, golden_updates
):
  """The whole way: parameters, accumulators and step read, loss, gradient."""
  config = dataclasses.replace(golden_config, dropout_rate=0.0)
  adafactor = optimizers.adafactor(1e-3, min_dim_size_to_factor=16)
  start, *_ = checkpointing.Checkpoints("unused", config).start(
    adafactor, initial_checkpoint_path=golden / "t5x_native"
  )
  run = training_step.make_step(
    Transformer(config), adafactor, states.Objective()
  )
  after = run(start, golden_batch)
  assert after.step == golden_updates["adafactor16_resumed/step"]
  for name, leaf in flatten(after.params).items():
    want = golden_updates[f"adafactor16_resumed/param/{name}"]
    np.testing.assert_allclose(leaf, want, atol=1e-5, err_msg=name)
  want = golden_updates["grad_global_norm"]
  np.testing.assert_allclose(after.totals.grad_norm, want, rtol=1e-5)
  np.testing.assert_allclose(
    [after.totals.loss, after.totals.z_loss, after.totals.weight],
    golden_arrays["loss/weighted"],
    rtol=1e-6,
  )


@pytest.mark.parametrize(
  ("key", "size", "step"),
  [
    ("adafactor128_fresh", 128, 0),
    ("adafactor16_fresh", 16, 0),
    ("adafactor16_resumed", 16, 3000),
  ],
)
def test_adafactor_equals_that_of_t5x(
  golden_updates, golden_checkpoint, key, size, step
):
  gradients = unflatten(part(golden_updates, "grad/"))
  params = golden_checkpoint.params
  adafactor = optimizers.adafactor(1e-3, min_dim_size_to_factor=size)
  opt_state = optimizers.start_at(
    adafactor.transform.init(params),
    step,
    golden_checkpoint.optimizer if step else None,
  )
  updates, opt_state = jax.jit(adafactor.transform.update)(
    gradients, opt_state, params
  )
  for name, leaf in flatten(optax.apply_updates(params, updates)).items():
    want = golden_updates[f"{key}/param/{name}"]
    np.testing.assert_allclose(leaf, want, atol=1e-5, err_msg=name)
    # The step is about 1e-3 of the parameters: also hold the update itself.
    moved = np.asarray(leaf) - flatten(params)[name]
    wanted = want - flatten(params)[name]
    np.testing.assert_allclose(moved, wanted, atol=1e-6, err_msg=name)
  slots = flatten(optimizers.slots_of(opt_state))
  wanted = part(golden_updates, f"{key}/slot/")
  assert len(wanted) >= len(flatten(params))
  for name, want in wanted.items():
    np.testing.assert_allclose(slots[name], want, rtol=1e-5, err_msg=name)
  counts = [
    count for _, count in optax.tree.get_all_with_path(opt_state, "count")
  ]
  assert counts
  assert all(count == golden_updates[f"{key}/step"] for count in counts)


def test_accumulators_go_there_and_back(golden_checkpoint):
  slots = golden_checkpoint.optimizer
  adafactor = optimizers.adafactor(min_dim_size_to_factor=16)
  opt_state = adafactor.transform.init(golden_checkpoint.params)
  opt_state = optimizers.start_at(opt_state, 3000, slots)
  same(optimizers.slots_of(opt_state), slots)


@pytest.mark.parametrize(
  ("optimizer", "message"),
  [
    (
      optimizers.adafactor(min_dim_size_to_factor=128),
      r"v_row has shape \(32,\).*\(1,\)",
    ),
    (optimizers.adamw(), "restore_optimizer=False"),
  ],
)
def test_accumulators_that_do_not_fit_are_refused(
  golden_checkpoint, optimizer, message
):
  opt_state = optimizer.transform.init(golden_checkpoint.params)
  with pytest.raises(ValueError, match=message):
    optimizers.start_at(opt_state, 3000, golden_checkpoint.optimizer)


def test_the_schedule_continues_from_the_checkpoint_without_accumulators():
  """Second moments begin at zero, the rate does not."""
  params = {"a": jnp.ones((3,))}
  schedule = optimizers.linear(peak=1.0, total_steps=110, first_step=100)
  adafactor = optimizers.adafactor(schedule)
  opt_state = adafactor.transform.init(params)
  opt_state = optimizers.start_at(opt_state, 105)
  updates, _ = adafactor.transform.update(
    {"a": jnp.full((3,), 7.0)}, opt_state, params
  )
  # A first Adafactor step is the sign of the gradient: its second moment is
  # the square, whole. Times rate 0.5 and the parameters' size, 1.
  np.testing.assert_allclose(updates["a"], -0.5, rtol=1e-6)


def test_gradient_clipping_bounds_the_global_norm():
  params = {"a": jnp.zeros((4,)), "b": jnp.zeros((2, 2))}
  grads = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 10.0), params)
  clipped = optimizers._with_clipping(1.0, 1.0, lambda _: optax.identity())
  clipped = clipped.transform
  updates, _ = clipped.update(grads, clipped.init(params), params)
  # 8 entries of 10 have norm 10 * sqrt(8).
  np.testing.assert_allclose(updates["a"], 8**-0.5, rtol=1e-6)


def test_adamw_takes_the_first_step_of_its_definition():
  """With bias correction the first step is rate * sign, plus the decay."""
  params = {"a": jnp.array([2.0, -1.0])}
  adamw = optimizers.adamw(0.1, weight_decay=0.5, max_grad_norm=None)
  updates, _ = adamw.transform.update(
    {"a": jnp.array([3.0, -4.0])}, adamw.transform.init(params), params
  )
  want = -0.1 * (np.array([1.0, -1.0]) + 0.5 * np.array([2.0, -1.0]))
  np.testing.assert_allclose(updates["a"], want, rtol=1e-5)


def test_schedules_by_hand():
  rate = optimizers.linear(
    peak=1.0,
    total_steps=1120,
    warmup_steps=20,
    final_fraction=0.1,
    first_step=1000,
  )
  assert rate(1000) == pytest.approx(1 / 20)
  assert rate(1019) == pytest.approx(1.0)
  assert rate(1020) == pytest.approx(1.0)
  assert rate(1070) == pytest.approx(0.55)  # half way between 1 and 0.1
  assert rate(1120) == pytest.approx(0.1)
  assert rate(5000) == pytest.approx(0.1)
  rate = optimizers.rsqrt(base=2.0, warmup_steps=100)
  assert rate(3) == pytest.approx(0.2)
  assert rate(400) == pytest.approx(0.1)
  assert optimizers.constant(0.5)(17) == 0.5


def test_the_warm_up_takes_a_part_of_the_run():
  """A long run has 300 steps of warm-up, a short run a quarter of its steps."""
  for steps, warmup_steps in ((1200, 300), (5000, 300), (300, 75), (3, 0)):
    run = {"peak": 1.0, "total_steps": steps + 9, "first_step": 9}
    cut = optimizers.linear(**run, warmup_steps=300, warmup_fraction=0.25)
    whole = optimizers.linear(**run, warmup_steps=warmup_steps)
    for step in (9, 9 + steps // 8, 9 + steps // 2, 9 + steps):
      assert cut(step) == whole(step)
  with pytest.raises(ValueError, match=r"warmup_fraction is 1\.5"):
    optimizers.linear(**run, warmup_fraction=1.5)
