"""Trains the pair in two minutes: one shape of batch, some steps a call."""

import dataclasses
import io
import json
import pathlib
from typing import Any

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.gpu_battery import models
from benchmarks.gpu_battery.ahead import Ahead
from benchmarks.gpu_battery.records import Clock
from benchmarks.gpu_battery.sizes import Training
from benchmarks.gpu_battery.texts import Texts
from speccascade.models import T5LM, T5Config, parameters
from speccascade.runtime import files
from speccascade.training import optimizers

# The chunks whose seconds say how many steps there is time for: the first one
# loads the program.
TIMED_CHUNKS = (1, 2)


@dataclasses.dataclass(frozen=True)
class Trainer:
  """The training of one model.

  Attributes:
    role: the name of its programs.
    config: the architecture.
    dropout: share of activations that are dropped.
    how: the settings of both models.
  """

  role: str
  config: T5Config
  dropout: float
  how: Training

  def _module(self):
    changes = {"dtype": models.DTYPE, "dropout_rate": self.dropout}
    return parameters.network(dataclasses.replace(self.config, **changes))

  def _transform(self) -> optax.GradientTransformation:
    # Adafactor's updates are proportional to the rate, which is multiplied in
    # `_step`, since its schedule depends on how many steps there is time for.
    return optimizers.adafactor(1.0).transform

  def initial(self, seed) -> tuple:
    """Returns (parameters, state of the optimizer, step 0)."""
    params = self._module().initial(jax.random.key(seed, impl="rbg"))
    return params, self._transform().init(params), jnp.zeros((), jnp.int32)

  def run(self, state: tuple, total, inputs, targets, rows) -> tuple:
    """Takes some steps, while it is traced.

    Args:
      state: as `initial` returns it.
      total: float32 [], the step at which the rate is 0.
      inputs: [N, L] int32, all training sentences.
      targets: [N, L] int32, their translations.
      rows: [K, B] int32, the sentences of each step.

    Returns:
      The next state, and the mean loss of the steps in nats a token.
    """
    module, transform = self._module(), self._transform()

    def loss_of(params, source, target, key):
      before = jnp.pad(target, ((0, 0), (1, 0)))[:, :-1]
      logits = module.apply(
        {"params": params}, source, before, target, rngs={"dropout": key}
      )
      losses = optax.softmax_cross_entropy_with_integer_labels(logits, target)
      weights = (target > 0).astype(jnp.float32)
      return jnp.sum(losses * weights) / jnp.sum(weights)

    def step(state, picked):
      params, optimizer, number = state
      key = jax.random.fold_in(jax.random.key(0, impl="rbg"), number)
      source, target = inputs[picked], targets[picked]
      loss, grads = jax.value_and_grad(loss_of)(params, source, target, key)
      updates, optimizer = transform.update(grads, optimizer, params)
      rate = self._rate(number, total)
      updates = jax.tree.map(lambda update: update * rate, updates)
      params = optax.apply_updates(params, updates)
      return (params, optimizer, number + 1), loss

    state, losses = jax.lax.scan(step, state, rows)
    return state, jnp.mean(losses)

  def _rate(self, number, total) -> jax.Array:
    """Returns the learning rate of a step: linear up, and linear down to 0."""
    number = number.astype(jnp.float32)
    up = (number + 1) / self.how.warmup
    down = (total - number) / jnp.maximum(total - self.how.warmup, 1)
    return self.how.rate * jnp.clip(jnp.minimum(up, down), 0, 1)

  @property
  def programs(self) -> tuple[str, str]:
    """The names of the programs: the first state, and some steps."""
    return f"{self.role}, initial", f"{self.role}, {self.how.chunk} steps"

  def add(self, ahead: Ahead, num_pairs: int):
    """Adds the programs of the training."""
    how, seed = self.how, np.uint32(0)
    ahead.add(self.programs[0], self.initial, seed)
    table = jax.ShapeDtypeStruct((num_pairs, how.length), jnp.int32)
    rows = jax.ShapeDtypeStruct((how.chunk, how.rows), jnp.int32)
    total = jax.ShapeDtypeStruct((), jnp.float32)
    state = jax.eval_shape(self.initial, seed)
    arguments = state, total, table, table, rows
    ahead.add(self.programs[1], self.run, *arguments, donate=(0,))


