"""A language model with a count of what it was fed, and how it catches up."""

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


def catch_up(
  model: LanguageModel,
  state: Fed,
  tokens: Array,
  upto: Array,
  *,
  width: int,
  dtype=jnp.float32,
) -> tuple[Fed, Array, Array]:
  """Feeds every row up to `upto`, in blocks, as many passes as it takes.

  Args:
    model: the language model.
    state: what it holds; the model needs `width` slots behind `upto`.
    tokens: [B, L] int32, the prefix.
    upto: [B] int32; rows that hold as much already are left alone.
    width: static, tokens of one pass.
    dtype: of the model's logits.

  Returns:
    The state, the logits [B, V] behind token `upto - 1` (0 for rows left
    alone), and [B] int32 passes made for each row.
  """
  logits = jnp.zeros((tokens.shape[0], model.vocab_size), dtype)

  def lacks(carry):
    return jnp.any(carry[0].length < upto)

  def body(carry):
    state, logits, passes = carry
    behind = state.length < upto
    count = jnp.where(behind, jnp.minimum(upto - state.length, width), 0)
    state, new = feed_prefix(model, state, tokens, count, width=width)
    # A row that was up to date keeps the logits of its own last pass.
    logits = jnp.where(behind[:, None], new, logits)
    return state, logits, passes + behind

  return jax.lax.while_loop(lacks, body, (state, logits, jnp.zeros_like(upto)))
