"""Our methods in T5X's own tools: a model class for t5x.infer and t5x.eval.

This module imports T5X, which the package does not depend on. docs/t5x.md says
how T5X is installed, and configs/t5x/ holds the gin files.

The drafters and the verifier are one parameter tree. It is the tree of the
verifier, as T5X's network has it, with the entries `drafter_0`, `drafter_1`,
... beside the verifier's. T5X restores each model from its own checkpoint and
lays the whole tree out on its mesh.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import operator
from typing import Any, Literal

from flax import core
from flax.linen import partitioning
import jax
from jax.interpreters import pxla
import jax.numpy as jnp
from t5x import checkpoints, models

from speccascade.checkpoints import restore
from speccascade.checkpoints.architecture import flatten
from speccascade.checkpoints.storage import Directory
from speccascade.decoding.programs.decoders import Decoder
from speccascade.generate.points.point import Point
from speccascade.models.parameters import misfits, storage
from speccascade.models.sharding.partitioning import Layout, map_by_path
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.network import Transformer
from speccascade.models.t5_lm import T5LM
from speccascade.settings import fields
from speccascade.tools.integrations import prediction_aux
from speccascade.tools.integrations.prediction_aux import decoding_metrics

__all__ = [
  "PairCheckpoints",
  "PairModel",
  "PairNetwork",
  "architecture",
  "decoding_metrics",
]

# A drafter's entry of the parameter tree is this text and the drafter's number.
# Number 0 is the largest drafter.
_DRAFTER = "drafter_"


class PairNetwork(Transformer):
  """The network of a verifier that also holds the networks of its drafters.

  A call computes what the verifier computes.

  Attributes:
    drafters: the architectures of the drafters, the largest first.
  """

  drafters: tuple[T5Config, ...] = ()

  def setup(self):
    super().setup()
    self.drafter = [Transformer(config) for config in self.drafters]

  def __call__(self, *args, **options):
    """Returns the verifier's logits.

    Args:
      *args: the arguments of `Transformer`.
      **options: further arguments of `Transformer`.
    """
    # flax makes the parameters of a network when it is called. T5X calls this
    # network once to initialize it, so the drafters are called then, too.
    if self.is_initializing():
      for drafter in self.drafter:
        drafter(*args, **options)
    return super().__call__(*args, **options)


def architecture(config: Any, dtype: Any = None) -> T5Config:
  """Returns the architecture of a T5 as this package describes it.

  Args:
    config: a `T5Config` of this package, or the `T5Config` of T5X's
      `examples.t5.network`.
    dtype: the type of the activations. None keeps the type of `config`.

  Raises:
    ValueError: `config` does not describe a T5.
  """
  names = [field.name for field in dataclasses.fields(T5Config)]
  if missing := [name for name in names if not hasattr(config, name)]:
    raise ValueError(
      f"a {type(config).__name__} is not a T5's architecture, it has no"
      f" {missing[0]}: T5X runs pairs of encoder-decoders here"
    )
  values = {name: getattr(config, name) for name in names}
  values["mlp_activations"] = tuple(values["mlp_activations"])
  values["dtype"] = jnp.dtype(dtype or values["dtype"]).name
  return T5Config(**values)


class PairModel(models.EncoderDecoderModel):
  """A T5X model that predicts by a method of this package.

  Scores are the scores of the verifier alone.

  Args:
    verifier: the architecture of the verifier; see `architecture`.
    drafter: the architecture of the drafter, or several architectures, the
      largest first. None is for a method without a drafter.
    vocabulary: the seqio vocabulary of inputs and targets.
    point: the method and its settings.
    dtype: the type of the activations. None keeps the type of each
      architecture.
    drafter_layout: "whole" puts all of a drafter on each device. "cut" shards
      it by T5X's rules, as the verifier.
    seed: folded into the key that T5X gives. The key of t5x.infer is always the
      same, so the seed distinguishes two runs.
    trace: whether aux says which model wrote each token.
    log_probs: whether aux says which log-probability each distribution gives
      each token.
    **options: further arguments of `models.EncoderDecoderModel`.

  Raises:
    ValueError: the method and the models do not fit together.
  """

  def __init__(
    self,
    verifier: Any,
    drafter: Any,
    vocabulary: Any,
    point: Point,
    *,
    dtype: str | None = None,
    drafter_layout: Literal["whole", "cut"] = "whole",
    seed: int = 0,
    trace: bool = False,
    log_probs: bool = False,
    **options,
  ):
    fields.one_of(("whole", "cut"), drafter_layout=drafter_layout)
    if isinstance(point.gamma, str):
      raise ValueError(
        f"gamma {point.gamma!r} is found by runs of our own mains; T5X wants a"
        " number"
      )
    if drafter is None:
      drafters = ()
    elif isinstance(drafter, Sequence):
      drafters = drafter
    else:
      drafters = (drafter,)
    self.point = point
    self.is_whole = drafter_layout == "whole"
    self.seed = seed
    self.records = {"trace": trace, "log_probs": log_probs}
    super().__init__(
      module=PairNetwork(
        architecture(verifier, dtype),
        drafters=tuple(architecture(each, dtype) for each in drafters),
      ),
      input_vocabulary=vocabulary,
      output_vocabulary=vocabulary,
      **{"optimizer_def": None, **options},
    )
    rows, ids = self.module.config.vocab_size, vocabulary.vocab_size
    if ids > rows:
      raise ValueError(
        f"the vocabulary has {ids} ids, the verifier {rows} rows"
      )
    # The check reads no parameters, so that it is made before T5X has any.
    pair = (self._drafter({}, None), self._verifier({}))
    self._decoder(1).check(*pair, point.decoder_alpha, point.sampling)

  def _decoder(self, length: int) -> Decoder:
    return self.point.decoder(
      max_decode_len=length,
      eos_id=self.output_vocabulary.eos_id or 1,
      **self.records,
    )

  def _verifier(self, params: Mapping) -> T5LM:
    large = {k: v for k, v in params.items() if not k.startswith(_DRAFTER)}
    return _model(self.module.config, large)

  def _drafter(self, params: Mapping, layout: Layout | None) -> Any:
    """Returns the drafter as a `Decoder` takes it: one, several or None."""
    lms = tuple(
      _model(config, params.get(f"{_DRAFTER}{i}", {}), layout)
      for i, config in enumerate(self.module.drafters)
    )
    return lms[0] if len(lms) == 1 else lms or None

  def get_initial_variables(
    self,
    rng: jax.Array,
    input_shapes: Mapping[str, Any],
    input_types: Mapping[str, Any] | None = None,
  ) -> Mapping:
    """Returns random parameters and their axes. See `models.BaseModel`."""
    # t5x.eval gives no types, and T5X would then make the tokens floats.
    types = input_types or dict.fromkeys(input_shapes, jnp.int32)
    variables = super().get_initial_variables(rng, input_shapes, types)
    variables = core.unfreeze(variables)
    axes = variables["params_axes"]
    is_axes = lambda x: isinstance(x, partitioning.AxisMetadata)
    uncut = lambda x: x.replace(names=(None,) * len(x.names))
    # T5X splits an array along the axes that have names. Without names each
    # device gets the whole array.
    if self.is_whole:
      for name in axes:
        if name.startswith(_DRAFTER):
          axes[name] = jax.tree.map(uncut, axes[name], is_leaf=is_axes)
    return core.freeze(variables)

  def predict_batch_with_aux(
    self,
    params: Mapping,
    batch: Mapping[str, jax.Array],
    rng: jax.Array | None = None,
  ) -> tuple[jax.Array, dict]:
    """Decodes a batch, while T5X traces this function.

    Args:
      params: the parameter tree.
      batch: `encoder_input_tokens` [B, S], the sources, and
        `decoder_input_tokens` [B, T], whose T is the most tokens of a row, EOS
        counted.
      rng: T5X's key of this batch, of which a key for each row is made.

    Returns:
      The tokens [B, T] int32 with their EOS, and 0 after it; and the aux of
      `prediction_aux.aux_of`.
    """
    inputs = batch["encoder_input_tokens"]
    num_rows, length = batch["decoder_input_tokens"].shape
    # T5X lets its own rules split what the verifier computes. A whole drafter
    # is outside these rules: each device computes all of it.
    layout = None
    mesh = pxla.thread_resources.env.physical_mesh
    if self.is_whole and not mesh.empty and mesh.size > 1:
      layout = Layout(mesh).whole()
    decoded = self._decoder(length)(
      self._drafter(params, layout),
      self._verifier(params),
      inputs,
      _row_keys(rng, self.seed, num_rows),
      self.point.decoder_alpha,
      self.point.sampling,
    )
    recorded = [name for name, wanted in self.records.items() if wanted]
    return decoded.tokens, prediction_aux.aux_of(decoded, recorded)


def _model(config: T5Config, params: Mapping, layout=None) -> T5LM:
  """Returns a model of traced parameters, cast as `T5LM.create` does."""
  cast = lambda path, leaf: leaf.astype(storage(config, path, None).dtype)
  return T5LM(map_by_path(params, cast), Transformer(config), layout)


def _row_keys(rng: jax.Array | None, seed: int, num_rows: int) -> jax.Array:
  """Returns a typed threefry key for each row, whatever kind T5X's key is."""
  words = jnp.zeros((2,), jnp.uint32)
  if rng is not None:
    words = jax.random.bits(rng, (2,), jnp.uint32)
  key = jax.random.wrap_key_data(words, impl="threefry2x32")
  fold_in = functools.partial(jax.random.fold_in, jax.random.fold_in(key, seed))
  return jax.vmap(fold_in)(jnp.arange(num_rows, dtype=jnp.uint32))


