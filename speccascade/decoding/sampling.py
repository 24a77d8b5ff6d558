"""From logits to the two laws of a model, and from a law to a token.

Order: temperature, then top-k, then top-p, each model filtering its own logits.
Nothing here sorts: a sort over a vocabulary in the loop costs more than the
model does.
"""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding import numerics

Array = jax.Array

GREEDY_BELOW = 1e-4  # temperatures up to this mean arg-max, as in T5X
_DRAW_BLOCK = 128


@struct.dataclass
class Sampling:
  """How logits become the law that is drawn from.

  Attributes:
    temperature: scalar, traced.
    top_p: scalar in (0, 1], traced; None keeps every token.
    top_k: static; None keeps every token.
    greedy: static; laws are one-hot at the arg-max, ties to the lowest id.
  """

  temperature: Array
  top_p: Array | None = None
  top_k: int | None = struct.field(pytree_node=False, default=None)
  greedy: bool = struct.field(pytree_node=False, default=False)

  @classmethod
  def create(
    cls,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
  ) -> "Sampling":
    """Returns the settings, checked on the host.

    Args:
      temperature: 0 or more; up to 1e-4 counts as 0 (greedy).
      top_k: keep exactly this many tokens; None or 0 keeps all.
      top_p: keep the smallest set that holds this much mass; None or 1.0 keeps
        all.

    Raises:
      ValueError: a setting is out of range.
    """
    if not 0 <= numerics.as_float32(temperature) < np.inf:
      raise ValueError(
        f"temperature is {temperature}; wanted a finite number, 0 (greedy) or"
        " more"
      )
    if top_k is not None and top_k < 0:
      raise ValueError(
        f"top_k is {top_k}; wanted 1 or more, or 0 for all tokens"
      )
    if top_p is not None and not 0 < numerics.as_float32(top_p) <= 1:
      used = ", 0 in float32" if 0 < top_p <= 1 else ""
      raise ValueError(f"top_p is {top_p}{used}; wanted a number in (0, 1]")
    return cls(
      temperature=jnp.asarray(temperature, jnp.float32),
      top_p=None if top_p in (None, 1.0) else jnp.asarray(top_p, jnp.float32),
      top_k=top_k or None,
      greedy=temperature <= GREEDY_BELOW,
    )

  def laws(self, logits: Array) -> tuple[Array, Array]:
    """Returns (law at temperature 1 and unfiltered, law that is drawn from).

    Args:
      logits: [..., V]; -inf means probability zero.

    Returns:
      Two [..., V] arrays in at least float32, each summing to 1.
    """
    logits = numerics.at_least_float32(logits)
    plain = jax.nn.softmax(logits, axis=-1)
    if self.greedy:
      token = numerics.first_argmax(logits)
      return plain, numerics.one_hot(token, logits.shape[-1], logits.dtype)
    scaled = logits / self.temperature.astype(logits.dtype)
    if self.top_k is not None and self.top_k < logits.shape[-1]:
      scaled = jnp.where(top_k_mask(scaled, self.top_k), scaled, -jnp.inf)
    sampled = jax.nn.softmax(scaled, axis=-1)
    if self.top_p is not None:
      kept = jnp.where(top_p_mask(sampled, self.top_p), sampled, 0)
      sampled = numerics.normalise(kept, sampled)
    return plain, sampled


def top_k_mask(logits: Array, k: int) -> Array:
  """Returns [..., V] bool: the k largest, ties to the lower id; exactly k."""
  flat = logits.reshape(-1, logits.shape[-1])
  flat = jnp.where(flat == 0, 0, flat)  # `top_k` sorts -0.0 below 0.0
  _, index = jax.lax.top_k(flat, k)
  row = jax.lax.broadcasted_iota(jnp.int32, index.shape, 0)
  mask = jnp.zeros(flat.shape, bool).at[row, index].set(True)
  return mask.reshape(logits.shape)


def top_p_mask(p: Array, top_p: Array) -> Array:
  """Returns [..., V] bool: the smallest set of likeliest tokens holding top_p.

  The token that crosses the line is kept; of equal probabilities the lower ids
  are taken first. The threshold is found by bisection on the bit patterns of
  the probabilities (which order as the numbers do), so that it is one of them.

  Args:
    p: [..., V] probabilities.
    top_p: scalar in (0, 1].
  """
  top_p = jnp.minimum(top_p.astype(p.dtype), jnp.sum(p, axis=-1, keepdims=True))
  int_type = jnp.int64 if p.dtype == jnp.float64 else jnp.int32
  bits = jax.lax.bitcast_convert_type(p, int_type)
  ids = jax.lax.broadcasted_iota(int_type, p.shape, p.ndim - 1)

  def mass(keep):
    return jnp.sum(jnp.where(keep, p, 0), axis=-1, keepdims=True)

  # Largest threshold whose tokens still hold top_p: mass(bits >= low) >= top_p.
  low = _bisect(
    lambda t: mass(bits >= t) >= top_p,
    jnp.zeros_like(top_p, int_type),
    jnp.max(bits, axis=-1, keepdims=True) + 1,
  )
  above = mass(bits > low)
  # Of the tokens at the threshold, the least number of lower ids that suffice:
  # the largest first id from which on nothing is needed, plus one.
  tied = bits == low
  last = _bisect(
    lambda i: above + mass(tied & (ids < i)) < top_p,
    jnp.zeros_like(low),
    jnp.full_like(low, p.shape[-1]),
  )
  return (bits > low) | (tied & (ids <= last))


