"""Validates decoders and calls on the host, before anything is compiled.

`check_decoder` checks the settings of a decoder, and `check_call` whether
models, alpha and sampling fit it. What a kind of draft model needs is in
its row of `draft_models`. Each error says what was given, what the method
wants, and what to do.
"""

from typing import Any

import jax

from speccascade.decoding.drafting import children
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.programs import draft_models
from speccascade.decoding.programs.draft_models import DraftModels, models_of
from speccascade.decoding.programs.method import Method
from speccascade.decoding.records.automaton import Constraints, TokenAutomaton
from speccascade.decoding.records.decode_settings import (
  LOOKS_AHEAD,
  BlockShape,
)
from speccascade.decoding.records.drafter import is_drafter
from speccascade.decoding.records.language_model import (
  LanguageModel,
  is_exit,
)
from speccascade.decoding.records.phased_alpha import PhasedAlpha


def check_decoder(method: Method, shape: BlockShape) -> None:
  """Checks that a method uses the settings of a block.

  Raises:
    ValueError: the method would ignore a setting, or the output would have no
      stated distribution.
  """
  method.check_settings(
    draft_length=shape.draft_length.policy, verification=shape.verification
  )
  if shape.draft_tree is not None:
    method.check_takes_trees()
  if (
    shape.verification in LOOKS_AHEAD
    and shape.bonus == "verifier"
    and not method.is_lossless
  ):
    raise ValueError(
      f"{shape.verification} verification with bonus 'verifier' has no stated"
      " distribution unless the target is the verifier; use bonus 'target' or"
      " verification 'token'"
    )


def check_continues_alone(method: Method) -> None:
  """Raises ValueError where a method cannot pass a drafter's window."""
  if not method.continues_alone:
    raise ValueError(
      f"drafter_window is given, and {method.label} needs the drafter at every"
      " token: leave it out, and shorten the texts, or use spec_decode"
    )


def check_call(
  method: Method,
  shape: BlockShape,
  drafter: DraftModels | None,
  verifier: LanguageModel | None,
  alpha: float | FittedAlpha | PhasedAlpha,
  sampling: Sampling,
  constraints: Constraints,
) -> None:
  """Checks what a call of a `Decoder` gets.

  Args:
    method: the method of the decoder.
    shape: the decoder's settings of a block.
    drafter: as in a call of the decoder.
    verifier: as in a call of the decoder.
    alpha: as in a call of the decoder.
    sampling: a `Sampling`.
    constraints: what texts are held to.

  Raises:
    ValueError: as a call of the decoder does.
  """
  _check_roles(method, drafter, verifier)
  if method.execution.needs_drafter:
    draft_models.row_of(drafter).check(drafter, method, shape)
  vocab_size = _shared_vocab_size(models_of(drafter) + models_of(verifier))
  if not sampling.greedy and method.has_blocks:
    _check_children(shape, drafter, vocab_size)
  _check_kinds(drafter, verifier)
  _check_exits(drafter, verifier)
  method.check_alpha(alpha, vocab_size)
  _check_temperature(method, sampling)
  _check_confidence(method, drafter)
  _check_constraints(method, drafter, vocab_size, constraints)
  if isinstance(alpha, PhasedAlpha):
    _check_automaton("the marker", alpha.marker, vocab_size)


def _check_automaton(
  name: str, automaton: TokenAutomaton, vocab_size: int
) -> None:
  """Raises ValueError where an automaton is of another vocabulary."""
  if automaton.classes.shape != (vocab_size,):
    raise ValueError(
      f"the automaton of {name} has {automaton.classes.shape[0]} tokens, and"
      f" the models have {vocab_size}: compile it for their vocabulary"
    )


def _check_roles(
  method: Method, drafter: DraftModels | None, verifier: LanguageModel | None
) -> None:
  """Raises ValueError where a model that the method needs is None."""
  execution = method.execution
  for role, model, is_needed in (
    ("drafter", drafter, execution.needs_drafter),
    ("verifier", verifier, execution.needs_verifier),
  ):
    if is_needed and model is None:
      raise ValueError(f"{method.label} needs a {role}; none was given")


