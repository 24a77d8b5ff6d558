"""Prompts: the texts that decoder-only models continue from.

An encoder-decoder reads a source and begins at a start token. A decoder-only
model (`prompted`) has no source: its inputs are prompts. `prefill` reads each
prompt without its last token, and the first pass of the loop feeds that last
token. So index 0 of every token buffer holds what the first pass feeds,
whatever the model.

The prompts of a batch have different lengths. `PAD` is before or after a
prompt, never inside it. `PAD` is -1, because 0 may be a token.
"""

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.records.language_model import LanguageModel

Array = jax.Array

PAD = -1
# The start token of an encoder-decoder that names none; T5 uses its padding id.
START_ID = 0


def lengths(inputs: Array) -> Array:
  """Returns [B] int32, the number of tokens of each prompt of [B, S]."""
  return jnp.sum(inputs != PAD, axis=1, dtype=jnp.int32)


def align(inputs: Array) -> Array:
  """Returns [B, S] int32, each prompt moved to the left end, `PAD` after it."""
  # The prompt -1 -1 5 6 -1 begins at 2: its row reads the indices 2 3 4 4 4,
  # which gives 5 6 -1 -1 -1.
  place = jnp.arange(inputs.shape[1], dtype=jnp.int32)[None]
  first = jnp.argmax(inputs != PAD, axis=1).astype(jnp.int32)
  index = jnp.minimum(first[:, None] + place, inputs.shape[1] - 1)
  moved = jnp.take_along_axis(inputs, index, axis=1)
  return jnp.where(place < lengths(inputs)[:, None], moved, PAD)


def last(inputs: Array) -> Array:
  """Returns [B] int32, the last token of each prompt."""
  end = lengths(inputs)[:, None] - 1
  return jnp.take_along_axis(align(inputs), end, axis=1)[:, 0]


def prefill_tokens(inputs: Array) -> tuple[Array, Array]:
  """Returns the tokens that a prefill reads: each prompt without its last.

  Returns:
    [B, S-1] int32 tokens at the left end, and [B] int32 how many of them count.
    The entries after them are undefined, but are valid ids.
  """
  return jnp.maximum(align(inputs)[:, :-1], 0), lengths(inputs) - 1


def start_id(model: LanguageModel) -> int:
  """Returns the start token of an encoder-decoder: its `start_id`, if any."""
  return getattr(model, "start_id", START_ID)


def start(model: LanguageModel, inputs: Array) -> Array:
  """Returns [B] int32, the token that the first pass of each row feeds."""
  if model.prompted:
    return last(inputs)
  return jnp.full(inputs.shape[:1], start_id(model), jnp.int32)


def check(
  inputs: Array | np.ndarray, vocab_size: int, *, may_be_empty: bool = False
) -> None:
  """Checks prompts on the host.

  Args:
    inputs: [B, S] prompts. Inputs that are being traced are not checked.
    vocab_size: V; ids are 0 to V - 1.
    may_be_empty: whether a prompt may have no token.

  Raises:
    ValueError: the prompts are not [B, S], a prompt is empty and may not be,
      `PAD` is inside a prompt, or an id is outside the vocabulary.
  """
  if isinstance(inputs, jax.core.Tracer):
    return
  inputs = np.asarray(inputs)
  if inputs.ndim != 2:
    raise ValueError(
      f"prompts have shape {list(inputs.shape)}; wanted [rows, tokens]"
    )
  is_token = inputs != PAD
  # A prompt in one piece has one edge at which tokens begin; -1 5 -1 6 has two.
  edges = np.diff(np.pad(is_token, ((0, 0), (1, 1))).astype(np.int8), axis=1)
  pieces = np.sum(edges > 0, axis=1)
  bad = is_token & ((inputs < 0) | (inputs >= vocab_size))
  is_empty = (pieces == 0) & (not may_be_empty)
  for row in np.flatnonzero(is_empty | (pieces > 1) | bad.any(axis=1))[:1]:
    wrong = "is empty" if pieces[row] == 0 else f"has {PAD} (padding) inside"
    if bad[row].any():
      wrong = f"has token {inputs[row][bad[row]][0]}"
    raise ValueError(
      f"prompt {row} {wrong}; wanted one token or more, ids from 0 to"
      f" {vocab_size - 1}, {PAD} before or after them only"
    )
