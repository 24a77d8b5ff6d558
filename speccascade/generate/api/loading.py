"""Reads the models of a pair; see docs/api.md."""

from collections.abc import Mapping

from speccascade import built_in
from speccascade.checkpoints import hub
from speccascade.generate.api import model_sources
from speccascade.generate.api.argument_names import names_arguments
from speccascade.generate.api.model_sources import ModelSource
from speccascade.generate.api.pair import Pair
from speccascade.generate.pair import draft_vocabulary as draft_vocabularies
from speccascade.generate.pair import drafter_kernels
from speccascade.generate.pair.pair_checks import PairError
from speccascade.models.parameters import DRAFTER_KERNEL_DTYPES
from speccascade.models.sharding.meshes import Mesh
from speccascade.runtime import compiled_programs
from speccascade.settings.fields import one_of

DTYPES = ("float32", "bfloat16")


@names_arguments
def load_pair(
  *unnamed: ModelSource,
  drafter: ModelSource | list[ModelSource] | None = None,
  verifier: ModelSource | None = None,
  vocabulary=None,
  drafter_vocabulary=None,
  draft_vocabulary=None,
  dtype: str = "float32",
  kernel_dtype: str = "float32",
  drafter_kernel_dtype: str | None = None,
  mesh: Mapping[str, int] | Mesh | None = None,
) -> Pair:
  """Reads a drafter and a verifier that decode together.

  A checkpoint is in a local folder, on gs://, or on Hugging Face's hub, by its
  name "org/name" or "org/name@revision"; see docs/checkpoints.md.

  From here on JAX keeps compiled programs in the user's cache folder, unless a
  folder is set already; see `compiled_programs.keep`.

  Args:
    *unnamed: nothing. Models are passed by name, so that the two are not
      confused.
    drafter: the path of a checkpoint in any layout that `checkpoints.load`
      reads; (path, architecture); a model in memory; or a list of these,
      largest first, for methods that compose several; an `EarlyExit(k)`, which
      is the verifier's first k layers; a `PromptLookup`, which copies and has
      no model; or "self-int8", the verifier itself with kernels in int8. None
      leaves only the method `verifier`.
      T5X's checkpoints do not say their architecture, which is then inferred
      from the arrays, with the activations of T5 1.0 or 1.1.
    verifier: one model, written as the drafter is. None leaves only the method
      `drafter`.
    vocabulary: the path of a SentencePiece model or of a Hugging Face
      directory, or a name on the hub; "bytes", ByT5's vocabulary, which has no
      file; or an object with `encode(text) -> ids`, `decode(ids) -> text`,
      `eos_id` and `vocab_size`. None takes the vocabulary in the MODEL_DIR or
      Hugging Face directory of a checkpoint, or else at the path that the
      checkpoint was trained with.
    drafter_vocabulary: the vocabulary of a drafter that does not share the
      verifier's, written as `vocabulary` is; the drafter then drafts the tokens
      that both have, see docs/decoder_only.md.
    draft_vocabulary: the tokens that the drafter may draft: ids; the path of a
      file of ids; or a number N for the first N ids of the file
      draft_vocabulary.json in the drafter's folder, which python -m
      speccascade.draft_vocabulary counts. The drafter's head computes these
      tokens and those that end a text. None keeps all; see
      docs/decoder_only.md.
    dtype: the dtype of the activations, "float32" or "bfloat16". A model in
      memory keeps its own.
    kernel_dtype: the dtype of the kernels, "float32" or "bfloat16", which
      halves what a CPU reads, with float32 activations. "bfloat16_products"
      also rounds the activations where they are multiplied. A model in memory
      keeps its own.
    drafter_kernel_dtype: the dtype of the drafters' kernels; "int8" has eight
      bits for a weight and a scale for each output. None is `kernel_dtype`. See
      docs/accelerators.md.
    mesh: {"data": 2, "model": 4}, or a `Mesh`, which says more; see MESH in
      docs/meshes.md. A model in memory must be on the mesh already.

  Raises:
    PairError: a model or the vocabulary is missing, or they do not fit
      together.
    CheckpointError: a checkpoint cannot be read or is not of its architecture.
    FileNotFoundError: there is no vocabulary at the path.
    ValueError: there are fewer devices, or the mesh does not divide a model.
  """
  if unnamed:
    models = ", ".join(f"{source!r:.60}" for source in unnamed)
    raise PairError(
      f"load_pair({models}) does not say which model is which; want"
      " load_pair(drafter=SMALL, verifier=LARGE), of which each is a folder, a"
      " gs:// path, or ORG/NAME of a model on Hugging Face's hub"
    )
  one_of(DTYPES, error=PairError, dtype=dtype)
  try:
    drafter_kernels.check_kernel_dtype(kernel_dtype)
  except ValueError as error:
    raise PairError(f"kernel_dtype is {error}") from None
  if drafter_kernel_dtype is None:
    drafter_kernel_dtype = kernel_dtype
  dtypes = {"drafter_kernel_dtype": drafter_kernel_dtype}
  one_of(DRAFTER_KERNEL_DTYPES, error=PairError, **dtypes)
  dtypes |= {"dtype": dtype, "kernel_dtype": kernel_dtype}
  if drafter is None and verifier is None:
    raise PairError(
      "load_pair got no model; give drafter, verifier or both: paths of"
      " checkpoints, (path, architecture), or models in memory"
    )
  compiled_programs.keep()
  hub.forget()  # a notebook that reads a pair again wants the newest revision
  models = model_sources.read_models(drafter, verifier, mesh, **dtypes)
  vocabulary = model_sources.read_vocabulary(vocabulary, models)
  if drafter_vocabulary is not None and models.drafters:
    name = "drafter_vocabulary"
    drafter_vocabulary = model_sources.read_vocabulary(
      drafter_vocabulary, models, name
    )
  cut = draft_vocabularies.checked(draft_vocabulary)
  return Pair(models.over(vocabulary, drafter_vocabulary, cut), vocabulary)


@names_arguments
def built_in_pair(
  *,
  drafter: ModelSource | list[ModelSource] | None = None,
  draft_vocabulary=None,
  dtype: str = "float32",
  kernel_dtype: str = "float32",
  drafter_kernel_dtype: str | None = None,
) -> Pair:
  """Reads the small pair that comes with the package, to try things out.

  It translates the sentences of the built-in task from English to German, such
  as "A clever witch sells the new car.", and knows no other words.

  Args:
    drafter: what drafts for the large model in the small one's place, as in
      `load_pair`; None is the small one.
    draft_vocabulary: as in `load_pair`.
    dtype: as in `load_pair`.
    kernel_dtype: as in `load_pair`.
    drafter_kernel_dtype: as in `load_pair`.

  Raises:
    PairError: a dtype is unknown, or the draft vocabulary does not fit.
  """
  return load_pair(
    drafter=built_in.drafter() if drafter is None else drafter,
    verifier=built_in.verifier(),
    draft_vocabulary=draft_vocabulary,
    dtype=dtype,
    kernel_dtype=kernel_dtype,
    drafter_kernel_dtype=drafter_kernel_dtype,
  )
