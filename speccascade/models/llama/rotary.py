"""Rotary positions: queries and keys turned by angles that grow with the slot.

The frequencies, and how they change for longer texts, are computed as in
transformers' `modeling_rope_utils`, in float32.

Axes: B rows, N tokens, H heads, D head width.

Source: Su et al. (RoFormer, arXiv 2104.09864), section 3.4.2; Peng et al.
(YaRN, arXiv 2309.00071).
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models import tree_windows
from speccascade.models.llama.config import LlamaConfig


def frequencies(config: LlamaConfig) -> tuple[np.ndarray, float]:
  """Returns the frequencies of a model, and its factor of sine and cosine.

  With "dynamic" scaling these are the frequencies of a text that is not longer
  than those trained on; see `angles`.

  Returns:
    ([D / 2] float32, radians per slot; a number).
  """
  half = np.arange(0, config.head_dim, 2, dtype=np.float32)
  half = half / np.float32(config.head_dim)
  plain = np.float32(1) / np.float32(config.rope_theta) ** half
  scaling = config.rope_scaling
  if scaling is None or scaling.kind == "dynamic":
    return plain, 1.0
  slow = plain / np.float32(scaling.factor)
  if scaling.kind == "linear":
    return slow, 1.0
  length = scaling.original_max_positions or config.max_positions
  if scaling.kind == "llama3":
    turns = np.float32(length) * plain / np.float32(2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    # 1 where a frequency stays, 0 where it is divided.
    share = np.clip((turns - low) / (high - low), 0, 1).astype(np.float32)
    return share * plain + (1 - share) * slow, 1.0
  low = _index_with_turns(config, scaling.beta_fast, length)
  high = _index_with_turns(config, scaling.beta_slow, length)
  if scaling.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, config.head_dim - 1)
  if low == high:
    high += 0.001  # a ramp without length has no slope
  index = np.arange(config.head_dim // 2, dtype=np.float32)
  # Indices count from the highest frequency on.
  share = 1 - np.clip((index - low) / (high - low), 0, 1).astype(np.float32)
  factor = scaling.attention_factor
  if factor is None:
    factor = yarn_factor(scaling.factor)
  return share * plain + (1 - share) * slow, factor


def yarn_factor(scale: float, of_log: float = 1.0) -> float:
  """Returns YaRN's factor of sine and cosine for texts `scale` times longer.

  Args:
    scale: how many times longer the texts are.
    of_log: factor of the logarithm of `scale`.
  """
  return 0.1 * of_log * math.log(scale) + 1.0 if scale > 1 else 1.0


def _index_with_turns(config: LlamaConfig, turns: float, length: int) -> float:
  """Returns the index of the frequency that turns so often in a length."""
  # The index is not whole. Frequency i is theta ** (-2 i / D) radians per slot.
  radians = math.log(length / (turns * 2 * math.pi))
  return config.head_dim * radians / (2 * math.log(config.rope_theta))


def positions(
  start: jax.Array, shape: tuple[int, ...], depth: jax.Array | None = None
) -> jax.Array:
  """Returns [B, N] int32, the position of each token of a block.

  Args:
    start: [B] int32, the slot of each row's first token of the block.
    shape: (B, N).
    depth: [B, W] int32, how far each token of a tree's window is past the
      window's first slot; see `tree_windows`. None for a chain, in which the
      position of a token is its slot.
  """
  if depth is not None:
    first = tree_windows.first_slot(start, shape[1], depth)
    return first[:, None] + tree_windows.depth_of_fed(depth, shape[1])
  steps = jnp.arange(shape[1], dtype=jnp.int32)
  return start[:, None] + jnp.broadcast_to(steps[None], shape)


def angles(
  config: LlamaConfig, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns (cosines, sines), [B, N, D / 2] float32, of positions [B, N] int32.

  With "dynamic" scaling a token's frequencies are the frequencies of a text
  that ends with the token, as where transformers feeds one token at a time.
  They depend on the token's position only, so that any way of feeding tokens
  gives the same keys.
  """
  plain, factor = frequencies(config)
  slots = positions.astype(jnp.float32)[..., None]
  scaling, frequency = config.rope_scaling, jnp.asarray(plain)[None, None]
  if scaling is not None and scaling.kind == "dynamic":
    length = scaling.original_max_positions or config.max_positions
    longer = jnp.maximum((slots + 1) / length, 1)
    growth = scaling.factor * longer - (scaling.factor - 1)
    dim = config.head_dim
    powers = np.arange(0, dim, 2, dtype=np.float32) / (dim - 2)
    frequency = frequency * growth ** -jnp.asarray(powers)[None, None]
  radians = slots * frequency
  return jnp.cos(radians) * factor, jnp.sin(radians) * factor


def angles_by_window(
  config: LlamaConfig, positions: jax.Array
) -> dict[int | None, tuple[jax.Array, jax.Array]]:
  """Returns the `angles` of the layers, by the window of a layer.

  Layers with the window may have a base of their own, `local_rope_theta`, and
  no scaling.
  """
  by_window = dict.fromkeys(config.windows, angles(config, positions))
  if config.local_rope_theta is not None:
    local = dataclasses.replace(
      config, rope_theta=config.local_rope_theta, rope_scaling=None
    )
    for window in by_window.keys() - {None}:
      by_window[window] = angles(local, positions)
  return by_window


def turn(x: jax.Array, cosines: jax.Array, sines: jax.Array) -> jax.Array:
  """Returns x [B, N, H, D] turned, in its dtype.

  Coordinate i is turned with coordinate i + D / 2: with D = 4 the pairs are (0,
  2) and (1, 3).

  Args:
    x: queries or keys.
    cosines: [B, N, D / 2] float32, see `angles`.
    sines: [B, N, D / 2] float32, see `angles`.
  """
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  cosines, sines = cosines[:, :, None], sines[:, :, None]
  turned = (first * cosines - second * sines, second * cosines + first * sines)
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)
