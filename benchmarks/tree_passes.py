"""Times a pass over a tree, over a chain and over one token.

  python -m benchmarks.tree_passes --nodes 16 --held 64

The models are a T5-small and a Llama as wide and as deep, with random weights.
A program feeds some passes one after the other, each after a rewind, as a
decoding loop does, and ends when its results are ready. The programs take
turns, so that a slow moment of the machine hits them all. "native" has the
float32 path of a CPU; "plain" is XLA's. Printed are medians of one pass.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import shapes
from speccascade import cli
from speccascade.models import T5LM, LlamaConfig, LlamaLM

PASSES = 8  # of a program


def models(path: str) -> dict:
  """Returns the models by name, packed for native passes or not."""
  shape = shapes.config("t5-small")
  llama = LlamaConfig(
    vocab_size=shape.vocab_size,
    emb_dim=shape.emb_dim,
    num_heads=8,
    num_kv_heads=4,
    num_decoder_layers=shape.num_decoder_layers,
    mlp_dim=shape.mlp_dim,
  )
  kernel_dtype = "float32" if path == "native" else None
  rng = jax.random.key(0)
  made = {}
  for name, kind, config in (("T5", T5LM, shape), ("Llama", LlamaLM, llama)):
    params = kind.init(config, rng).params
    made[name] = kind.create(config, params, kernel_dtype=kernel_dtype)
  return made


def tree(num_nodes: int) -> dict[str, jax.Array]:
  """Returns a binary tree, node 0 its root, as one row describes it."""
  depth = np.zeros((1, num_nodes), np.int32)
  ancestors = np.zeros((1, num_nodes, num_nodes), bool)
  for i in range(num_nodes):
    if i:
      parent = (i - 1) // 2
      depth[0, i] = depth[0, parent] + 1
      ancestors[0, i] = ancestors[0, parent]
    ancestors[0, i, i] = True
  return {"depth": jnp.asarray(depth), "ancestors": jnp.asarray(ancestors)}


@functools.partial(jax.jit, static_argnames="width")
def run(lm, state, tokens, described, width):
  """Returns the tokens that the last of PASSES passes finds likeliest."""
  count = jnp.full(tokens.shape[:1], width, jnp.int32)

  def feed(_, carry):
    before, tokens = carry
    state, out = lm.extend(before, tokens, count, **described)
    likeliest = out.logits.argmax(-1).astype(jnp.int32)
    return lm.rewind(state, before.length), likeliest

  return jax.lax.fori_loop(0, PASSES, feed, (state, tokens))[1]


def held(lm, num: int):
  """Returns a state of one row that holds so many tokens."""
  inputs = jnp.full((1, shapes.SOURCE_LEN), 5, jnp.int32)
  state = lm.prefill(inputs, capacity=256)
  tokens = jnp.full((1, num), 7, jnp.int32)
  return lm.extend(state, tokens, jnp.full((1,), num, jnp.int32))[0]


def main():
  parser = cli.Parser("tree_passes", __doc__, "benchmarks")
  parser.add_argument("--nodes", type=int, default=16)
  parser.add_argument("--held", type=int, default=64, help="tokens held before")
  parser.add_argument("--rounds", type=int, default=40)
  parser.add_argument("--path", choices=["native", "plain"], default="native")
  args = parser.parse_args()
  cases = {}
  for name, lm in models(args.path).items():
    state = held(lm, args.held)
    for case, width, described in (
      ("1 token", 1, {}),
      (f"chain of {args.nodes}", args.nodes, {}),
      (f"tree of {args.nodes}", args.nodes, tree(args.nodes)),
    ):
      tokens = jnp.full((1, width), 9, jnp.int32)
      cases[name, case] = functools.partial(
        run, lm, state, tokens, described, width
      )
  times: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
  for _ in range(args.rounds + 1):
    for case, call in cases.items():
      start = time.perf_counter()
      jax.block_until_ready(call())
      times[case].append(time.perf_counter() - start)
  device = jax.devices()[0]
  print(f"{device.device_kind}, {args.path}, {args.held} tokens held")
  print("| model | pass | ms | over 1 token |")
  print("| --- | --- | ---: | ---: |")
  for (name, case), seconds in times.items():
    # The first round compiles.
    one, each = (
      np.median(s[1:]) / PASSES * 1e3 for s in (times[name, "1 token"], seconds)
    )
    print(f"| {name} | {case} | {each:.2f} | {each / one:.2f} |")


if __name__ == "__main__":
  main()
