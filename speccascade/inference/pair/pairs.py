"""The two models of a run, and whether they belong together."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import os
import pathlib
from typing import Annotated, Any, Literal

from absl import logging
import jax
import jax.numpy as jnp

from speccascade import checkpoints, native
from speccascade.data import prompting
from speccascade.decoding.types import Drafter
from speccascade.inference.batches import inputs
from speccascade.inference.measuring.environment import (
  give_back_memory,
  held_memory,
)
from speccascade.inference.pair.cascades import Cascade
from speccascade.inference.pair.pair_checks import (
  PairError,
  check_models,
  check_vocabulary,
  cut_rows,
  shared_rows,
)
from speccascade.models import intersection
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama_lm import LlamaLM
from speccascade.models.parameters import KERNEL_DTYPES, Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import Layout
from speccascade.models.t5.config import T5Config
from speccascade.models.t5_lm import T5LM
from speccascade.settings import fields

KINDS = {T5Config: T5LM, LlamaConfig: LlamaLM}


@dataclasses.dataclass(frozen=True)
class Model:
  """A model that was read, and where from.

  Attributes:
    lm: the model.
    name: of its checkpoint, with the step, for tables and rows.
    path: of its checkpoint.
    vocabulary: {"path", "sha256"} where the checkpoint says it, or brings it,
      else None.
    num_parameters: as the checkpoint holds them; None where none was read.
  """

  lm: T5LM | LlamaLM | intersection.IntersectionLM
  name: str
  path: str
  vocabulary: Mapping[str, str] | None = None
  num_parameters: int | None = None

  @property
  def prompted(self) -> bool:
    """Whether it goes on from prompts, as decoder-only models do."""
    return self.lm.prompted

  @property
  def window(self) -> float:
    """Most tokens of a prompt and what follows."""
    config = getattr(getattr(self.lm, "module", None), "config", None)
    return getattr(config, "max_positions", math.inf)


@dataclasses.dataclass(frozen=True)
class ModelPair:
  """What decodes; either side may be None where a method does not need it.

  Attributes:
    drafters: largest first; one for most methods.
    verifier: the large model.
    dtype: of the activations, for rows; see `describe_dtypes`.
    composed: a `Drafter` made of the drafters and others, in their place.
    composed_name: of it.
    shared: `SharedTokens` of drafters of another vocabulary, or None.
    layout: where the verifier's arrays lie, and rows; None on one device.
  """

  drafters: tuple[Model, ...]
  verifier: Model | None
  dtype: str = "float32"
  composed: Drafter | None = None
  composed_name: str = ""
  shared: Any = None
  layout: Layout | None = None

  @property
  def models(self) -> tuple[Model, ...]:
    """All that there are, largest drafter first, the verifier last."""
    return (*self.drafters, *((self.verifier,) if self.verifier else ()))

  @property
  def prompted(self) -> bool:
    """Whether the models are decoder-only; see `check_models`."""
    return any(model.prompted for model in self.models)

  @property
  def num_parameters(self) -> dict[str, int]:
    """Those of the drafters together and of the verifier, where known."""
    large = self.models[len(self.drafters) :]
    sizes = {
      role: [model.num_parameters for model in models]
      for role, models in (("drafter", self.drafters), ("verifier", large))
    }
    return {role: sum(n) for role, n in sizes.items() if n and None not in n}

  @property
  def drafter_lm(self):
    """The drafter as a `Decoder` takes it: composed, models, or None."""
    if self.composed is not None:
      return self.composed
    lms = tuple(model.lm for model in self.drafters)
    return lms[0] if len(lms) == 1 else lms or None

  def drafter_of(self, inputs, most_new: int):
    """Returns `drafter_lm`, which reads inputs [B, S] in its own ids.

    Args:
      inputs: of a batch, NumPy's.
      most_new: tokens that may follow them.
    """
    if self.shared is None:
      return self.drafter_lm
    most = min(model.window for model in self.drafters) - most_new
    read = self.shared.inputs(inputs, prompted=self.prompted, most=most)
    return intersection.with_inputs(self.drafter_lm, jnp.asarray(read))

  @property
  def verifier_lm(self):
    return None if self.verifier is None else self.verifier.lm

  @property
  def drafter_name(self) -> str:
    if self.composed is not None:
      return self.composed_name
    return "+".join(model.name for model in self.drafters)

  @property
  def verifier_name(self) -> str:
    return "" if self.verifier is None else self.verifier.name

  @property
  def has_costs(self) -> bool:
    """Whether one drafter step has one cost: one model drafts."""
    return len(self.drafters) == 1 and self.composed is None

  def combine_drafters(
    self, cascade, method, vocabulary_sha256=None
  ) -> "ModelPair":
    """Returns the pair with its drafters combined.

    Args:
      cascade: how.
      method: the `Method` that decodes.
      vocabulary_sha256: of the vocabulary's file, if known.

    Raises:
      ValueError: the method drafts no blocks, or see `Cascade.build`.
    """
    if not method.has_blocks:
      raise ValueError(
        f"CASCADE makes a drafter of blocks, and {method.label} has none; set"
        " METHOD = 'cascade_drafting', or CASCADE = None"
      )
    lms = [model.lm for model in self.drafters]
    verifier = self.verifier.lm
    drafter = cascade.build(
      lms, verifier.vocab_size, vocabulary_sha256, prompted=verifier.prompted
    )
    name = " ".join([*(model.name for model in self.drafters), cascade.label])
    return dataclasses.replace(self, composed=drafter, composed_name=name)


@fields.checked
@dataclasses.dataclass(frozen=True)
class PairSpec:
  """Which models decode.

  Attributes:
    drafter: architecture, or several, largest first; None takes the
      checkpoint's own, or what its arrays say.
    verifier: architecture, likewise.
    drafter_checkpoint: path, or as many as `drafter`; () for none.
    verifier_checkpoint: the large model's.
    dtype: of the activations; None keeps the architecture's.
    kernel_dtype: see `T5LM.create`.
    cascade: how the drafters are combined, with others; None leaves that to the
      method.
    drafter_vocabulary: path of the drafters' own, where it is another than the
      verifier's; see `shared_tokens.share_tokens`.
    mesh: the devices, and what each holds.
  """

  drafter: Config | Sequence[Config | None] | None = None
  verifier: Config | None = None
  drafter_checkpoint: fields.Path | Sequence[fields.Path] | None = None
  verifier_checkpoint: fields.Path | None = None
  dtype: Literal["float32", "bfloat16"] | None = "float32"
  kernel_dtype: Literal[*KERNEL_DTYPES] = "float32"
  cascade: Cascade | None = None
  drafter_vocabulary: Annotated[object, inputs.check_vocabulary_path] = None
  mesh: meshes.Mesh = meshes.ONE

  @property
  def vocabulary_path(self) -> str | None:
    """The vocabulary that a checkpoint directory brings: the verifier's, or
    else that of a drafter without one of its own."""
    paths = [self.verifier_checkpoint]
    if self.drafter_vocabulary is None or not self.verifier_checkpoint:
      paths += as_list(self.drafter_checkpoint)
    return next(filter(None, map(inputs.vocabulary_path_of, paths)), None)

  def load(
    self, vocabulary, *, needs_drafter: bool = True, needs_verifier: bool = True
  ) -> ModelPair:
    """Reads the models that a method needs; `cascade` is not applied.

    Args:
      vocabulary: the one in use.
      needs_drafter: whether to read it at all.
      needs_verifier: whether to read it at all.

    Raises:
      PairError: a checkpoint is missing, or the vocabularies differ.
    """
    of = {"dtype": self.dtype, "kernel_dtype": self.kernel_dtype}
    layout, small = self.mesh.layout(), self.mesh.drafter_layout()
    numbers, drafters, large = describe_dtypes(**of, layout=layout), (), None
    paths, configs = as_list(self.drafter_checkpoint), as_list(self.drafter)
    if needs_drafter and needs_verifier:
      of["rows"] = shared_rows([*paths, self.verifier_checkpoint])
    if needs_drafter:
      if not paths and self.cascade is None:
        raise PairError("the method needs a drafter: set DRAFTER_CHECKPOINT")
      if self.drafter is None:
        configs = [None] * len(paths)
      if len(configs) != len(paths):
        raise PairError(
          f"DRAFTER names {len(configs)} architectures, DRAFTER_CHECKPOINT"
          f" {len(paths)}; give as many"
        )
      drafters = tuple(
        load_model("drafter", path, config, layout=small, **of)
        for path, config in zip(paths, configs)
      )
    if needs_verifier:
      path = self.verifier_checkpoint
      large = load_model("verifier", path, self.verifier, layout=layout, **of)
    pair = ModelPair(drafters, large, numbers, layout=layout)
    if self.drafter_vocabulary is not None and drafters:
      from speccascade.data import vocabularies
      from speccascade.inference.pair import shared_tokens

      theirs = vocabularies.load(os.fspath(self.drafter_vocabulary))
      pair = shared_tokens.share_tokens(pair, vocabulary, theirs)
    check_models(pair)
    check_vocabulary(pair, vocabulary)
    return pair


def load_model(
  role: str,
  checkpoint: str | os.PathLike | None,
  config: Config | None = None,
  dtype: str | None = None,
  *,
  kernel_dtype: str = "float32",
  rows: int | None = None,
  layout: Layout | None = None,
) -> Model:
  """Reads one model, for decoding.

  Args:
    role: "drafter" or "verifier", for messages.
    checkpoint: any layout of `checkpoints.load`.
    config: architecture; None takes the checkpoint's own, or what its arrays
      say.
    dtype: of the activations; None keeps the architecture's.
    kernel_dtype: see `T5LM.create`.
    rows: to keep of its vocabulary, the first; None is all. See `shared_rows`.
    layout: where its arrays lie; they are read part by part, without one array
      by array.

  Raises:
    PairError: no checkpoint is given.
    CheckpointError: it cannot be read, or does not fit the architecture.
    ValueError: the mesh does not divide the architecture.
  """
  if not checkpoint:
    raise PairError(f"the method needs a {role}: set {role.upper()}_CHECKPOINT")
  read = checkpoints.load(checkpoint, config=config, lazy=True)
  size = sum(leaf.size for leaf in jax.tree.leaves(read.params))  # given away
  config, params = read.require_config(), read.params
  if rows is not None and rows < config.vocab_size:
    config, params = cut_rows(config, params, rows)
  if layout is not None:
    layout.check(config, role.upper())
  lm = KINDS[type(config)].create(
    config, params, dtype, kernel_dtype=kernel_dtype, donate=True, layout=layout
  )
  jax.block_until_ready(lm)
  give_back_memory()
  held = held_memory()
  logging.info(
    "%s: %.1f MB of weights%s",
    read.path,
    sum(leaf.nbytes for leaf in jax.tree.leaves(lm)) / 1e6,
    f"; this process holds {held / 1e6:.0f} MB" if held else "",
  )
  # Named for its run's folder, and its step.
  path = pathlib.PurePosixPath(str(read.path).rstrip("/"))
  name = path.name
  if read.step is not None:
    folder = path.parent if name.startswith("checkpoint_") else path
    name = f"{folder.name}-{read.step}"
  vocabulary = read.vocabulary
  if (
    vocabulary is None and lm.prompted and inputs.vocabulary_path_of(read.path)
  ):
    from speccascade.data import vocabularies

    vocabulary = prompting.identity(vocabularies.load(read.path))
  return Model(lm, name, read.path, vocabulary, size)


def describe_dtypes(dtype: str | None, kernel_dtype: str, layout=None) -> str:
  """Returns what rows say of the numbers of a pair.

  Products are rounded by native code alone: not under a layout, nor where
  there is none.

  >>> describe_dtypes("float32", "float32")
  'float32'
  >>> describe_dtypes("float32", "bfloat16")
  'float32, bfloat16 kernels'
  """
  dtype = dtype or "float32"
  if kernel_dtype in (dtype, "float32"):
    return dtype
  kernels, _, products = kernel_dtype.partition("_")
  rounds = products and layout is None and native.is_available()
  return f"{dtype}, {kernels} kernels" + f" and {products}" * bool(rounds)


def as_list(value) -> list:
  """Returns several values, or one, as a list."""
  return list(value) if isinstance(value, list | tuple) else [value]