class PairCheckpoints(checkpoints.OrbaxCheckpointManagerInterface):
  """Restores each model of a `PairNetwork` from a checkpoint of its own.

  T5X itself restores the verifier, from the path that T5X's own setting names.
  This class restores and never saves. It is for T5X's default,
  `use_orbax=True`, which reads native checkpoints too.

  Args:
    directory: see T5X's `OrbaxCheckpointManagerInterface`.
    train_state: see T5X's class. It holds the parameters of all models.
    partitioner: see T5X's class.
    drafter_checkpoint: the path of a step for a single drafter, or one path for
      each drafter, the largest first.
    **options: further arguments of T5X's class.

  Raises:
    ValueError: there are not as many paths as drafters.
  """

  def __init__(
    self,
    directory: str,
    train_state: Any,
    partitioner: Any,
    drafter_checkpoint: str | Sequence[str] | None = None,
    **options,
  ):
    if isinstance(drafter_checkpoint, str | None):
      paths = [drafter_checkpoint]
    else:
      paths = drafter_checkpoint
    names = [name for name in train_state.params if name.startswith(_DRAFTER)]
    paths = [path for path in paths if path]
    if len(paths) != len(names):
      raise ValueError(
        f"there are {len(names)} drafters and {len(paths)} checkpoints of"
        " drafters; give as many"
      )
    self._whole = train_state
    self._arguments = options
    self._drafters = dict(zip(sorted(names), paths))
    verifier = self._part(
      lambda tree: core.freeze({k: tree[k] for k in tree if k not in names})
    )
    super().__init__(directory, verifier, partitioner, **options)

  def _part(self, part) -> Any:
    """Returns the train state of a `part` of the tree of parameters."""
    state = self._whole
    axes = state.params_axes and part(state.params_axes)
    return state.replace(params=part(state.params), params_axes=axes)

  def restore(self, *, path: str, **options) -> Any:
    """Returns the train state of all models, with the verifier's step.

    Args:
      path: the path of the verifier's checkpoint.
      **options: further arguments of T5X's class, for the verifier.

    Raises:
      ValueError: a checkpoint is not there, or has another architecture.
    """
    # State transformations may turn another architecture into this one, so the
    # arrays of the checkpoint need not fit before them.
    if not options.get("state_transformation_fns"):
      _check("CHECKPOINT_PATH", path, self._train_state.params)
    # Orbax takes absolute paths only, and `Directory` makes a path absolute.
    state = super().restore(path=str(Directory(path)), **options)
    params = core.unfreeze(state.params)
    for name, path in self._drafters.items():
      drafter = self._part(operator.itemgetter(name))
      _check("DRAFTER_CHECKPOINT_PATH", path, drafter.params)
      manager = checkpoints.OrbaxCheckpointManagerInterface(
        path, drafter, self._partitioner, **self._arguments
      )
      restored = manager.restore(path=str(Directory(path)))
      params[name] = core.unfreeze(restored.params)
    return self._whole.replace(params=core.freeze(params), step=state.step)


def _check(setting: str, path: str, wanted: Mapping):
  """Raises ValueError if T5X will not find a model's arrays in a checkpoint."""
  # T5X's own errors about missing arrays do not name the checkpoint.
  directory, layout = restore.resolve(path)
  if str(directory) != str(Directory(path)) or layout in restore.OTHERS:
    raise ValueError(
      f"{setting} {path} is not a checkpoint_<step> of T5X's or ours: name its"
      f" step, or write it so with python -m speccascade.checkpoints.convert"
    )
  arrays, _ = restore.open_arrays(directory, layout, optimizer=False)
  if arrays.is_zarr3:
    raise ValueError(
      f"{setting} {path} has arrays of zarr3, and T5X reads zarr: write it"
      " again with python -m speccascade.checkpoints.convert"
      " --format=speccascade"
    )
  shapes = {name: tuple(x.shape) for name, x in flatten(wanted).items()}
  if text := misfits(arrays.params, shapes):
    raise ValueError(f"{setting} {path} is of another architecture: {text}")
