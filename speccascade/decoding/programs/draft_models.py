"""The kinds of draft model: `DRAFT_MODELS`, one row for each.

A *draft model* is what a call of a `Decoder` gets in a drafter's place: a small
language model, draft heads, look-ahead embeddings, or a state reader. A
`Drafter` that a caller made is used as it is. A method makes the drafter of its
loop out of the draft model and of the verifier: `drafter_for`.

A new kind of draft model is a row of the table. What a ring outside of the core
asks of each kind is a `PerKind` of that ring, where the new kind registers what
it answers. `PER_KIND` has them all.
"""

from collections.abc import Callable
import dataclasses
from typing import Any, Generic, TypeVar

from speccascade.decoding.drafting import children, depth_laws
from speccascade.decoding.drafting.adaptive_reader import ChoosingReader
from speccascade.decoding.drafting.autoregressive import (
  AutoregressiveDrafter,
  StopPolicy,
)
from speccascade.decoding.drafting.fast_forward import FastForwardDrafter
from speccascade.decoding.drafting.heads_drafter import HeadsDrafter
from speccascade.decoding.drafting.lookahead_drafter import LookaheadDrafter
from speccascade.decoding.drafting.state_drafter import StateDrafter
from speccascade.decoding.drafting.tree_drafter import TreeDrafter
from speccascade.decoding.programs.method import Method
from speccascade.decoding.records.decode_settings import FIXED, BlockShape
from speccascade.decoding.records.drafter import (
  Drafter,
  Exit,
  Heads,
  Lookahead,
  block_depth,
  is_drafter,
  is_heads,
  is_lookahead,
  is_taught_exit,
)
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.records.readers import ReadsStates, reads_states

Row = TypeVar("Row")


# What a call of a `Decoder` gets in a drafter's place; several language models
# are for methods that compose several.
DraftModels = (
  LanguageModel
  | Heads
  | Lookahead
  | Exit
  | ReadsStates
  | Drafter
  | tuple[LanguageModel, ...]
)


@dataclasses.dataclass(frozen=True)
class DraftModel:
  """A row of the table: what is asked of a kind of draft model.

  Attributes:
    drafter: a function from `(model, verifier, shape, stop)` to the `Drafter`
      of a loop. `shape` is a `BlockShape`, and `stop` a `StopPolicy` or None.
    check: a function of `(model, method, shape)`, which raises ValueError where
      a `Method` with such blocks cannot draft with the model.
    takes: whether a model is of this kind. None for language models, which are
      what no other row takes.
    num_distributions: a function from a model to the number of distributions
      that it gives at once, one for each draft in a row; 0 where it gives one
      after another.
    drafts_alone: whether the model writes a text without a verifier.
    is_maskable: whether a mask of tokens reaches all distributions of the
      model, or of the drafter. Where it does not, some drafts may be tokens
      that the mask does not allow, which a masked verifier rejects.
    first_block_drafts: whether the first block of a text drafts. The hidden
      state that draft heads read is not there yet, while look-ahead embeddings
      state readers and language models need none but the text's own.
    words: what messages call such models.
    name: what rows and cards call one of them.
  """

  drafter: Callable[[Any, Any, BlockShape, StopPolicy | None], Drafter]
  check: Callable[[Any, Method, BlockShape], None]
  takes: Callable[[Any], bool] | None = None
  num_distributions: Callable[[Any], int] = lambda model: 0
  drafts_alone: bool = False
  is_maskable: Callable[[Any], bool] = lambda model: False
  first_block_drafts: bool = True
  words: str = "draft heads"
  name: str = "draft heads"


def models_of(drafter: Any) -> tuple[Any, ...]:
  """Returns a model or several as a tuple, which is empty for None."""
  if drafter is None:
    return ()
  return drafter if isinstance(drafter, tuple) else (drafter,)


def _drafter_of_model(
  model: LanguageModel,
  verifier: LanguageModel,
  shape: BlockShape,
  stop: StopPolicy | None,
) -> Drafter:
  if shape.draft_tree is not None:
    return TreeDrafter(model, shape.draft_tree, shape.tree_drawing)
  if stop is None and FastForwardDrafter.takes(model):
    return FastForwardDrafter(model, shape.gamma)
  return AutoregressiveDrafter(model, shape.gamma, stop, behind=0)


def _drafter_of_heads(
  heads: Heads,
  verifier: LanguageModel,
  shape: BlockShape,
  stop: StopPolicy | None,
) -> Drafter:
  return HeadsDrafter(
    heads, verifier, shape.gamma, shape.draft_tree, shape.tree_drawing
  )


def _drafter_of_embeddings(
  embeddings: Lookahead,
  verifier: LanguageModel,
  shape: BlockShape,
  stop: StopPolicy | None,
) -> Drafter:
  return LookaheadDrafter(
    embeddings.language_model(verifier),
    embeddings.num_heads,
    shape.gamma,
    shape.draft_tree,
    shape.tree_drawing,
  )