def _bisect(holds, low: Array, high: Array) -> Array:
  """Returns the largest integer in [low, high) at which `holds`, a step down.

  `holds(low)` is taken to be true.
  """

  def narrow(bounds):
    low, high = bounds
    middle = low + (high - low) // 2
    yes = holds(middle)
    return jnp.where(yes, middle, low), jnp.where(yes, high, middle)

  def open_(bounds):
    low, high = bounds
    return jnp.any(high - low > 1)

  low, _ = jax.lax.while_loop(open_, narrow, (low, high))
  return low


def draw(weights: Array, u: Array) -> Array:
  """Returns a token by inverting the cumulative sum; [...] int32.

  The first index whose cumulative sum exceeds u * total, else the last index
  with mass: a token of weight zero is never returned, whatever the rounding.
  Two levels, sums of blocks and then one block, so that the cost is one pass.

  Args:
    weights: [..., V], none negative, some positive; need not sum to 1.
    u: [...] uniforms in [0, 1).
  """
  size = weights.shape[-1]
  lead = weights.shape[:-1]
  if size <= 2 * _DRAW_BLOCK:
    return _first_above(weights, u * jnp.sum(weights, axis=-1))
  blocks = -(-size // _DRAW_BLOCK)
  pad = blocks * _DRAW_BLOCK - size
  padded = jnp.pad(weights, [(0, 0)] * len(lead) + [(0, pad)])
  padded = padded.reshape(*lead, blocks, _DRAW_BLOCK)
  sums = jnp.sum(padded, axis=-1)
  goal = u * jnp.sum(sums, axis=-1)
  block = _first_above(sums, goal)
  before = jnp.sum(
    jnp.where(
      jax.lax.broadcasted_iota(jnp.int32, sums.shape, sums.ndim - 1)
      < block[..., None],
      sums,
      0,
    ),
    axis=-1,
  )
  inside = jnp.take_along_axis(padded, block[..., None, None], axis=-2)
  offset = _first_above(jnp.squeeze(inside, -2), goal - before)
  return block * _DRAW_BLOCK + offset


def _first_above(weights: Array, goal: Array) -> Array:
  """Returns the first index with mass whose cumulative sum exceeds `goal`."""
  size = weights.shape[-1]
  index = jax.lax.broadcasted_iota(jnp.int32, weights.shape, weights.ndim - 1)
  mass = weights > 0
  above = mass & (jnp.cumsum(weights, axis=-1) > goal[..., None])
  first = jnp.min(jnp.where(above, index, size), axis=-1)
  last = jnp.max(jnp.where(mass, index, 0), axis=-1)
  return jnp.where(first < size, first, last)


def uniforms(keys: Array, num: int) -> Array:
  """Returns [B, num] float32 uniforms in [0, 1), a row from each key [B].

  The same numbers as `jax.random.uniform(key, (num,))` of each key.
  """
  counter = jnp.arange(num, dtype=jnp.uint32)[None]
  first, second = _threefry(keys, jnp.zeros_like(counter), counter)
  # 23 bits behind the point of a number in [1, 2).
  mantissa = ((first ^ second) >> 9) | jnp.uint32(0x3F800000)
  return jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 1


def fold_in(keys: Array, data) -> Array:
  """Returns keys [B] with `data`, a number or [B] int32, folded into each.

  The same keys as `jax.random.fold_in`.
  """
  data = jnp.asarray(data, jnp.int32).astype(jnp.uint32)
  data = jnp.broadcast_to(data, keys.shape)[:, None]
  both = _threefry(keys, jnp.zeros_like(data), data)
  return jax.random.wrap_key_data(
    jnp.concatenate(both, axis=-1), impl="threefry2x32"
  )


def _threefry(keys: Array, first: Array, second: Array) -> tuple[Array, Array]:
  """Returns the Threefry-2x32 hash of two words under each key.

  On a CPU JAX compiles its own as a loop of many small operations, which costs
  more than a small drafter's step; written out it is one.

  Args:
    keys: [B] typed threefry keys.
    first: [1 or B, N] uint32.
    second: [1 or B, N] uint32.

  Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
  """
  data = jax.random.key_data(keys)
  k0, k1 = data[:, :1], data[:, 1:]
  schedule = (k0, k1, k0 ^ k1 ^ jnp.uint32(0x1BD11BDA))
  x, y = first + k0, second + k1
  for i in range(5):
    for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
      x = x + y
      y = x ^ ((y << turn) | (y >> (32 - turn)))
    x = x + schedule[(i + 1) % 3]
    y = y + schedule[(i + 2) % 3] + jnp.uint32(i + 1)
  return x, y


def row_keys(seed: int, trial: int, example_index: Array) -> Array:
  """Returns one typed threefry key for each row, [B].

  The index is the example's place in the data set, so that a row's output does
  not depend on its neighbours, the batch size or padding.
  """
  key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), trial)
  index = jnp.asarray(example_index, jnp.uint32)
  return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)


def step(
  sampling: Sampling, logits: Array, u: Array
) -> tuple[Array, Array, Array]:
  """Returns (law at temperature 1, sampled law, token drawn from it).

  Args:
    sampling: how logits become a law.
    logits: [B, V].
    u: [B] uniforms in [0, 1).
  """
  plain, law = sampling.laws(logits)
  if sampling.greedy:
    return plain, law, numerics.first_argmax(numerics.at_least_float32(logits))
  return plain, law, draw(law, u)


def is_law(logits: Array) -> Array:
  """Whether logits give a distribution: no NaN, no +inf, one finite; [...].

  NaN is made +inf first: a maximum that XLA fuses may drop it.
  """
  logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)
  return jnp.isfinite(jnp.max(logits, axis=-1))
