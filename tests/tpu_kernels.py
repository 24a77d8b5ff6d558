"""The largest blocks of the kernels for a TPU: python -m ... TARGET.

For each that compiles a line of JSON has its sizes.
"""

import functools
import json
import sys

import jax
import jax.numpy as jnp

from speccascade.models import tpu_passes
from speccascade.native import tpu_attention
from speccascade.tools.planning import chips

# Fed tokens, heads, width of a head, width of the model, slots: of T5-large and
# XL with all lines and slots, with one token, and of a small T5.
SIZES = [
  (16, 16, 64, 1024, 896),
  (8, 32, 64, 2048, 384),
  (2, 32, 64, 2048, 384),
  (2, 6, 64, 512, 94),
]


def shapes(sizes: tuple[int, ...]) -> list[jax.ShapeDtypeStruct]:
  """Returns what `run` takes."""
  num, heads, head_dim, width, slots = sizes
  lines, joined = num * tpu_attention.padded_heads(heads), heads * head_dim
  assert lines <= tpu_passes.MOST_LINES
  assert joined * (slots + 128) <= tpu_passes.MOST_NUMBERS
  [device] = chips.devices(sys.argv[1])[:1]
  place = jax.sharding.SingleDeviceSharding(device)
  return [
    jax.ShapeDtypeStruct(shape, dtype, sharding=place)
    for shape, dtype in (
      ((1,), jnp.int32),
      ((num, width), jnp.bfloat16),
      *[((num, joined), jnp.bfloat16)] * 2,
      ((lines, slots), jnp.float32),
      ((1, slots), jnp.float32),
      *[((joined, slots), jnp.bfloat16)] * 2,
    )
  ]


def run(start, x, query, new, bias, mask, keys, values, *, num_heads):
  """Returns the results of both kernels."""
  mixed, keys, values = tpu_attention.cached_attention(
    *(x, query, new, new, bias, keys, values, start),
    num_heads=num_heads,
    num_new=len(x),
  )
  mixed = tpu_attention.source_attention(
    *(x, mixed, mask, keys, values), num_heads=num_heads
  )
  return mixed, keys, values


def main():
  chips.prepare(sys.argv[1])
  for sizes in SIZES:
    program = functools.partial(run, num_heads=sizes[1])
    lowered = jax.jit(program, donate_argnums=(6, 7)).lower(*shapes(sizes))
    lowered.compile()
    print(json.dumps(sizes), flush=True)


if __name__ == "__main__":
  main()