def _check_children(
  shape: BlockShape, drafter: DraftModels | None, vocab_size: int
) -> None:
  """Raises ValueError where a node has more children than there are tokens."""
  tree, drawing = shape.draft_tree, str(shape.tree_drawing)
  if is_drafter(drafter):
    tree, drawing = drafter.tree, getattr(drafter, "drawing", "")
  if tree is not None:
    children.check_num_children(max(tree.num_children), drawing, vocab_size)


def _shared_vocab_size(models: tuple[LanguageModel, ...]) -> int:
  """Returns the vocabulary size of all models; raises where sizes differ."""
  sizes = [model.vocab_size for model in models]
  if len(set(sizes)) > 1:
    raise ValueError(
      f"drafter has {sizes[0]} vocabulary rows, verifier {sizes[-1]}; a pair"
      " must share one vocabulary"
    )
  return sizes[0]


def _check_kinds(
  drafter: DraftModels | None, verifier: LanguageModel | None
) -> None:
  """Raises ValueError where some models start from prompts, and some do not."""

  def starts_rows(part: Any) -> bool:
    return hasattr(part, "prompted")

  # A drafter is a tree: language models in it say what they start from, and so
  # do the parts that copy from a prompt.
  parts = jax.tree.leaves((drafter, verifier), is_leaf=starts_rows)
  kinds = {
    part.prompted: type(part).__name__ for part in parts if starts_rows(part)
  }
  if len(kinds) > 1:
    raise ValueError(
      f"a {kinds[True]} continues prompts (decoder-only), a {kinds[False]}"
      " from a source; the models of a pair must be of one kind"
    )


def _check_exits(
  drafter: DraftModels | None, verifier: LanguageModel | None
) -> None:
  """Raises ValueError where an early exit is one of another verifier."""
  if verifier is None:
    return
  for part in jax.tree.leaves(drafter, is_leaf=is_exit):
    if is_exit(part) and not part.is_exit_of(verifier):
      raise ValueError(
        f"the drafter is an early exit after {part.num_shared} layers of"
        " another model than the verifier: make it of the verifier in use, by"
        " first_layers or as drafter=EarlyExit(k) of load_pair"
      )


def _check_temperature(method: Method, sampling: Sampling) -> None:
  """Raises ValueError where a method of temperature 0 is to sample."""
  if method.greedy_only and not sampling.greedy:
    raise ValueError(
      f"{method.label} is defined at temperature 0 only; temperature is"
      f" {float(sampling.temperature):g}"
    )


def _check_confidence(method: Method, drafter: DraftModels | None) -> None:
  """Raises ValueError where the rule reads a confidence that is missing."""
  target = method.target
  has_confidence = not is_drafter(drafter) or drafter.has_confidence
  if target is not None and target.needs_confidence and not has_confidence:
    raise ValueError(
      f"{method.label} reads the drafter's confidence, and a"
      f" {type(drafter).__name__} has none (its proposals are one-hot): no"
      " prompt lookup; use spec_decode, or a rule that looks at the verifier"
      " only, such as spec_cascade_token_v3"
    )


def _check_constraints(
  method: Method,
  drafter: DraftModels | None,
  vocab_size: int,
  constraints: Constraints,
) -> None:
  """Raises ValueError where texts cannot be held to an automaton."""
  for name in ("mask", "stops"):
    automaton = getattr(constraints, name)
    if automaton is not None:
      _check_automaton(name, automaton, vocab_size)
  target = method.target
  if constraints.mask is None or target is None or not target.uses_q:
    return
  # A drafter that is not masked may draft what is not allowed. Where the target
  # is the verifier, that is rejected; another target gives it mass.
  if not draft_models.row_of(drafter).is_maskable(drafter):
    raise ValueError(
      f"{method.label} mixes in the drafter's distribution, and a mask does not"
      f" reach that of a {type(drafter).__name__}: use a small model, or"
      " spec_decode, whose target is the verifier alone"
    )
