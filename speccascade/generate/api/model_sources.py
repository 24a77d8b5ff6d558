"""Reads the models and the vocabulary that `api.load_pair` is given."""

from collections.abc import Mapping
import os
from typing import Annotated, Any

from speccascade.generate.pair import (
  drafter_kernels,
  early_exit,
  pair_checks,
  pairs,
)
from speccascade.generate.pair.drafter_kernels import SELF
from speccascade.generate.pair.early_exit import EarlyExit
from speccascade.generate.pair.model_loading import Model, as_self, load_model
from speccascade.generate.pair.pairs import ModelPair, PairError
from speccascade.generate.pair.prompt_lookup import PromptLookup
from speccascade.models import (
  T5LM,
  LlamaConfig,
  LlamaLM,
  StateReader,
  T5Config,
  T5GemmaLM,
)
from speccascade.models.exit_model import TrainedExit
from speccascade.models.heads_model import TrainedHeads
from speccascade.models.parameters import EIGHT_BITS, kernel_dtype_of
from speccascade.models.sharding.meshes import Mesh
from speccascade.models.sharding.partitioning import Layout
from speccascade.settings import fields
from speccascade.text import vocabulary_paths

Path = str | os.PathLike
# The path of a checkpoint, a path with an architecture, or a model in memory.
ModelSource = (
  Path
  | tuple[Path, T5Config | LlamaConfig]
  | T5LM
  | T5GemmaLM
  | LlamaLM
  | TrainedHeads
  | TrainedExit
  | StateReader
  | PromptLookup
  | EarlyExit
)


def path_of(source: ModelSource) -> Path | None:
  """Returns the path of a checkpoint, or None for a model in memory."""
  path = source[0] if isinstance(source, tuple) and source else source
  return path if isinstance(path, str | os.PathLike) else None


def read_model(
  role: str, source: ModelSource, *, layout: Layout | None, **options
) -> Model:
  """Reads one model, or takes it from memory.

  Args:
    role: "drafter" or "verifier", for messages.
    source: the model, as `api.load_pair` is given it.
    layout: the devices that hold the arrays, or None for one device.
    **options: further arguments of `load_model`.

  Raises:
    PairError: the source is not a model, or a model in memory is not on the
      mesh.
    CheckpointError: the checkpoint cannot be read.
  """
  is_model = hasattr(source, "prefill") and hasattr(source, "extend")
  drafts = isinstance(source, TrainedHeads | TrainedExit | StateReader)
  if is_model or (role == "drafter" and drafts):
    if layout not in (None, getattr(source, "layout", None)):
      raise PairError(
        f"{role} is in memory, and does not lie on the mesh; give the path of"
        " its checkpoint, or make it with that layout"
      )
    return Model(source, role, "")
  path, config = source, None
  if isinstance(source, tuple) and len(source) == 2:
    path, config = source
  is_path = isinstance(path, str | os.PathLike) and os.fspath(path)
  if not is_path or not isinstance(config, T5Config | LlamaConfig | None):
    raise PairError(
      f"{role} is {source!r:.60}; wanted the path of a checkpoint, (path,"
      " T5Config, T5GemmaConfig or LlamaConfig), a T5LM, T5GemmaLM or LlamaLM,"
      " an EarlyExit, or a PromptLookup alone"
    )
  return load_model(role, path, config, layout=layout, **options)


def read_models(
  drafter: ModelSource | list[ModelSource] | None,
  verifier: ModelSource | None,
  mesh: Mapping[str, int] | Mesh | None,
  *,
  dtype: str,
  kernel_dtype: str,
  drafter_kernel_dtype: str,
) -> ModelPair:
  """Reads the models of a pair.

  Args:
    drafter: the drafter, a list of drafters, or None; see `api.load_pair`.
    verifier: the verifier, or None.
    mesh: the devices; see `api.load_pair`.
    dtype: see `api.load_pair`.
    kernel_dtype: see `api.load_pair`.
    drafter_kernel_dtype: the dtype of the drafters' kernels.

  Raises:
    PairError: a model is missing or of the wrong type.
    CheckpointError: a checkpoint cannot be read.
    ValueError: there are too few devices, or the mesh does not divide a model.
  """
  drafter_sources, lookup = [], None
  if isinstance(drafter, PromptLookup):
    lookup, drafter = drafter, None
    if verifier is None:
      raise PairError("prompt lookup drafts for a verifier: give one")
  if drafter is not None:
    drafters = drafter if isinstance(drafter, list) else [drafter]
    drafter_sources = [_without_config(each) for each in drafters]
  early_exit.check_verifier(_named(verifier))
  is_self = [
    drafter_kernels.names_self(path_of(each)) for each in drafter_sources
  ]
  drafter_sources = [
    _in_place_of_self(verifier) if yes else each
    for yes, each in zip(is_self, drafter_sources)
  ]
  verifier_sources = [] if verifier is None else [verifier]
  read = [*early_exit.without_exits(drafter_sources), *verifier_sources]
  paths = [path_of(each) for each in read]
  rows = pair_checks.verifier_rows(paths[-1], paths[:-1]) if paths else None
  if not isinstance(mesh, Mesh):
    mesh = Mesh(mesh)
  layout, drafter_layout = mesh.layout(), mesh.drafter_layout()
  exits = [early_exit.setting_of(source) for source in drafter_sources]
  if any(exits):
    early_exit.check_kernels(drafter_kernel_dtype, kernel_dtype)
  # A model in memory keeps its kernels.
  own = [
    drafter_kernel_dtype if path_of(source) is not None else kernel_dtype
    for source in drafter_sources
  ]
  kernel_dtypes = [
    EIGHT_BITS if yes else each for yes, each in zip(is_self, own)
  ]
  drafter_kernels.check_is_used(
    drafter_kernel_dtype, kernel_dtype, kernel_dtypes
  )
  drafters = [
    exit
    or read_model(
      "drafter",
      source,
      layout=drafter_layout,
      rows=rows,
      dtype=dtype,
      kernel_dtype=kernels,
    )
    for exit, source, kernels in zip(exits, drafter_sources, kernel_dtypes)
  ]
  drafters = [
    as_self(model) if yes else model for yes, model in zip(is_self, drafters)
  ]
  verifier_model = None
  if verifier is not None:
    verifier_model = read_model(
      "verifier",
      verifier,
      layout=layout,
      rows=rows,
      dtype=dtype,
      kernel_dtype=kernel_dtype,
    )
  of_verifier = kernel_dtype
  if verifier_model is not None and path_of(verifier) is None:
    of_verifier = _kernel_dtype(verifier_model.lm, kernel_dtype)
  stored = []
  for source, model, each in zip(drafter_sources, drafters, kernel_dtypes):
    if early_exit.setting_of(source) or isinstance(source, TrainedHeads):
      each = of_verifier  # (draft heads store their kernels in a way of theirs)
    elif path_of(source) is None:
      each = _kernel_dtype(model.lm, each)
    stored.append(each)
  words = pairs.describe_dtypes(dtype, of_verifier, layout)
  words += drafter_kernels.describe(stored, of_verifier)
  models = early_exit.made_of(drafters, verifier_model)
  pair = ModelPair(models, verifier_model, words, layout=layout)
  return pair if lookup is None else pair.combined(lookup)


