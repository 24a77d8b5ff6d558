"""The state of a training run, and the compiled step from one to the next.

Axes: B rows, S source length, T target length, V vocabulary. A batch is a dict
of arrays under T5X's names: `encoder_input_tokens` [B, S],
`decoder_input_tokens` [B, T] and `decoder_target_tokens` [B, T] int32, and, as
the case may be, `decoder_loss_weights` [B, T] and the segment ids and positions
of packed rows. Of decoder-only models it has the decoder's alone, texts without
a start token, and the weights say which tokens are learned; `teacher_hidden`
[B, T, E], where it is, is what a `Teacher` need not compute.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Annotated, Any, Literal

from flax import struct
import jax
import jax.numpy as jnp
import optax

from speccascade.models import layers
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.network import CausalTransformer
from speccascade.models.parameters import Config, shardings
from speccascade.models.sharding.partitioning import (
  Layout,
  laid,
  laid_out,
  layout_of,
  like_params,
)
from speccascade.models.t5.network import Transformer
from speccascade.settings import fields
from speccascade.training import losses, optimizers

Array = jax.Array

Network = Transformer | CausalTransformer

INPUTS = (
  "encoder_input_tokens",
  "decoder_input_tokens",
  "decoder_target_tokens",
)
CAUSAL = ("decoder_input_tokens", "decoder_target_tokens")
PACKING = (
  "encoder_segment_ids",
  "decoder_segment_ids",
  "encoder_positions",
  "decoder_positions",
)


@struct.dataclass
class Totals:
  """Sums over the steps since they were last cleared. All [] float32.

  Attributes:
    loss: what is minimised, smoothing and z-loss included, before division.
    z_loss: its z-loss part.
    weight: all target tokens' weight.
    correct: weight of the tokens whose likeliest logit is the target.
    grad_norm: global norms of the gradients, before clipping.
    steps: how many.
    bad_step: [] int32, first step with a loss or gradient that is not finite;
      -1 where there was none. Not cleared.
  """

  loss: Array
  z_loss: Array
  weight: Array
  correct: Array
  grad_norm: Array
  steps: Array
  bad_step: Array

  @classmethod
  def zero(cls) -> "Totals":
    # An array each: a donated state must not hold one array twice.
    names = [field.name for field in dataclasses.fields(cls)][:-1]
    zeros = {name: jnp.zeros((), jnp.float32) for name in names}
    return cls(**zeros, bad_step=jnp.asarray(-1, jnp.int32))


@struct.dataclass
class TrainState:
  """All that a training step reads and writes.

  Attributes:
    step: [] int32, steps taken, those before an initial checkpoint included.
    seed: [] int32, seeds dropout; a step's key is `fold_in(key(seed), step)`,
      so that a resumed run draws what the unbroken one does.
    params: the parameter tree, float32.
    opt_state: the optimizer's state.
    totals: `Totals`.
  """

  step: Array
  seed: Array
  params: Any
  opt_state: Any
  totals: Totals


def create(
  params: Any,
  optimizer: optimizers.Optimizer,
  *,
  step: int = 0,
  seed: int = 0,
  slots: Mapping | None = None,
  opt_state: Callable[[Any], Any] | None = None,
) -> TrainState:
  """Returns the state before the first step of a run.

  Args:
    params: copied, since a step writes over its state; where they lie on a
      mesh, all of it does.
    optimizer: from `optimizers`.
    step: the step of the checkpoint that the parameters come from.
    seed: seeds dropout.
    slots: Adafactor's accumulators of that checkpoint, see `start_at`.
    opt_state: reads the optimizer's state, from the shapes of its leaves and
      where they lie; None begins it anew. With it, parameters that lie on a
      mesh are not copied: the state takes them over.
  """
  init, is_cut = optimizer.transform.init, layout_of(params) is not None
  if opt_state is None or not is_cut:
    params = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params)
  shapes = jax.eval_shape(init, params)
  if is_cut:
    lying = like_params(shapes, params)
    init = jax.jit(init, out_shardings=lying)
    shapes = jax.tree.map(
      lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
      *(shapes, lying),
    )
  is_read = opt_state is not None and bool(jax.tree.leaves(shapes))
  if is_read:
    opt_state = opt_state(shapes)
  else:
    opt_state = optimizers.start_at(init(params), step, slots)
  if not (is_read and is_cut):
    # optax shares zeros between counters, and `start_at` a count.
    opt_state = jax.tree.map(jnp.array, opt_state)
  state = TrainState(
    step=jnp.asarray(step, jnp.int32),
    seed=jnp.asarray(seed, jnp.int32),
    params=params,
    opt_state=opt_state,
    totals=Totals.zero(),
  )
  if not is_cut:
    return state
  return jax.tree.map(laid, state, like_params(state, params))


@struct.dataclass
class Teacher:
  """A model whose distributions another one learns.

  Attributes:
    params: its parameters, which stay.
    module: its network, static; of the same kind and vocabulary.
  """

  params: Any
  module: Network = struct.field(pytree_node=False)

  def logits(self, batch: Mapping, layout: Layout | None = None) -> Array:
    """Returns teacher-forced logits [B, T, V] without a gradient."""
    kept = batch.get("teacher_hidden")
    if kept is None:
      logits = forward(self.module, self.params, batch, layout=layout)
    else:
      kept = kept.astype(jnp.float32)
      logits = self.module.apply({"params": self.params}, kept, method="logits")
    return jax.lax.stop_gradient(logits)


@functools.partial(jax.jit, static_argnums=(0, 2))
def init_params(
  module: Network, seed: int, layout: Layout | None = None
) -> Any:
  """Returns random initial parameters for a seed, where a layout puts them."""
  params = module.initial(jax.random.key(seed, impl="threefry2x32"))
  if layout is None:
    return params
  return jax.lax.with_sharding_constraint(
    params, shardings(module.config, layout)
  )


def inputs(config: Config) -> tuple[str, ...]:
  """Returns the names of the tokens in a model's batches."""
  return CAUSAL if isinstance(config, LlamaConfig) else INPUTS


