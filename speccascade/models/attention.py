"""Attention to keys and values, and its masks.

Axes: B rows, N queries, L keys, H heads, D head width.
"""

from collections.abc import Callable
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

# A branch that reads fewer slots of a cache than this is not worth its cost.
SMALLEST_REACH = 128
# Added to the score of a key that must not be seen.
MASKED = -1e10


def attend(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  bias: jax.Array,
  *,
  float32_scores: bool = False,
  cap: float | None = None,
  dropout: Callable[[jax.Array], jax.Array] | None = None,
  source: tuple[jax.Array, jax.Array, jax.Array] | None = None,
) -> jax.Array:
  """Returns softmax(query key + bias) value, the scores not scaled.

  Keys are [..., D, L] and values [..., L, D], so that no product has to turn
  them first.

  Args:
    query: [B, N, H, D].
    key: [B, H, D, L].
    value: [B, H, L, D].
    bias: broadcasts to [B, H, N, L]; position bias and mask.
    float32_scores: compute the scores and the softmax in float32.
    cap: of the scores, before the bias; see `soft_cap`.
    dropout: function applied to the weights, or None.
    source: (key, value, bias) of a source, whose keys share the softmax; None
      without one.

  Returns:
    [B, N, H, D] in the dtype of `value`.
  """
  if float32_scores:
    query = query.astype(jnp.float32)

  def scores_of(key, bias):
    # Scores of float32 queries and keys stay float32 through the softmax.
    key = key.astype(query.dtype) if float32_scores else key
    scores = soft_cap(jnp.einsum("bnhd,bhdl->bhnl", query, key), cap)
    return scores + bias.astype(scores.dtype)

  scores = scores_of(key, bias)
  if source is not None:
    # Scores are joined, not keys: a joined cache would be a copy of it.
    scores = jnp.concatenate([scores, scores_of(source[0], source[2])], -1)
  weights = jax.nn.softmax(scores).astype(value.dtype)
  if dropout is not None:
    weights = dropout(weights)
  # (Not an einsum: it would put the values first, and turn the result.)
  if source is None:
    return jnp.matmul(weights, value).swapaxes(1, 2)
  of_keys, of_source = jnp.split(weights, [key.shape[3]], -1)
  context = jnp.matmul(of_keys, value) + jnp.matmul(of_source, source[1])
  return context.swapaxes(1, 2)


def attend_within(
  reach: jax.Array | None,
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  bias: jax.Array,
  **options: Any,
) -> jax.Array:
  """Returns `attend` over the first max(reach) of L slots, or a few more.

  XLA needs a size when it compiles, so one of a few sizes is taken, at most
  twice the needed one. With L = 520 the sizes are 128, 256 and 520: a reach of
  130 looks at 256 slots. Skipping slots only saves time: the bias must mask all
  slots past the reach. Elsewhere than on a CPU a branch would wait for the
  host, so all slots are looked at.

  Args:
    reach: [B] int32, how many slots each row needs; None looks at all slots.
    query: see `attend`.
    key: see `attend`.
    value: see `attend`.
    bias: [B, H, N, L], position bias and mask.
    **options: see `attend`.

  Returns:
    [B, N, H, D] in the dtype of `value`.
  """
  if reach is None:
    return attend(query, key, value, bias, **options)
  num_slots = key.shape[3]
  sizes = [
    SMALLEST_REACH << i
    for i in range(num_slots.bit_length())
    if SMALLEST_REACH << i <= num_slots // 2
  ]

  def within(size):
    def call(query, key, value, bias):
      return attend(
        query, key[..., :size], value[:, :, :size], bias[..., :size], **options
      )

    return call

  if not sizes:
    return attend(query, key, value, bias, **options)
  branches = [within(size) for size in [*sizes, num_slots]]
  # The number of sizes that do not suffice is the place of the first that does.
  assert reach is not None  # it says which size suffices
  index = functools.reduce(
    operator.add,
    [(jnp.max(reach) > size).astype(jnp.int32) for size in sizes],
  )
  return jax.lax.platform_dependent(
    query,
    key,
    value,
    bias,
    cpu=functools.partial(jax.lax.switch, index, branches),
    default=branches[-1],
  )


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
  """Returns cap tanh(x / cap), which is x where it is small; x without a cap.

  Source: Gemma Team (Gemma 2, arXiv 2408.00118), section 2.
  """
  return x if cap is None else cap * jnp.tanh(x / cap)


def mask_bias(dtype: str, *masks: jax.Array) -> jax.Array:
  """Returns [B, 1, N, L]: 0 where all masks [B, N, L] hold, else -1e10."""
  seen = masks[0]
  for mask in masks[1:]:
    seen = seen & mask
  return jnp.where(seen, 0.0, MASKED).astype(dtype)[:, None]


def same(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns [B, N, L]: whether segment ids [B, N] and [B, L] are equal."""
  return queries[:, :, None] == keys[:, None, :]
