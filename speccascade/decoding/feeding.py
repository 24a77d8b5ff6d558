"""A language model with a count of what it was fed, and how it catches up."""

import functools

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.types import LanguageModel

Array = jax.Array


@struct.dataclass
class Fed:
  """Attributes:
  model: state of a language model.
  length: [B] int32, the tokens of the prefix that it holds.
  """

  model: object
  length: Array


def start(model: LanguageModel, inputs: Array, *, capacity: int) -> Fed:
  """Returns the state before any decoder token. See `LanguageModel`."""
  zero = jnp.zeros(inputs.shape[:1], jnp.int32)
  return Fed(model.prefill(inputs, capacity=capacity), zero)


def rewind(model: LanguageModel, state: Fed, length: Array) -> Fed:
  """Forgets what stands at or behind `length` [B]."""
  length = jnp.minimum(state.length, length)
  return Fed(model.rewind(state.model, length), length)


def feed(
  model: LanguageModel, state: Fed, token: Array, count: Array
) -> tuple[Fed, Array]:
  """Feeds one token to each row with count 1; returns logits [B, V]."""
  inner, out = model.extend(state.model, token[:, None], count)
  return Fed(inner, state.length + count), out.logits[:, 0]


def feed_prefix(
  model: LanguageModel, state: Fed, tokens: Array, count: Array, *, width: int
) -> tuple[Fed, Array]:
  """Feeds the next `count[b]` <= width tokens of the prefix in one pass.

  Returns:
    The state, and the logits [B, V] behind the last token fed (of a row with
    count 0 they mean nothing).
  """
  index = state.length[:, None] + jnp.arange(width)[None]
  index = jnp.minimum(index, tokens.shape[1] - 1)
  block = jnp.take_along_axis(tokens, index, axis=1)
  read = jnp.maximum(count - 1, 0)[:, None]
  inner, out = model.extend(state.model, block, count, read=read)
  return Fed(inner, state.length + count), out.logits[:, 0]


def feed_to(
  model: LanguageModel,
  state: Fed,
  tokens: Array,
  upto: Array,
  *,
  first: Array,
  read: int,
  narrow: int,
  wide: int,
) -> tuple[Fed, Array, Array]:
  """Feeds every row up to `upto`, in one pass if `wide` tokens are enough.

  What is missing of the prefix goes through the model together with the tokens
  that are to be read; where nothing is missing the pass is `narrow`.

  Args:
    model: the language model.
    state: what it holds; the model needs `wide` slots behind `upto`.
    tokens: [B, L] int32.
    upto: [B] int32; rows that hold as much already are left alone.
    first: [B] int32, the logits behind tokens `first`, `first + 1`, ... are
      returned; of rows that are fed `upto - narrow <= first < upto`, and token
      `first` is not held yet. Those behind `upto - 1` mean nothing.
    read: static, how many logits of each row.
    narrow: static, at least `read`.
    wide: static, at least `narrow`.

  Returns:
    The state, the logits [B, read, V] (0 for rows left alone), and [B] int32
    passes made for each row.
  """

  def lacks(carry):
    return jnp.any(carry[0].length < upto)

  def one_pass(width, state, count):
    index = state.length[:, None] + jnp.arange(width)[None]
    index = jnp.minimum(index, tokens.shape[1] - 1)
    block = jnp.take_along_axis(tokens, index, axis=1)
    wanted = (first - state.length)[:, None] + jnp.arange(read)[None]
    wanted = jnp.clip(wanted, 0, width - 1)
    inner, out = model.extend(state.model, block, count, read=wanted)
    return Fed(inner, state.length + count), out.logits

  def body(carry):
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
        lambda *given: one_pass(narrow, *given),
        lambda *given: one_pass(wide, *given),
        state,
        count,
      )
    fed = missing > 0
    logits = jnp.where(fed[:, None, None], new, logits)
    return state, logits, passes + fed.astype(jnp.int32)

  out = jax.eval_shape(functools.partial(one_pass, narrow), state, upto)[1]
  logits = jnp.zeros(out.shape, out.dtype)
  return jax.lax.while_loop(lacks, body, (state, logits, jnp.zeros_like(upto)))


def catch_up(
  model: LanguageModel, state: Fed, tokens: Array, upto: Array, *, width: int
) -> tuple[Fed, Array, Array]:
  """Feeds every row up to `upto`, in blocks, as many passes as it takes.

  Args:
    model: the language model.
    state: what it holds; the model needs `width` slots behind `upto`.
    tokens: [B, L] int32, the prefix.
    upto: [B] int32; rows that hold as much already are left alone.
    width: static, tokens of one pass.

  Returns:
    The state, the logits [B, V] behind token `upto - 1` (0 for rows left
    alone), and [B] int32 passes made for each row.
  """
  state, logits, passes = feed_to(
    model,
    state,
    tokens,
    upto,
    first=upto - 1,
    read=1,
    narrow=width,
    wide=width,
  )
  return state, logits[:, 0], passes
