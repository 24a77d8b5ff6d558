"""The state of a training run, and a model's pass on a batch.

Axes: B rows, S source length, T target length, V vocabulary, E model width.

A batch is a dict of arrays under T5X's names. Token ids, segment ids and
positions are int32. The batch of an encoder-decoder holds

- `encoder_input_tokens` [B, S], `decoder_input_tokens` [B, T] and
  `decoder_target_tokens` [B, T];
- `decoder_loss_weights` [B, T], optionally;
- where rows are packed, `encoder_segment_ids` and `encoder_positions` [B, S],
  `decoder_segment_ids` and `decoder_positions` [B, T].

The batch of a decoder-only model holds the decoder's arrays alone. Its texts
have no start token, its weights are required and say which tokens are learned,
and it may hold `teacher_hidden` [B, T, E], the teacher's hidden states, which a
`Teacher` then need not compute.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any, NamedTuple

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.models import cut_head
from speccascade.models.architectures import drafts_alone, words_of
from speccascade.models.cached_stack import with_layer_inputs
from speccascade.models.draft_heads import HeadsNetwork
from speccascade.models.llama.network import CausalTransformer
from speccascade.models.parameters import Config, shardings
from speccascade.models.sharding.partitioning import (
  Layout,
  layout_of,
  place,
  state_shardings,
  use_layout,
)
from speccascade.models.state_reader import StateReaderNetwork
from speccascade.models.t5.network import Transformer
from speccascade.models.t5gemma.network import T5GemmaTransformer
from speccascade.models.taught_exit import ExitNetwork
from speccascade.training import optimizers

# gin files name `Objective` by this module.
from speccascade.training.objectives import Objective as Objective

Array = jax.Array

Network = (
  Transformer
  | T5GemmaTransformer
  | CausalTransformer
  | HeadsNetwork
  | ExitNetwork
  | StateReaderNetwork
)

# The token arrays that each kind of model needs.
INPUTS = (
  "encoder_input_tokens",
  "decoder_input_tokens",
  "decoder_target_tokens",
)
CAUSAL = ("decoder_input_tokens", "decoder_target_tokens")


@struct.dataclass
class Totals:
  """Sums over the steps since they were last cleared. All [] float32.

  Attributes:
    loss: the summed loss before it is divided, label smoothing and z-loss
      included.
    z_loss: the z-loss part of `loss`.
    weight: the weight of all target tokens.
    correct: the weight of the target tokens that have the highest logit.
    grad_norm: the sum of the gradients' global norms before clipping.
    steps: the number of steps.
    bad_step: [] int32, the first step with a loss or gradient that is not
      finite; -1 where every step was finite. It is never cleared.
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
    """Returns the totals of no steps."""

    # Each field has an array of its own, because the state is donated to the
    # step, and a donated state must not hold one array twice.
    def zero():
      return jnp.zeros((), jnp.float32)

    return cls(
      loss=zero(),
      z_loss=zero(),
      weight=zero(),
      correct=zero(),
      grad_norm=zero(),
      steps=zero(),
      bad_step=jnp.asarray(-1, jnp.int32),
    )

  def add(
    self, sums: "Sums", weight: Array, grad_norm: Array, step: Array
  ) -> "Totals":
    """Returns the totals with one more step.

    Args:
      sums: the sums over the step's batch.
      weight: [] the weight of the batch's target tokens.
      grad_norm: [] the global norm of the step's gradient.
      step: [] int32, the step's number, counted from 0.
    """
    is_finite = jnp.isfinite(sums.loss) & jnp.isfinite(grad_norm)
    is_first_bad = ~is_finite & (self.bad_step < 0)
    return Totals(
      loss=self.loss + sums.loss,
      z_loss=self.z_loss + sums.z_loss,
      weight=self.weight + weight,
      correct=self.correct + sums.correct,
      grad_norm=self.grad_norm + grad_norm,
      steps=self.steps + 1.0,
      bad_step=jnp.where(is_first_bad, step, self.bad_step),
    )


class Sums(NamedTuple):
  """Sums over the target tokens of a batch, by their weights. All [] float32.

  Attributes:
    loss: the loss, label smoothing and z-loss included.
    z_loss: the z-loss part of `loss`.
    correct: the weight of the target tokens that have the highest logit.
  """

  loss: Array
  z_loss: Array
  correct: Array