def _drafter_of_exit(
  taught: Exit,
  verifier: LanguageModel,
  shape: BlockShape,
  stop: StopPolicy | None,
) -> Drafter:
  model = taught.language_model(verifier)
  return _drafter_of_model(model, verifier, shape, stop)


def _drafter_of_reader(
  reader: ReadsStates,
  verifier: LanguageModel,
  shape: BlockShape,
  stop: StopPolicy | None,
) -> Drafter:
  if isinstance(reader, ChoosingReader):
    return reader.drafter(verifier)
  return StateDrafter.of(
    reader.reading_model(verifier),
    shape.gamma,
    stop,
    shape.draft_tree,
    shape.tree_drawing,
  )


def _check_models(
  models: LanguageModel | tuple[LanguageModel, ...],
  method: Method,
  shape: BlockShape,
) -> None:
  """Raises ValueError where the method takes more, or fewer, drafters."""
  num = len(models_of(models))
  if method.compose is None and num != 1:
    raise ValueError(f"{method.label} takes one drafter; {num} were given")
  most = method.most_drafters or num
  if not method.num_drafters <= num <= most:
    verb = "was" if num == 1 else "were"
    raise ValueError(
      f"{method.label} takes {method.num_drafters} drafters, largest first;"
      f" {num} {verb} given"
    )


def _check_heads(heads: Heads, method: Method, shape: BlockShape) -> None:
  """Raises ValueError where draft heads do not fit."""
  _check_depth_laws("draft heads", method, shape)
  if shape.gamma > heads.num_heads:
    raise ValueError(
      f"gamma is {shape.gamma}, and there are {heads.num_heads} draft heads,"
      f" one for each draft in a row: set gamma to {heads.num_heads} or less"
    )
  depth_laws.check_review(method.target, shape)


def _check_embeddings(
  embeddings: Lookahead, method: Method, shape: BlockShape
) -> None:
  """Raises ValueError where look-ahead embeddings do not fit."""
  _check_depth_laws("look-ahead embeddings", method, shape)
  if shape.gamma > embeddings.num_heads + 1:
    raise ValueError(
      f"gamma is {shape.gamma}, and with K = {embeddings.num_heads} look-ahead"
      " embeddings a block has at most K + 1 drafts in a row: set gamma to"
      f" {embeddings.num_heads + 1} or less"
    )
  depth_laws.check_review(method.target, shape)


def _check_exit(taught: Exit, method: Method, shape: BlockShape) -> None:
  """Raises ValueError where the exit has to be a language model already."""
  if not method.has_blocks or method.compose is not None:
    raise ValueError(
      f"an early exit that was taught is given, and {method.label} wants a"
      " language model as its drafter: give what language_model(verifier) of"
      " the exit returns"
    )


def _check_reader(
  reader: ReadsStates, method: Method, shape: BlockShape
) -> None:
  """Raises ValueError where a state reader does not fit."""
  _check_reviewed("a state reader is given", method)
  if isinstance(reader, ChoosingReader):
    reader.check_review(method.target, shape)
  else:
    depth_laws.check_review(method.target, shape)


def _check_depth_laws(words: str, method: Method, shape: BlockShape) -> None:
  """Raises ValueError where all distributions of a block at once do not fit."""
  _check_reviewed(f"{words} are given", method)
  policy = shape.draft_length.policy
  if policy != FIXED:
    raise ValueError(
      f"draft_length is {policy!r}, and {words} draft whole blocks: leave it"
      " out"
    )


def _check_reviewed(words: str, method: Method) -> None:
  """Raises ValueError where a method does not review blocks of one drafter."""
  # Without a target the loop drafts in a way of its own, as BiLD does.
  drafts_itself = method.compose is not None or method.target is None
  if not method.has_blocks or drafts_itself:
    raise ValueError(
      f"{words}, and {method.label} wants a language model as its drafter: give"
      " one, or use another speculative method"
    )


def _check_drafter(drafter: Drafter, method: Method, shape: BlockShape) -> None:
  """Raises ValueError where a `Drafter` would ignore a setting."""
  label, kind = method.label, type(drafter).__name__
  policy = shape.draft_length.policy
  if not method.has_blocks:
    raise ValueError(
      f"the drafter is a {kind}, which drafts blocks; {label} wants a"
      " language model: give one, or use a speculative method"
    )
  if policy != FIXED:
    raise ValueError(
      f"draft_length is {policy!r}; the drafter given, a {kind}, does not use"
      " it: leave it out, or give the drafter a stop of its own"
    )
  if shape.draft_tree is not None:
    raise ValueError(
      f"a tree is set, and the drafter given, a {kind}, has a shape of its"
      " own: leave the tree out, or give a language model"
    )
  depth = block_depth(drafter)
  if shape.gamma != depth:
    raise ValueError(
      f"gamma is {shape.gamma}; the drafter given, a {kind}, drafts blocks of"
      f" {depth}: set gamma to {depth}, or change the drafter"
    )
  # A drafter may have no distribution of its own at some places.
  drafter.check_review(method.target, shape)
  if drafter.tree is None:
    return
  if shape.verification == "block":
    raise ValueError(
      "verification is 'block', which weighs a chain; the drafter given"
      " drafts a tree: use 'traversal'"
    )
  if drawing := getattr(drafter, "drawing", None):
    children.check_verification(
      shape.verification, drawing, f"the drafter given, a {kind},"
    )