def forward(
  module: Network,
  params: Any,
  batch: Mapping,
  rng=None,
  layout: Layout | None = None,
):
  """Returns teacher-forced logits [B, T, V]; dropout is on where `rng` is."""
  fed = batch["decoder_input_tokens"]
  with laid_out(layout, fed.shape[0]):
    if isinstance(module, CausalTransformer):
      packing = ("decoder_segment_ids", "decoder_positions")
      return module.apply({"params": params}, fed, *map(batch.get, packing))
    return module.apply(
      {"params": params},
      *(batch[name] for name in INPUTS),
      **{name: batch[name] for name in PACKING if name in batch},
      enable_dropout=rng is not None,
      rngs=None if rng is None else {"dropout": rng},
    )


def is_correct(logits: Array, targets: Array) -> Array:
  """Returns [B, T] bool, whether the target has the highest logit.

  Ties count as right: on a CPU an arg max costs more than a training step's
  softmax.
  """
  return losses.at_target(logits, targets) >= logits.max(-1)


@fields.checked
@dataclasses.dataclass(frozen=True)
class Objective:
  """What is minimised; the defaults are those of T5 v1.1's fine-tuning.

  Attributes:
    z_loss: weight of log(Z) ** 2.
    label_smoothing: mass that the label gives to other tokens.
    smoothing_ends: step from which on it is 0, or None; a model to be sampled
      at temperature 1 does better without it at the end.
    loss_normalizing_factor: what the summed loss is divided by, see
      `losses.normalize`.
    teacher_share: share of a teacher's distributions in the loss, by
      `losses.divergence`; the rest is the cross-entropy, with what is said of
      it above.
    microbatches: parts that a batch is fed in, their gradients added up; the
      result is that of the whole batch but for rounding and dropout's masks.
    remat: what of a layer is computed again for its gradient, as T5X has it:
      "full" all but its input, "minimal" all but its products with kernels;
      None nothing. The result is the same but for rounding.
  """

  z_loss: Annotated[float, fields.Bounds(0)] = 1e-4
  label_smoothing: Annotated[float, fields.Bounds(0, 1, high_open=True)] = 0.0
  smoothing_ends: fields.NonNegative | None = None
  loss_normalizing_factor: (
    Annotated[float, fields.Bounds(0, low_open=True)] | losses.Normalizer | None
  ) = None
  teacher_share: fields.Share = 0.0
  microbatches: fields.Size = 1
  remat: Literal[*layers.REMAT] | None = None


