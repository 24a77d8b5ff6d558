"""Prompts: what a decoder-only model goes on from.

An encoder-decoder reads a source and begins at a start token. A decoder-only
model (`prompted`) has no source: its inputs are prompts, of which `prefill`
reads all but the last token, and that one the first pass feeds. So in every
loop and token buffer index 0 is what the first pass feeds, whatever the model.

Prompts of a batch are ragged: `PAD` stands before or after them, never inside,
and is no token (0 may be one).
"""

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.types import LanguageModel

Array = jax.Array

PAD = -1
START_ID = 0  # of an encoder-decoder; as T5 has it, its padding


def lengths(inputs: Array) -> Array:
  """Returns [B] int32, the tokens of each prompt of [B, S]."""
  return jnp.sum(inputs != PAD, axis=1, dtype=jnp.int32)


def align(inputs: Array) -> Array:
  """Returns [B, S] int32, each prompt moved to the left end, `PAD` after it."""
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
  """Returns what a prefill reads: each prompt but its last token.

  Returns:
    ([B, S-1] int32 at the left end, [B] int32 how many tokens); what stands
    after them means nothing, and is an id.
  """
  return jnp.maximum(align(inputs)[:, :-1], 0), lengths(inputs) - 1


def start(model: LanguageModel, inputs: Array) -> Array:
  """Returns [B] int32, the token that the first pass of each row feeds."""
  if model.prompted:
    return last(inputs)
  return jnp.full(inputs.shape[:1], START_ID, jnp.int32)


def check(
  inputs: Array | np.ndarray, vocab_size: int, *, may_be_empty: bool = False
) -> None:
  """Checks prompts on the host.

  Raises:
    ValueError: not [B, S], an empty prompt (unless they may be), `PAD` inside
      one, or an id that the vocabulary has not.
  """
  if isinstance(inputs, jax.core.Tracer):
    return
  inputs = np.asarray(inputs)
  if inputs.ndim != 2:
    raise ValueError(
      f"prompts have shape {list(inputs.shape)}; wanted [rows, tokens]"
    )
  is_token = inputs != PAD
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
