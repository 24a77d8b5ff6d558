"""The models of a run: `ModelPair`, and `PairSpec`, which reads one.

A pair has one verifier and one drafter or several. Either side may be missing
where the method does not need it.
"""

from collections.abc import Sequence
import dataclasses
import math
import os
from typing import Annotated, Any, Literal

import jax.numpy as jnp

from speccascade import native
from speccascade.checkpoints import hub_names
from speccascade.decoding.programs import draft_models
from speccascade.decoding.records.drafter import Drafter
from speccascade.generate.pair import draft_vocabulary as draft_vocabularies
from speccascade.generate.pair import drafter_kernels, early_exit
from speccascade.generate.pair.cascades import Cascade, SideBySide
from speccascade.generate.pair.model_loading import (
  Model,
  load_drafter,
  load_model,
)
from speccascade.generate.pair.pair_checks import (
  PairError,
  check_combined,
  check_models,
  check_other_vocabulary,
  check_vocabulary,
  verifier_rows,
)
from speccascade.generate.pair.prompt_lookup import PromptLookup
from speccascade.generate.pair.shared_tokens import share_tokens
from speccascade.models import intersection
from speccascade.models.parameters import DRAFTER_KERNEL_DTYPES, Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import Layout
from speccascade.settings import fields
from speccascade.text.vocabulary_paths import (
  check_vocabulary_path,
  vocabulary_path_of,
)