def make_step(
  module: Network,
  optimizer: optimizers.Optimizer,
  objective: Objective,
  layout: Layout | None = None,
) -> Callable[..., TrainState]:
  """Returns the compiled training step; it writes over the state it is given.

  It takes a state, a batch, and a `Teacher` where the objective has a share for
  one. Calling it does not wait for the device. It compiles once for each shape
  of batch. With a layout the parameters lie on its mesh.
  """
  module = module.clone(remat=objective.remat)
  use_dropout = getattr(module.config, "dropout_rate", 0) > 0
  count, share = objective.microbatches, objective.teacher_share

  def summed(params, smoothing, rng, teacher, batch, weights, rows):
    if count > 1 and rng is not None:
      rng = jax.random.fold_in(rng, rows[0])  # part i has rows i, i + count ...
    logits = forward(module, params, batch, rng, layout)
    targets = batch["decoder_target_tokens"]
    loss, z = losses.cross_entropy(
      logits, targets, label_smoothing=smoothing, z_loss=objective.z_loss
    )
    if share:
      taught = losses.divergence(teacher.logits(batch, layout), logits)
      loss, z = (1 - share) * loss + share * taught, (1 - share) * z
    sums = (loss, z, is_correct(logits, targets))
    sums = tuple(jnp.sum(each * weights) for each in sums)
    return sums[0], sums

  gradient = jax.grad(summed, has_aux=True)

  def accumulated(*args):
    """The gradient and sums of a whole batch, part by part."""
    rows = args[-1].shape[0]
    if rows % count:
      raise ValueError(
        f"a batch of {rows} rows cannot be cut into {count} microbatches; "
        "choose a number that divides it"
      )
    size = rows // count if count > 1 else None
    return optax.microbatch(gradient, (4, 5, 6), size)(*args)

  def step(
    state: TrainState, batch: Mapping, teacher: Teacher | None = None
  ) -> TrainState:
    weights, divisor = losses.normalize(
      batch, objective.loss_normalizing_factor
    )
    smoothing = objective.label_smoothing
    if smoothing and objective.smoothing_ends is not None:
      is_on = state.step < objective.smoothing_ends
      smoothing = jnp.where(is_on, smoothing, 0.0)
    rng = None
    if use_dropout:
      rng = jax.random.key(state.seed, impl="threefry2x32")
      rng = jax.random.fold_in(rng, state.step)
    rows = jnp.arange(weights.shape[0])
    grads, (loss, z, correct) = accumulated(
      state.params, smoothing, rng, teacher, batch, weights, rows
    )
    if objective.loss_normalizing_factor is not None:
      grads = jax.tree.map(lambda leaf: leaf / divisor, grads)
    grad_norm = optax.tree.norm(grads)
    updates, opt_state = optimizer.transform.update(
      grads, state.opt_state, state.params
    )
    is_bad = ~(jnp.isfinite(loss) & jnp.isfinite(grad_norm))
    old = state.totals
    of_step = Totals(loss, z, weights.sum(), correct, grad_norm, 1.0, 0)
    is_first = is_bad & (old.bad_step < 0)
    totals = optax.tree.add(old, of_step).replace(
      bad_step=jnp.where(is_first, state.step, old.bad_step)
    )
    return state.replace(
      step=state.step + 1,
      params=optax.apply_updates(state.params, updates),
      opt_state=opt_state,
      totals=totals,
    )

  def lying(state: TrainState, *rest) -> TrainState:
    """The step; what it returns lies where what it takes does."""
    where = shardings(module.config, layout)
    where = like_params(state, state.params, where)
    return jax.lax.with_sharding_constraint(step(state, *rest), where)

  return jax.jit(step if layout is None else lying, donate_argnums=0)
