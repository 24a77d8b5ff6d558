"""What a TPU's compiler estimates of each way to write a block of tokens.

  python -m benchmarks.cache_writes --topology v5e:2x2 --slots 94 512 2048

One layer of attention is compiled: products of the activations, both writes to
the cache, attention, the product after it. A tree's layer also keeps a path of
as many tokens, by each way to read them. libtpu compiles on a CPU, which the
extra `tpu-compiler` brings; no TPU is needed, and nothing runs. Cycles are the
compiler's own estimates, of a loop's body once for each row; they leave out the
reading of weights.
"""

import functools

import jax
import jax.numpy as jnp

from speccascade import cli
from speccascade.models import attention, cache
from speccascade.tools.planning import chips, hlo

HEADS, HEAD_DIM = 32, 64


def flattened(slots, new, start, *, axis):
  """One update for each row in a loop, which gets each row as one axis."""
  flat = new.reshape(new.shape[0], -1)

  def write_row(b, slots):
    row = jax.lax.dynamic_slice_in_dim(flat, b, 1)
    at = [0] * slots.ndim
    at[0], at[axis] = b, start[b]
    return jax.lax.dynamic_update_slice(
      slots, row.reshape(1, *new.shape[1:]), at
    )

  return jax.lax.fori_loop(0, len(slots), write_row, slots)


WAYS = {
  "rows": cache.update_rows,
  "flattened": flattened,
  "mapped": cache.map_rows,
  "product": cache.add_products,
}
READS = {
  "gather": cache.gather_slots,
  "product": cache.read_products,
}
BIASES = {
  "rows": cache.bias_of_rows,
  "mapped": cache.map_bias,
  "looked up": cache.look_up_bias,
}


def layer(way, x, keys, values, kernels, start):
  """Returns one layer's output [B, N, E] and its cache."""
  num_rows, num_fed, _ = x.shape
  query, key, value = (
    jnp.dot(x, kernel).reshape(num_rows, num_fed, HEADS, HEAD_DIM)
    for kernel in kernels[:3]
  )
  key, value = jnp.moveaxis(key, 1, 3), value.swapaxes(1, 2)
  key, value = (jnp.where(jnp.isfinite(x), x, 0) for x in (key, value))
  keys, values = (
    way(keys, key, start, axis=3),
    way(values, value, start, axis=2),
  )
  slot = jnp.arange(keys.shape[3])
  is_seen = slot <= (start[:, None] + jnp.arange(num_fed))[..., None]
  bias = jnp.where(is_seen[:, None], 0, attention.MASKED).astype(x.dtype)
  mixed = attention.attend(query, keys, values, bias)
  return x + jnp.dot(mixed.reshape(x.shape), kernels[3]), keys, values


def tree_layer(read, x, keys, values, kernels, path, start):
  """Returns a layer's output, and its cache with a path of the block kept."""
  out, keys, values = layer(cache.write_slots, x, keys, values, kernels, start)
  kept = (read(keys, path, axis=3), read(values, path, axis=2))
  return out, *cache.write((keys, values), kept, start)


def cycles(program: hlo.Program, num_rows: int) -> int:
  """Returns the estimated cycles of a compiled program."""

  def cost(name):
    total = 0
    for each in program.computations[name].values():
      total += each.cycles
      if each.opcode == "while":
        total += num_rows * cost(each.called("body"))
    return total

  return cost(program.entry)


def compiled(place, function, *arguments, **options) -> str:
  """Returns the columns of a function's row: cycles, bytes, loops."""
  num_rows = arguments[-1].shape[0]
  arguments = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), arguments
  )
  try:
    program = jax.jit(function, **options).lower(*arguments).compile()
  except jax.errors.JaxRuntimeError:
    return "does not compile | |"
  text, cost = program.as_text(), program.cost_analysis()
  return (
    f"{cycles(hlo.Program(text), num_rows) / 1e6:.2f}"
    f" | {cost['bytes accessed'] / 1e6:.0f} | {text.count(' while(')}"
  )


def main():
  parser = cli.Parser("cache_writes", __doc__, "benchmarks")
  parser.add_argument("--topology", default="v5e:2x2")
  parser.add_argument("--slots", type=int, nargs="+", default=[94, 2048])
  parser.add_argument("--rows", type=int, default=32)
  parser.add_argument("--tokens", type=int, default=6)
  parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
  args = parser.parse_args()
  chips.prepare(args.topology)
  place = jax.sharding.SingleDeviceSharding(chips.devices(args.topology)[0])
  width = HEADS * HEAD_DIM
  start = jax.ShapeDtypeStruct((args.rows,), "int32")
  print("| dtype | slots | what | way | M cycles | MB | loops |")
  print("| --- | ---: | --- | --- | ---: | ---: | ---: |")
  for dtype in args.dtypes:

    def array(*shape, dtype=dtype):
      return jax.ShapeDtypeStruct(shape, dtype)

    for num_slots in args.slots:
      arrays = (
        array(args.rows, args.tokens, width),
        array(args.rows, HEADS, HEAD_DIM, num_slots),
        array(args.rows, HEADS, num_slots, HEAD_DIM),
        [array(width, width)] * 4,
        start,
      )
      for name, way in WAYS.items():
        run = functools.partial(layer, way)
        columns = compiled(place, run, *arrays, donate_argnums=(1, 2))
        print(
          f"| {dtype} | {num_slots} | layer | {name} | {columns} |", flush=True
        )
      path = array(args.rows, args.tokens, dtype="int32")
      for name, read in READS.items():
        run = functools.partial(tree_layer, read)
        columns = compiled(
          place, run, *arrays[:4], path, start, donate_argnums=(1, 2)
        )
        print(
          f"| {dtype} | {num_slots} | tree | {name} | {columns} |", flush=True
        )
      for name, way in BIASES.items():
        run = functools.partial(way, num_fed=args.tokens)
        columns = compiled(place, run, array(HEADS, 2 * num_slots - 1), start)
        print(
          f"| {dtype} | {num_slots} | bias | {name} | {columns} |", flush=True
        )


if __name__ == "__main__":
  main()