@struct.dataclass
class TrainState:
  """All that a training step reads and writes.

  Attributes:
    step: [] int32, the steps taken; steps before an initial checkpoint count.
    first_step: [] int32, the step at which the run began: 0, or the step of the
      initial checkpoint. Batch number `step - first_step` comes next.
    seed: [] int32, seeds dropout. The key of a step is
      `fold_in(key(seed), step)`, so a resumed run draws the masks of the
      unbroken run.
    params: the parameter tree, float32.
    opt_state: the optimizer's state.
    totals: sums over the steps since the last log entry.
  """

  step: Array
  first_step: Array
  seed: Array
  params: Any
  opt_state: Any
  totals: Totals

  @classmethod
  def create(
    cls,
    params: Any,
    optimizer: optimizers.Optimizer,
    *,
    step: int = 0,
    first_step: int | None = None,
    seed: int = 0,
    slots: Mapping | None = None,
    read_opt_state: Callable[[Any], Any] | None = None,
  ) -> "TrainState":
    """Returns the state before the next step of a run.

    Args:
      params: the parameter tree. Where the parameters lie on a mesh, the whole
        state lies there. The parameters are copied, because a step writes over
        its state; only with `read_opt_state` on a mesh the state takes them
        over.
      optimizer: an optimizer from `optimizers`.
      step: the step of the checkpoint that the parameters come from.
      first_step: the step at which the run began; None is `step`.
      seed: seeds dropout.
      slots: Adafactor's accumulators of the checkpoint, see
        `optimizers.start_at`.
      read_opt_state: reads a saved optimizer state; called with a tree of
        ShapeDtypeStructs, which say where each leaf lies on a mesh. None begins
        a new optimizer state.
    """
    init = optimizer.transform.init
    is_on_mesh = layout_of(params) is not None
    if read_opt_state is None or not is_on_mesh:
      params = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params)
    shapes = jax.eval_shape(init, params)
    if is_on_mesh:
      # A moment lies where its parameter lies; counters lie on every device.
      places = state_shardings(shapes, params)
      init = jax.jit(init, out_shardings=places)
      shapes = jax.tree.map(_shape_at, shapes, places)
    # Plain descent has no arrays in its state, and no state of it was saved.
    if read_opt_state is not None and jax.tree.leaves(shapes):
      opt_state = read_opt_state(shapes)
      is_fresh = False
    else:
      opt_state = optimizers.start_at(init(params), step, slots)
      is_fresh = True
    # optax may use one zero for several counters, and `start_at` uses one count
    # for all. A donated state must not hold an array twice, so that leaves are
    # copied. Arrays that were just read onto a mesh are not shared, and stay: a
    # copy would need their memory twice.
    if is_fresh or not is_on_mesh:
      opt_state = jax.tree.map(jnp.array, opt_state)
    state = cls(
      step=jnp.asarray(step, jnp.int32),
      first_step=jnp.asarray(
        step if first_step is None else first_step, jnp.int32
      ),
      seed=jnp.asarray(seed, jnp.int32),
      params=params,
      opt_state=opt_state,
      totals=Totals.zero(),
    )
    if not is_on_mesh:
      return state
    return jax.tree.map(place, state, state_shardings(state, params))


def _shape_at(leaf: Any, place: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
  """Returns the shape and dtype of a leaf, with the place where it lies."""
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)


