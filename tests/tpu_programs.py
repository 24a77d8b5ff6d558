"""What a TPU's compiler makes of a program: python -m ... CASE ROWS...

libtpu compiles without a TPU. For each number of rows a line of JSON lists the
names of the loops of the compiled program.
"""

import functools
import json
import os
import re
import sys

import jax

from speccascade import native
from speccascade.decoding import Sampling, decoder, row_keys
from speccascade.models import T5LM, LlamaConfig, LlamaLM, T5Config
from speccascade.models.draft_heads import HeadsConfig, HeadsNetwork
from speccascade.models.heads_model import model_of
from speccascade.tools.planning import chips

ENVIRONMENT = {"JAX_PLATFORMS": "cpu", **chips.TPU_ENVIRONMENT}
TOPOLOGY = "v5e:2x2"
SIZES = {
  "vocab_size": 128,
  "emb_dim": 64,
  "num_heads": 2,
  "num_decoder_layers": 1,
  "head_dim": 32,
  "mlp_dim": 128,
  "dtype": "bfloat16",
}
# The method and the settings of each whole decode.
CASES = {
  "verifier": ("verifier", {"gamma": 1}),
  "chain": ("spec_decode", {"gamma": 2}),
  "tree": ("spec_decode", {"gamma": 2, "tree": (2, 1)}),
  "heads": ("spec_decode", {"gamma": 2}),
  "llama": ("spec_decode", {"gamma": 2}),
  "cascade": ("token_cascade_chow", {"gamma": 1}),
  "spec_cascade": ("spec_cascade_opt", {"gamma": 2}),
}


@functools.cache
def place():
  """Returns a sharding on one TPU, which only compiles."""
  return jax.sharding.SingleDeviceSharding(chips.devices(TOPOLOGY)[0])


def shapes(make, *args):
  """Returns what a function returns, as shapes on one TPU."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place()),
    jax.eval_shape(make, *args),
  )


def t5():
  config = T5Config(**SIZES, num_encoder_layers=1)
  return shapes(lambda: T5LM.init(config, jax.random.key(0)))


def llama():
  config = LlamaConfig(**SIZES, num_kv_heads=1)
  return shapes(lambda: LlamaLM.init(config, jax.random.key(0)))


def heads(verifier):
  config = HeadsConfig(kind="medusa", num_heads=2)
  config = config.shaped_like(verifier.module.config)
  network = HeadsNetwork(config)
  params = shapes(lambda: network.initial(jax.random.key(0)))
  return model_of(config)(params, network)


def blocks(rows: int) -> jax.stages.Lowered:
  """Returns a program of a chain, a tree, and a path of it that is kept."""

  def run(lm, state, chain, tree, depth, ancestors, path, count):
    state, _ = lm.extend(state, chain, count)
    start = state.length
    state, out = lm.extend(state, tree, count, depth=depth, ancestors=ancestors)
    return lm.keep(state, start, path, count), out

  def ints(*shape):
    return jax.numpy.zeros((rows, *shape), "int32")

  lm = t5()
  state = shapes(lambda lm, x: lm.prefill(x, capacity=20), lm, ints(8))
  rest = shapes(
    lambda: (ints(3), ints(4), ints(4), ints(4, 4) > 0, ints(2), ints())
  )
  with native.tracing_for(lm):
    return jax.jit(run).lower(lm, state, *rest)


def decode(case: str, rows: int) -> jax.stages.Lowered:
  """Returns a whole decode."""
  method, options = CASES[case]
  if case == "llama":
    drafter = verifier = llama()
  else:
    drafter = verifier = t5()
  if case == "heads":
    drafter = heads(verifier)
  inputs = shapes(lambda: jax.numpy.ones((rows, 8), "int32"))
  keys = shapes(lambda: row_keys(0, 0, jax.numpy.arange(rows)))
  run = decoder(method, max_decode_len=12, eos_id=1, **options)
  return run.lower(drafter, verifier, inputs, keys, 0.0, Sampling.create(1.0))


def loops(text: str) -> list[str]:
  """Returns the names of a compiled program's loops, as "jit(f)/while"."""
  lines = [line for line in text.splitlines() if " while(" in line]
  names = [re.search('op_name="([^"]*)"', line) for line in lines]
  return sorted(name[1] if name else "unnamed" for name in names)


def main():
  os.environ |= ENVIRONMENT
  case, *numbers = sys.argv[1:]
  for rows in map(int, numbers):
    lowered = blocks(rows) if case == "blocks" else decode(case, rows)
    print(json.dumps(loops(lowered.compile().as_text())), flush=True)


if __name__ == "__main__":
  main()