def train(
  trainers: list[Trainer], texts: Texts, ahead: Ahead, clock: Clock
) -> tuple[list[T5LM], list[dict[str, Any]]]:
  """Trains the models side by side, on the same batches.

  Returns:
    The models in the dtypes in which they decode, and a row about each.
  """
  how = trainers[0].how
  tables = [
    jnp.asarray(side, jnp.int32)
    for side in (texts.train_inputs, texts.train_targets)
  ]
  # Both are waited for before the first one runs.
  starts, programs = zip(
    *(
      [ahead.get(name, max(0.0, clock.left)) for name in each.programs]
      for each in trainers
    )
  )
  states = [start(np.uint32(0)) for start in starts]
  rng, num_pairs = np.random.default_rng(0), len(texts.train_inputs)
  order = np.zeros((0,), np.int32)
  total, done, began, seconds = how.steps, 0, clock.elapsed, []
  losses = [0.0] * len(trainers)
  while done < total:
    size = how.chunk * how.rows
    while len(order) < size:
      order = np.concatenate([order, rng.permutation(num_pairs)])
    rows = order[:size].reshape(how.chunk, how.rows).astype(np.int32)
    order, chunk_began = order[size:], clock.elapsed
    for i, program in enumerate(programs):
      states[i], loss = program(states[i], np.float32(total), *tables, rows)
      losses[i] = loss
    losses = [float(loss) for loss in losses]  # waits for both
    seconds.append(clock.elapsed - chunk_began)
    done += how.chunk
    if len(seconds) == TIMED_CHUNKS[-1] + 1:
      each = max(seconds[i] for i in TIMED_CHUNKS)
      chunks = int(how.seconds / each)
      total = max(min(how.steps, chunks * how.chunk), done)
    if done % (10 * how.chunk) == 0 or done >= total:
      shown = ", ".join(f"{x:.2f}" for x in losses)
      clock.say(f"step {done} of {total}, losses {shown}")
    if not np.all(np.isfinite(losses)):
      raise FloatingPointError(f"a loss is not finite at step {done}")
  rows_ = [
    {
      "model": each.role,
      "parameters": parameters.num_parameters(each.config),
      "pairs": num_pairs,
      "steps": done,
      "last_loss": loss,
      "s_of_both": clock.elapsed - began,
    }
    for each, loss in zip(trainers, losses)
  ]
  lms = [
    models.of_params(each.config, state[0])
    for each, state in zip(trainers, states)
  ]
  return lms, rows_


def save(path: pathlib.Path, trainers: list[Trainer], lms, rows: list[dict]):
  """Writes the trained models in the dtypes in which they decode, bfloat16."""
  arrays = {"rows": np.asarray(json.dumps(rows))}
  for each, lm in zip(trainers, lms):
    flat = traverse_util.flatten_dict(jax.device_get(lm.params), sep="/")
    # NumPy's files have no bfloat16.
    arrays |= {
      f"{each.role}/{name}": leaf.view(np.uint8) for name, leaf in flat.items()
    }
  content = io.BytesIO()
  np.savez(content, **arrays)
  files.write_whole(path, content.getvalue())


def load(
  path: pathlib.Path, trainers: list[Trainer]
) -> tuple[list[T5LM], list[dict[str, Any]]]:
  """Returns what `train` returned for models that `save` wrote.

  Raises:
    ValueError: the models have other sizes.
  """
  lms = []
  with np.load(path) as arrays:
    rows = json.loads(str(arrays["rows"]))
    for each in trainers:
      lm = models.described(each.config)
      leaves = {}
      for name, leaf in traverse_util.flatten_dict(lm.params, sep="/").items():
        stored = arrays[f"{each.role}/{name}"].view(leaf.dtype)
        if stored.shape != leaf.shape:
          raise ValueError(
            f"{path} has {name} of {stored.shape}, wanted {leaf.shape}: name"
            " another file, or the texts that its pair was trained on"
          )
        leaves[name] = jnp.asarray(stored)
      params = traverse_util.unflatten_dict(leaves, sep="/")
      lms.append(lm.replace(params=params))
  return lms, rows
