"""How a language model is fed what it lacks of a prefix: it catches up."""

import functools
from typing import cast

import jax
import jax.numpy as jnp

from speccascade.decoding.types import (
  LanguageModel,
  Part,
  State,
  is_drafter,
)

Array = jax.Array


def feed(
  model: LanguageModel, state: State, token: Array, count: Array
) -> tuple[State, Array]:
  """Feeds one token to each row with count 1; returns logits [B, V]."""
  state, out = model.extend(state, token[:, None], count)
  return state, out.logits[:, 0]


def feed_block(
  model: LanguageModel,
  state: State,
  tokens: Array,
  count: Array,
  first: Array,
  *,
  width: int,
  read: int = 1,
) -> tuple[State, Array]:
  """Feeds the next `count[b]` <= width tokens of the prefix in one pass.

  Returns:
    The state, and the logits [B, read, V] after tokens `first`, `first + 1`,
    ... of the prefix (of those not fed now they mean nothing).
  """
  index = state.length[:, None] + jnp.arange(width)[None]
  index = jnp.minimum(index, tokens.shape[1] - 1)
  block = jnp.take_along_axis(tokens, index, axis=1)
  wanted = (first - state.length)[:, None] + jnp.arange(read)[None]
  wanted = jnp.clip(wanted, 0, width - 1)
  state, out = model.extend(state, block, count, read=wanted)
  return state, out.logits


def feed_to(
  model: LanguageModel,
  state: State,
  tokens: Array,
  upto: Array,
  *,
  first: Array,
  read: int,
  narrow: int,
  wide: int,
) -> tuple[State, Array, Array]:
  """Feeds every row up to `upto`, in one pass if `wide` tokens are enough.

  What is missing of the prefix goes through the model together with the tokens
  that are to be read; where nothing is missing the pass is `narrow`.

  Args:
    model: the language model.
    state: its state; the model needs `wide` slots after `upto`.
    tokens: [B, L] int32.
    upto: [B] int32; rows that hold as much already are left alone.
    first: [B] int32, the logits after tokens `first`, `first + 1`, ... are
      returned; of rows that are fed `upto - narrow <= first < upto`, and token
      `first` is not held yet. Those after `upto - 1` mean nothing.
    read: static, how many logits of each row.
    narrow: static, at least `read`.
    wide: static, at least `narrow`.

  Returns:
    The state, the logits [B, read, V] (0 for rows left alone), and [B] int32
    passes made for each row.
  """

  def lacks(carry: tuple[State, Array, Array]) -> Array:
    return jnp.any(carry[0].length < upto)

  def one_pass(width: int, state: State, count: Array) -> tuple[State, Array]:
    return feed_block(
      model, state, tokens, count, first, width=width, read=read
    )

  def feed_some(
    carry: tuple[State, Array, Array],
  ) -> tuple[State, Array, Array]:
    state, logits, passes = carry
    missing = jnp.maximum(upto - state.length, 0)
    # A row that takes several passes keeps the tokens read for its last one.
    count = jnp.where(
      missing <= wide, missing, jnp.minimum(missing - narrow, wide)
    )
    if narrow == wide:
      state, new = one_pass(wide, state, count)
    else:
      state, new = jax.lax.cond(
        jnp.max(missing) <= narrow,
        functools.partial(one_pass, narrow),
        functools.partial(one_pass, wide),
        state,
        count,
      )
    fed = missing > 0
    logits = jnp.where(fed[:, None, None], new, logits)
    return state, logits, passes + fed.astype(jnp.int32)

  out = jax.eval_shape(functools.partial(one_pass, narrow), state, upto)[1]
  logits = jnp.zeros(out.shape, out.dtype)
  passes = jnp.zeros_like(upto)
  return jax.lax.while_loop(lacks, feed_some, (state, logits, passes))


def catch_up(
  part: Part,
  state: State,
  tokens: Array,
  upto: Array,
  *,
  wide: int,
) -> State:
  """Has a model, or a drafter's models, read what others wrote.

  Args:
    part: the model or drafter.
    state: its state; it needs `wide` slots after `upto`.
    tokens: [B, L] int32.
    upto: [B] int32; rows that hold as much already are left alone.
    wide: static, tokens of a pass.
  """
  if is_drafter(part):
    return part.catch_up(state, tokens, upto, wide=wide)
  state, _, _ = feed_to(
    cast(LanguageModel, part),
    state,
    tokens,
    upto,
    first=upto - 1,
    read=1,
    narrow=wide,
    wide=wide,
  )
  return state
