"""The first layers of a network as a network: an early exit.

An early exit has the first k decoder layers of a verifier, the verifier's last
norm, its head, and its encoder where it has one. Its arrays are the verifier's
own arrays, so that it takes no memory but for its caches.

It keeps caches of its own. The verifier computes the first k layers again when
it verifies: passes over one token and over a block differ in their last bits,
and the states of the verifier's own passes are what makes its distributions
those of the verifier alone. What a prefill computes is the same for both, and
is computed once; see `shared_prompt`.

Source: Zhang et al., "Draft & Verify" (arXiv 2309.08168); Elhoushi et al.,
"LayerSkip" (arXiv 2404.16710); Schuster et al., "Confident Adaptive Language
Modeling" (arXiv 2207.07061).
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

# (keys [B, H, D, L], values [B, H, L, D]) of each layer.
Pairs = tuple[tuple[jax.Array, jax.Array], ...]


def shortened(config: Any, num: int) -> Any:
  """Returns the architecture of the first decoder layers.

  Args:
    config: the architecture of a T5, a T5Gemma or a Llama.
    num: k, how many layers are kept.

  Raises:
    ValueError: there are fewer layers, or k is not a whole number from 1.
  """
  most = config.num_decoder_layers
  if isinstance(num, bool) or not isinstance(num, int) or not 1 <= num <= most:
    raise ValueError(
      f"an early exit is asked for after {num!r} layers; wanted a whole number"
      f" from 1 to {most}, the decoder layers that there are"
    )
  return dataclasses.replace(config, num_decoder_layers=num)


def first_layers(params: Mapping[str, Any], num: int) -> dict[str, Any]:
  """Returns the parameters of the first decoder layers, the same arrays.

  Args:
    params: the parameters of a T5, a T5Gemma or a Llama, packed or not.
    num: k, how many layers are kept.
  """
  decoder = {
    name: part
    for name, part in params["decoder"].items()
    if not name.startswith("layers_") or int(name.split("_")[1]) < num
  }
  return {**params, "decoder": decoder}


def has_layers_of(exit_lm: Any, verifier: Any) -> bool:
  """Whether an early exit has the very arrays of a verifier's first layer.

  Shapes in the place of arrays, as of a program that is only traced, pass.
  """
  own, wanted = (
    jax.tree.leaves(
      getattr(lm, "params", {}).get("decoder", {}).get("layers_0")
    )
    for lm in (exit_lm, verifier)
  )
  return len(own) == len(wanted) and all(
    a is b or not isinstance(a, jax.Array) for a, b in zip(own, wanted)
  )


def shared_prompt(own: Pairs, of_verifier: Pairs, num: int) -> Pairs:
  """Returns caches with the verifier's slots in the first layers.

  Args:
    own: the exit's caches, of any number of slots L.
    of_verifier: the verifier's caches, of any number of slots.
    num: the number of layers that are the verifier's.
  """

  def adopt(cache: jax.Array, other: jax.Array, axis: int) -> jax.Array:
    if cache.shape == other.shape:
      return other
    size = min(cache.shape[axis], other.shape[axis])
    part = jax.lax.slice_in_dim(other, 0, size, axis=axis)
    # Slots past a row's length mean nothing.
    widths = [(0, 0)] * cache.ndim
    widths[axis] = (0, cache.shape[axis] - size)
    return jnp.pad(part, widths)

  shared = tuple(
    (adopt(keys, more[0], 3), adopt(values, more[1], 2))
    for (keys, values), more in zip(own[:num], of_verifier)
  )
  return (*shared, *own[num:])
