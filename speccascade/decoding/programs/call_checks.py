"""The checks of a call: whether models, alpha and sampling fit a decoder.

`Decoder.check` makes these checks on the host, before anything is compiled.
Each error says what the call gave, what the method wants, and what to do.
"""

import jax

from speccascade.decoding.drafting import children, depth_laws
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.programs.methods import Method
from speccascade.decoding.records.decode_settings import FIXED, BlockShape
from speccascade.decoding.records.drafter import (
  block_depth,
  is_drafter,
  is_heads,
  is_lookahead,
)


def models_of(drafter) -> tuple:
  """Returns a model or several as a tuple, which is empty for None."""
  if drafter is None:
    return ()
  return drafter if isinstance(drafter, tuple) else (drafter,)


def check_call(
  method: Method,
  shape: BlockShape,
  drafter,
  verifier,
  alpha: float | FittedAlpha,
  sampling: Sampling,
):
  """Checks what a call of a `Decoder` gets.

  Args:
    method: the method of the decoder.
    shape: the decoder's settings of a block.
    drafter: as in a call of the decoder.
    verifier: as in a call of the decoder.
    alpha: as in a call of the decoder.
    sampling: a `Sampling`.

  Raises:
    ValueError: as a call of the decoder does.
  """
  _check_roles(method, drafter, verifier)
  _check_drafters(method, shape, drafter)
  vocab_size = _shared_vocab_size(models_of(drafter) + models_of(verifier))
  if not sampling.greedy and method.has_blocks:
    _check_children(shape, drafter, vocab_size)
  _check_kinds(drafter, verifier)
  method.check_alpha(alpha, vocab_size)
  _check_temperature(method, sampling)
  _check_confidence(method, drafter)


def _check_roles(method: Method, drafter, verifier):
  """Raises ValueError where a model that the method needs is None."""
  execution = method.execution
  for role, model, is_needed in (
    ("drafter", drafter, execution.needs_drafter),
    ("verifier", verifier, execution.needs_verifier),
  ):
    if is_needed and model is None:
      raise ValueError(f"{method.label} needs a {role}; none was given")


def _check_drafters(method: Method, shape: BlockShape, drafter):
  """Raises ValueError where the method takes other drafters."""
  num = len(models_of(drafter))
  if not method.execution.needs_drafter:
    return
  if is_drafter(drafter):
    _check_drafter(method, shape, drafter)
  elif is_heads(drafter) or is_lookahead(drafter):
    _check_heads(method, shape, drafter)
  elif method.compose is None and num != 1:
    raise ValueError(f"{method.label} takes one drafter; {num} were given")
  elif num < method.num_drafters:
    raise ValueError(
      f"{method.label} takes {method.num_drafters} drafters, largest first;"
      f" {num} was given"
    )


def _check_drafter(method: Method, shape: BlockShape, drafter):
  """Raises ValueError where a `Drafter` does not fit.

  The method may draft no blocks, or the `Drafter` would ignore a setting.
  """
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
  # A drafter may have no law of its own at some places.
  if check := getattr(drafter, "check_review", None):
    check(method.target, shape)
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


def _check_children(shape: BlockShape, drafter, vocab_size: int):
  """Raises ValueError where a node has more children than there are tokens."""
  tree, drawing = shape.draft_tree, str(shape.tree_drawing)
  if is_drafter(drafter):
    tree, drawing = drafter.tree, getattr(drafter, "drawing", "")
  if tree is not None:
    children.check_num_children(max(tree.num_children), drawing, vocab_size)


def _check_heads(method: Method, shape: BlockShape, heads):
  """Raises ValueError where draft heads, or embeddings, do not fit."""
  label, policy = method.label, shape.draft_length.policy
  kind = "look-ahead embeddings" if is_lookahead(heads) else "draft heads"
  # Without a target the loop drafts in a way of its own, as BiLD does.
  drafts_itself = method.compose is not None or method.target is None
  if not method.has_blocks or drafts_itself:
    raise ValueError(
      f"{kind} are given, and {label} wants a language model as its"
      " drafter: give one, or use another speculative method"
    )
  if policy != FIXED:
    raise ValueError(
      f"draft_length is {policy!r}, and {kind} draft whole blocks: leave it out"
    )
  if is_lookahead(heads):
    if shape.gamma > heads.num_heads + 1:
      raise ValueError(
        f"gamma is {shape.gamma}, and with K = {heads.num_heads} look-ahead"
        " embeddings a block has at most K + 1 drafts in a row: set gamma to"
        f" {heads.num_heads + 1} or less"
      )
  elif shape.gamma > heads.num_heads:
    raise ValueError(
      f"gamma is {shape.gamma}, and there are {heads.num_heads} draft heads,"
      f" one for each draft in a row: set gamma to {heads.num_heads} or less"
    )
  depth_laws.check_review(method.target, shape)


def _shared_vocab_size(models: tuple) -> int:
  """Returns the vocabulary size of all models.

  Raises:
    ValueError: the sizes differ.
  """
  sizes = [model.vocab_size for model in models]
  if len(set(sizes)) > 1:
    raise ValueError(
      f"drafter has {sizes[0]} vocabulary rows, verifier {sizes[-1]}; a pair"
      " must share one vocabulary"
    )
  return sizes[0]


def _check_kinds(drafter, verifier):
  """Raises ValueError where some models start from prompts, and some do not."""

  def starts_rows(part) -> bool:
    return hasattr(part, "prompted")

  # A drafter is a tree: language models in it say what they start from, and so
  # do the parts that copy from a prompt.
  parts = jax.tree.leaves((drafter, verifier), is_leaf=starts_rows)
  kinds = {
    part.prompted: type(part).__name__ for part in parts if starts_rows(part)
  }
  if len(kinds) > 1:
    raise ValueError(
      f"a {kinds[True]} goes on from prompts (decoder-only), a {kinds[False]}"
      " from a source; the models of a pair must be of one kind"
    )


def _check_temperature(method: Method, sampling: Sampling):
  """Raises ValueError where a method of temperature 0 is to sample."""
  if method.greedy_only and not sampling.greedy:
    raise ValueError(
      f"{method.label} is defined at temperature 0 only; temperature is"
      f" {float(sampling.temperature):g}"
    )


def _check_confidence(method: Method, drafter):
  """Raises ValueError where the rule reads a confidence that is missing."""
  target = method.target
  has_confidence = not is_drafter(drafter) or drafter.has_confidence
  if target is not None and target.needs_confidence and not has_confidence:
    raise ValueError(
      f"{method.label} reads the drafter's confidence, and a"
      f" {type(drafter).__name__} has none (its proposals are one-hot); use"
      " spec_decode, or a rule that looks at the verifier only, such as"
      " spec_cascade_token_v3"
    )