@dataclasses.dataclass(frozen=True)
class ModelPair:
  """The models that decode together.

  Attributes:
    drafters: the neural drafters, the largest first. Most methods take one; a
      pair without a drafter has none.
    verifier: the large model, or None.
    dtype: the description of the number formats, for rows; see
      `describe_dtypes`.
    composed: a `Drafter` that combines the drafters, and perhaps drafters that
      are not neural networks. It drafts in their place. None where the drafters
      are not combined.
    composed_name: the name of `composed`, for rows.
    shared: the `SharedTokens` of drafters that have another vocabulary than the
      verifier, or None.
    layout: the devices that hold the verifier's arrays and the rows of a batch.
      None means one device.
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
    """All models of the pair: the drafters, then the verifier."""
    if self.verifier is None:
      return self.drafters
    return (*self.drafters, self.verifier)

  @property
  def prompted(self) -> bool:
    """Whether the models are decoder-only.

    All models of a pair are of one kind; see `check_models`.
    """
    return any(model.prompted for model in self.models)

  @property
  def num_parameters(self) -> dict[str, int]:
    """The number of parameters by role, "drafter" and "verifier".

    The drafters count together. A role is left out where the pair has no such
    model, or where the size of one of its models is unknown.
    """
    verifiers = () if self.verifier is None else (self.verifier,)
    totals = {}
    for role, models in (("drafter", self.drafters), ("verifier", verifiers)):
      sizes = [model.num_parameters for model in models]
      if sizes and None not in sizes:
        totals[role] = sum(sizes)
    return totals

  @property
  def revisions(self) -> dict[str, str]:
    """ "org/name@commit" of the models of the hub, by role."""
    found = {}
    verifiers = () if self.verifier is None else (self.verifier,)
    for role, models in (("drafter", self.drafters), ("verifier", verifiers)):
      names = [hub_names.name_of(model.path) for model in models]
      if any(names):
        found[role] = "+".join(filter(None, names))
    return found

  @property
  def drafter_lm(self):
    """The drafter as a `Decoder` takes it.

    It is `composed` if the drafters are combined, a language model if there is
    one drafter, a tuple of language models if there are several, and None if
    there is none.
    """
    if self.composed is not None:
      return self.composed
    lms = tuple(model.lm for model in self.drafters)
    if len(lms) == 1:
      return lms[0]
    return lms or None

  def drafter_of(self, inputs, most_new: int):
    """Returns the drafter of one batch.

    A drafter of another vocabulary carries the inputs of the batch in its own
    ids. Any other drafter is `drafter_lm` itself.

    Args:
      inputs: [B, S] int32 NumPy array, the inputs in the verifier's ids.
      most_new: the most tokens that may follow the inputs.
    """
    if self.shared is None:
      return self.drafter_lm
    most = min(model.window for model in self.drafters)
    if self.prompted:
      # Inputs and output share the window of a decoder-only model.
      most -= most_new
    ids = self.shared.inputs(inputs, prompted=self.prompted, most=most)
    return intersection.with_inputs(self.drafter_lm, jnp.asarray(ids))

  @property
  def verifier_lm(self):
    """The verifier's language model, or None."""
    return None if self.verifier is None else self.verifier.lm

  @property
  def drafter_name(self) -> str:
    """The names of the drafters joined by "+", or the composed drafter's."""
    if self.composed is not None:
      return self.composed_name
    return "+".join(model.name for model in self.drafters)

  @property
  def verifier_name(self) -> str:
    """The name of the verifier, or ""."""
    return "" if self.verifier is None else self.verifier.name

  @property
  def drafts_alone(self) -> bool:
    """Whether the drafters write texts without a verifier."""
    return all(model.drafts_alone for model in self.drafters)

  @property
  def _draft_model(self) -> draft_models.DraftModel:
    """The row of the drafter's kind."""
    return draft_models.row_of(self.drafter_lm)

  @property
  def num_distributions(self) -> int:
    """How many distributions the drafter gives at once; 0 one by one."""
    return self._draft_model.num_distributions(self.drafter_lm)

  @property
  def most_drafts(self) -> float:
    """The longest chain of drafts, which may be infinite."""
    return self.num_distributions or math.inf

  @property
  def first_block_drafts(self) -> bool:
    """Whether the first block of a text drafts."""
    return self._draft_model.first_block_drafts

  @property
  def has_costs(self) -> bool:
    """Whether every drafter step costs the same, because one model drafts."""
    return len(self.drafters) == 1 and self.composed is None

  def over(
    self, vocabulary, drafter_vocabulary=None, draft_vocabulary=None
  ) -> "ModelPair":
    """Returns the pair over one vocabulary, checked.

    Args:
      vocabulary: the vocabulary in use, which is the verifier's.
      drafter_vocabulary: the drafters' own vocabulary; None where they share
        the verifier's. They then draft the tokens that both have.
      draft_vocabulary: as `PairSpec.draft_vocabulary`.

    Raises:
      PairError: the models, or the vocabularies, do not belong together.
    """
    if drafter_vocabulary is None or not self.drafters:
      pair = self
      check_models(pair)
      check_vocabulary(pair, vocabulary)
    else:
      early_exit.check_no_vocabulary(self.drafters)
      check_other_vocabulary(self)
      # Both vocabularies are checked there.
      pair = share_tokens(self, vocabulary, drafter_vocabulary)
      check_models(pair)
    if draft_vocabulary is None:
      return pair
    return draft_vocabularies.cut_drafters(pair, draft_vocabulary, vocabulary)

  def combine_drafters(
    self, cascade, method, vocabulary_sha256=None
  ) -> "ModelPair":
    """Returns the pair with its drafters combined into one.

    Args:
      cascade: the `Cascade` or `SideBySide` that combines the drafters, or
        `PromptLookup`.
      method: the `Method` that decodes.
      vocabulary_sha256: hash of the vocabulary file in use, or None.

    Raises:
      ValueError: the method drafts no blocks, or the cascade does not fit the
        pair; see `Cascade.build`.
    """
    if not method.has_blocks:
      raise ValueError(
        f"CASCADE makes a drafter of blocks, and {method.label} has none; set"
        " METHOD = 'cascade_drafting', or CASCADE = None"
      )
    return self.combined(cascade, vocabulary_sha256)

  def combined(self, cascade, vocabulary_sha256=None) -> "ModelPair":
    """Returns the pair with its drafters combined, for methods with blocks.

    Args:
      cascade: as in `combine_drafters`.
      vocabulary_sha256: as in `combine_drafters`.

    Raises:
      ValueError: the cascade does not fit the pair.
    """
    check_combined(self)
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
  """The checkpoints of a pair, and how its models are read.

  Attributes:
    drafter: the architecture of the drafter, or a list of architectures, the
      largest first. None takes the architecture that the checkpoint records, or
      the one that its arrays show.
    verifier: the architecture of the verifier. None takes the checkpoint's.
    drafter_checkpoint: the path of the drafter's checkpoint, or as many paths
      as `drafter` has architectures; () means no neural drafter. "early-exit:4"
      is the verifier's first four layers, see `early_exit.EarlyExit`, and
      "self-int8" the verifier itself, with kernels in int8.
    verifier_checkpoint: the path of the verifier's checkpoint.
    dtype: the type of the activations. None keeps the architecture's type.
    kernel_dtype: the type of the kernels; see `T5LM.create`.
    drafter_kernel_dtype: the type of the drafters' kernels, which may be
      "int8"; None is `kernel_dtype`.
    cascade: how the drafters are combined: in a cascade, perhaps with drafters
      that are not neural networks, or side by side; or prompt lookup, without
      any. None combines none: several drafters then stay a tuple, for a method
      that takes several.
    drafter_vocabulary: the path of the drafters' vocabulary, if it differs from
      the verifier's; see `shared_tokens.share_tokens`.
    draft_vocabulary: the tokens that the drafters may draft: ids, the path of a
      file of ids, or a number N for the first N ids of the file
      `frequent_tokens.FILE` beside a drafter. None keeps all tokens.
    mesh: the devices, and the part of the models that each device holds.
  """

  drafter: Config | Sequence[Config | None] | None = None
  verifier: Config | None = None
  drafter_checkpoint: fields.Path | Sequence[fields.Path] | None = None
  verifier_checkpoint: fields.Path | None = None
  dtype: Literal["float32", "bfloat16"] | None = "float32"
  kernel_dtype: Annotated[str, drafter_kernels.check_kernel_dtype] = "float32"
  drafter_kernel_dtype: Literal[*DRAFTER_KERNEL_DTYPES] | None = None
  cascade: Cascade | SideBySide | PromptLookup | None = None
  drafter_vocabulary: Annotated[object, check_vocabulary_path] = None
  draft_vocabulary: draft_vocabularies.Setting = None
  mesh: meshes.Mesh = meshes.ONE

  @property
  def vocabulary_path(self) -> str | None:
    """The path of the vocabulary that is stored with a checkpoint, or None.

    The verifier's checkpoint is searched first, then the drafters'.
    """
    paths = [self.verifier_checkpoint]
    # Drafters with a vocabulary of their own say nothing about the verifier's.
    if self.drafter_vocabulary is None or not self.verifier_checkpoint:
      paths += early_exit.without_exits(as_list(self.drafter_checkpoint))
    for path in paths:
      if vocabulary_path := vocabulary_path_of(path):
        return vocabulary_path
    return None

  def drafters(self) -> list[drafter_kernels.DrafterSource]:
    """Returns where each drafter is read from.

    Raises:
      PairError: the numbers of architectures and checkpoints differ, or a
        drafter cannot be as the settings say.
    """
    configs, paths = as_list(self.drafter), as_list(self.drafter_checkpoint)
    if self.drafter is None:
      configs = [None] * len(paths)
    elif self.drafter_checkpoint is None:
      paths = [None] * len(configs)
    if len(configs) != len(paths):
      raise PairError(
        f"DRAFTER names {len(configs)} architectures, DRAFTER_CHECKPOINT"
        f" {len(paths)}; give as many"
      )
    verifier = (self.verifier, self.verifier_checkpoint)
    kernel_dtype = self.drafter_kernel_dtype or self.kernel_dtype
    sources = [
      drafter_kernels.resolve(config, path, verifier, kernel_dtype)
      for config, path in zip(configs, paths)
    ]
    for source in sources:
      early_exit.check_source(source, self.kernel_dtype)
    drafter_kernels.check_is_used(
      self.drafter_kernel_dtype,
      self.kernel_dtype,
      [source.kernel_dtype for source in sources],
    )
    return sources

  def load(
    self, vocabulary, *, needs_drafter: bool = True, needs_verifier: bool = True
  ) -> ModelPair:
    """Reads the models that a method needs.

    The drafters are not combined yet: `ModelPair.combine_drafters` applies
    `cascade`.

    Args:
      vocabulary: the vocabulary in use, an object as in `sources.Sources`.
      needs_drafter: whether to read the drafters.
      needs_verifier: whether to read the verifier.

    Raises:
      PairError: a checkpoint is missing, the numbers of architectures and
        checkpoints differ, or the vocabularies differ.
      CheckpointError: a checkpoint cannot be read.
    """
    early_exit.check_verifier(self.verifier_checkpoint)
    layout = self.mesh.layout()
    drafters, verifier, rows = [], None, None
    sources = self.drafters() if needs_drafter else []
    # A model that decodes alone keeps all of its rows.
    if needs_drafter and needs_verifier:
      paths = early_exit.without_exits(source.path for source in sources)
      rows = verifier_rows(self.verifier_checkpoint, paths)
    if needs_drafter:
      drafters = self._load_drafters(sources, rows=rows, dtype=self.dtype)
    # An early exit that decodes alone is made of its verifier, too.
    if needs_verifier or early_exit.has_exits(drafters):
      verifier = load_model(
        "verifier",
        self.verifier_checkpoint,
        self.verifier,
        layout=layout,
        rows=rows,
        dtype=self.dtype,
        kernel_dtype=self.kernel_dtype,
      )
    models = early_exit.made_of(drafters, verifier)
    dtype = describe_dtypes(self.dtype, self.kernel_dtype, layout)
    kernel_dtypes = [source.kernel_dtype for source in sources]
    dtype += drafter_kernels.describe(kernel_dtypes, self.kernel_dtype)
    if not needs_verifier:
      verifier = None
    pair = ModelPair(models, verifier, dtype, layout=layout)
    drafter_vocabulary = None
    if self.drafter_vocabulary is not None and drafters:
      from speccascade.text import vocabularies

      drafter_vocabulary = vocabularies.load(os.fspath(self.drafter_vocabulary))
    cut = self.draft_vocabulary if needs_drafter else None
    return pair.over(vocabulary, drafter_vocabulary, cut)

  def _load_drafters(
    self, sources: list[drafter_kernels.DrafterSource], **options
  ) -> list[Model | early_exit.EarlyExit]:
    """Reads the drafters, each with the options of `load_model`."""
    # A cascade may draft without neural drafters.
    if not as_list(self.drafter_checkpoint) and self.cascade is None:
      raise PairError("the method needs a drafter: set DRAFTER_CHECKPOINT")
    layout = self.mesh.drafter_layout()
    return [
      early_exit.setting_of(source.path)
      or load_drafter(source, layout=layout, **options)
      for source in sources
    ]


def describe_dtypes(dtype: str | None, kernel_dtype: str, layout=None) -> str:
  """Returns the description of a pair's number formats, for rows.

  Args:
    dtype: the type of the activations; None means float32.
    kernel_dtype: the type of the kernels, perhaps with "_products" after it,
      which asks for rounded products.
    layout: the devices that hold the models, or None for one device.

  Only the native code rounds products. It runs on one CPU, so rounded products
  are left out under a layout, and where the native code is not available.

  >>> describe_dtypes("float32", "float32")
  'float32'
  >>> describe_dtypes("float32", "bfloat16")
  'float32, bfloat16 kernels'
  """
  dtype = dtype or "float32"
  if kernel_dtype in (dtype, "float32"):
    return dtype
  kernels, _, products = kernel_dtype.partition("_")
  description = f"{dtype}, {kernels} kernels"
  if products and layout is None and native.is_available():
    description += f" and {products}"
  return description


def as_list(value) -> list:
  """Returns the values of a list or tuple as a list; else a list of one."""
  return list(value) if isinstance(value, list | tuple) else [value]