@struct.dataclass
class Teacher:
  """A model whose distributions another model learns, or that heads draft for.

  A training step differentiates with respect to the parameters that learn, so
  that a teacher's own parameters get no gradient. Those of a verifier that is
  tuned are among the parameters that learn.

  Attributes:
    params: the teacher's parameters.
    module: the teacher's network, static. It has the kind and the vocabulary of
      the model that learns.
    earlier: drafters of this teacher that were trained before. The model then
      learns only the positions where none of them agrees with the teacher, see
      `lesson.disagreement`.
    cut: the teacher's output head cut to a draft vocabulary, see
      `models.cut_head`; None where the model drafts all tokens.
  """

  params: Any
  module: Network = struct.field(pytree_node=False)
  earlier: tuple["Teacher", ...] = ()
  cut: Any = None

  def logits(self, batch: Mapping, layout: Layout | None = None) -> Array:
    """Returns teacher-forced logits [B, T, V].

    Where the batch has the teacher's hidden states, only the output projection
    is computed.
    """
    hidden = batch.get("teacher_hidden")
    if hidden is None:
      return forward(self.module, self.params, batch, layout=layout)
    return self.project(hidden.astype(jnp.float32))  # stored as float16

  def hidden(self, batch: Mapping) -> Array:
    """Returns teacher-forced hidden states [B, T, E] float32."""
    hidden = batch.get("teacher_hidden")
    if hidden is None:
      hidden = apply(self.module, self.params, batch, method="hidden")
    return hidden.astype(jnp.float32)

  def hidden_and_states(
    self, batch: Mapping, layers: Sequence[int]
  ) -> tuple[Array, Array]:
    """Returns `hidden`, and the states [B, T, K E] float32 that K layers read.

    Without layers the states are the hidden ones. A batch has no others.
    """
    if not layers:
      hidden = self.hidden(batch)
      return hidden, hidden
    run = functools.partial(with_layer_inputs, self.module)
    hidden, read = apply(self.module, self.params, batch, run, method="hidden")
    states = jnp.concatenate([read[layer] for layer in layers], axis=-1)
    return hidden.astype(jnp.float32), states.astype(jnp.float32)

  def project(self, hidden: Array) -> Array:
    """Returns the logits [B, T, V] of hidden states [B, T, E]."""
    variables = {"params": self.params}
    return self.module.apply(variables, hidden, method="logits")

  def project_kept(self, hidden: Array) -> Array:
    """Returns the logits [B, T, N] of a draft vocabulary's tokens."""
    variables = {"params": {**self.params, cut_head.NAME: self.cut}}
    return self.module.apply(variables, hidden, method="logits")


def teacher_in_use(
  teacher: Teacher | None, objective: Objective, config: Config
) -> Teacher | None:
  """Returns the teacher, or None where a step does not need it.

  Args:
    teacher: the teacher that was given, or None.
    objective: what is minimised.
    config: the architecture that learns.

  Raises:
    ValueError: the objective or the architecture needs a teacher.
  """
  if not drafts_alone(config):
    if teacher is None:
      raise ValueError(f"{words_of(config)} need a teacher: the verifier")
    return teacher
  if teacher is None and objective.needs_teacher:
    raise ValueError(
      f"the objective's loss is {objective.whole}, and there is no teacher"
    )
  # A step that does not read the teacher must not take its parameters: they
  # would be one more argument to compile for and to hold.
  if not objective.needs_teacher and not (teacher and teacher.earlier):
    return None
  return teacher


def without_stored(batch: Mapping) -> dict:
  """Returns a batch without the hidden states of its teacher.

  They are the teacher's alone: no other model must read them as its own.
  """
  return {k: v for k, v in batch.items() if k != "teacher_hidden"}


@functools.partial(jax.jit, static_argnums=(0, 2))
def init_params(
  module: Network, seed: int, layout: Layout | None = None
) -> Any:
  """Returns random initial parameters, placed as a layout says.

  One compiled program draws and places the parameters, so on a mesh no device
  needs to hold all of them.
  """
  params = module.initial(jax.random.key(seed, impl="threefry2x32"))
  if layout is None:
    return params
  return jax.lax.with_sharding_constraint(
    params, shardings(module.config, layout)
  )


def apply(
  module: Network,
  params: Any,
  batch: Mapping,
  run: Callable[..., Any] | None = None,
  **options: Any,
) -> Any:
  """Returns what a network, or a method of it, computes of a batch.

  Where `run` is given, it is called in place of `module.apply`. Positions of
  packed rows are of decoder-only models alone: in the others differences of
  positions matter, and segments do not see each other.
  """
  variables, run = {"params": params}, run or module.apply
  tokens = batch["decoder_input_tokens"]
  segments = batch.get("decoder_segment_ids")
  if isinstance(module, CausalTransformer):
    positions = batch.get("decoder_positions")
    return run(variables, tokens, segments, positions, **options)
  return run(
    variables,
    *(batch[name] for name in INPUTS),
    batch.get("encoder_segment_ids"),
    segments,
    **options,
  )


def forward(
  module: Network,
  params: Any,
  batch: Mapping,
  rng=None,
  layout: Layout | None = None,
):
  """Returns teacher-forced logits [B, T, V] float32.

  Args:
    module: the network.
    params: the network's parameters.
    batch: see the module's docstring.
    rng: dropout's key; None turns dropout off.
    layout: where the parameters lie; None on one device.
  """
  options: dict[str, Any] = {}
  if not isinstance(module, CausalTransformer):  # which drops nothing
    rngs = None if rng is None else {"dropout": rng}
    options = {"enable_dropout": rng is not None, "rngs": rngs}
  with use_layout(layout, batch["decoder_input_tokens"].shape[0]):
    return apply(module, params, batch, **options)
