"""What `api.load_pair` takes for models and a vocabulary."""

import functools
import os
from typing import Annotated

from speccascade.inference.batches import inputs
from speccascade.inference.pair import pair_checks, pairs
from speccascade.inference.pair.model_loading import Model, load_model
from speccascade.inference.pair.pairs import ModelPair, PairError
from speccascade.models import T5LM, LlamaConfig, LlamaLM, T5Config
from speccascade.models.sharding.meshes import Mesh
from speccascade.models.sharding.partitioning import Layout
from speccascade.settings import fields

# A model: a checkpoint, a checkpoint with its architecture, or in memory.
Path = str | os.PathLike
ModelSource = Path | tuple[Path, T5Config | LlamaConfig] | T5LM | LlamaLM


def path_of(source: ModelSource) -> Path | None:
  """Returns the path of what is to be read, None of a model in memory."""
  path = source[0] if isinstance(source, tuple) and source else source
  return path if isinstance(path, str | os.PathLike) else None


def read_model(
  role: str, source: ModelSource, *, layout: Layout | None, **options
) -> Model:
  """Returns one model, read; see `api.load_pair` and `load_model`."""
  if hasattr(source, "prefill") and hasattr(source, "extend"):
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
      " T5Config or LlamaConfig), or a T5LM or LlamaLM"
    )
  return load_model(role, path, config, layout=layout, **options)


def read_models(drafter, verifier, mesh, **dtypes: str) -> ModelPair:
  """Returns the models of `api.load_pair`, read."""
  sources = drafter if isinstance(drafter, list) else [drafter]
  asked = [x for x in (*sources, verifier) if x is not None]
  rows = pair_checks.shared_rows(map(path_of, asked))
  mesh = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
  layout, small, large = mesh.layout(), (), None
  read = functools.partial(read_model, rows=rows, **dtypes)
  if drafter is not None:
    where = mesh.drafter_layout()
    small = tuple(read("drafter", x, layout=where) for x in sources)
  if verifier is not None:
    large = read("verifier", verifier, layout=layout)
  numbers = pairs.describe_dtypes(**dtypes, layout=layout)
  return ModelPair(small, large, numbers, layout=layout)


def read_vocabulary(asked, models: ModelPair, name: str = "vocabulary"):
  """Returns the vocabulary that is asked for, or the models' own.

  Args:
    asked: see `api.load_pair`.
    models: that have it.
    name: of the argument.
  """
  if asked is not None and not isinstance(asked, str | os.PathLike):
    wanted = ("encode", "decode", "eos_id", "vocab_size")
    if lacks := [x for x in wanted if not hasattr(asked, x)]:
      raise PairError(
        f"{name} is of type {type(asked).__name__}, which has no"
        f" {', '.join(lacks)}; give the path of a SentencePiece model or of a"
        " Hugging Face directory"
      )
    return asked
  from speccascade.data import vocabularies

  if asked is not None:
    fields.fit(name, asked, Annotated[object, inputs.check_vocabulary_path])
    return vocabularies.load(os.fspath(asked))
  for model in reversed(models.models):  # the verifier's first
    recorded = (model.vocabulary or {}).get("path")
    path = inputs.vocabulary_path_of(model.path) or recorded
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