def _kernel_dtype(lm: Any, given: str) -> str:
  """Returns how a model in memory stores its kernels, `given` without any."""
  return kernel_dtype_of(getattr(lm, "params", {})) or given


def _named(source: ModelSource | None) -> ModelSource | None:
  """Returns the path of a source with an architecture; else the source."""
  return source if path_of(source) is None else path_of(source)


def _without_config(source: ModelSource) -> ModelSource:
  """Returns the name of a drafter that is made of its verifier; else source."""
  named = _named(source)
  if not isinstance(source, tuple) or not early_exit.is_of_verifier(named):
    return source
  if source[1:] not in ((), (None,)):
    raise PairError(
      f"an architecture is given for the drafter {str(named)!r}, which has the"
      " verifier's: leave it out"
    )
  return named


def _in_place_of_self(verifier: ModelSource | None) -> ModelSource:
  """Returns the source of a drafter that is the verifier itself."""
  if verifier is None or path_of(verifier) is None:
    found = "there is none" if verifier is None else "the verifier is in memory"
    raise PairError(
      f"the drafter {SELF!r} is the verifier in int8, read from its checkpoint,"
      f" and {found}; give the verifier's path, or as the drafter a model in"
      " memory that was made with kernel_dtype='int8'"
    )
  return verifier


def read_vocabulary(vocabulary, models: ModelPair, name: str = "vocabulary"):
  """Returns the vocabulary of a pair.

  Args:
    vocabulary: the path of a vocabulary or an object, as `api.load_pair` is
      given it. None takes the vocabulary of the models.
    models: the models of the pair.
    name: the name of the argument of `api.load_pair`, for messages.

  Raises:
    PairError: the object lacks a method or an attribute, or no vocabulary of
      the models is known.
    FileNotFoundError: there is no vocabulary at the path.
  """
  if vocabulary is None:
    return _read_own_vocabulary(models)
  if isinstance(vocabulary, str | os.PathLike):
    from speccascade.text import vocabularies

    kind = Annotated[object, vocabulary_paths.check_vocabulary_path]
    fields.fit(name, vocabulary, kind)
    return vocabularies.load(os.fspath(vocabulary))
  needed = ("encode", "decode", "eos_id", "vocab_size")
  missing = [attr for attr in needed if not hasattr(vocabulary, attr)]
  if missing:
    raise PairError(
      f"{name} is of type {type(vocabulary).__name__}, which has no"
      f" {', '.join(missing)}; give the path of a SentencePiece model or of a"
      " Hugging Face directory"
    )
  return vocabulary


def _read_own_vocabulary(models: ModelPair):
  """Reads the vocabulary stored with a checkpoint, or that it records."""
  from speccascade.text import vocabularies

  # The verifier's vocabulary is searched first: its ids are the pair's.
  for model in reversed(models.models):
    recorded_path = (model.vocabulary or {}).get("path")
    path = vocabulary_paths.vocabulary_path_of(model.path) or recorded_path
    if path is None:
      continue
    try:
      return vocabularies.load(path)
    except FileNotFoundError as error:
      raise FileNotFoundError(
        f"{model.name} was trained with the vocabulary {path}, which is not"
        " there: give load_pair the path of it as vocabulary"
      ) from error
  names = " and ".join(model.name for model in models.models)
  raise PairError(
    f"{names} do not say their vocabulary: give load_pair the path of the"
    " SentencePiece model as vocabulary, or of a Hugging Face directory"
  )