# A model is of the first kind that takes it.
DRAFT_MODELS: dict[type, DraftModel] = {
  Drafter: DraftModel(
    lambda drafter, verifier, shape, stop: drafter,
    _check_drafter,
    takes=is_drafter,
    is_maskable=lambda drafter: drafter.is_maskable,
  ),
  Heads: DraftModel(
    _drafter_of_heads,
    _check_heads,
    takes=is_heads,
    num_distributions=lambda heads: heads.num_heads,
    first_block_drafts=False,
  ),
  # The first draft is drawn from the verifier's own distribution, so that K
  # embeddings give K + 1 distributions.
  Lookahead: DraftModel(
    _drafter_of_embeddings,
    _check_embeddings,
    takes=is_lookahead,
    num_distributions=lambda embeddings: embeddings.num_heads + 1,
    name="look-ahead embeddings",
  ),
  # A pair makes the language model when it is loaded, so that all methods take
  # it; a caller of a decoder may leave that to the decoder.
  Exit: DraftModel(
    _drafter_of_exit,
    _check_exit,
    takes=is_taught_exit,
    words="early exits",
    name="early exit",
  ),
  ReadsStates: DraftModel(
    _drafter_of_reader,
    _check_reader,
    takes=reads_states,
    words="state readers",
    name="state reader",
  ),
  LanguageModel: DraftModel(
    _drafter_of_model,
    _check_models,
    drafts_alone=True,
    words="language models",
    name="language model",
    is_maskable=lambda models: True,
  ),
}


def kind_of(model: Any) -> type:
  """Returns the key of a draft model in `DRAFT_MODELS`.

  Args:
    model: a draft model; or several language models in a tuple, which are of
      the kind that each of them is.
  """
  for kind, row in DRAFT_MODELS.items():
    if row.takes is not None and row.takes(model):
      return kind
  return LanguageModel


def row_of(model: Any) -> DraftModel:
  """Returns the row of a draft model; see `kind_of`."""
  return DRAFT_MODELS[kind_of(model)]


def drafter_for(
  method: Method,
  models: Any,
  verifier: Any,
  shape: BlockShape,
  *,
  alpha: Any,
  stop: StopPolicy | None = None,
) -> Any:
  """Returns what a method's execution drafts with, while a program is traced.

  Args:
    method: the row of the method.
    models: the draft model, or several language models in a tuple.
    verifier: the verifier, which draft heads draft for.
    shape: the settings of a block.
    alpha: as in `CallArguments`.
    stop: when a chain ends before gamma drafts; None never ends it early.

  Returns:
    A `Drafter`; the model itself for a method without blocks.
  """
  if not method.has_blocks:
    return models
  if method.compose is None or is_drafter(models):
    return row_of(models).drafter(models, verifier, shape, stop)
  return method.compose(models_of(models), shape.gamma, alpha)


class PerKind(Generic[Row]):
  """What one module outside of the core asks of each kind of draft model.

  Attributes:
    place: the name of this object, as in "speccascade.training.kinds.KINDS".
    what: what it says of a kind, for errors.
    rows: what is registered, by the keys of `DRAFT_MODELS`.
  """

  def __init__(self, module: str, name: str, what: str):
    self.place, self.what = f"{module}.{name}", what
    self.rows: dict[type, Row] = {}
    PER_KIND.append(self)

  def register(self, kind: type, row: Row) -> None:
    """Adds what is said of a kind, a key of `DRAFT_MODELS`."""
    self.rows[kind] = row

  def __getitem__(self, kind: type) -> Row:
    """Returns what is registered for a kind.

    Raises:
      NotImplementedError: nothing is.
    """
    if kind not in self.rows:
      name = self.place.rpartition(".")[2]
      raise NotImplementedError(
        f"{self.place} does not say {self.what} for draft models of the kind"
        f" {kind.__name__}: call {name}.register({kind.__name__}, ...)"
      )
    return self.rows[kind]


# All of them, so that a test finds what a new kind lacks. A `Drafter` is made
# by a program, used as it is, and never stored or searched: it registers
# nothing.
PER_KIND: list[PerKind[Any]] = []
